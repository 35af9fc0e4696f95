"""Clients of FedGRL that learn together: what they would learn alone, within rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms import FedGRL
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.algorithms.fedgrl.selfsup import BGRL, GRACE
from isthmus.core.random import UniformSampling
from isthmus.learn.one_or_many import means_of_rows
from isthmus.models import GCN, LinearDecoder, MLPDecoder, ModelSpec
from isthmus.testing import CHECKS, toy_course, toy_scenario
from isthmus.testing.traces import Trace, trace_course
from tests.algorithms.fedgrl.fedgrl_toys import MODES, OBJECTIVES, QUICK, SMALL, alone, quick

# What is nothing but rounding would be a direction to Adam, unless eps is far above it.
BLUNT = replace(QUICK, eps=1e-2)
TUNED = Finetune(steps=5, evaluate_every=2, optimizer=replace(Finetune().optimizer, eps=1e-2))
NORMED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4), activate=True)
DROPPING = ModelSpec(GCN(hidden=5, dropout=0.5, input_dropout=0.3), decoder=LinearDecoder())


def same(algorithm: Any, model: ModelSpec = NORMED, **fields: Any) -> None:
    """Ragged clients, of which some have no labels or no edges, with dense and with sparse features."""
    algorithm = replace(algorithm, optimizer=BLUNT)
    if isinstance(algorithm.downstream, Finetune):
        algorithm = replace(algorithm, downstream=TUNED)
    odd = {"client_without_training": True, "client_without_edges": True}
    scenarios = [toy_scenario(4, num_nodes=48, sparse=sparse, **odd) for sparse in (False, True)]
    course = toy_course(algorithm, model=model, **{"rounds": 2, **fields})
    CHECKS["stacked_equals_loop"](algorithm, course, scenarios=scenarios)  # type: ignore[call-arg]


# Some compare so few nodes that no client has fewer.
EVERY = {**OBJECTIVES, "grace of all nodes": GRACE(hidden=7)}


@pytest.mark.parametrize("name", EVERY)
def test_every_objective_is_the_same_for_many_as_for_one(name: str) -> None:
    same(quick(objective=EVERY[name]), DROPPING)


@pytest.mark.parametrize("name", MODES)
def test_every_protocol_is_the_same_for_many_as_for_one(name: str) -> None:
    same(MODES[name])


def test_both_directions_at_once_are_the_same_for_many_as_for_one() -> None:
    same(quick(objective=replace(SMALL, symmetric=True), protocol="lp2"))


def traced(algorithm: Any, **fields: Any) -> Trace:
    course = toy_course(algorithm, runtime="auto", num_clients=4, **{"model": NORMED, "rounds": 2, **fields})
    trace = trace_course(course, toy_scenario(4, num_nodes=48))
    assert trace.ended_by is None, trace.ended_by
    return trace


@pytest.mark.parametrize("algorithm", [quick(), alone(protocol="lp2")], ids=["shared", "alone"])
def test_clients_learn_and_tune_together_and_what_is_sent_stays_one_stack(algorithm: Any) -> None:
    trace = traced(algorithm)
    assert not trace.notes and not trace.pausing.alone
    tuned = 8 if algorithm.protocol == "lp1" else 0
    assert trace.pausing.together["Learn"] == 8 and trace.pausing.together["Tune"] == tuned


def test_clients_that_were_away_learn_with_those_that_took_as_many_steps() -> None:
    """Adam counts them."""
    fields: dict[str, Any] = {"sampling": UniformSampling(0.75), "rounds": 3}
    trace = traced(quick(), **fields)
    assert trace.pausing.together["Learn"] > 0 and trace.pausing.alone["Learn"] > 0
    assert not trace.notes
    same(quick(protocol="lp2"), **fields)


@dataclass(frozen=True)
class Half(BGRL):
    """An objective of one's own: what it derives from says nothing of its loss for many."""

    def loss(self, *args: Any) -> Tensor:
        """Return half of it."""
        return 0.5 * super().loss(*args)


def test_an_objective_of_ones_own_that_has_a_loss_for_one_client_is_learned_alone() -> None:
    algorithm = FedGRL(objective=Half(hidden=7), optimizer=BLUNT, downstream=TUNED)
    trace = traced(algorithm)
    assert trace.notes == {"Learn": "Half has a loss for one client alone"}
    assert trace.pausing.alone["Learn"] == 8 and not trace.pausing.together["Learn"]
    same(algorithm)


def test_means_are_over_the_clients_own_rows() -> None:
    each = torch.tensor([1.0, 3.0, float("nan"), 2.0, 4.0, 9.0])
    assert means_of_rows(each, (2, 3)).tolist() == [2.0, 5.0]
