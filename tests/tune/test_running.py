"""Studies carried out: one point is a run, nothing is done twice, and who computes changes nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.config.load import course_digest
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.runs.folder import RunFolder, load_checkpoint, load_model_file
from isthmus.runs.journal import read_journal
from isthmus.runs.simulated import run
from isthmus.runtime.cluster import Crew
from isthmus.tune import trials
from isthmus.tune.backends import Backend, Cluster, Here, Pool, backend_of
from isthmus.tune.reading import read_study
from isthmus.tune.running import Computed, search
from isthmus.tune.spec import Study
from isthmus.tune.table import Row, Table, Trial
from isthmus.tune.trials import Measured, Task
from tests.cli.command import call

PLAIN: dict[str, Any] = {
    "base": {
        "dataset": {"name": "csbm", "num_nodes": 60, "num_features": 8},
        "num_clients": 2,
        "splitter": "random",
        "model.gnn.hidden": 4,
        "evaluate_every": 2,
    },
    "space": {
        "algorithm.optimizer.lr": {"low": 0.01, "high": 1.0, "log": True},
        "algorithm.local_steps": [1, 2],
    },
    # Neither 3 nor 5 is a round that is evaluated.
    "fidelity": {"rounds": [3, 5, 6]},
    "search": {"name": "sha", "arms": 6},
    "parallel": 3,
}


def study(**changes: Any) -> Study:
    return read_study({**PLAIN, **changes}, "s.yaml", "mine")


def carried(found: Study, folder: Path, backend: Backend | None = None) -> Table:
    return search(found, Computed(found, folder, backend or Here()))


def plain(table: Table) -> list[Row]:
    return [replace(row, seconds=0.0) for row in table.rows]


def bits(found: Study, folder: Path) -> dict[str, Any]:
    """Return what all checkpoints of a study hold, by the folder of the run."""
    kept = {}
    for path in sorted(folder.glob("trials/*/*")):
        run_folder = RunFolder(path)
        from isthmus.config.load import load_course

        course = load_course(run_folder.course)
        standing, memories = load_checkpoint(run_folder.checkpoint, course_digest(course), course.algorithm)
        kept[str(path.relative_to(folder))] = (standing.round, encode(standing.state), memories)
    return kept


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, Path]:
    folder = tmp_path_factory.mktemp("study") / "out"
    return carried(study(), folder), folder


def test_a_space_of_one_point_is_a_run_to_the_bit(tmp_path: Path) -> None:
    found = study(space={"algorithm.optimizer.lr": [0.3]}, search={"name": "sha"})
    table = carried(found, tmp_path / "out")
    assert [row.trial.rung for row in table.rows] == [0, 1, 2]
    course = found.course({"algorithm.optimizer.lr": 0.3})
    run(course, run_dir=tmp_path / "run")
    (trial,) = (tmp_path / "out" / "trials").glob("*/seed-0")
    models = [load_model_file(path / "model.safetensors")[0] for path in (trial, tmp_path / "run")]
    assert encode(models[0]) == encode(models[1])
    ends = [[e for e in read_journal(p / "journal.jsonl") if e["event"] == "end"] for p in (trial, tmp_path / "run")]
    assert [[end["metrics"], end["best_round"]] for end in ends[0]] == [
        [e["metrics"], e["best_round"]] for e in ends[1]
    ]
    rounds = [
        [e["metrics"] for e in read_journal(p / "journal.jsonl") if e["event"] == "round"]
        for p in (trial, tmp_path / "run")
    ]
    assert rounds[0] == rounds[1]
    assert table.rows[-1].scores == (max(each["val/accuracy"] for each in rounds[0] if each),)


def test_scores_are_those_of_the_round_that_is_kept_or_of_the_last_one_evaluated(tmp_path: Path) -> None:
    found = study(space={"algorithm.optimizer.lr": [1.0]}, objectives=["val/loss", "bytes_up"], at="last", search="sha")
    row = carried(found, tmp_path / "out").rows[1]
    (trial,) = (tmp_path / "out" / "trials").glob("*/seed-0")
    rounds = [e for e in read_journal(trial / "journal.jsonl") if e["event"] == "round"][:5]
    assert row.scores == (rounds[3]["metrics"]["val/loss"], sum(each["bytes_up"] for each in rounds))


def test_a_study_that_is_started_again_does_nothing(whole: tuple[Table, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    table, folder = whole
    before = {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != "study.json"
    }

    assert carried(study(), folder, Never()).rows == table.rows
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_trials_are_told_in_the_order_in_which_they_were_proposed(whole: tuple[Table, Path]) -> None:
    table, folder = whole
    lines = map(json.loads, (folder / "trials.jsonl").read_text().splitlines())
    told = [(line["trial"]["arm"], line["trial"]["rung"]) for line in lines]
    assert told == [(row.trial.arm, row.trial.rung) for row in table.rows] and len(told) == 10


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(tmp_path: Path) -> None:
    few, more = (study(search="random", budget={"trials": number}, fidelity={"rounds": 2}) for number in (2, 4))
    first = carried(few, tmp_path / "out")
    assert carried(more, tmp_path / "out").rows[:2] == first.rows and len(first.rows) == 2
    with pytest.raises(BadInput, match="holds another study: it differs in seed; choose another folder"):
        carried(replace(few, seed=1), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(BadInput, match="is not empty and holds no study"):
        carried(few, tmp_path / "mine")


def test_a_budget_of_client_rounds_is_never_exceeded(tmp_path: Path) -> None:
    found = study(search="random", budget={"client_rounds": 31}, fidelity={"rounds": 6}, parallel=4)
    table = carried(found, tmp_path / "out")
    assert [row.cost for row in table.rows] == [12.0, 12.0]


def test_a_trial_that_fails_is_the_worst_and_ends_no_study(tmp_path: Path) -> None:
    base = {**PLAIN["base"], "min_replies": 2}
    found = study(base=base, space={"algorithm.optimizer.lr": [1e38, 0.1]}, search="sha", parallel=1)
    table = carried(found, tmp_path / "out")
    assert [(row.trial.arm, row.trial.rung, bool(row.error)) for row in table.rows] == [
        (0, 0, True),
        (1, 0, False),
        (1, 1, False),
        (1, 2, False),
    ]
    assert table.best() is not None and table.best().trial.arm == 1  # type: ignore[union-attr]
    assert carried(found, tmp_path / "out").rows[2:] == table.rows[2:]


def test_a_combination_that_the_course_refuses_is_a_trial_that_fails(tmp_path: Path) -> None:
    """Each value is looked at before the first trial, but not each with all others."""
    space = {"stopping.patience": [0, 4], "stopping.keep": ["best", "last"]}
    found = study(space=space, search="grid", fidelity={"rounds": 6})
    table = carried(found, tmp_path / "out")
    assert [row.error[:20] for row in table.rows] == ["", "", "", table.rows[3].error[:20]]
    assert "patience needs a best round" in table.rows[3].error and table.rows[3].scores[0] != table.rows[3].scores[0]
    assert repr(carried(found, tmp_path / "out", Never()).rows) == repr(table.rows)


def test_data_that_cannot_be_had_end_the_study_and_are_no_failure_of_a_trial(tmp_path: Path) -> None:
    """What is told is mended, and the same command goes on."""
    base = {**PLAIN["base"], "num_clients": 100}
    found = study(base=base)
    for _ in range(2):
        with pytest.raises(BadInput, match="100"):
            carried(found, tmp_path / "out")
        assert not (tmp_path / "out" / "trials.jsonl").exists()
    # Where how they are divided is searched, it is the trial that fails.
    wide = study(
        base={**base, "num_clients": 2}, space={"num_clients": [2, 100]}, search="grid", fidelity={"rounds": 6}
    )
    assert [bool(row.error) for row in carried(wide, tmp_path / "wide").rows] == [False, True]


def test_a_worker_of_another_version_ends_the_study(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isthmus.tune import backends

    monkeypatch.setattr(backends, "__version__", "0.0.1")
    with pytest.raises(BadInput, match=r"the worker runs isthmus .*, the server 0\.0\.1"):
        carried(study(), tmp_path / "out", Cluster(crew, None))
    assert not (tmp_path / "out" / "trials.jsonl").exists()


def test_seconds_are_those_of_a_trial_s_own_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a population has the journal of those that it goes on from; a failure takes nothing back."""
    monkeypatch.setattr(trials, "seconds_of", lambda events: float(max(e.get("round", 0) for e in events)))
    for name, kind in (("pbt", {"name": "pbt", "size": 4}), ("sha", {"name": "sha", "arms": 4})):
        found = study(search=kind, fidelity={"rounds": [2, 4, 6]})
        assert {row.seconds for row in carried(found, tmp_path / name).rows} == {2.0}
    row = Row(Trial(0, {}, 0), True, (0.5,), (0.5,), 1.0, 3.0)
    failed = Measured((float("nan"),), 0.0, "it broke")
    assert trials.row_of(study(), Trial(0, {}, 1), Table(found.space, found.rungs, rows=[row]), [failed]).seconds == 0.0


def test_data_are_loaded_once_for_each_division(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    real = trials.load_scenario
    monkeypatch.setattr(trials, "load_scenario", lambda course, root: loaded.append(course.seed) or real(course, root))
    carried(study(seeds=[3, 5], fidelity={"rounds": [2, 4], "seeds": [1, 2]}), tmp_path / "out")
    assert sorted(loaded) == [3, 5]


def test_populations_go_on_from_copies_of_checkpoints(tmp_path: Path) -> None:
    found = study(search={"name": "pbt", "size": 4}, fidelity={"rounds": [2, 4, 6]})
    table = carried(found, tmp_path / "out")
    assert len(table.rows) == 12 and not any(row.error for row in table.rows)
    assert {row.cost for row in table.rows} == {4.0}
    rounds = {
        path.parent.name[:4]: value[0]
        for path, value in ((Path(k), v) for k, v in bits(found, tmp_path / "out").items())
    }
    assert [rounds[f"{arm:04d}"] for arm in range(12)] == [2] * 4 + [4] * 4 + [6] * 4
    again = carried(found, tmp_path / "out")
    assert again.rows == table.rows


def test_every_client_may_have_a_value_of_its_own(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"low": 0.01, "high": 1.0, "log": True, "each": "client"}}
    found = study(space=space, search={"name": "sha", "arms": 2})
    table = carried(found, tmp_path / "out")
    assert [row.error for row in table.rows] == [""] * len(table.rows)
    course = found.course(table.rows[0].trial.values)
    rates = [own["optimizer.lr"] for own in course.client_settings.values()]
    assert len(course.client_settings) == len(set(rates)) == 2


def test_a_share_of_clients_that_grows_from_rung_to_rung(tmp_path: Path) -> None:
    found = study(fidelity={"rounds": [2, 4], "sampling.fraction": [0.5, 1.0]}, search={"name": "sha", "arms": 2})
    table = carried(found, tmp_path / "out")
    assert [row.cost for row in table.rows] == [2.0, 2.0, 4.0]
    (last,) = (tmp_path / "out" / "trials").glob(f"{table.rows[-1].trial.arm:04d}-*/seed-0")
    asked = [e["num_asked"] for e in read_journal(last / "journal.jsonl") if e["event"] == "round"]
    assert asked == [1, 1, 2, 2]


# ---- who computes changes nothing


class Never(Backend):
    """Computes nothing."""

    def start(self, task: Task) -> Any:
        raise AssertionError("a trial is computed again")

    def result(self, call: Any) -> Measured:
        raise AssertionError("a trial is computed again")


class Backwards(Backend):
    """Does all that it was given, the last first, whenever it is asked for anything."""

    def __init__(self) -> None:
        self.here, self.waiting, self.done = Here(), [], {}  # type: ignore[var-annotated]

    def start(self, task: Task) -> Any:
        self.waiting.append(task)
        return len(self.waiting) - 1

    def result(self, call: Any) -> Measured:
        for place in reversed(range(len(self.waiting))):
            if place not in self.done:
                self.done[place] = self.here.result(self.waiting[place])
        return self.done[call]  # type: ignore[no-any-return]


def test_the_order_in_which_trials_end_changes_nothing(whole: tuple[Table, Path], tmp_path: Path) -> None:
    table, folder = whole
    assert plain(carried(study(), tmp_path / "out", Backwards())) == plain(table)
    assert bits(study(), tmp_path / "out") == bits(study(), folder)


def test_two_dask_workers_find_what_one_process_finds(whole: tuple[Table, Path], crew: Crew, tmp_path: Path) -> None:
    table, folder = whole
    assert plain(carried(study(), tmp_path / "out", Cluster(crew, None))) == plain(table)
    assert bits(study(), tmp_path / "out") == bits(study(), folder)
    # A population's members go on from others, which may have been at another worker.
    found = study(search={"name": "pbt", "size": 4}, fidelity={"rounds": [2, 4]})
    mine = carried(found, tmp_path / "mine")
    assert plain(carried(found, tmp_path / "theirs", Cluster(crew, None))) == plain(mine)


@pytest.mark.slow
def test_a_pool_finds_what_one_process_finds(whole: tuple[Table, Path], tmp_path: Path) -> None:
    table, folder = whole
    with backend_of(2, None, None) as pool:
        assert plain(carried(study(), tmp_path / "out", pool)) == plain(table)
    assert bits(study(), tmp_path / "out") == bits(study(), folder)
    with pytest.raises(BadInput, match="give one of them"), backend_of(2, "tcp://x", None):
        pass


# ---- stops


class Stop(BaseException):
    """Ends everything, as a kill does."""


def test_a_study_that_is_stopped_anywhere_has_the_same_trials_and_does_nothing_twice(
    whole: tuple[Table, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of a journal may be the one that was not written."""
    from isthmus.runs.folder import Journal

    table, folder = whole
    countdown = [0]
    write = Journal.write

    def tick() -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            raise Stop

    def journal(self: Journal, event: str, **fields: Any) -> None:
        tick()
        write(self, event, **fields)

    monkeypatch.setattr(Journal, "write", journal)
    rng, stops = random.Random(0), 0
    while True:
        countdown[0] = rng.randrange(1, 25)
        try:
            found = carried(study(), tmp_path / "out")
            break
        except Stop:
            stops += 1
    assert stops >= 10
    assert plain(found) == plain(table)
    assert bits(study(), tmp_path / "out") == bits(study(), folder)
    names = [[path.name for path in sorted(each.glob("trials/*"))] for each in (folder, tmp_path / "out")]
    assert names[0] == names[1]
    lines = [
        [json.loads(line)["key"] for line in (each / "trials.jsonl").read_text().splitlines()]
        for each in (folder, tmp_path / "out")
    ]
    assert lines[0] == lines[1]


def test_a_line_that_was_cut_off_is_computed_again(whole: tuple[Table, Path], tmp_path: Path) -> None:
    import shutil

    table, folder = whole
    shutil.copytree(folder, tmp_path / "out")
    file = tmp_path / "out" / "trials.jsonl"
    file.write_text(file.read_text()[:-20])
    assert plain(carried(study(), tmp_path / "out")) == plain(table)
    assert len(file.read_text().splitlines()) == len(table.rows)
    file.write_text("nonsense\n" + file.read_text())
    with pytest.raises(BadInput, match="line 1 is no trial: 'nonsense'; delete it"):
        carried(study(), tmp_path / "out")


@pytest.mark.slow
def test_a_study_that_is_killed_ten_times_has_the_same_trials(tmp_path: Path) -> None:
    plainly = {**PLAIN, "search": {"name": "sha", "arms": 16}}
    found = read_study({"title": "mine", **plainly}, "s.yaml", "mine")
    table = carried(found, tmp_path / "whole")
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"title": "mine", **plainly}))
    command = [sys.executable, "-m", "isthmus", "tune", "s.yaml", "--out", "out", "--workers", "2"]
    rng = random.Random(1)
    for kill in range(10):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        if kill % 3 == 2:  # at any moment
            time.sleep(rng.random() * 10)
        else:  # or soon after one more trial: else nothing would ever come to an end
            lines, until = _lines(tmp_path), time.monotonic() + 120
            while _lines(tmp_path) == lines and process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(rng.random() * 0.1)
        assert process.poll() is None, f"it was over before the kill {kill}"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert 6 <= _lines(tmp_path) < len(table.rows) == 16 + 8 + 4
    code, output = call("tune", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "out"), "--json")
    assert code == 0 and len(json.loads(output)["trials"]) == len(table.rows)
    assert plain(carried(found, tmp_path / "out", Never())) == plain(table)
    assert bits(found, tmp_path / "out") == bits(found, tmp_path / "whole")
    keys = [json.loads(line)["key"] for line in (tmp_path / "out" / "trials.jsonl").read_text().splitlines()]
    assert len(keys) == len(set(keys)) == len(table.rows)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_and_costs_the_stage_that_it_was_at(
    whole: tuple[Table, Path], tmp_path: Path
) -> None:
    table, folder = whole

    def kill(pool: Pool) -> None:
        while _lines(tmp_path) < 2:
            time.sleep(0.01)
        os.kill(next(iter(pool.executor._processes)), signal.SIGKILL)

    def struck() -> None:
        with backend_of(2, None, None) as pool:
            assert isinstance(pool, Pool)
            threading.Thread(target=kill, args=(pool,), daemon=True).start()
            carried(study(), tmp_path / "out", pool)

    with pytest.raises(CourseFailed, match=r"a worker process was killed.*start the same again"):
        struck()
    assert 2 <= _lines(tmp_path) < len(table.rows)
    with backend_of(2, None, None) as pool:
        assert plain(carried(study(), tmp_path / "out", pool)) == plain(table)
    assert bits(study(), tmp_path / "out") == bits(study(), folder)


def _lines(folder: Path) -> int:
    path = folder / "out" / "trials.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0
