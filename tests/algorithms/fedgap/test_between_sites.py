"""FedGAP and FedProGAP on the real engine: as in the loop, and noise of the silos' own where a guard wants it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import isthmus as ist
from isthmus.algorithms import FedGAP, FedProGAP
from isthmus.models import GAP, ModelSpec, ProGAP
from isthmus.privacy import EdgeDP, NodeDP
from isthmus.runs.journal import read_journal
from isthmus.sites.up import Rehearsal
from tests.sites.test_engine import QUICK, equal, simulate, small

pytestmark = pytest.mark.sites

METHODS: dict[str, dict[str, Any]] = {
    "gap": {
        "algorithm": FedGAP(local_steps=2, encoder_rounds=2, weighting="uniform"),
        "model": ModelSpec(GAP(hidden=8, dim=4)),
    },
    "progap": {
        "algorithm": FedProGAP(local_steps=2, stage_rounds=2, weighting="uniform"),
        "model": ModelSpec(ProGAP(dim=4)),
    },
}


def course_of(network: str, *guards: Any) -> ist.Course:
    return replace(small(**METHODS[network]), guards=guards)


@pytest.mark.slow
@pytest.mark.parametrize(
    "guard", [EdgeDP(4.0), NodeDP(steps=2, fraction=0.5, max_degree=5, cut=True)], ids=["edges", "nodes"]
)
@pytest.mark.parametrize("network", METHODS)
def test_with_secrets_of_a_simulation_it_is_what_the_loop_gives(network: str, guard: Any, tmp_path: Path) -> None:
    course = course_of(network, guard)
    rehearsed = Rehearsal(course, say=list[str]().append)
    for site in rehearsed.data:
        simulate(rehearsed.kits[site] / "state", course.seed, site)
    with rehearsed as rehearsal:
        found = rehearsal.run(tmp_path / "run", patience=QUICK)
    loop = ist.run(course)
    assert equal(found.params, loop.params) and found.client_scores == loop.client_scores


@pytest.mark.slow
@pytest.mark.parametrize("network", METHODS)
def test_silos_draw_noise_of_their_own_and_the_journal_says_what_it_comes_to(network: str, tmp_path: Path) -> None:
    course = course_of(network, EdgeDP(2.0))
    with Rehearsal(course, say=list[str]().append) as rehearsal:
        found = rehearsal.run(tmp_path / "run", patience=QUICK)
    assert not equal(found.params, ist.run(course).params)
    rounds = [event for event in read_journal(tmp_path / "run" / "journal.jsonl") if event["event"] == "round"]
    assert rounds and all(event["spent"] == {"epsilon of edges": 2.0} for event in rounds)
