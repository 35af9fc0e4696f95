"""Every command of the README and every Python block of the documents is executed."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [line.split("#")[0].split() for line in blocks(README, "sh")[0].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    assert all(f"\n{target}: $(READY)" in makefile for _, target in commands)


def test_every_isthmus_command_of_the_readme_works_in_order(tmp_path: Path) -> None:
    (tmp_path / "papers").symlink_to(ROOT / "papers")
    lines = [line.split("  #")[0].strip() for line in blocks(README, "sh")[1].splitlines() if line.strip()]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "isthmus"
        done = subprocess.run(
            [sys.executable, "-m", "isthmus", *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 2709


@pytest.mark.sites
def test_the_rehearsal_of_the_readme_works(tmp_path: Path) -> None:
    (line,) = blocks(README, "sh")[2].strip().splitlines()
    words = shlex.split(line)
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "all clients, own graphs" in done.stdout, done.stderr


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_the_python_of_the_readme_runs(number: int) -> None:
    space: dict[str, object] = {"__name__": "readme"}
    exec(compile(blocks(README, "python")[number], "README.md", "exec"), space)
    assert space["model"] is not None


EXTENDING = [block for block in blocks((ROOT / "docs" / "extending.md").read_text(), "python") if "ist.run(" in block]


@pytest.mark.parametrize("block", EXTENDING, ids=["cohort", "splitter", "dataset", "model"])
def test_the_python_of_docs_extending_runs(block: str) -> None:
    space: dict[str, object] = {"__name__": "extending"}
    exec(compile(block, "docs/extending.md", "exec"), space)
    assert 0.0 < space["result"].score() <= 1.0  # type: ignore[attr-defined]


def test_a_model_of_one_s_own_is_found_by_its_name_as_docs_extending_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    (source,) = [block for block in blocks(text, "python") if block.startswith("# my_models.py")]
    (tmp_path / "my_models.py").write_text(source)
    (line,) = [line for block in blocks(text, "sh") for line in block.splitlines() if "my_models" in line]
    setting, *words = shlex.split(line)
    assert (setting, words[0]) == ("PYTHONPATH=.", "isthmus")
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", *words[1:], "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f".{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["global_model/global_graph"]["accuracy"] > 0.2


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
