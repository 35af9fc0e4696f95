"""Schedules that are longer or shorter than their course are told at its start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import isthmus as ist
from isthmus.algorithms import FedGRL, LocalGRL
from isthmus.algorithms.fedgrl.selfsup import BGRL, DGI
from isthmus.config.course import schedule_notes
from isthmus.learn.optimizers import AdamW, Cosine
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.testing import toy_course, toy_scenario
from tests.algorithms.fedgrl.fedgrl_toys import MODEL, SHORT
from tests.sites.in_process import fake_hub, site_course


def notes(algorithm: Any, rounds: int) -> list[str]:
    return schedule_notes(toy_course(algorithm, rounds=rounds))


@pytest.mark.parametrize("kind", [FedGRL, LocalGRL])
def test_a_course_that_is_shorter_than_its_schedules_is_told_so(kind: type[FedGRL]) -> None:
    assert notes(kind(), 20) == [
        "algorithm.objective.rounds is 1000, and the course has 20 rounds: it ends on the way",
        "algorithm.optimizer.schedule.rounds is 1000, and the course has 20 rounds: it ends within the warm-up of 100 "
        "rounds",
    ]
    assert [text.rsplit(": ", 1)[1] for text in notes(kind(), 101)] == ["it ends on the way"] * 2
    assert notes(kind(), 1000) == []


def test_a_course_that_is_longer_is_told_so_too() -> None:
    algorithm = FedGRL(objective=DGI(), optimizer=AdamW(schedule=Cosine(rounds=8)))
    assert notes(algorithm, 12) == [
        "algorithm.optimizer.schedule.rounds is 8, and the course has 12 rounds: after round 8 it stays as it ends"
    ]


def test_what_has_no_number_of_rounds_is_passed_over() -> None:
    assert notes(ist.FedAvg(), 5) == [] and notes(FedGRL(objective=BGRL(rounds=5), optimizer=AdamW()), 5) == []


def test_the_notes_are_in_the_journal_of_a_run() -> None:
    algorithm = FedGRL(downstream=SHORT, objective=BGRL(hidden=7, rounds=2))
    course = toy_course(algorithm, rounds=2, model=MODEL)
    assert ist.run(course, scenario=toy_scenario()).notes == schedule_notes(course) != []
    fitting = replace(algorithm, optimizer=AdamW(schedule=Cosine(rounds=2)))
    assert ist.run(replace(course, algorithm=fitting), scenario=toy_scenario()).notes == []


def test_the_notes_are_in_the_journal_of_a_course_between_sites(tmp_path: Path) -> None:
    algorithm = FedGRL(downstream=SHORT, objective=BGRL(hidden=7, rounds=2))
    course = replace(site_course(algorithm), model=MODEL, rounds=2)
    hub = fake_hub(tmp_path / "silos")
    said: list[str] = []
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    site = SiteCourse(course, hub, tuple(hub.silos), tmp_path / "run", patience=patience, say=said.append)
    result = site.run()
    assert result.notes == schedule_notes(course) != [] and set(result.notes) <= set(said)
