"""Changes that are too long, against lengths worked out by hand, and in whole courses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.algorithms import FedAvg
from isthmus.config.course import Course
from isthmus.core.random import UniformSampling
from isthmus.privacy import NormBound
from isthmus.testing import check_guard, toy_course, toy_scenario, trace_course
from isthmus.testing.traces import require_same
from tests.core.toys import quick
from tests.privacy.checking.toys import AskElse, Desk, ask, named

# Checks with one client, or with one in a round: there is no median of one.
SMALL = ("stacked_equals_loop", "partial_participation")

numbers = st.lists(st.floats(-100, 100, width=16), min_size=2, max_size=2)


@quick
@given(st.lists(numbers, min_size=1, max_size=7), numbers, st.floats(0.1, 200))
def test_who_changes_more_than_the_bound_is_suspicious_and_nobody_else(rows: Any, sent: Any, largest: float) -> None:
    lengths = [math.dist(row, sent) for row in rows]
    if any(abs(length - largest) < 1e-6 for length in lengths):
        return
    found = Desk((NormBound(largest),)).reviewed(named(rows), ask(sent))
    assert sorted(found) == [name for name, length in zip("abcdefg", lengths, strict=False) if length > largest]
    assert all(failure.kind == "suspicious" for failure in found.values())


@quick
@given(st.lists(numbers, min_size=3, max_size=7), st.floats(1.01, 20))
def test_who_changes_more_than_some_times_the_median_is_suspicious(rows: Any, times: float) -> None:
    lengths = [math.hypot(*row) for row in rows]
    bound = times * float(np.median(lengths))
    if any(abs(length - bound) < 1e-6 * (1 + bound) for length in lengths):
        return
    expected = [name for name, length in zip("abcdefg", lengths, strict=False) if length > bound > 0.0]
    assert sorted(Desk((NormBound(times_median=times),)).reviewed(named(rows))) == expected


def test_the_reason_has_the_numbers() -> None:
    found = Desk((NormBound(4.0),)).reviewed(named([[3.0, 4.0], [0.0, 1.0]]))
    assert found["a"].reason == "what it changes has the norm 5, the bound is 4"
    found = Desk((NormBound(times_median=3.0),)).reviewed(named([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]))
    assert found["a"].reason == "what it changes has the norm 5, 5 times the median of 3 replies; at most 3 times it"


def test_two_replies_have_no_median_to_speak_of_and_who_weighs_nothing_no_part_in_one() -> None:
    guard = NormBound(times_median=2.0)
    assert not Desk((guard,)).reviewed(named([[1.0, 0.0], [90.0, 0.0]]))
    idle = {f"idle-{k}": reply for k, reply in enumerate(named([[0.0, 0.0]] * 5, weight=0.0).values())}
    assert not Desk((guard,)).reviewed({**named([[1.0, 0.0], [1.1, 0.0], [1.2, 0.0]]), **idle})


def test_only_replies_to_the_requests_that_are_named_are_looked_at() -> None:
    replies = named([[9.0, 9.0]])
    assert Desk((NormBound(1.0, requests=("Ask",)),)).reviewed(replies)
    assert not Desk((NormBound(1.0, requests=("AskElse",)),)).reviewed(replies)
    assert Desk((NormBound(1.0, requests=("AskElse",)),)).reviewed(replies, AskElse({}))


@pytest.mark.parametrize("guard", [NormBound(), NormBound(1e9, 1e9)], ids=repr)
def test_without_a_bound_a_course_is_what_it_was_to_the_bit(guard: NormBound) -> None:
    plain = trace_course(toy_course(FedAvg(), num_clients=4), toy_scenario(4))
    behind = trace_course(toy_course(FedAvg(), num_clients=4, guards=(guard,)), toy_scenario(4))
    require_same(plain.values(), behind.values(), "a course with and without a bound")


def test_it_keeps_to_the_rules_of_guards() -> None:
    check_guard(NormBound(50.0, 50.0), algorithms=(FedAvg(local_steps=1),), skip=SMALL)


@pytest.mark.slow
def test_it_keeps_to_the_rules_of_guards_beside_methods_that_remember() -> None:
    check_guard(NormBound(50.0, 50.0), skip=SMALL)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: NormBound(0.0), "largest is 0.0"),
        (lambda: NormBound(math.nan), "largest is nan"),
        (lambda: NormBound(times_median=1.0), "times_median is 1.0"),
        (lambda: Course(guards=(NormBound(1.0, requests=("TrainModle",)),)), "requests names 'TrainModle'"),
        (lambda: Course(guards=(NormBound(times_median=2.0),), num_clients=2), "a median needs 3 replies"),
        (
            lambda: Course(guards=(NormBound(times_median=2.0),), sampling=UniformSampling(0.2)),
            "a round may have but 1 of the 5 clients",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
