import csv
import hashlib
import json
import os
import pickle
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.config.load import course_to_dict
from isthmus.core.errors import BadInput
from isthmus.core.training import EarlyStopping
from isthmus.runs import in_processes
from isthmus.suites.runner import Run, read_run, run_suite
from isthmus.suites.spec import Point, load_suite
from isthmus.suites.table import cell_table, cells
from tests.cli.command import call
from tests.processes import Process

SMALL = {
    "title": "small",
    "seeds": [0, 1],
    "base": {"rounds": 3, "model": {"gnn": {"hidden": 8}}},
    "axes": {
        "splitter": {"random": {"splitter.name": "random"}, "community": {"splitter.name": "community"}},
        "method": {
            "Local": {"algorithm.name": "local"},
            "FedAvg": {"algorithm.name": "fedavg", "search": {"algorithm.optimizer.lr": [0.001, 0.5]}},
        },
    },
    "expected": [{"method": "FedAvg", "splitter": "random", "value": 0.5, "std": 0.1, "within": 0.9}],
}


def written(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}, sort_keys=False))
    return path


def test_every_cell_grid_point_and_seed_is_one_course(tmp_path: Path) -> None:
    points = load_suite(written(tmp_path)).points()
    assert len(points) == 2 * (1 + 2) * 2
    assert len({point.key for point in points}) == len(points)
    rates = {p.course.algorithm.optimizer.lr for p in points if p.cell["method"] == "FedAvg"}
    assert rates == {0.001, 0.5}
    # What a course does not search keeps the algorithm's own default.
    assert {p.course.algorithm.optimizer.weight_decay for p in points} == {5e-4}


def test_a_run_folder_s_name_has_no_word_of_monitors_or_of_keeping_the_best_round(tmp_path: Path) -> None:
    point = load_suite(written(tmp_path)).points()[0]
    plain = course_to_dict(point.course)
    assert (plain.pop("monitors"), plain.pop("monitor_every"), plain["stopping"].pop("keep")) == ([], 0, "best")
    assert (plain.pop("guards"), plain.pop("server_share"), plain["sampling"].pop("name")) == ([], 0.0, "uniform")
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:10]
    assert point.key.endswith(f"-{digest}")
    others = [replace(point.course, monitors=("cka",)), replace(point.course, monitor_every=2)]
    others.append(replace(point.course, stopping=EarlyStopping(keep="last")))
    assert len({point.key, *(replace(point, course=course).key for course in others)}) == 4


def fake(point: Point, score: float, validation: float) -> Run:
    return Run(point, score, validation, 3, 0.1)


@pytest.mark.parametrize(("model", "expected"), [("global_model", 0.5), ("local_model", 0.7)])
def test_the_score_is_that_of_the_model_that_the_suite_names(model: str, expected: float, tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, model=model))
    point = suite.points()[0]
    both = {"global_model/global_graph": {"accuracy": 0.5}, "local_model/global_graph": {"accuracy": 0.7}}
    for metrics, wanted in ((both, expected), ({"local_model/global_graph": {"accuracy": 0.2}}, 0.2)):
        end = {"event": "end", "metrics": metrics, "best_score": 0.1, "num_rounds": 1, "seconds": 1.0}
        (tmp_path / "journal.jsonl").write_text(json.dumps(end) + "\n")
        run = read_run(suite, point, tmp_path)
        assert run is not None and run.score == wanted


def test_the_search_goes_by_validation_and_never_by_test(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path))
    runs = []
    for point in suite.points():
        good = point.searched.get("algorithm.optimizer.lr") == 0.001
        runs.append(fake(point, score=0.1 if good else 0.9, validation=0.8 if good else 0.2))
    cell = next(c for c in cells(suite, runs) if c.choices == {"splitter": "random", "method": "FedAvg"})
    assert cell.chosen == {"algorithm.optimizer.lr": 0.001} and cell.mean == pytest.approx(0.1)


def test_a_point_that_fewer_clients_scored_does_not_win_the_search(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path))
    runs = [fake(p, 0.5, p.searched.get("algorithm.optimizer.lr", 0.0)) for p in suite.points()]
    lost = [replace(run, missing=("client-4",)) if run.validation == 0.5 and run.point.seed else run for run in runs]
    assert {c.chosen["algorithm.optimizer.lr"] for c in cells(suite, runs) if c.chosen} == {0.5}
    assert {c.chosen["algorithm.optimizer.lr"] for c in cells(suite, lost) if c.chosen} == {0.001}


def test_a_run_tells_who_is_missing_in_its_score(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path))
    end = {"event": "end", "metrics": {}, "best_score": 0.1, "num_rounds": 2, "seconds": 1.0, "best_round": 1}
    for rounds, missing, expected in (
        ([], None, ()),  # as journals were before
        (
            [{"event": "round", "round": 1, "unscored": ["b"]}, {"event": "round", "round": 2, "unscored": ["a"]}],
            [],
            ("b",),
        ),
        ([{"event": "round", "round": 1, "unscored": []}], ["c"], ("c",)),
    ):
        last = end if missing is None else {**end, "missing": missing}
        (tmp_path / "journal.jsonl").write_text(
            "".join(json.dumps({"event": "round", **event}) + "\n" for event in (*rounds, last))
        )
        run = read_run(suite, suite.points()[0], tmp_path)
        assert run is not None and run.missing == expected


def test_a_search_by_loss_takes_the_lowest(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, base={**SMALL["base"], "stopping": {"metric": "loss"}}))
    runs = [fake(p, 0.5, p.searched.get("algorithm.optimizer.lr", 0.0)) for p in suite.points()]
    assert {c.chosen["algorithm.optimizer.lr"] for c in cells(suite, runs) if c.chosen} == {0.001}


def test_mean_deviation_and_difference_are_those_of_the_seeds(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path))
    runs = [fake(p, 0.6 + 0.1 * p.seed, p.searched.get("algorithm.optimizer.lr", 0.0)) for p in suite.points()]
    cell = next(c for c in cells(suite, runs) if c.expected)
    assert cell.mean == pytest.approx(0.65) and cell.std == pytest.approx(statistics.stdev([0.6, 0.7]))
    assert cell.difference == pytest.approx(0.15) and cell.holds is True
    row = next(row for row in cell_table(suite, cells(suite, runs)).rows if "FedAvg" in row and "random" in row)
    assert row[2:7] == ("65.00 ± 7.07", "50.00 ± 10.00", "+15.00", "±90.0", "yes")


def test_a_number_farther_than_asked_does_not_hold(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, expected=[{"method": "FedAvg", "value": 0.5, "within": 0.1}]))
    runs = [fake(p, 0.65, 0.0) for p in suite.points()]
    assert [c.holds for c in cells(suite, runs)] == [None, False, None, False]


# In the default set a command and its workers are copies of a process that has imported all.
STARTS = [Process, pytest.param(subprocess.Popen, marks=pytest.mark.slow)]


def started(how: Callable[..., Any], folder: Path) -> Any:
    return how(
        [sys.executable, "-m", "isthmus", "compare", "suite.yaml", "--workers", "2"],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class NoPool(Exception): ...


def test_workers_are_started_anew_with_what_can_be_sent_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pool(number: int, mp_context: Any, initializer: Any) -> None:
        assert number == 2 and mp_context.get_start_method() == "spawn"
        assert pickle.loads(pickle.dumps(initializer)) is initializer
        raise NoPool

    monkeypatch.setattr(in_processes, "ProcessPoolExecutor", pool)
    with pytest.raises(NoPool):
        run_suite(load_suite(written(tmp_path)), tmp_path / "runs", workers=2)


@pytest.mark.parametrize("start", STARTS)
def test_a_suite_runs_in_processes_writes_its_files_and_goes_on_where_it_stopped(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = load_suite(written(tmp_path))
    first = started(start, tmp_path)
    output, errors = first.communicate(timeout=300)
    assert first.returncode == 0, errors
    folder = tmp_path / "results" / "suite"
    assert "FedAvg" in output and "chosen by validation" in output
    rows = list(csv.DictReader((folder / "runs.csv").open()))
    assert len(rows) == 12 and all(0 < float(row["accuracy"]) < 1 for row in rows)
    assert (folder / "table.md").read_text().startswith("# small")
    journals = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/journal.jsonl")}
    assert len(journals) == 12
    monkeypatch.chdir(tmp_path)
    code, again = call("compare", "suite.yaml", "--json")
    assert code == 0 and len(json.loads(again)["rows"]) == 4
    assert journals == {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/journal.jsonl")}
    one = folder / "runs" / rows[0]["run"] / "journal.jsonl"
    one.unlink()
    assert call("compare", "suite.yaml")[0] == 0
    assert not one.exists()  # its row in runs.csv stands for it
    (folder / "runs.csv").unlink()
    assert call("compare", "suite.yaml")[0] == 0
    assert one.is_file() and next(csv.DictReader((folder / "runs.csv").open()))["accuracy"] == rows[0]["accuracy"]
    # Two workers gave the numbers that one gives.
    by_one, by_two = (run_suite(suite, place, workers=1) for place in (tmp_path / "one", folder))
    assert [run.score for run in by_one] == [run.score for run in by_two]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("start", STARTS)
def test_an_interrupted_comparison_leaves_no_process_and_goes_on(
    start: Callable[..., Any], how: signal.Signals, tmp_path: Path
) -> None:
    written(tmp_path, base={"rounds": 400, "checkpoint_every": 5, "model": {"gnn": {"hidden": 8}}}, seeds=1)
    process = started(start, tmp_path)
    runs = tmp_path / "results" / "suite" / "runs"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any('"round": 6,' in p.read_text() for p in runs.glob("*/journal.jsonl")):
        time.sleep(0.05)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in errors, errors
    else:
        process.kill()  # it cannot tell its workers any more
        process.wait(timeout=60)
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    assert list(runs.glob("*/checkpoint.isth"))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"axis": {}}, "axis is not a known key"),
        ({"axes": {}}, "axes is {}"),
        ({"axes": {"method": {"A": {"algorithm.name": "fedavgg"}}}, "expected": []}, "Did you mean 'fedavg'?"),
        ({"axes": {"method": {"A": {"search": {"seed": 3}}}}, "expected": []}, "expected a list to try"),
        ({"expected": [{"methd": "FedAvg", "value": 1}]}, "names the axis 'methd'"),
        ({"expected": [{"method": "FedAvg"}]}, "entry 1 of expected.value is missing"),
        ({"expected": [{"method": "FedAvg", "value": 1, "within": "near"}]}, "within is 'near', expected a number"),
        ({"axes": {"method": {"A": 5}}, "expected": []}, "axes.method.A is 5, expected keys and values"),
        ({"changes": {"rounds": 2}}, "changes is not a known key"),
        ({"expected": [{"method": "FedProx", "value": 1}]}, "names method 'FedProx'"),
        ({"metric": "f1_macro"}, "f1_macro"),
        ({"graph": "both"}, "graph is 'both'"),
        ({"model": "mine"}, "model is 'mine'"),
        ({"seeds": []}, "seeds is []"),
    ],
)
def test_mistakes_in_a_suite_show_before_anything_runs(changes: dict[str, object], part: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_suite(written(tmp_path, **changes))
    assert part in str(caught.value)


def test_an_expected_value_may_be_for_several_choices(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, expected=[{"method": ["FedAvg", "Local"], "value": 0.5}]))
    found = [suite.expectation(cell) for cell in suite.cells()]
    assert found and all(expected is suite.expected[0] for expected in found)
