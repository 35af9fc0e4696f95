"""A table says what its rows are set to, so that unequal ones are seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.core.errors import BadInput
from isthmus.suites.runner import Run
from isthmus.suites.settings import MOST_NOTES, Settings, notes, settings
from isthmus.suites.spec import Suite, load_suite


def loaded(tmp_path: Path, **fields: Any) -> Suite:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump({"seeds": 2, **fields}, sort_keys=False))
    return load_suite(path)


def read(tmp_path: Path, **fields: Any) -> tuple[Suite, Settings, list[str]]:
    suite = loaded(tmp_path, **fields)
    found = settings(suite, suite.points())
    return suite, found, notes(suite, found, [Run(point, 0.5, 0.5, 1, 1.0) for point in suite.points()])


def test_what_rows_differ_in_is_told_with_the_rows_and_what_they_share_once(tmp_path: Path) -> None:
    axes = {
        "splitter": {"random": {"splitter.name": "random"}, "community": {"splitter.name": "community"}},
        "method": {"FedAvg": {}, "FedProx": {"algorithm.name": "fedprox"}, "Local": {"algorithm.name": "local"}},
    }
    _, found, told = read(tmp_path, base={"rounds": 7, "algorithm": {"local_steps": 9}}, axes=axes)
    assert found.differing()["splitter.name"] == {"random": "splitter=random", "community": "splitter=community"}
    assert found.differing()["algorithm.weighting"] == {"examples": "method=FedAvg,FedProx"}
    assert found.differing()["algorithm.mu"] == {"0.01": "method=FedProx"}
    assert found.common()["rounds"] == "7" and found.common()["algorithm.local_steps"] == "9"
    assert not found.common().keys() & found.differing().keys()
    assert not any(key.split(".")[0] in ("seed", "threads", "monitors") for key in found.values)
    assert told == []
    lines = found.as_csv().splitlines()
    assert len(lines) == 1 + 6 and lines[0].startswith("splitter,method,dataset.name")


def test_rows_that_differ_in_what_the_suite_does_not_set_are_noted(tmp_path: Path) -> None:
    axes = {"method": {"FedAvg": {"algorithm.local_steps": 9}, "Local": {"algorithm.name": "local"}}}
    _, _, told = read(tmp_path, axes=axes)
    assert told == [
        "rows differ in algorithm.local_steps, which the suite leaves to the default in method=Local: "
        "9 in method=FedAvg; 1 in method=Local"
    ]
    stated = {"FedAvg": {"algorithm.local_steps": 9}, "Local": {"algorithm.name": "local", "algorithm.local_steps": 1}}
    assert read(tmp_path, axes={"method": stated})[2] == []  # whoever writes both has seen it


def test_another_optimiser_brings_its_own_weight_decay_and_the_table_notes_it(tmp_path: Path) -> None:
    axes = {"optimiser": {"SGD": {}, "Adam": {"algorithm.optimizer.name": "adam"}}}
    _, found, told = read(tmp_path, base={"algorithm.optimizer.lr": 0.05}, axes=axes)
    assert found.common()["algorithm.optimizer.lr"] == "0.05"
    assert any(note.startswith("rows differ in algorithm.optimizer.weight_decay") for note in told)


def test_dropped_fields_and_what_was_set_aside_are_in_the_notes_once_for_all_seeds(tmp_path: Path) -> None:
    axes = {"method": {"FedAvg": {}, "Local": {"algorithm.name": "local", "algorithm.local_steps": 4}}}
    suite, found, told = read(tmp_path, base={"algorithm": {"weighting": "nodes"}}, axes=axes)
    dropped = "algorithm.weighting is dropped with local: local has no such field (method=Local)"
    assert told == [dropped]
    aside = [replace(Run(point, 0.5, 0.5, 1, 1.0), note="a run was set aside") for point in suite.points()]
    assert notes(suite, found, aside) == [dropped, "a run was set aside"]
    many = [replace(run, note=str(index)) for index, run in enumerate(aside * 9)]
    assert len(notes(suite, found, many)) == MOST_NOTES + 1


def test_an_axis_of_metrics_has_one_row_of_settings_for_its_courses(tmp_path: Path) -> None:
    axes = {"score": {"a": {"metric": "accuracy"}, "l": {"metric": "loss"}}, "rounds": {"1": {"rounds": 1}, "2": {}}}
    _, found, _ = read(tmp_path, axes=axes)
    assert found.rows == [{"rounds": "1"}, {"rounds": "2"}]
    assert found.differing()["rounds"] == {"1": "rounds=1", "100": "rounds=2"}


def test_results_take_the_place_of_nobody_s_files(tmp_path: Path) -> None:
    from isthmus.suites.comparison import check_folder

    (tmp_path / "table.md").write_text("mine")
    with pytest.raises(BadInput, match="holds files that are of no comparison"):
        check_folder(tmp_path)
    (tmp_path / "runs").mkdir()
    check_folder(tmp_path)
    with pytest.raises(BadInput, match="is a file"):
        check_folder(tmp_path / "table.md")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--seeds", "3"], "--seeds is 3, but"), (["--check"], "asks for no number to be near a paper's")],
)
def test_options_that_would_have_no_effect_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from isthmus.cli import app

    loaded(tmp_path, axes={"method": {"FedAvg": {}}})
    found = CliRunner().invoke(app, ["compare", str(tmp_path / "suite.yaml"), *words, "--out", str(tmp_path / "out")])
    assert isinstance(found.exception, BadInput) and message in str(found.exception)
    assert not (tmp_path / "out").exists()
