"""Clients that answer together give what they would alone, on graphs, links and sampled neighbourhoods too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus.data.graph_set import GraphSet
from isthmus.learn.batching import Batching, FullBatch, LinkBatch, MiniBatch, NeighborBatch
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import GraphBinary, GraphClassification, LinkClassification, LinkPrediction
from isthmus.models import (
    GCN,
    GIN,
    SAGE,
    CategoricalEncoder,
    HadamardMLPDecoder,
    MeanReadout,
    MLPDecoder,
    ModelSpec,
    SumReadout,
)
from isthmus.runs.simulation import Scenario
from isthmus.testing.conformance import check_stacked_equals_loop, odd_scenarios
from isthmus.testing.toys import toy_course
from isthmus.testing.traces import trace_course
from tests.learn.tasks.graph_toys import EDGE_SIZES, NODES, toy_set, without_labels
from tests.learn.tasks.link_toys import toy_facts
from tests.quick import KINDS, quick

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


@pytest.mark.meet(1)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("batching", [MiniBatch(3), FullBatch()], ids=["mini", "full"])
def test_algorithms_on_sets_of_graphs(name: str, batching: Batching) -> None:
    algorithm = quick(name, local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.02, weight_decay=5e-4))
    course = toy_course(algorithm, task=GraphClassification(), model=GRAPH_MODEL, batching=batching, rounds=2)
    # Two idle clients are a block of their own; where nobody is idle, all are one.
    scenarios = [graph_scenario(num_idle=2), *([graph_scenario()] if name in KINDS else [])]
    check_stacked_equals_loop(algorithm, course, scenarios=scenarios)


def test_labels_of_several_tasks() -> None:
    algorithm = quick("fedavg", local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.02))
    model = ModelSpec(GCN(hidden=8), decoder=HEAD, readout=MeanReadout())
    course = toy_course(algorithm, task=GraphBinary(), model=model, batching=MiniBatch(3))
    check_stacked_equals_loop(algorithm, course, scenarios=[graph_scenario("binary", num_idle=1)])


BONDS = {
    "categories": (GIN(hidden=8, edge_dim=sum(EDGE_SIZES)), CategoricalEncoder(8)),
    "learnt eps": (GIN(hidden=8, edge_dim=sum(EDGE_SIZES), train_eps=True, dropout=0.0), CategoricalEncoder(8)),
    "norms": (GIN(hidden=8, edge_dim=sum(EDGE_SIZES), mlp_norm=True, layers=3), CategoricalEncoder(8)),
}


@pytest.mark.parametrize("batching", [MiniBatch(3), FullBatch()], ids=["mini", "full"])
@pytest.mark.parametrize("name", BONDS)
def test_features_of_edges(name: str, batching: Batching) -> None:
    gnn, encoder = BONDS[name]
    algorithm = quick("fedavg", local_steps=2, step_unit="epoch", optimizer=SGD(lr=0.005))
    model = ModelSpec(gnn, encoder, HEAD, readout=SumReadout())
    course = toy_course(algorithm, task=GraphClassification(), model=model, batching=batching, rounds=2)
    check_stacked_equals_loop(algorithm, course, scenarios=[bonds_scenario()])


def test_numbers_that_describe_edges_are_multiplied_by_each_clients_own_weights() -> None:
    algorithm = quick("fedavg", local_steps=2, step_unit="epoch", optimizer=SGD(lr=0.005))
    model = ModelSpec(GIN(hidden=8, edge_dim=2, dropout=0.0), decoder=HEAD, readout=MeanReadout())
    course = toy_course(algorithm, task=GraphClassification(), model=model, batching=MiniBatch(3), rounds=2)
    numbers = {name: _described(part) for name, part in graph_scenario().parts.items()}
    scenario = Scenario(next(iter(numbers.values())), numbers)
    check_stacked_equals_loop(algorithm, course, scenarios=[scenario])
    trace = trace_course(replace(course, runtime="auto", num_clients=5), scenario)
    assert trace.together["TrainModel"] and not trace.notes


def test_messages_of_sparse_features_are_made_for_each_client_alone_and_a_note_says_so() -> None:
    parts = {name: _described(part, sparse=True) for name, part in graph_scenario().parts.items()}
    model = ModelSpec(GIN(hidden=8, edge_dim=2, dropout=0.0), decoder=HEAD, readout=MeanReadout())
    course = toy_course(
        quick("fedavg"), task=GraphClassification(), model=model, batching=MiniBatch(3), runtime="auto", num_clients=5
    )
    trace = trace_course(course, Scenario(next(iter(parts.values())), parts))
    assert trace.ended_by is None and not trace.pausing.together["Fit"]
    assert trace.notes["Fit"] == "its first layer reads features as they are, and they are sparse"


def _described(part: Any, sparse: bool = False) -> GraphSet:
    draw = torch.Generator().manual_seed(part.num_nodes)
    attr = torch.randn(part.edge_index.shape[1], 2, generator=draw)
    found: GraphSet = replace(part, edge_attr=attr, x=part.x.to_sparse_csr() if sparse else part.x)
    return found


def bonds_scenario() -> Scenario:
    """Five clients of ragged size whose nodes and edges are of categories."""
    whole = toy_set(sizes=NODES * 5, categorical=True)
    parts: list[GraphSet] = whole.divide(list(torch.split(torch.arange(whole.num_items), [20, 9, 16, 4, 11])))
    return Scenario(whole, {f"client-{k}": part for k, part in enumerate(parts)})  # type: ignore[dict-item, arg-type]


def test_training_and_evaluation_are_done_together() -> None:
    algorithm = quick("fedavg", local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.02))
    course = toy_course(
        algorithm, task=GraphClassification(), model=GRAPH_MODEL, batching=MiniBatch(3), runtime="auto", num_clients=5
    )
    trace = trace_course(course, graph_scenario())
    assert trace.ended_by is None
    assert trace.pausing.together["Fit"] == 3 * 5 and not trace.pausing.alone and not trace.notes


# ---- links and sampled neighbourhoods


def link_scenario(num_clients: int = 4) -> Scenario:
    parts = [toy_facts(10 + 4 * k, 30 + 9 * k, seed=k) for k in range(num_clients)]
    return Scenario(parts[0], {f"client-{k}": part for k, part in enumerate(parts)})  # type: ignore[arg-type, dict-item]


LINKS = ("fedavg", "fedprox", "local", "scaffold", "ditto", "fednova", "moon")


@pytest.mark.meet(1)
@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("task", [LinkPrediction(), LinkClassification(disjoint=True)], ids=["predict", "classify"])
def test_algorithms_on_links(name: str, task: Any) -> None:
    algorithm = quick(name, local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.02, weight_decay=5e-4))
    model = ModelSpec(GCN(hidden=8), decoder=HadamardMLPDecoder(8, dropout=0.5))
    course = toy_course(algorithm, task=task, model=model, batching=LinkBatch(9), rounds=2)
    check_stacked_equals_loop(algorithm, course, scenarios=[link_scenario()])


@pytest.mark.parametrize("name", GRAPHS)
def test_algorithms_on_sampled_neighbourhoods(name: str) -> None:
    algorithm = quick(name, local_steps=1, step_unit="epoch", optimizer=SGD(lr=0.05, weight_decay=5e-4))
    head = MLPDecoder(4) if algorithm.keeps_heads else None
    model, batching = ModelSpec(SAGE(hidden=5), decoder=head), NeighborBatch(6, (2, 2))
    course = toy_course(algorithm, model=model, batching=batching, rounds=2)
    check_stacked_equals_loop(algorithm, course, scenarios=None if name == "fedavg" else odd_scenarios()[1:2])
