"""docs/methods.md has a command for every algorithm; its commands run, and those of docs/graph-tasks.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from isthmus.algorithms import ALGORITHMS
from isthmus.config.build import name_of
from isthmus.config.load import load_course
from isthmus.learn.tasks import TASKS
from tests.cli.command import call
from tests.quick import KINDS

ROOT = Path(__file__).parents[1]


def commands(page: str) -> list[list[str]]:
    """Return the words behind `isthmus run` of every command of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    words = [shlex.split(line) for line in lines]
    assert all(line[:2] == ["isthmus", "run"] for line in words)
    return [line[2:] for line in words]


METHODS, GRAPH_TASKS = commands("methods.md"), commands("graph-tasks.md")


def label(words: list[str]) -> str:
    """Return what tells a command apart."""
    return " ".join(word.split("=")[1] for word in words if word.startswith(("algorithm.name", "task", "dataset.name")))


def at_hand(words: list[str], folder: Path) -> bool:
    return load_course(None, words).dataset.present(folder)


def runs(words: list[str]) -> None:
    few = ["algorithm.pretrain_steps=1"] if "algorithm.name=fedsage_plus" in words else []
    code, output = call("run", *words, "rounds=1", "evaluate_every=1", *few)  # the last word counts
    assert code == 0, output
    assert "answered one by one" not in output, "a handler for many clients failed"
    assert "not_finite" not in output, f"a model diverged: {output}"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")


def test_every_algorithm_has_a_command_whose_data_is_at_hand(tmp_path: Path) -> None:
    assert {name_of(type(load_course(None, words).algorithm)) for words in METHODS} == set(ALGORITHMS)
    assert all(at_hand(words, tmp_path) for words in METHODS)


def by_kind(commands: list[list[str]]) -> list[Any]:
    """Return commands of which the default set runs one of each kind of method; it reads them all."""
    some = {f"algorithm.name={name}" for name in KINDS}
    return [
        pytest.param(words, id=label(words), marks=[] if some & set(words) else [pytest.mark.slow])
        for words in commands
    ]


@pytest.mark.parametrize("words", by_kind(METHODS))
def test_a_command_of_the_methods_runs(words: list[str]) -> None:
    runs(words)


CUTTING = [words for words in METHODS + GRAPH_TASKS if any(word.startswith("algorithm.name=gcfl") for word in words)]


@pytest.mark.parametrize(
    "words", [CUTTING[0], *(pytest.param(words, marks=pytest.mark.slow) for words in CUTTING[1:])], ids=label
)
def test_the_commands_of_gcfl_cut_clusters(words: list[str]) -> None:
    code, output = call("run", *words)
    assert code == 0 and "was cut in two" in " ".join(output.split()), output


def test_the_commands_of_graph_tasks_can_be_read_and_run_where_nothing_is_downloaded(tmp_path: Path) -> None:
    tasks = {name_of(type(load_course(None, words).task)) for words in GRAPH_TASKS}
    assert tasks == {name for name in TASKS if name.startswith("graph_")}
    here = [words for words in GRAPH_TASKS if at_hand(words, tmp_path)]
    assert len(here) >= 2
    for words in here:
        runs(words)
