"""Runs that are frozen after a round and thawed later: the bits of one that never stopped, whatever the round."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import isthmus.runs.stages as stages
from isthmus.algorithms import FedAvg
from isthmus.config.course import Course
from isthmus.config.load import course_digest, load_course
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput, NotResumable, OtherCourse
from isthmus.core.random import UniformSampling
from isthmus.core.training import EarlyStopping
from isthmus.runs.folder import RunFolder, load_checkpoint, load_model_file
from isthmus.runs.journal import read_journal
from isthmus.runs.simulated import run
from isthmus.runs.simulation import load_scenario
from isthmus.runs.stages import Frozen, fork, mid_course_problem, run_stage
from isthmus.testing import toy_course, toy_scenario
from tests.quick import KINDS, quick

SCENARIO = toy_scenario(3)
TIMES = {"time", "seconds", "wall_seconds", "codec_seconds", "check_seconds", "fold_seconds", "client_seconds"}


def course_of(algorithm: Any = None, **changes: Any) -> Course:
    # Checkpoints are written by stages alone, and rounds 3, 6 and 9 are evaluated.
    usual = {"rounds": 9, "evaluate_every": 3, "checkpoint_every": 0}
    return toy_course(algorithm or quick("fedavg"), **{**usual, **changes})


def stage(course: Course, path: Path, until: int) -> Frozen:
    return run_stage(course, path, until, lambda: SCENARIO)


def told(path: Path, *kinds: str) -> list[dict[str, Any]]:
    events = (event for event in read_journal(path / "journal.jsonl") if event["event"] in kinds)
    return [{key: value for key, value in event.items() if key not in TIMES} for event in events]


def checkpoint(course: Course, path: Path) -> tuple[Any, ...]:
    standing, memories = load_checkpoint(RunFolder(path).checkpoint, course_digest(course), course.algorithm)
    facts = {key: value for key, value in vars(standing).items() if key not in ("state", "best_state", "guards")}
    return facts, encode(standing.state), encode(standing.best_state), memories


@pytest.mark.parametrize("kind", KINDS)
def test_stages_that_end_between_evaluations_have_the_bits_of_a_straight_run(kind: str, tmp_path: Path) -> None:
    course = course_of(quick(kind), sampling=UniformSampling(fraction=0.7))
    if kind == "fedgrl":
        course = replace(course, rounds=4, evaluate_every=3)
    run(course, run_dir=tmp_path / "straight", scenario=SCENARIO)
    for until in (1, 2, 4, 8, 9):
        frozen = stage(course, tmp_path / "staged", until)
        assert frozen.round == min(until, course.rounds) and frozen.ended == (frozen.round == course.rounds)
    assert checkpoint(course, tmp_path / "staged") == checkpoint(course, tmp_path / "straight")
    kinds = ("round", "exchange", "end")
    assert told(tmp_path / "staged", *kinds) == told(tmp_path / "straight", *kinds)
    both = [tmp_path / path / "model.safetensors" for path in ("staged", "straight")]
    assert both[0].exists() == both[1].exists()
    if both[0].exists():
        assert encode(load_model_file(both[0])[0]) == encode(load_model_file(both[1])[0])


def test_no_round_is_evaluated_because_a_stage_ends(tmp_path: Path) -> None:
    frozen = stage(course_of(), tmp_path / "run", 4)
    scored = [event["round"] for event in frozen.events if event["event"] == "round" and event["metrics"]]
    assert (frozen.round, scored, frozen.ended) == (4, [3], False)
    assert not (tmp_path / "run" / "model.safetensors").exists() and not told(tmp_path / "run", "end")


def test_patience_runs_on_over_stages_and_ends_where_it_would_have(tmp_path: Path) -> None:
    # No round is better than the first that is evaluated: with a rate of nearly 0 nothing is learned.
    course = course_of(evaluate_every=1, stopping=EarlyStopping(patience=4), rounds=9)
    course = replace(course, algorithm=quick("fedavg", optimizer=replace(FedAvg().optimizer, lr=1e-12)))
    assert run(course, scenario=SCENARIO).num_rounds == 5
    rounds = [(found.round, found.ended) for until in (2, 4, 7, 9) if (found := stage(course, tmp_path / "r", until))]
    assert rounds == [(2, False), (4, False), (5, True), (5, True)]


def test_what_was_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course, path = course_of(rounds=4), tmp_path / "run"
    frozen, whole = stage(course, path, 2), None
    before = (path / "journal.jsonl").read_bytes()

    def never() -> Any:
        raise AssertionError("nothing is to be loaded")

    again = run_stage(course, path, 2, never)
    assert again.round == 2 and list(again.events) == list(frozen.events)
    assert (path / "journal.jsonl").read_bytes() == before
    whole = stage(course, path, 4)
    assert whole.ended and run_stage(course, path, 3, never).round == run_stage(course, path, 9, never).round == 4


def test_an_end_that_was_cut_off_before_it_was_scored_is_scored(tmp_path: Path) -> None:
    course, path = course_of(rounds=3), tmp_path / "run"
    stage(course, path, 3)
    end = told(path, "end")
    lines = (path / "journal.jsonl").read_text().splitlines(keepends=True)
    (path / "journal.jsonl").write_text("".join(line for line in lines if '"event": "end"' not in line))
    (path / "model.safetensors").unlink()
    assert stage(course, path, 3).ended and told(path, "end") == end and (path / "model.safetensors").exists()


def test_a_folder_without_a_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    course = course_of(rounds=3)
    stage(course, tmp_path / "straight", 2)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "course.yaml").write_text("rounds: 3\n")
    (tmp_path / "cut" / "journal.jsonl").write_text('{"event": "cour')
    stage(course, tmp_path / "cut", 2)
    assert checkpoint(course, tmp_path / "cut") == checkpoint(course, tmp_path / "straight")


# ---- other settings mid-course


def test_a_share_of_clients_may_change_between_stages_and_only_the_rounds_after_it_do(tmp_path: Path) -> None:
    few, all_of_them = (course_of(evaluate_every=1, sampling=UniformSampling(fraction=f)) for f in (0.3, 1.0))
    stage(few, tmp_path / "run", 3)
    frozen = stage(all_of_them, tmp_path / "run", 5)
    asked = [event["num_asked"] for event in frozen.events if event["event"] == "round"]
    assert asked == [1, 1, 1, 3, 3]
    stage(few, tmp_path / "few", 3)
    same = [told(tmp_path / name, "round")[:3] for name in ("run", "few")]
    assert same[0] == same[1]
    # From its new file it goes on as any run does.
    assert load_course(tmp_path / "run" / "course.yaml").sampling.fraction == 1.0
    assert stage(all_of_them, tmp_path / "run", 9).ended


def test_a_change_that_was_cut_off_between_its_two_files_is_made(tmp_path: Path) -> None:
    few, more = (course_of(sampling=UniformSampling(fraction=f)) for f in (0.3, 1.0))
    for name in ("whole", "cut"):
        stage(few, tmp_path / name, 3)
    before = (tmp_path / "cut" / "course.yaml").read_bytes()
    stage(more, tmp_path / "whole", 5)
    stages.take_on(RunFolder(tmp_path / "cut"), more)
    (tmp_path / "cut" / "course.yaml").write_bytes(before)
    stage(more, tmp_path / "cut", 5)
    assert checkpoint(more, tmp_path / "cut") == checkpoint(more, tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["model.gnn.hidden=7"], r"model\.gnn\.hidden was 5 and is 7"),
        (["seed=3"], r"seed was 0 and is 3"),
        (["algorithm.name=fedprox"], r"algorithm\.name was 'fedavg' and is 'fedprox'"),
    ],
)
def test_what_memories_are_made_of_cannot_change(words: list[str], key: str, tmp_path: Path) -> None:
    course = course_of()
    stage(course, tmp_path / "run", 2)
    other = load_course(tmp_path / "run" / "course.yaml", words)
    with pytest.raises(OtherCourse, match=f"{key}, mid-course: .*what can change is sampling.fraction"):
        stage(other, tmp_path / "run", 3)
    assert stage(course, tmp_path / "run", 3).round == 3


def test_reasons_for_which_a_share_of_clients_cannot_change_are_told() -> None:
    assert mid_course_problem(load_course({}), "sampling.fraction") == ""
    assert mid_course_problem(load_course({}), "rounds") == ""
    pooled = load_course({"algorithm": "global"})
    assert "global has one client that holds everything" in mid_course_problem(pooled, "sampling.fraction")
    dp = load_course(
        {"algorithm": {"weighting": "uniform"}, "guards": [{"name": "client_dp", "clip": 1.0, "noise": 1.0}]}
    )
    assert "the guard ClientDP counts" in mid_course_problem(dp, "sampling.fraction")
    assert mid_course_problem(dp, "algorithm.optimizer.lr") == ""
    assert "memories of the server" in mid_course_problem(load_course({}), "algorithm.optimizer.name")


# ---- forks


def test_a_fork_goes_on_from_a_frozen_run_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    course = course_of(evaluate_every=1)
    stage(course, tmp_path / "first", 3)
    before = {file.name: file.read_bytes() for file in (tmp_path / "first").iterdir()}
    fork(tmp_path / "first", tmp_path / "same", course)
    faster = replace(course, algorithm=quick("fedavg", optimizer=replace(FedAvg().optimizer, lr=0.5)))
    fork(tmp_path / "first", tmp_path / "faster", faster)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    for name, each in (("same", course), ("copy", course), ("faster", faster)):
        stage(each, tmp_path / name, 5)
    assert checkpoint(course, tmp_path / "same") == checkpoint(course, tmp_path / "copy")
    losses = [[event["metrics"]["train/loss"] for event in told(tmp_path / n, "round")] for n in ("same", "faster")]
    assert losses[0][:3] == losses[1][:3] and losses[0][3:] != losses[1][3:]
    assert {file.name: file.read_bytes() for file in (tmp_path / "first").iterdir()} == before


def test_a_fork_is_refused_where_nothing_can_come_of_it(tmp_path: Path) -> None:
    course = course_of()
    with pytest.raises(NotResumable, match="is not a run folder"):
        fork(tmp_path / "none", tmp_path / "new", course)
    stage(course, tmp_path / "first", 2)
    with pytest.raises(BadInput, match="exists already"):
        fork(tmp_path / "first", tmp_path / "first", course)
    with pytest.raises(OtherCourse, match="seed was 0 and is 1"):
        fork(tmp_path / "first", tmp_path / "new", replace(course, seed=1))
    assert not (tmp_path / "new").exists()


def test_a_stage_loads_nothing_that_it_is_given(tmp_path: Path) -> None:
    words = ["dataset.name=csbm", "num_clients=2", "model.gnn.hidden=4", "rounds=3", "checkpoint_every=0"]
    course = load_course({}, words)
    scenario = load_scenario(course, tmp_path)
    for until in (1, 2, 3):
        run_stage(course, tmp_path / "run", until, lambda: scenario)
    run(course, run_dir=tmp_path / "straight")
    assert checkpoint(course, tmp_path / "run") == checkpoint(course, tmp_path / "straight")
