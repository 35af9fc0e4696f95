"""What a study leaves: the best course, its score on splits of its own, tables, and a journal of Optuna's."""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.config.load import load_course
from isthmus.core.errors import BadInput
from isthmus.runs.simulated import run
from isthmus.tune.mirror import Mirror, importance
from isthmus.tune.page import coordinates, study_page
from isthmus.tune.results import Found, found_by, in_words, progress, regret_so_far, trials_table
from isthmus.tune.searches import model_based
from isthmus.tune.space import Dimension, Space
from isthmus.tune.table import Row, Rung, Table, Trial
from tests.cli.command import call
from tests.tune.test_running import PLAIN, study

PLAIN = {**PLAIN, "final_seeds": [7, 8], "search": {"name": "sha", "arms": 5}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "s.yaml").write_text(yaml.safe_dump(PLAIN))
    code, output = call("tune", str(folder / "s.yaml"), "--out", str(folder / "out"), "--json")
    assert code == 0, output
    return folder, json.loads(output)


def test_the_best_course_is_one_that_run_takes_and_was_scored_on_splits_that_no_trial_saw(done: Any) -> None:
    folder, facts = done
    course = load_course(folder / "out" / "best.yaml")
    assert course.algorithm.optimizer.lr == facts["best"]["values"]["algorithm.optimizer.lr"]
    assert (course.rounds, course.seed) == (6, 0)
    scores = [run(load_course(folder / "out" / "best.yaml", [f"seed={seed}"])).score() for seed in (7, 8)]
    assert facts["final"] == scores
    with (folder / "out" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(facts["trials"]) == 8 and facts["client_rounds"] == sum(
        float(r["client_rounds"]) for r in rows
    )
    page = (folder / "out" / "report.html").read_text()
    assert (
        page.startswith("<!DOCTYPE html>")
        and "<script" not in page
        and "http" not in page.replace("http-equiv", "").replace("www.w3.org", "")
    )
    assert page.count("<polyline") == 2 + 1 and "What decides" in page and "How soon" in page
    assert "2 splits that no trial saw" in (folder / "out" / "report.md").read_text()


def test_the_command_prints_a_table_and_goes_on_with_what_it_began(done: Any) -> None:
    folder, _ = done
    code, output = call("tune", str(folder / "s.yaml"), "--out", str(folder / "out"))
    assert code == 0 and "8 trials" in output and "best.yaml" in output
    code, output = call("tune", str(folder / "s.yaml"), "model.gnn.hidden=8", "--out", str(folder / "out"))
    assert code == 2 and "holds another study: it differs in base" in output


def test_a_table_is_filled_and_searched_from_the_command_line(tmp_path: Path) -> None:
    plain = {**PLAIN, "space": {"algorithm.optimizer.lr": [0.1, 1.0]}, "search": "sha", "final_seeds": []}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(plain))
    words = ("tune", str(tmp_path / "s.yaml"))
    code, output = call(*words, "--table", "--out", str(tmp_path / "t"))
    assert code == 0 and "2 configurations x 1 shares x 1 seeds, 6 rounds" in output
    code, output = call(*words, "--on", str(tmp_path / "t" / "curves.npz"), "--json")
    assert code == 0 and len(json.loads(output)["trials"]) == 4 and json.loads(output)["folder"] is None
    code, output = call(*words, "--on", str(tmp_path / "t" / "curves.npz"), "--out", str(tmp_path / "looked"))
    assert code == 0 and (tmp_path / "looked" / "best.yaml").exists()
    assert "test score on the table" in (tmp_path / "looked" / "report.html").read_text()
    for more, said in (
        (("--table", "--on", "x"), "give one of them"),
        (("--table", "--cluster", "x"), "--cluster is for trials"),
        (("--table", "--fractions", "half"), "--fractions is 'half'"),
    ):
        code, output = call(*words, *more)
        assert code == 2 and said in output


# ---- Optuna's journal


def test_optuna_reads_the_study_whether_it_goes_on_or_not(done: Any, tmp_path: Path) -> None:
    import optuna

    folder, facts = done
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "out" / "optuna.log"))
    (found,) = optuna.get_all_study_summaries(storage=optuna.storages.JournalStorage(backend))
    theirs = optuna.load_study(study_name=found.study_name, storage=optuna.storages.JournalStorage(backend))
    states = [trial.state.name for trial in theirs.trials]
    assert sorted(states) == ["COMPLETE"] + ["PRUNED"] * 4
    assert theirs.best_trial.user_attrs["arm"] == facts["best"]["arm"]
    assert sorted(theirs.best_trial.intermediate_values) == [3, 5, 6]
    made = study()
    mirror = Mirror(made, tmp_path)
    rows = [Row(Trial(arm, made.table().drawn(arm), 0), True, (0.5,), (0.5,)) for arm in range(2)]
    for row in rows:
        mirror.told(row)
    again = Mirror(made, tmp_path)
    for row in [*rows, Row(Trial(1, made.table().drawn(1), 1), True, (0.6,), (0.6,))]:
        again.told(row)
    kept = again.theirs.get_trials()
    assert [trial.state.name for trial in kept] == ["RUNNING", "RUNNING"]
    assert [dict(trial.intermediate_values) for trial in kept] == [{3: 0.5}, {3: 0.5, 5: 0.6}]


def test_what_a_kill_leaves_in_optuna_s_journal_stops_no_study(tmp_path: Path) -> None:
    made = study()
    rows = [Row(Trial(arm, made.table().drawn(arm), 0), True, (0.5,), (0.5,)) for arm in range(2)]

    def told() -> list[dict[int, float]]:
        mirror = Mirror(made, tmp_path)
        for row in rows:
            mirror.told(row)
        return [dict(trial.intermediate_values) for trial in Mirror(made, tmp_path).theirs.get_trials()]

    path = tmp_path / "optuna.log"
    assert told() == [{3: 0.5}, {3: 0.5}]
    whole = path.read_bytes()
    for place in range(len(whole) - 1, 0, -len(whole) // 11):
        path.write_bytes(whole[:place])
        assert told() == [{3: 0.5}, {3: 0.5}], place
    (tmp_path / "optuna.log.lock").symlink_to(path)
    started = time.monotonic()
    assert told() == [{3: 0.5}, {3: 0.5}] and time.monotonic() - started < 10
    path.write_text("nonsense\n" + whole.decode())
    assert told() == [{3: 0.5}, {3: 0.5}]


def test_a_study_that_goes_on_with_a_larger_budget_is_one_that_goes_on_in_optuna_s_journal_too(tmp_path: Path) -> None:
    made = study()
    points = [made.table().drawn(arm) for arm in range(2)]
    few = [Row(Trial(arm, points[arm], 0), True, (0.5,), (0.5,)) for arm in range(2)]
    more = [*few, *(Row(Trial(1, points[1], rung), True, (0.5 + rung / 10,), (0.5,)) for rung in (1, 2))]
    for rows in (few, more):
        mirror = Mirror(made, tmp_path)
        for row in rows:
            mirror.told(row)
        mirror.ends(made.table(tuple(rows)))
    found = {trial.user_attrs["arm"]: trial for trial in Mirror(made, tmp_path).theirs.get_trials()}
    assert {arm: trial.state.name for arm, trial in found.items()} == {0: "PRUNED", 1: "COMPLETE"}
    assert found[1].value == 0.7 and dict(found[1].intermediate_values) == {3: 0.5, 5: 0.6, 6: 0.7}


def test_optuna_dashboard_shows_the_study(done: Any, tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="pip install optuna-dashboard")
    folder, facts = done
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    main = "from optuna_dashboard._cli import main; main()"
    words = [str(folder / "out" / "optuna.log"), "--host", "127.0.0.1", "--port", port]
    with subprocess.Popen(
        [sys.executable, "-c", main, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as p:
        try:
            page, (listed,) = (
                _fetched(port, "/dashboard"),
                json.loads(_fetched(port, "/api/studies"))["study_summaries"],
            )
            shown = json.loads(_fetched(port, f"/api/studies/{listed['study_id']}"))
        finally:
            p.terminate()
    assert "<html" in page and listed["study_name"] == "s"
    states = [trial["state"] for trial in shown["trials"]]
    assert sorted(states) == ["Complete"] + ["Pruned"] * 4
    assert len(shown["best_trials"]) == 1
    best = next(trial for trial in shown["trials"] if trial["state"] == "Complete")
    assert best["values"] == facts["best"]["scores"]
    assert {p["name"] for p in best["params"]} == set(facts["best"]["values"])


def _fetched(port: str, path: str) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < deadline, "the dashboard does not answer"
            time.sleep(0.1)


def test_without_optuna_only_what_needs_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match=r"pip install 'isthmus\[tuning\]'"):
        study(search="tpe", budget={"trials": 3})
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**PLAIN, "search": {"name": "sha", "arms": 1}, "final_seeds": []}))
    code, output = call("tune", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "out"))
    assert code == 0 and not (tmp_path / "out" / "optuna.log").exists(), output


# ---- what decides


def rows_of(scores: dict[tuple[float, int], float]) -> Table:
    space = Space({"a": Dimension(low=0.0, high=1.0), "b": Dimension(choices=(0, 1))})
    rows = [Row(Trial(n, {"a": a, "b": b}, 0), True, (s,)) for n, ((a, b), s) in enumerate(scores.items())]
    return Table(space, (Rung(1),), rows=rows)


def test_what_decides_is_the_key_that_the_score_depends_on() -> None:
    shares = importance(rows_of({(n / 20, n % 2): (n / 20) ** 2 for n in range(20)}))
    assert shares["a"] > 0.9 and sum(shares.values()) == pytest.approx(1.0)
    assert importance(rows_of({(0.1, 0): 1.0, (0.2, 1): 2.0})) == {}
    assert importance(rows_of({(n / 20, n % 2): 1.0 for n in range(20)})) == {}


def test_a_study_of_failures_says_why(tmp_path: Path) -> None:
    table = study().table((Row(Trial(0, {}, 0), True, (float("nan"),), (float("nan"),), 0.0, 0.0, "it broke"),))
    with pytest.raises(BadInput, match="no trial has a score: it broke"):
        found_by(study(), table)


def test_what_has_no_score_is_never_the_best() -> None:
    made, nothing = study(), float("nan")
    rows = [Row(Trial(n, made.table().drawn(n), n), True, (s,), (s,)) for n, s in enumerate((0.5, nothing))]
    table = made.table(tuple(rows))
    assert table.best() == rows[0] and [best for _, best in table.so_far()] == [rows[0], rows[0]]
    with pytest.raises(BadInput, match="no trial has a score: val/accuracy was measured in none"):
        found_by(made, made.table(tuple(rows[1:])))


def test_several_objectives_have_a_front() -> None:
    made = study(objectives=["val/accuracy", "bytes"])
    scores = [(0.5, 10.0), (0.9, 20.0), (0.8, 30.0)]
    rows = tuple(Row(Trial(n, made.table().drawn(n), 2), True, each, each[:1]) for n, each in enumerate(scores))
    found = found_by(made, made.table(rows))
    assert [row.trial.arm for row in found.front] == [1, 0] and found.best.trial.arm == 1
    assert "nothing beats in all objectives: 1, 0" in in_words(found)


def test_progress_is_the_best_so_far_by_what_was_spent() -> None:
    made = study()
    rows = tuple(
        Row(Trial(n, made.table().drawn(n), 2), True, (score,), (score,), cost=4.0)
        for n, score in enumerate((0.3, 0.2, 0.7))
    )
    assert progress(made.table(rows)) == [(4.0, 0.3), (8.0, 0.3), (12.0, 0.7)]
    found = Found(made, made.table(rows), rows[2])
    assert [line[0] for line in trials_table(found).rows] == ["2", "0", "1"]
    assert "3 configurations, 3 trials, 12 client-rounds" in in_words(found)[0]
    assert model_based.GENERATION.endswith("generation")


def test_regret_is_how_far_the_best_so_far_is_from_the_best_that_was_found() -> None:
    made = study()
    scores = [(0, 0.9), (2, 0.3), (1, 0.8), (2, 0.7), (2, 0.5)]  # only what is on the highest rung can be compared
    rows = tuple(
        Row(Trial(n, made.table().drawn(n), rung), True, (score,), (score,), cost=4.0)
        for n, (rung, score) in enumerate(scores)
    )
    expected = [(8.0, pytest.approx(0.4)), (12.0, pytest.approx(0.4)), (16.0, 0.0), (20.0, 0.0)]
    assert regret_so_far(made.table(rows)) == expected
    lower = study(objectives=["val/loss"])
    assert regret_so_far(lower.table(rows)) == [(8.0, 0.0), (12.0, 0.0), (16.0, 0.0), (20.0, 0.0)]
    page = study_page(found_by(made, made.table(rows)))
    assert "Regret" in page and "<td>16</td>" in page.replace(' class="number"', "")


def test_a_page_shows_where_good_points_lie() -> None:
    made = study(
        space={"algorithm.optimizer.lr": {"low": 0.01, "high": 1.0, "log": True}, "algorithm.local_steps": [1, 2, 4]}
    )
    arms = [
        {"algorithm.optimizer.lr": 0.01 * 10 ** (n / 5), "algorithm.local_steps": (1, 2, 4)[n % 3]} for n in range(10)
    ]
    rows = tuple(Row(Trial(n, arm, 2), True, (n / 10,), (n / 10,), cost=4.0) for n, arm in enumerate(arms))
    places = [coordinates(made.space.dimensions, row) for row in rows]
    assert [place[0] for place in places] == pytest.approx([n / 10 for n in range(10)])
    assert [place[1] for place in places[:3]] == [0.0, 0.5, 1.0]
    found = found_by(made, made.table(rows))
    page = study_page(found)
    assert page.count("<polyline") == 12 and page.count('class="line-own"') == 2 + 2
    assert "best quarter" in page and "algorithm.local_steps" in page
    partly = replace(rows[0], trial=Trial(0, {"algorithm.local_steps": 2}, 2))
    assert coordinates(made.space.dimensions, partly) == [None, 0.5]
