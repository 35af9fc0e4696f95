"""Replies whose parameters are places in a stack are judged and folded without a tensor being made for any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedGL
from isthmus.core.federation import ExchangeRules, Federation
from isthmus.core.federation.judging import judged
from isthmus.core.folds import median, weighted_mean
from isthmus.core.protocol import Failure, Request
from isthmus.core.record import Params
from isthmus.core.replies import Combination, MemberParams, StackedParams, StackedTensor, whole_stacks
from isthmus.runs.simulation import Simulation
from isthmus.testing import toy_course
from isthmus.testing.toys import toy_scenario
from tests.core.test_federation import Update, stage
from tests.core.test_stacked_params import VALUES, plain, stack

CLIENTS = ("d", "b", "a", "c")  # in another order than in the stack


@dataclass(frozen=True)
class Train(Request[Update]):
    params: Params


REQUEST = Train(plain(0))


def replies(of: StackedParams) -> dict[str, Update]:
    members = of.members()
    return {c: Update(members["abcd".index(c)], 1.0 + "abcd".index(c)) for c in CLIENTS}


def federation() -> Federation:
    return stage({}).fed


def test_a_sound_reply_is_judged_by_the_bounds_of_its_stack() -> None:
    of, each = stack()
    limits = {"params": 100.0}
    found = {c: judged(c, reply, REQUEST, Update, limits=limits) for c, reply in replies(of).items()}
    assert all(type(reply) is Update for reply in found.values())
    assert not any(counting.looks for counting in each.values())


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -101.0])
def test_an_odd_number_is_the_failure_that_it_is_in_a_plain_reply(odd: float) -> None:
    values = {name: tensor.clone() for name, tensor in VALUES.items()}
    values["w"][2, 1, 1] = odd
    of = StackedParams({name: StackedTensor(tensor) for name, tensor in values.items()}, 4)
    for place, member in enumerate(of.members()):
        whole = {name: tensor[place] for name, tensor in values.items()}
        found = judged("x", Update(member, 1.0), REQUEST, Update, limits={"params": 100.0})
        expected = judged("x", Update(whole, 1.0), REQUEST, Update, limits={"params": 100.0})
        assert type(found) is type(expected) is (Failure if place == 2 else Update)
        assert place != 2 or found == expected


def test_bounds_that_say_too_much_make_nobody_a_failure() -> None:
    held = StackedTensor(torch.full((2, 3), 60.0))
    sums = Combination([(1.0, held), (-1.0, torch.full((3,), 59.0))])  # 1, by bounds of up to 119
    member = StackedParams({"w": sums}, 2).members()[1]
    assert not member.within(lambda name: 100.0) and member.within(lambda name: 119.0)
    found = judged("x", Update(member, 1.0), Train({"w": torch.zeros(3)}), Update, limits={"params": 100.0})
    assert isinstance(found, Update) and torch.equal(found.params["w"], torch.ones(3))


def test_who_was_looked_at_is_looked_at_again() -> None:
    of, _ = stack()
    member = of.members()[0]
    assert member.within(lambda name: 100.0)
    member["w"].fill_(float("nan"))  # in place: the stack does not know
    assert not member.within(lambda name: 100.0)
    assert isinstance(judged("x", Update(member, 1.0), REQUEST, Update), Failure)


def test_a_fold_takes_whole_stacks_and_each_of_the_others() -> None:
    of, each = stack()
    mine: dict[str, Any] = replies(of)
    alone = {"e": Update(plain(3), 5.0), "f": Update(stack()[0].members()[0], 2.0)}
    every = {**mine, **alone}
    requests = dict.fromkeys(every, REQUEST)
    expected = weighted_mean(
        Update(dict(reply.params) if c in alone else plain("abcd".index(c)), reply.weight) for c, reply in every.items()
    )
    found = federation().fold(every, weighted_mean, requests)
    assert not any(counting.looks for counting in each.values())
    assert found.weight == expected.weight
    torch.testing.assert_close(dict(found.params), dict(expected.params))
    part = {c: mine[c] for c in ("a", "b")}
    assert list(whole_stacks(part)) == [] and [s.clients for s in whole_stacks(every)] == [("a", "b", "c", "d")]
    middle = federation().fold(mine, median, requests)
    torch.testing.assert_close(dict(middle.params), dict(median([Update(plain(k), 1.0) for k in range(4)]).params))


def test_what_is_not_all_of_a_stack_stays_apart() -> None:
    assert isinstance(replies(stack()[0])["a"].params, MemberParams)
    assert list(whole_stacks({"x": Update(plain(0), 1.0)})) == []


def test_in_a_round_of_fedgl_nobodys_parameters_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(MemberParams, "_own", lambda self, name: looks.append(name))
    course = toy_course(FedGL(local_steps=1), num_clients=3, runtime="auto")
    of = Simulation(course, toy_scenario(3))
    state = None
    for number in range(2):
        fed = Federation(
            of.runtime,
            seed=0,
            round=number,
            cohort=of.runtime.clients,
            model=of.initial,
            rules=ExchangeRules(min_replies=3),
            report=lambda report: None,
        )
        state = course.algorithm.round(state, fed) if number else course.algorithm.setup(fed)
    assert not looks and state is not None and not of.runtime.notes  # type: ignore[attr-defined]
    assert any(not torch.equal(tensor, of.initial.params[name]) for name, tensor in state.params.items())
