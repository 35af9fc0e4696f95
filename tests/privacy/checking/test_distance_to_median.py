"""Replies far from the middle, against distances worked out one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.algorithms import FedAvg
from isthmus.config.course import Course
from isthmus.privacy import DistanceToMedian
from isthmus.testing import check_guard, toy_course, toy_scenario, trace_course
from isthmus.testing.traces import require_same
from tests.core.toys import quick, update
from tests.privacy.checking.toys import Desk, ask, named

# Checks with one client, or with one in a round: there is no median of one.
SMALL = ("stacked_equals_loop", "partial_participation")

numbers = st.lists(st.floats(-100, 100, width=16), min_size=2, max_size=2)


@quick
@given(st.lists(numbers, min_size=3, max_size=9), numbers, st.floats(1.01, 10))
def test_who_is_many_times_as_far_as_half_of_them_is_suspicious(rows: Any, sent: Any, times: float) -> None:
    middle = [
        sorted(column)[len(rows) // 2] if len(rows) % 2 else float(np.median(column))
        for column in zip(*rows, strict=True)
    ]
    apart = [math.dist(row, middle) for row in rows]
    bound = times * float(np.median(apart))
    if any(abs(distance - bound) < 1e-6 * (1 + bound) for distance in apart):
        return
    expected = [name for name, distance in zip("abcdefghi", apart, strict=False) if distance > bound > 0.0]
    found = Desk((DistanceToMedian(times),)).reviewed(named(rows), ask(sent))
    assert sorted(found) == expected
    assert all(failure.kind == "suspicious" and "median of" in failure.reason for failure in found.values())


def test_less_than_half_cannot_have_honest_ones_thrown_out() -> None:
    """Four of nine that agree on anything: the five others are never those who are farthest."""
    draw = np.random.default_rng(0)
    for _ in range(20):
        honest = draw.normal(size=(5, 2))
        wrong = np.tile(draw.normal(size=2) * 10.0 ** draw.integers(1, 9), (4, 1))
        found = Desk((DistanceToMedian(5.0),)).reviewed(named([*honest.tolist(), *wrong.tolist()]))
        assert not set(found) & set("abcde")


def test_who_sends_other_shapes_is_not_compared_and_does_not_hide_others() -> None:
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5], [80.0, 0.0]]
    replies = {**named(rows), "z": update([1.0, 2.0, 3.0])}
    assert list(Desk((DistanceToMedian(5.0),)).reviewed(replies)) == ["e"]


def test_without_a_bound_a_course_is_what_it_was_to_the_bit() -> None:
    plain = trace_course(toy_course(FedAvg(), num_clients=4), toy_scenario(4))
    guards = (DistanceToMedian(math.inf),)
    behind = trace_course(toy_course(FedAvg(), num_clients=4, guards=guards), toy_scenario(4))
    require_same(plain.values(), behind.values(), "a course with and without a bound")


def test_it_keeps_to_the_rules_of_guards() -> None:
    check_guard(DistanceToMedian(50.0), algorithms=(FedAvg(local_steps=1),), skip=SMALL)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: DistanceToMedian(1.0), "times is 1.0"),
        (lambda: DistanceToMedian(math.nan), "times is nan"),
        (lambda: Course(guards=(DistanceToMedian(),), num_clients=2), "a median needs 3 replies"),
        (lambda: Course(guards=(DistanceToMedian(requests=("Train",)),)), "requests names 'Train'"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
