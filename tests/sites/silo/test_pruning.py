"""A silo's state stays bounded, and never loses what a course under way may go back to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from isthmus.algorithms import Ditto
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.state import MEMORIES, MODELS, RUNS, mark_finished, prune
from tests.sites.courses.test_site_course import on_sites
from tests.sites.in_process import fake_hub, site_course
from tests.sites.silo.test_silo_reveals import proposed

POLICY = Policy(keep_courses=4, keep_models=3)


def course(state: Path, number: int, finished: bool = True, age_days: float = 0.0) -> Path:
    """What a course leaves: two memories of its own, and a model and a run when it is over."""
    folder = state / MEMORIES / f"{number:016x}-abc"
    folder.mkdir(parents=True)
    for name in ("0" * 32, "1" * 32):
        (folder / name).write_bytes(b"x" * 100)
    if finished:
        mark_finished(folder)
        for room in (MODELS, RUNS):
            (state / room).mkdir(exist_ok=True)
        (state / MODELS / f"{number:016x}.safetensors").write_bytes(b"x" * 100)
        (state / RUNS / f"{number:016x}").mkdir()
    then = time.time() - age_days * 86400 + number / 1000
    for path in (folder, state / MODELS / f"{number:016x}.safetensors", state / RUNS / f"{number:016x}"):
        if path.exists():
            os.utime(path, (then, then))
    return folder


def sizes(state: Path) -> tuple[int, int]:
    files = [path for path in state.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("number_of_courses", [300, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("finished", [True, False])
def test_a_thousand_courses_leave_a_bounded_state(finished: bool, number_of_courses: int, tmp_path: Path) -> None:
    seen = []
    for number in range(number_of_courses):
        folder = course(tmp_path, number, finished)
        if number % 10 == 9:  # the rule holds whenever it is applied, so not each time
            prune(tmp_path, POLICY, folder)
            seen.append(sizes(tmp_path))
    assert len(set(seen[-number_of_courses // 20 :])) == 1, "the state still grows"
    files, _ = seen[-1]
    assert files <= (3 + POLICY.keep_models if finished else 2 * (1 + POLICY.keep_courses))
    for room in (MODELS, RUNS):
        assert not finished or len(list((tmp_path / room).iterdir())) == POLICY.keep_models


def test_the_course_under_way_and_the_latest_others_are_kept(tmp_path: Path) -> None:
    current = course(tmp_path, 0, finished=False, age_days=365)
    paused = [course(tmp_path, number, finished=False) for number in range(1, 7)]
    forgotten = course(tmp_path, 7, finished=False, age_days=31)
    over = course(tmp_path, 8)
    prune(tmp_path, POLICY, current)
    kept = set((tmp_path / MEMORIES).iterdir())
    assert kept == {current, *paused[-POLICY.keep_courses :]}
    assert forgotten not in kept and over not in kept


def test_memories_of_courses_that_did_not_end_are_kept_for_days_however_few_they_are(tmp_path: Path) -> None:
    paused = course(tmp_path, 1, finished=False, age_days=POLICY.keep_days - 1)
    forgotten = course(tmp_path, 2, finished=False, age_days=POLICY.keep_days + 1)
    assert prune(tmp_path, POLICY) == 1
    assert paused.exists() and not forgotten.exists()


def test_the_last_finished_course_keeps_its_memories_until_another_begins(tmp_path: Path) -> None:
    before, last = course(tmp_path, 1), course(tmp_path, 2)
    prune(tmp_path, POLICY)  # as at a restart of the silo
    assert last.exists() and not before.exists()
    prune(tmp_path, POLICY, tmp_path / MEMORIES / "another")
    assert not last.exists()


def test_proposals_leave_nothing_and_courses_leave_what_the_policy_says(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path, dict.fromkeys(("client-0", "client-1", "client-2"), Policy(keep_models=1)))
    service = hub.silos["client-0"]
    before = sizes(service.state)
    for number in range(20):
        assert not proposed(service, site_course(), f"{number:016x}").refusal
    assert sizes(service.state) == before
    for number in range(3):
        result = on_sites(site_course(Ditto(), rounds=1), hub, tmp_path / f"run-{number}").run()
        assert set(result.client_scores) == {"client-0", "client-1", "client-2"}
        assert len(list((service.state / MEMORIES).iterdir())) == 1
        assert len(list((service.state / MODELS).iterdir())) == 1
    # A course that is over can still go on for more rounds, with the memories that it had.
    longer = on_sites(site_course(Ditto(), rounds=2), hub, tmp_path / "run-2").resume()
    assert longer.num_rounds == 2 and not any("lost its memory" in note for note in longer.notes)


def test_a_policy_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_courses is 0; it must be positive"):
        Policy(keep_courses=0)
