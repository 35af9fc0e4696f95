"""Samples of nodes as examples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.core.errors import BadInput
from isthmus.core.random import seeded
from isthmus.data.graph import Graph
from isthmus.learn.tasks import NodeClassification, NodeSamples
from isthmus.models import MLP, ModelSpec
from isthmus.testing import CHECKS, check_algorithm, toy_course, toy_graph


def sampled(labelled: bool) -> Graph:
    graph = toy_graph(8, unlabelled_fraction=0.3)
    draw = torch.Generator().manual_seed(0)
    attributes = {"samples": torch.randn(8, 5, graph.num_features, generator=draw)}
    if labelled:
        attributes["sample_labels"] = torch.randint(-1, 3, (8, 5), generator=draw)
        attributes["sample_split"] = torch.randint(3, (8, 5), generator=draw)
    return replace(graph, attributes=attributes)


@pytest.mark.parametrize("labelled", [False, True])
def test_every_sample_is_an_example_of_its_split(labelled: bool) -> None:
    graph = sampled(labelled)
    task = NodeSamples()
    prepared = task.prepare(graph)
    for number, split in enumerate(("train", "val", "test")):
        expected = []
        for node in range(8):
            for s in range(5):
                label = int(graph.attributes["sample_labels"][node, s]) if labelled else int(graph.y[node])
                mine = int(graph.attributes["sample_split"][node, s]) == number if labelled else graph.mask(split)[node]
                if mine and label >= 0:
                    expected.append((node * 5 + s, label))
        assert list(zip(prepared.index[split].tolist(), prepared.labels[split].tolist(), strict=True)) == expected
        assert task.count(graph, split) == len(expected)
    assert torch.equal(prepared.graph.x[7], graph.attributes["samples"][1, 2])
    assert prepared.owner.tolist() == [node for node in range(8) for _ in range(5)]
    assert prepared.graph.num_edges == 0
    assert "40 samples" in task.holds(graph)


def test_without_samples_each_node_is_one() -> None:
    graph = toy_graph(12)
    samples, nodes = NodeSamples().prepare(graph), NodeClassification().prepare(graph)
    assert torch.equal(samples.graph.x, nodes.graph.x)
    assert all(torch.equal(samples.index[s], nodes.index[s]) for s in nodes.index)
    assert samples.owner.tolist() == list(range(12))


def test_groups_of_nodes_are_measured_on_their_samples() -> None:
    graph, task = sampled(True), NodeSamples()
    prepared = task.prepare(graph)
    with seeded(0, "model"):
        model = ModelSpec(MLP(hidden=4, dropout=0.0)).build(graph.num_features, 3)
    groups = [torch.tensor([0, 3]), torch.tensor([5])]
    found = task.evaluate_groups(model, prepared, "test", groups)
    with torch.no_grad():
        logits = model(prepared.graph, None)
    for nodes, scores in zip(groups, found, strict=True):
        rows = [int(r) for r in prepared.index["test"] if int(prepared.owner[r]) in nodes.tolist()]
        right = (logits[rows].argmax(dim=1) == prepared.data.y[rows]).double().mean()
        assert scores["accuracy"] == pytest.approx(float(right))


def test_samples_of_another_width_are_refused() -> None:
    graph = replace(toy_graph(8), attributes={"samples": torch.zeros(8, 3, 2)})
    with pytest.raises(BadInput, match=r"'samples' of 'toy' has shape \(8, 3, 2\)"):
        NodeSamples().prepare(graph)


@pytest.mark.parametrize("check", ["parameters_move", "loop_equals_strict", "idle_client"])
def test_federated_averaging_of_samples_keeps_to_the_rules(check: str) -> None:
    """Those that data of another shape can break; all others in the slow set."""
    algorithm = FedAvg()
    CHECKS[check](algorithm, toy_course(algorithm, task=NodeSamples(), rounds=2))


@pytest.mark.slow
def test_federated_averaging_of_samples_passes_all_checks() -> None:
    algorithm = FedAvg()
    check_algorithm(algorithm, toy_course(algorithm, task=NodeSamples()))
