"""Replies that are not new: of the same client, of another, of the server; and who is not to be blamed."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.algorithms import FedAvg
from isthmus.attacks.poisoning import StaleReplies
from isthmus.config.course import Course
from isthmus.privacy import NoRepeats
from isthmus.testing import check_guard, toy_course, toy_scenario, trace_course
from isthmus.testing.traces import require_same
from tests.privacy.checking.toys import AskElse, Desk, ask, named

ROWS = [[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]]


def after_a_round(**settings: Any) -> Desk:
    desk = Desk((NoRepeats(**settings),))
    assert not desk.reviewed(named(ROWS), ask([0.0, 0.0]))
    desk.next_round()
    return desk


def test_an_earlier_reply_again_is_suspicious() -> None:
    found = after_a_round().reviewed(named([[1.0, 2.0], [2.5, 1.0]]), ask([2.0, 2.0]))
    assert {client: failure.reason for client, failure in found.items()} == {
        "a": "it is to the bit what a sent in round 1"
    }


def test_another_clients_earlier_reply_is_suspicious() -> None:
    found = after_a_round().reviewed(named([[2.0, 1.0], [2.5, 1.0]]), ask([2.0, 2.0]))
    assert found["a"].reason == "it is to the bit what b sent in round 1"


def test_an_old_global_model_is_suspicious_and_that_of_now_is_not() -> None:
    desk = after_a_round()
    found = desk.reviewed(named([[0.0, 0.0], [2.0, 2.0], [7.0, 7.0]]), ask([2.0, 2.0]))
    assert {client: failure.reason for client, failure in found.items()} == {
        "a": "it is to the bit what the server sent in round 1"
    }


def test_the_same_from_two_clients_is_suspicious_of_both_unless_they_changed_nothing() -> None:
    desk = Desk((NoRepeats(),))
    found = desk.reviewed(named([[1.0, 2.0], [1.0, 2.0], [5.0, 5.0], [0.0, 0.0], [0.0, 0.0]]), ask([0.0, 0.0]))
    assert {client: failure.reason for client, failure in found.items()} == {
        "a": "it is to the bit the reply of b",
        "b": "it is to the bit the reply of a",
    }
    assert not Desk((NoRepeats(copies=False),)).reviewed(named([[1.0, 2.0]] * 2), ask([0.0, 0.0]))


def test_a_single_bit_is_another_reply_and_the_weight_is_none_of_it() -> None:
    desk = after_a_round()
    assert not desk.reviewed(named([[1.0, 2.0000002]]), ask([2.0, 2.0]))
    assert desk.reviewed(named([[1.0, 2.0]], weight=9.0), ask([2.0, 2.0]))


def test_what_is_too_old_is_forgotten() -> None:
    desk = after_a_round(remembered=2)
    desk.next_round()
    desk.next_round()
    assert desk.round == 4
    assert not desk.memories
    assert not desk.reviewed(named(ROWS), ask([2.0, 2.0]))
    desk = after_a_round(remembered=0)
    assert not desk.memories.get("guard.0.NoRepeats")
    assert not desk.reviewed(named(ROWS), ask([2.0, 2.0]))


def test_what_has_no_counterpart_in_the_request_is_looked_at_where_it_is_named() -> None:
    both = named([[1.0, 2.0], [1.0, 2.0]])
    assert not Desk((NoRepeats(),)).reviewed(both, AskElse({}))
    assert Desk((NoRepeats(requests=("AskElse",)),)).reviewed(both, AskElse({}))
    assert not Desk((NoRepeats(requests=("Ask",)),)).reviewed(both, AskElse({}))


def test_honest_clients_are_let_be_and_a_stale_one_is_found_in_a_course() -> None:
    course = toy_course(FedAvg(local_steps=1), num_clients=4)
    plain = trace_course(course, toy_scenario(4))
    behind = trace_course(toy_course(FedAvg(local_steps=1), num_clients=4, guards=(NoRepeats(),)), toy_scenario(4))
    require_same({"it": plain.state}, {"it": behind.state}, "a course with and without a check")
    lazy = (StaleReplies(clients=("client-2",)), NoRepeats())
    trace = trace_course(toy_course(FedAvg(local_steps=1), num_clients=4, guards=lazy), toy_scenario(4))
    failures = [(failure.client, report.position.round) for report in trace.exchanges for failure in report.failures]
    assert failures == [("client-2", 2), ("client-2", 3)]


def test_it_keeps_to_the_rules_of_guards() -> None:
    check_guard(NoRepeats(), algorithms=(FedAvg(local_steps=1),))


@pytest.mark.slow
def test_it_keeps_to_the_rules_of_guards_beside_methods_that_remember() -> None:
    check_guard(NoRepeats())


def test_what_cannot_be_is_refused_before_the_start() -> None:
    with pytest.raises(ValueError, match="remembered is -1"):
        NoRepeats(-1)
    with pytest.raises(ValueError, match="requests names 'Train'"):
        Course(guards=(NoRepeats(requests=("Train",)),))
