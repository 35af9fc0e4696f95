"""A server that means harm, against a silo under secure sums: hostile requests of every kind, in every part."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.algorithms import FedAvg
from isthmus.learn.optimizers import SGD
from isthmus.privacy.secure_sum import SecureSum
from isthmus.testing import besiege, check_lies_between_sites, check_stale_messages, toy_world
from isthmus.testing.hostile.sites import kinds_of


@pytest.mark.slow
def test_no_siege_gets_through_to_a_silo_under_secure_sums(tmp_path: Path) -> None:
    """But for that of noise, which wants the same answer again: keys are others each time that they are asked for."""
    world = toy_world()
    guarded = type(world)(world.scenario, {"guards": (SecureSum(),)})
    siege = besiege(FedAvg(local_steps=2), tmp_path, guarded, skip=("proposals", "noise"))
    assert {type(each.request) for each in siege.honest} <= set(kinds_of(siege.course))


@pytest.mark.parametrize("holders", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_lies_of_a_silo_are_named_in_their_exchange_and_harm_nobody_else(holders: int, tmp_path: Path) -> None:
    """About what it holds, its keys, shares and words; two of three silos are enough."""
    world = toy_world()
    guard = SecureSum(min_cohort=2, min_holders=holders)
    guarded = type(world)(world.scenario, {"guards": (guard,), "min_replies": 1})
    undecayed = FedAvg(local_steps=1, optimizer=SGD(weight_decay=0.0))
    assert check_lies_between_sites(undecayed, tmp_path, guarded) > 30


@pytest.mark.slow
def test_messages_of_before_are_named_and_count_for_nothing(tmp_path: Path) -> None:
    world = toy_world()
    guarded = type(world)(world.scenario, {"guards": (SecureSum(min_cohort=2),), "min_replies": 1})
    assert check_stale_messages(FedAvg(local_steps=1), tmp_path, guarded) > 100
