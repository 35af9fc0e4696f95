"""A GCN that is written out is the model's own, to the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.attacks.inputs.dense import DenseGCN, adjacency_of, in_double, mixing, model_problem
from isthmus.models import GCN, SGC, GraphInput, LinearDecoder, LinearEncoder, MLPDecoder, ModelSpec
from isthmus.models.readouts import MaxReadout, MeanReadout, SumReadout
from isthmus.testing import toy_course, toy_graph

SPECS = {
    "nodes": ModelSpec(GCN(hidden=5, dropout=0.0)),
    "three layers, a map": ModelSpec(GCN(hidden=5, layers=3, dropout=0.0), decoder=LinearDecoder(), activate=True),
    "mean": ModelSpec(GCN(hidden=5, dropout=0.0), readout=MeanReadout(), decoder=LinearDecoder(), activate=True),
    "sum": ModelSpec(GCN(hidden=5, dropout=0.0), readout=SumReadout(), decoder=MLPDecoder(hidden=4, dropout=0.0)),
}


@pytest.mark.parametrize("name", SPECS)
def test_scores_and_gradients_are_those_of_the_model(name: str) -> None:
    course = toy_course(FedAvg(), model=SPECS[name])
    graph = toy_graph(12)
    torch.manual_seed(0)
    model = SPECS[name].build(6, 3)
    scores = model(GraphInput(graph.x, graph.edge_index), None)
    scores.square().sum().backward()
    params = in_double(model.state_dict())
    dense, mix = DenseGCN.of(course), mixing(adjacency_of(graph.edge_index, 12))
    assert torch.allclose(dense.scores(params, mix, graph.x.double()), scores.double(), atol=1e-5)
    found = dense.gradient(params, mix, graph.x.double(), lambda scores: scores.square().sum())
    for key, own in model.named_parameters():
        assert own.grad is not None
        assert torch.allclose(found[key], own.grad.double(), rtol=1e-3, atol=1e-4), key


def test_mixing_is_the_models_operator() -> None:
    graph = toy_graph(12)
    own = GraphInput(graph.x, graph.edge_index).operator("gcn").to_dense().double()
    assert torch.allclose(mixing(adjacency_of(graph.edge_index, 12)), own, atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (ModelSpec(SGC()), "model.gnn.name=gcn"),
        (ModelSpec(GCN(dropout=0.0), encoder=LinearEncoder()), "without an encoder"),
        (ModelSpec(GCN(dropout=0.5)), "model.gnn.dropout=0"),
        (ModelSpec(GCN(dropout=0.0), decoder=MLPDecoder(dropout=0.5)), "model.decoder.dropout=0"),
        (ModelSpec(GCN(dropout=0.0, batch_norm=True)), "model.gnn.batch_norm=false"),
        (ModelSpec(GCN(dropout=0.0), readout=MaxReadout(), decoder=LinearDecoder()), "model.readout=mean or sum"),
    ],
)
def test_models_whose_gradient_is_another_are_refused(spec: Any, told: str) -> None:
    assert told in model_problem(toy_course(FedAvg(), model=spec))
