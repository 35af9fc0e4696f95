"""A comparison that is started again never removes what it finds: it goes on with it, or sets it aside and says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import isthmus.suites.same_data
from isthmus.core.errors import MissingData
from isthmus.runs.folder import set_aside
from isthmus.suites.runner import run_suite
from isthmus.suites.spec import Suite, load_suite


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    path = tmp_path / "suite.yaml"
    base = {"rounds": 2, "model": {"gnn": {"hidden": 4}}, "dataset": "csbm", "num_clients": 2}
    path.write_text(yaml.safe_dump({"seeds": 1, "base": base, "axes": {"method": {"FedAvg": {}}}}))
    return load_suite(path)


def unfinished(suite: Suite, folder: Path) -> Path:
    """Return the folder of a run that has a checkpoint, no end, and a file of a person's."""
    run_suite(suite, folder, workers=1)
    (path,) = (folder / "runs").iterdir()
    journal = path / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines(True) if '"event": "end"' not in line]
    journal.write_text("".join(lines))
    (path / "mine.txt").write_text("keep me")
    return path


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_whose_data_is_missing_fails_with_the_reason_and_stays_as_it_is(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unfinished(suite, tmp_path / "out")
    before = files(path)

    def gone(*args: Any) -> Any:
        raise MissingData("csbm: its files are not there")

    monkeypatch.setattr(isthmus.suites.same_data, "load_scenario", gone)
    (run,) = run_suite(suite, tmp_path / "out", workers=1)
    assert run.error == "csbm: its files are not there" and run.score is None
    assert files(path) == before and [p.name for p in path.parent.iterdir()] == [path.name]
    (path / "checkpoint.isth").write_bytes(b"damaged")  # not even then: nothing could take its place
    (run,) = run_suite(suite, tmp_path / "out", workers=1)
    assert run.error and [p.name for p in path.parent.iterdir()] == [path.name]
    monkeypatch.undo()
    (path / "checkpoint.isth").write_bytes(before["checkpoint.isth"])
    (run,) = run_suite(suite, tmp_path / "out", workers=1)
    assert not run.error and not run.note and (path / "mine.txt").read_text() == "keep me"


def test_a_run_whose_data_changed_fails_with_the_reason_and_stays_as_it_is(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unfinished(suite, tmp_path / "out")
    before, load = files(path), isthmus.suites.same_data.load_scenario

    def changed(course: Any, *more: Any) -> Any:
        return load(replace(course, dataset=replace(course.dataset, num_nodes=course.dataset.num_nodes // 2)), *more)

    monkeypatch.setattr(isthmus.suites.same_data, "load_scenario", changed)
    (run,) = run_suite(suite, tmp_path / "out", workers=1)
    assert "the data changed" in run.error and run.score is None
    assert files(path) == before and [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "checkpoint.isth").write_bytes(b"x" * 99), "is not a usable checkpoint"),
        (lambda path: (path / "checkpoint.isth").unlink(), "has no checkpoint"),
        (lambda path: (path / "course.yaml").unlink(), "has no course.yaml"),
        (lambda path: (path / "journal.jsonl").write_text("{]\n{}\n"), "line 1 is not JSON"),
    ],
    ids=["damaged", "cut off before the first checkpoint", "no run folder", "journal"],
)
def test_a_run_that_cannot_be_resumed_is_set_aside_whole_and_with_the_reason(
    damage: Any, reason: str, suite: Suite, tmp_path: Path
) -> None:
    path = unfinished(suite, tmp_path / "out")
    damage(path)
    before = files(path)
    (run,) = run_suite(suite, tmp_path / "out", workers=1)
    aside = path.with_name(f"{path.name}.set-aside-1")
    assert not run.error and run.score is not None
    assert reason in run.note and aside.name in run.note
    text = (aside / "set-aside.txt").read_text()
    assert reason in text
    assert files(aside) == {**before, "set-aside.txt": text.encode()}


def test_what_is_set_aside_never_takes_the_place_of_what_was_before(tmp_path: Path) -> None:
    names = []
    for number in range(3):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "mine.txt").write_text(str(number))
        names.append(set_aside(tmp_path / "run", "damaged").name)
    assert names == ["run.set-aside-1", "run.set-aside-2", "run.set-aside-3"]
    assert [(tmp_path / name / "mine.txt").read_text() for name in names] == ["0", "1", "2"]
    (tmp_path / "run").write_text("a file of a person's")
    assert set_aside(tmp_path / "run", "no folder").read_text() == "a file of a person's"


def test_a_run_without_its_journal_goes_on_and_says_so(suite: Suite, tmp_path: Path) -> None:
    whole = run_suite(suite, tmp_path / "out", workers=1)[0]
    path = unfinished(suite, tmp_path / "out")
    (path / "journal.jsonl").unlink()
    (run,) = run_suite(suite, tmp_path / "out", workers=1)
    assert run.score == whole.score and (path / "mine.txt").exists() and not run.note
    assert "the journal was missing: it has nothing of the rounds up to 2" in (path / "journal.jsonl").read_text()
