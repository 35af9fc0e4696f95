"""Every command of the README and every Python block of the documents is executed."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import isthmus as ist
from isthmus import run
from tests.cli.command import call
from tests.processes import copy_silos, isthmus

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_every_block_of_the_readme_is_one_of_those_that_tests_execute() -> None:
    fences = re.findall(r"^```(\w*)$", README, re.MULTILINE)
    assert fences[::2] == ["sh", "sh", "sh", "python"] and not any(fences[1::2])
    indented = re.findall(r"^(?: {4}|\t)\S.*$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE)
    assert not indented


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [line.split("#")[0].split() for line in blocks(README, "sh")[0].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    assert all(f"\n{target}: $(READY)" in makefile for _, target in commands)


LINES = [line.split("  #")[0].strip() for line in blocks(README, "sh")[1].splitlines() if line.strip()]


@pytest.mark.slow
def test_every_isthmus_command_of_the_readme_works_in_order(tmp_path: Path) -> None:
    (tmp_path / "papers").symlink_to(ROOT / "papers")
    for line in LINES:
        words = shlex.split(line)
        assert words[0] == "isthmus"
        done = subprocess.run(
            [sys.executable, "-m", "isthmus", *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 2709


def fewer_rounds(words: list[str], rounds: int) -> list[str]:
    """Return the words of a command that ends soon, all else as it was."""
    if words[0] == "compare":
        return [*words, "--set", f"rounds={rounds}", "--seeds", "1", "--workers", "1"]
    return [*words, f"rounds={rounds}"] if words[0] in ("run", "audit") else words


def test_every_isthmus_command_of_the_readme_works_in_order_with_few_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "papers").symlink_to(ROOT / "papers")
    monkeypatch.chdir(tmp_path)
    assert len(LINES) >= 8
    for rounds, line in enumerate(LINES, start=2):  # what goes on with a run asks for more rounds than it had
        command, *words = shlex.split(line)
        assert command == "isthmus"
        code, output = call(*fewer_rounds(words, rounds))
        assert code == 0, f"{line}\n{output}"
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 2709


REHEARSAL = shlex.split(blocks(README, "sh")[2])


@pytest.mark.sites
def test_the_rehearsal_of_the_readme_works_with_one_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_silos(monkeypatch)
    assert REHEARSAL[:3] == ["isthmus", "up", "--sites"] and blocks(README, "sh")[2].count("\n") == 1
    code, output = call("up", "--sites", "1", *REHEARSAL[4:])
    assert code == 0 and "all clients, own graphs" in output, output


@pytest.mark.sites
@pytest.mark.slow
def test_the_rehearsal_of_the_readme_works(tmp_path: Path) -> None:
    words = REHEARSAL
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "all clients, own graphs" in done.stdout, done.stderr


@pytest.fixture
def two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let courses end soon, all else as it was."""
    monkeypatch.setattr(ist, "run", lambda course: run(replace(course, rounds=2)))


@pytest.mark.usefixtures("two_rounds")
@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_the_python_of_the_readme_runs(number: int) -> None:
    space: dict[str, object] = {"__name__": "readme"}
    exec(compile(blocks(README, "python")[number], "README.md", "exec"), space)
    assert space["model"] is not None


EXTENDING = [block for block in blocks((ROOT / "docs" / "extending.md").read_text(), "python") if "ist.run(" in block]


@pytest.mark.usefixtures("two_rounds")
@pytest.mark.parametrize("block", EXTENDING, ids=["cohort", "guard", "splitter", "dataset", "model"])
def test_the_python_of_docs_extending_runs(block: str) -> None:
    space: dict[str, object] = {"__name__": "extending"}
    exec(compile(block, "docs/extending.md", "exec"), space)
    assert 0.0 < space["result"].score() <= 1.0  # type: ignore[attr-defined]


ATTACKS = (ROOT / "docs" / "attacks.md").read_text()


def test_the_attack_of_docs_attacks_passes_its_checks() -> None:
    (block,) = blocks(ATTACKS, "python")
    exec(compile(block, "docs/attacks.md", "exec"), {"__name__": "attacks"})


def test_the_commands_of_docs_attacks_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    course = {"rounds": 1, "num_clients": 3, "model": {"gnn": {"name": "gcn", "hidden": 4}}}
    (tmp_path / "course.yaml").write_text(json.dumps(course))
    (block,) = blocks(ATTACKS, "sh")
    for line in block.splitlines():
        words = shlex.split(line)[1:]
        fewer = ["--seeds", "1", "--attacks", "vocabulary"] if words[0] == "audit" and "--attacks" not in words else []
        code, output = call(*words, *fewer)
        assert code == 0, f"{line}\n{output}"
    assert (tmp_path / "results" / "audit" / "audit.html").exists()


def test_a_model_of_one_s_own_is_found_by_its_name_as_docs_extending_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    (source,) = [block for block in blocks(text, "python") if block.startswith("# my_models.py")]
    (tmp_path / "my_models.py").write_text(source)
    (line,) = [line for block in blocks(text, "sh") for line in block.splitlines() if "my_models" in line]
    setting, *words = shlex.split(line)
    assert (setting, words[0]) == ("PYTHONPATH=.", "isthmus")
    done = isthmus(*words[1:], "--json", cwd=tmp_path, env={**os.environ, "PYTHONPATH": f".{os.pathsep}{ROOT}"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["global_model/global_graph"]["accuracy"] > 0.2


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("papers/**/*.md")]
PAGES += [*ROOT.glob("benchmarks/*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("tests/*.md")]


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
