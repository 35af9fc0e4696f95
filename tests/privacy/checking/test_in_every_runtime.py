"""What checks find is the same whoever carries the messages: loop, strict, stacked, and sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.algorithms import FedAvg
from isthmus.attacks.poisoning import RandomUpdate, Scaling, StaleReplies
from isthmus.core.guards.guard import Guard
from isthmus.core.record import Record
from isthmus.privacy import ClassSanity, DistanceToMedian, NoRepeats, NormBound, Quarantine
from isthmus.testing import toy_world, trace_course, trace_sites
from isthmus.testing.hostile.siege import known_here
from tests.quick import quick

WRONG = ("client-1",)
# Check -> who it is to find, its settings, on which method, what the reason has, and in which rounds.
CASES: dict[str, tuple[Guard, Guard, Any, str, set[int]]] = {
    "norm_bound": (
        Scaling(WRONG, times=300.0),
        NormBound(times_median=20.0),
        FedAvg(local_steps=1),
        "times",
        {1, 2, 3},
    ),
    "norm_bound, a length": (
        Scaling(WRONG, times=300.0),
        NormBound(largest=10.0),
        FedAvg(local_steps=1),
        "bound is 10",
        {1, 2, 3},
    ),
    "distance_to_median": (
        RandomUpdate(WRONG, scale=100.0),
        DistanceToMedian(times=20.0),
        FedAvg(local_steps=1),
        "from the median of 3",
        {1, 2, 3},
    ),
    "no_repeats": (StaleReplies(WRONG), NoRepeats(), FedAvg(local_steps=1), "sent in round 1", {2, 3}),
    "class_sanity": (
        Scaling(WRONG, times=0.5),
        ClassSanity(),
        quick("fedgl"),
        "class probabilities of its node",
        {1, 2, 3},
    ),
    "quarantine": (
        Scaling(WRONG, times=300.0),
        NormBound(times_median=20.0),
        FedAvg(local_steps=1),
        "times the median",
        {1, 2},
    ),
}


def found(reports: Any) -> dict[int, str]:
    """Return why the wrong client was suspicious, by round; nobody else may be."""
    failures = [(report.position.round, failure) for report in reports for failure in report.failures]
    assert {(failure.client, failure.kind) for _, failure in failures} <= {(WRONG[0], "suspicious")}
    return {round: failure.reason for round, failure in failures}


@pytest.mark.parametrize("name", CASES)
def test_who_is_found_is_the_same_in_every_runtime_and_between_sites(name: str, tmp_path: Path) -> None:
    wrong, check, algorithm, part, rounds = CASES[name]
    guards = (wrong, check, *((Quarantine(after=2),) if name == "quarantine" else ()))
    world = toy_world()
    reasons = {}
    for runtime in ("loop", "strict", "auto"):
        trace = trace_course(world.course(algorithm, guards=guards, rounds=3, runtime=runtime), world.scenario)
        assert trace.ended_by is None
        reasons[runtime] = found(trace.exchanges)
        assert isinstance(trace.state, Record)
        barred = any(WRONG[0] not in report.cohort for report in trace.rounds)
        assert barred is (name == "quarantine")
    with known_here(type(wrong)):
        made = world.course(algorithm, guards=guards, rounds=3, runtime="loop")
        sites = trace_sites(made, world.silos(tmp_path), tmp_path / "run")
    assert sites.ended_by is None
    reasons["sites"] = found(sites.exchanges)
    for where, told in reasons.items():
        assert set(told) == rounds, where
        assert all(part in reason for reason in told.values()), (where, told)
    assert reasons["loop"] == reasons["strict"] == reasons["sites"]  # to the bit, as the numbers in them say
