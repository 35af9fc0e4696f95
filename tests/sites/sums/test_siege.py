"""A server that means harm, against a silo under secure sums: hostile requests of every kind, in every part."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.algorithms import FedAvg
from isthmus.privacy.secure_sum import SecureSum
from isthmus.testing import besiege, toy_world
from isthmus.testing.hostile.sites import kinds_of


@pytest.mark.slow
def test_no_siege_gets_through_to_a_silo_under_secure_sums(tmp_path: Path) -> None:
    """But for that of noise, which wants the same answer again: keys are others each time that they are asked for."""
    world = toy_world()
    guarded = type(world)(world.scenario, {"guards": (SecureSum(),)})
    siege = besiege(FedAvg(local_steps=2), tmp_path, guarded, skip=("proposals", "noise"))
    assert {type(each.request) for each in siege.honest} <= set(kinds_of(siege.course))
