"""Every command and every Python block of docs/personalisation.md is executed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from isthmus.config.build import Builder
from isthmus.config.course import Course
from tests.cli.command import call

PAGE = (Path(__file__).parents[3] / "docs" / "personalisation.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


COMMANDS = [line for block in blocks("sh")[:-1] for line in block.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    code, output = call(*words[1:], "rounds=2", "evaluate_every=1")  # the last word counts
    assert words[0] == "isthmus" and code == 0, output
    assert list((tmp_path / "runs").glob("*/clients/*.safetensors"))


def test_the_last_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (shlex.split(line) for line in blocks("sh")[-1].splitlines())
    assert call(*first[1:], "rounds=2")[0] == 0
    code, output = call(*second[1:])
    assert code == 0, output
    assert len((tmp_path / "own.csv").read_text().splitlines()) == 2709


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_course_can_be_read(text: str) -> None:
    assert Builder("page").fields(Course, yaml.safe_load(text), "").shared


def test_the_python_runs() -> None:
    (block,) = blocks("python")
    space: dict[str, object] = {"__name__": "page"}
    exec(compile(block.replace("rounds=20", "rounds=5"), "docs/personalisation.md", "exec"), space)
    assert space["own"] is not None
