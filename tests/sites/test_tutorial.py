"""The tutorial's commands, as they stand, in one shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.sites.up import free_port

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.sites
def test_the_three_silos_of_the_tutorial_get_their_model(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tutorial-three-silos.md").read_text()
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("8443", str(free_port()))
    # A command of its own on the path, as it is installed, so that a background job is the process itself.
    command = tmp_path / "bin" / "isthmus"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m isthmus "$@"\n')
    command.chmod(0o755)
    command.with_name("python").symlink_to(sys.executable)
    done = subprocess.run(
        ["bash", "-c", f"set -e\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{commands}"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,  # nine starts of Python and torch took 120 s on two processors shared with others
    )
    # The last command is `wait`, whose code is that of the last silo, which was told to stop.
    assert done.returncode in (0, 130, 143), done.stderr
    assert "all clients, own graphs" in done.stdout, done.stderr
    assert len((tmp_path / "labels.csv").read_text().splitlines()) > 800
    # The course names the schema that all three follow, and the operator's folder says what the model's columns are.
    assert "schema_digest: s" in (tmp_path / "result" / "course.yaml").read_text()
    assert (tmp_path / "result" / "schema.yaml").is_file() and "could not be compared" not in done.stdout
    assert list((tmp_path / "federation" / "bank-c" / "state" / "models").glob("*.safetensors"))
    assert len(re.findall("fingerprint ([0-9a-f]{8})", done.stderr)) == 3
    assert len(set(re.findall("fingerprint ([0-9a-f]{8})", done.stderr))) == 1
    assert "Traceback" not in done.stderr
