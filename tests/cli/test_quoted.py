"""A command that is printed can be copied; options that would have no effect are refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from isthmus.core.errors import BadInput
from isthmus.runs.folder import ID_FILE, RunFolder

from .command import call


@pytest.mark.parametrize("site", [False, True])
def test_the_command_to_go_on_with_a_folder_is_quoted_and_is_the_one_for_its_kind(site: bool, tmp_path: Path) -> None:
    path = tmp_path / "a run; of mine"
    path.mkdir()
    (path / (ID_FILE if site else "course.yaml")).write_text("x")
    with pytest.raises(BadInput) as caught:
        RunFolder.check_new(path)
    words = shlex.split(str(caught.value).rsplit("go on with it: ", 1)[1])
    assert words == (["isthmus", "serve", "KIT"] if site else ["isthmus", "run"]) + ["--resume", str(path)]


@pytest.mark.parametrize(
    "words", [["rounds=1", "--once"], ["rounds=1", "--no-resume"], ["--resume", "runs/x", "--once"]]
)
def test_serve_refuses_options_that_are_about_other_courses(words: list[str]) -> None:
    code, text = call("serve", "kit", *words)
    assert code == 2 and "--once and --no-resume are about courses of operators" in text.replace("\n", " ")
