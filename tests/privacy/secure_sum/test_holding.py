"""What a client holds, and what it refuses to hold."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus.core.errors import BadMessage
from isthmus.core.protocol import ModelState
from isthmus.core.record import Record, State
from isthmus.privacy.secure_sum.holding import hold, share_of, weight_bound, weight_in_units
from isthmus.privacy.secure_sum.rules import SumRules
from tests.privacy.secure_sum.acting import Acting, Update, updates

SENT = ModelState({"w": torch.zeros(3)})


def held(reply: Record) -> tuple[State, Record]:
    return hold(reply, SENT, SumRules())


def test_what_leaves_in_the_place_of_a_reply_is_empty() -> None:
    memory, told = held(updates(1)["c0"])
    assert told.params["w"].numel() == 0 and told.loss == 0.0 and told.weight == 0.0  # type: ignore[attr-defined]
    assert memory["narrow"].numel() == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, 100.5, -101.0])
def test_numbers_that_the_words_cannot_hold_are_refused_by_their_place(value: float) -> None:
    with pytest.raises(BadMessage, match=r"Update.params\['w'\] holds .* beyond 100: set a larger clip"):
        held(Update({"w": torch.tensor([0.0, value, 0.0])}, 0.0, 1.0))


@pytest.mark.parametrize("value", [math.nan, 1e12])
def test_single_numbers_have_their_own_bound(value: float) -> None:
    with pytest.raises(BadMessage, match=r"Update.loss holds"):
        held(Update({"w": torch.zeros(3)}, value, 1.0))


def test_names_of_its_own_are_refused() -> None:
    with pytest.raises(BadMessage, match="which ModelState has not"):
        held(Update({"w": torch.zeros(3), "me": torch.zeros(1)}, 0.0, 1.0))


def test_weights_beyond_what_words_hold_are_refused() -> None:
    acting = Acting(updates(3, weights=(1.0, 2.0**42, 3.0)), SumRules(min_cohort=2))
    acting.run()
    assert "the weight 4.39805e+12 is beyond" in acting.refusals["c1"]


def test_a_total_that_is_less_than_what_bounds_its_own_weight_is_refused() -> None:
    rules = SumRules()
    one = 2**20
    assert share_of(2 * one, 8.0, 3, True, rules) == 0.25
    assert share_of(2 * one, 8.0, 4, False, rules) == 0.25
    assert share_of(0, 0.0, 4, True, rules) == 0.0
    for units, total in ((2 * one, 1.0), (2 * one, math.nan), (2 * one, -1.0), (2 * one + 1, 3.0)):
        with pytest.raises(BadMessage, match="what bounds all weights is said to be"):
            share_of(units, total, 3, True, rules)


def test_a_weight_is_bounded_by_the_power_of_two_above_it() -> None:
    rules = SumRules()
    for weight, bound in ((0.0, 0), (2.0**-30, 0), (1.0, 2**20), (1.5, 2**21), (2.0, 2**21), (2.0**-20, 1)):
        assert weight_bound(weight_in_units(weight, rules, 3)) == bound
