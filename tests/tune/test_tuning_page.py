"""docs/tuning.md: its study can be read, its search runs, and its tables name all that there is."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from isthmus.core.outside import parse_yaml
from isthmus.tune.objectives import BYTES, EPSILON, ROUND_SECONDS
from isthmus.tune.reading import KEYS, read_study
from isthmus.tune.searches import SEARCHES
from tests.cli.command import call

TEXT = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()


def test_the_study_of_the_page_can_be_read() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    study = read_study(parse_yaml(block, "docs/tuning.md"), "docs/tuning.md", "page")
    assert [rung.rounds for rung in study.rungs] == [3, 9, 27, 81] and len(study.final_seeds) == 5


def test_the_course_of_the_page_tunes_itself_under_secure_sums(tmp_path: Path) -> None:
    (line,) = re.findall(r"^    isthmus (run algorithm\.name=fedex .*)$", TEXT, re.MULTILINE)
    code, output = call(*shlex.split(line), "rounds=2", "--out", str(tmp_path / "run"))
    assert code == 0 and "the likeliest arm is lr=" in output, output


def test_the_search_of_the_page_keeps_to_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "search_of_the_page.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("search_of_the_page").TenThenTheBest()
    plain = {"base": {"dataset": "csbm"}, "space": {"algorithm.local_steps": [1, 2]}}
    said = {**plain, "search": {"name": "search_of_the_page:TenThenTheBest"}}
    assert read_study(said, "s.yaml", "mine").search == found


def test_the_page_names_every_key_search_and_objective() -> None:
    for name in (*KEYS, *SEARCHES, *BYTES, ROUND_SECONDS, EPSILON):
        assert f"`{name}" in TEXT or f"\n{name}:" in TEXT, name
