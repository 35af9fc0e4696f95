from pathlib import Path

import pytest

from isthmus.algorithms import FedAvg
from isthmus.core.errors import BadInput
from isthmus.suites.part import changed, narrowed
from isthmus.suites.runner import run_suite
from isthmus.suites.spec import load_suite
from isthmus.suites.table import Cell, cell_table, cells

SUITE = """
title: sizes
seeds: 1
axes:
  size: {small: {rounds: 2}, large: {rounds: 3}}
  method:
    FedAvg: {algorithm.name: fedavg, search: {algorithm.optimizer.lr: [0.05, 0.25], algorithm.local_steps: [1, 4]}}
    Local: {algorithm.name: local}
"""
METRICS = """
title: two numbers of one course
seeds: 2
base: {rounds: 2}
axes:
  number: {Accuracy: {metric: accuracy}, Loss: {metric: loss}}
  method: {FedAvg: {algorithm.name: fedavg}, Local: {algorithm.name: local}}
expected:
  - {number: Loss, method: Local, value: 1.0}
"""


def test_only_narrows_a_suite_to_some_choices_of_some_axes(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    suite = load_suite(path)
    assert narrowed(suite, ()) == suite
    assert [cell["size"] for cell in narrowed(suite, ["size=large"]).cells()] == ["large", "large"]
    assert narrowed(suite, ["size=small, large", "method=Local"]).cells() == [
        {"size": "small", "method": "Local"},
        {"size": "large", "method": "Local"},
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["size"], "expected AXIS=CHOICE"),
        (["siz=small"], "names 'siz', no axis and no searched key.*Did you mean 'size'"),
        (["lr=0.5"], "FedAvg tries 0.05, 0.25"),
        (["size=smal"], "names size 'smal'.*Did you mean 'small'"),
    ],
)
def test_only_refuses_what_the_suite_does_not_have(words: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    with pytest.raises(BadInput, match=message):
        narrowed(load_suite(path), words)


def test_only_narrows_a_search_by_a_key_or_its_last_part(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    suite = load_suite(path)
    assert len(suite.points()) == 2 * (4 + 1)
    found = narrowed(suite, ["lr=0.25", "size=small"]).points()
    assert [point.searched for point in found] == [
        {"algorithm.optimizer.lr": 0.25, "algorithm.local_steps": 1},
        {"algorithm.optimizer.lr": 0.25, "algorithm.local_steps": 4},
        {},
    ]
    whole = narrowed(suite, ["algorithm.optimizer.lr=0.25", "local_steps=1, 4", "size=small"])
    assert whole.points() == found
    assert {point.key for point in found} < {point.key for point in suite.points()}  # runs of the whole grid are reused


def test_set_changes_every_course_whatever_its_cell_says(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    suite = changed(load_suite(path), ["rounds=7", "algorithm.local_steps=2"])
    assert {point.course.rounds for point in suite.points()} == {7}
    assert [point.course.algorithm for point in suite.points()].count(FedAvg(local_steps=2)) == 4
    assert suite.title == "sizes (with rounds=7, algorithm.local_steps=2)"
    assert changed(load_suite(path), []) == load_suite(path)
    with pytest.raises(BadInput, match="roundz is not a known key"):
        changed(load_suite(path), ["roundz=7"])


def test_an_axis_of_metrics_reads_several_numbers_of_courses_that_run_once(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(METRICS)
    suite = load_suite(path)
    done: list[str] = []
    runs = run_suite(suite, tmp_path / "out", workers=1, on_done=lambda run: done.append(run.point.key))
    assert len(runs) == 8 and len(done) == len(set(done)) == 4
    found = {tuple(cell.choices.values()): cell for cell in cells(suite, runs)}
    accuracy, loss = found["Accuracy", "Local"].mean, found["Loss", "Local"].mean
    assert accuracy is not None and loss is not None and accuracy < 1.0 < loss
    assert found["Loss", "Local"].difference == pytest.approx(loss - 1.0)
    assert cell_table(suite, list(found.values())).headings[2] == "ours"
    again = run_suite(suite, tmp_path / "out", workers=1)
    assert [(run.point.cell, run.score) for run in again] == [(run.point.cell, run.score) for run in runs]


def test_a_suite_may_print_the_95_percent_interval_of_the_mean(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE.replace("title: sizes", "title: sizes\nspread: ci95"))
    suite = load_suite(path)
    (choices, *_) = suite.cells()
    scores = (0.6, 0.7, 0.8, 0.9)
    cell = Cell(choices, {}, scores, None, ())
    # Student's t for 3 degrees of freedom is 3.1824; the standard error of these four is 0.129099 / 2.
    assert cell.ci95 == pytest.approx(3.182446 * 0.129099 / 2, abs=1e-5)
    table = cell_table(suite, [cell])
    assert table.headings[-1] == "ours (accuracy, ± 95 % interval)" and table.rows[0][-1] == "75.00 ± 20.54"
    assert Cell(choices, {}, (0.6,), None, ()).ci95 is None
    path.write_text(SUITE.replace("title: sizes", "spread: sem"))
    with pytest.raises(BadInput, match="spread is 'sem'; choose from std, ci95"):
        load_suite(path)


@pytest.mark.parametrize("choice", ["{metric: loss, rounds: 3}", "{rounds: 3}"])
def test_an_axis_of_metrics_has_nothing_but_metrics(choice: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(METRICS.replace("{metric: loss}", choice))
    with pytest.raises(BadInput, match=r"axes\.number\.Loss is .*has `metric` and nothing else"):
        load_suite(path)


def test_a_metric_of_an_axis_must_be_one_that_the_task_reports(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(METRICS.replace("{metric: loss}", "{metric: hits@1}"))
    with pytest.raises(BadInput, match="metric is 'hits@1', which the task does not report"):
        load_suite(path)
