"""The tutorial's commands, one after the other."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from isthmus.sites.up import free_port
from tests.cli.command import call
from tests.processes import Process

ROOT = Path(__file__).parent.parent.parent


TEXT = (ROOT / "docs" / "tutorial-three-silos.md").read_text()
COMMANDS = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL))


def each_command(script: str) -> Iterator[str]:
    """Yield the commands of a script: its lines, with what is written between a mark and its return."""
    lines = iter(script.splitlines())
    for line in lines:
        mark = re.search(r"<<'(\w+)'", line)
        written = list(iter(partial(next, lines), mark[1])) if mark else []
        yield "\n".join([line, *written, mark[1]]) if mark else line


@pytest.mark.sites
def test_the_three_silos_of_the_tutorial_get_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays in the background is a copy of a process; all else is done in this one: torch is imported already."""
    monkeypatch.chdir(tmp_path)
    commands = list(each_command(COMMANDS.replace("8443", str(free_port()))))
    assert commands[-2:] == ["kill $(jobs -p)", "wait"]
    said, background = "", []
    with open("background.log", "w") as log, contextlib.ExitStack() as ending:
        for command in commands[:-2]:
            if command.endswith("&"):
                words = [sys.executable, "-m", *shlex.split(command[:-1])]
                process = ending.enter_context(Process(words, stdout=log, stderr=log))
                ending.callback(process.terminate)
                background.append(process)
            elif command.startswith("isthmus "):
                code, output = call(*shlex.split(command)[1:])
                assert code == 0, output + Path("background.log").read_text()
                said += output
            else:
                subprocess.run(["bash", "-ec", command], check=True, env=with_python_on_the_path(tmp_path))
    assert len(background) == 4 and all(process.returncode in (0, 130, 143, -15) for process in background)
    require_model(tmp_path, said, Path("background.log").read_text())


def with_python_on_the_path(folder: Path) -> dict[str, str]:
    command = folder / "bin" / "python"
    command.parent.mkdir(exist_ok=True)
    if not command.exists():
        command.symlink_to(sys.executable)
    return {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}


def require_model(folder: Path, stdout: str, stderr: str) -> None:
    """See that the operator and the silos have what the tutorial says, after its commands."""
    assert "all clients, own graphs" in stdout, stderr
    assert len((folder / "labels.csv").read_text().splitlines()) > 800
    # The course names the schema that all three follow, and the operator's folder says what the model's columns are.
    assert "schema_digest: s" in (folder / "result" / "course.yaml").read_text()
    assert (folder / "result" / "schema.yaml").is_file() and "could not be compared" not in stdout + stderr
    assert list((folder / "federation" / "bank-c" / "state" / "models").glob("*.safetensors"))
    assert len(re.findall("fingerprint ([0-9a-f]{8})", stderr)) == 3
    assert len(set(re.findall("fingerprint ([0-9a-f]{8})", stderr))) == 1
    assert "Traceback" not in stderr


@pytest.mark.sites
@pytest.mark.slow
def test_the_commands_of_the_tutorial_work_in_one_shell(tmp_path: Path) -> None:
    commands = COMMANDS.replace("8443", str(free_port()))
    # A command of its own on the path, as it is installed, so that a background job is the process itself.
    command = tmp_path / "bin" / "isthmus"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m isthmus "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f"set -e\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{commands}"],
        cwd=tmp_path,
        env=with_python_on_the_path(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,  # nine starts of Python and torch took 120 s on two processors shared with others
    )
    # The last command is `wait`, whose code is that of the last silo, which was told to stop.
    assert done.returncode in (0, 130, 143), done.stderr
    require_model(tmp_path, done.stdout, done.stderr)
