"""Clients that answer together give what they would give alone, on graphs as on nodes."""

from __future__ import annotations

import pytest
import torch

from isthmus.data.graph_set import GraphSet
from isthmus.learn.batching import Batching, FullBatch, MiniBatch
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import GraphBinary, GraphClassification
from isthmus.models import GCN, GIN, MeanReadout, MLPDecoder, ModelSpec, SumReadout
from isthmus.runs.simulation import Scenario
from isthmus.testing.conformance import check_stacked_equals_loop
from isthmus.testing.toys import toy_course
from isthmus.testing.traces import trace_course
from tests.learn.tasks.graph_toys import NODES, toy_set, without_labels
from tests.quick import quick

HEAD = MLPDecoder(8, dropout=0.5)
GRAPH_MODEL = ModelSpec(GIN(hidden=8), decoder=HEAD, readout=SumReadout())


def graph_scenario(target: str = "class", num_idle: int = 0) -> Scenario:
    """Five clients of ragged size; the last ones of them have no labels."""
    whole = toy_set(target, sizes=NODES * 5)
    shares = torch.split(torch.arange(whole.num_items), [20, 9, 16, 4, 11])
    parts: list[GraphSet] = whole.divide(list(shares))
    parts = [without_labels(part) if k >= 5 - num_idle else part for k, part in enumerate(parts)]
    return Scenario(whole, {f"client-{k}": part for k, part in enumerate(parts)})  # type: ignore[dict-item, arg-type]


GRAPHS = (
    *("fedavg", "fedprox", "fedopt", "local", "scaffold", "fednova", "moon", "feddyn", "fedrep", "ditto", "pfedme"),
    *("apfl", "gcfl_plus"),
)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("batching", [MiniBatch(3), FullBatch()], ids=["mini", "full"])
def test_algorithms_on_sets_of_graphs(name: str, batching: Batching) -> None:
    algorithm = quick(name, local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.02, weight_decay=5e-4))
    course = toy_course(algorithm, task=GraphClassification(), model=GRAPH_MODEL, batching=batching)
    check_stacked_equals_loop(algorithm, course, scenarios=[graph_scenario(), graph_scenario(num_idle=2)])


def test_labels_of_several_tasks() -> None:
    algorithm = quick("fedavg", local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.02))
    model = ModelSpec(GCN(hidden=8), decoder=HEAD, readout=MeanReadout())
    course = toy_course(algorithm, task=GraphBinary(), model=model, batching=MiniBatch(3))
    check_stacked_equals_loop(algorithm, course, scenarios=[graph_scenario("binary", num_idle=1)])


def test_training_and_evaluation_are_done_together() -> None:
    algorithm = quick("fedavg", local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.02))
    course = toy_course(
        algorithm, task=GraphClassification(), model=GRAPH_MODEL, batching=MiniBatch(3), runtime="auto", num_clients=5
    )
    trace = trace_course(course, graph_scenario())
    assert trace.ended_by is None
    assert trace.pausing.together["Fit"] == 3 * 5 and not trace.pausing.alone and not trace.notes
