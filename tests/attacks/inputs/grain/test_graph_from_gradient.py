"""Graphs are rebuilt to the last node and edge from one gradient, and not from what tells nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks.attack import Case
from isthmus.attacks.inputs.grain.graph_from_gradient import (
    GraphFromGradient,
    Nodes,
    distinct,
    kinds_of,
    near_nodes,
    shares_of_rings,
)
from isthmus.attacks.inputs.grain.search import of_answers, of_classes
from isthmus.attacks.inputs.grain.small_graph import SmallGraph, same
from isthmus.attacks.listening import Overhearing
from isthmus.core.training import run_course
from isthmus.data.graph import Graph, undirected
from isthmus.data.graph_set import GraphSet
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import GraphBinary, GraphClassification, NodeClassification, Task
from isthmus.models import GCN, LinearDecoder, MLPDecoder, ModelSpec
from isthmus.models.readouts import MeanReadout, SumReadout
from isthmus.privacy import ClientDP, SecureSum
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course

STEP = FedAvg(local_steps=1, optimizer=SGD(lr=0.1), weighting="uniform")
GNN = GCN(hidden=64, dropout=0.0)
READ = ModelSpec(GNN, readout=MeanReadout(), decoder=MLPDecoder(hidden=32, dropout=0.0), activate=True)
ADDED = ModelSpec(GNN, readout=SumReadout(), decoder=LinearDecoder(), activate=True)
NODES = ModelSpec(GNN, decoder=LinearDecoder(), activate=True)

# Trees and a ring of four kinds of nodes, as molecules are.
SHAPES: list[tuple[list[int], list[tuple[int, int]]]] = [
    ([0, 1, 0, 2, 3], [(0, 1), (1, 2), (2, 3), (2, 4)]),
    ([0, 1, 2, 1, 3, 0], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 5)]),
    ([2, 0, 3, 1, 1, 0, 2], [(0, 1), (1, 2), (2, 3), (3, 4), (2, 5), (5, 6)]),
    ([1, 3, 0], [(0, 1), (1, 2)]),
]


def graph_set(target: str) -> GraphSet:
    sizes = [len(kinds) for kinds, _ in SHAPES]
    start = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    x = torch.eye(4)[[kind for kinds, _ in SHAPES for kind in kinds]]
    edges = torch.tensor([(start[k] + a, start[k] + b) for k, (_, own) in enumerate(SHAPES) for a, b in own]).t()
    number = len(SHAPES)
    binary = torch.tensor([[1.0, 0.0, torch.nan], [0.0, 1.0, 1.0], [1.0, torch.nan, 0.0], [0.0, 0.0, 1.0]])
    none = torch.zeros(number, dtype=torch.bool)
    return GraphSet(
        x=x,
        edge_index=undirected(edges, len(x))[0],
        node_start=torch.tensor(start),
        y=torch.tensor([0, 1, 2, 1]) if target == "class" else binary,
        num_classes=3,
        target=target,
        graph_ids=torch.arange(number),
        masks={"train": ~none, "val": none, "test": none},
    )


def graphs_of_clients(target: str) -> Scenario:
    whole = graph_set(target)
    return Scenario(whole, {f"c{k}": part for k, part in enumerate(whole.divide(list(torch.arange(4).split(1))))})


def texts(clients: int = 3, size: int = 8) -> Scenario:
    """Return clients that each hold a tree of nodes with words of their own, and their degree in the last columns."""
    draw = torch.Generator().manual_seed(3)
    number = clients * size
    edges = []
    for k in range(clients):
        for node in range(1, size):
            edges.append((k * size + int(torch.randint(node, (1,), generator=draw)), k * size + node))
    edge_index = undirected(torch.tensor(edges).t(), number)[0]
    words = (torch.rand(number, 40, generator=draw) < 0.3).float()
    degrees = torch.eye(8)[torch.bincount(edge_index[0], minlength=number).clamp_max(7)]
    none = torch.zeros(number, dtype=torch.bool)
    whole = Graph(
        x=torch.cat([words, degrees], dim=1),
        edge_index=edge_index,
        y=torch.arange(number) % 3,
        num_classes=3,
        node_ids=torch.arange(number),
        masks={"train": ~none, "val": none, "test": none},
    )
    return Scenario(whole, {f"c{k}": whole.subgraph(torch.arange(k * size, (k + 1) * size)) for k in range(clients)})


def attacked(attack: GraphFromGradient, scenario: Scenario, model: Any, task: Task, **changes: Any) -> dict[str, float]:
    """Return the scores of an attack on a course of one round."""
    made = toy_course(STEP, num_clients=len(scenario.parts), rounds=1, model=model, task=task, **changes)
    assert not attack.problem(made)
    case, simulation = Case(made, scenario), Simulation(made, scenario)
    listening = Overhearing([attack])
    run_course(made.algorithm, simulation.runtime, made.plan(), simulation.initial, [], listener=listening)
    known = attack.known(case)
    guess = attack.guess(listening.seen(attack, case, simulation.initial.params, {}), known)
    return attack.scores(guess, attack.truth(case, known))


@pytest.mark.parametrize("model", [READ, ADDED], ids=["mean", "sum"])
@pytest.mark.parametrize("task", [GraphClassification(), GraphBinary()], ids=["classes", "answers"])
def test_all_small_graphs_are_rebuilt(model: ModelSpec, task: Any) -> None:
    found = attacked(GraphFromGradient(), graphs_of_clients(task.target), model, task)
    assert found == {"exact": 1.0, "nodes": 1.0, "one hop": 1.0, "two hops": 1.0}


def test_all_trees_of_texts_are_rebuilt() -> None:
    found = attacked(GraphFromGradient(degree_columns=8), texts(), NODES, NodeClassification())
    assert found == {"exact": 1.0, "nodes": 1.0, "one hop": 1.0, "two hops": 1.0}


@pytest.mark.parametrize("guard", [SecureSum(), ClientDP(clip=1.0, noise=0.5, mode="local")])
def test_what_hides_single_gradients_leaves_the_prior(guard: Any) -> None:
    scenario, attack = texts(), GraphFromGradient(degree_columns=8)
    case = Case(toy_course(STEP), scenario)
    known = attack.known(case)
    prior = attack.scores(attack.prior(known, case.clients), attack.truth(case, known))
    assert attacked(attack, scenario, NODES, NodeClassification(), guards=(guard,)) == prior
    assert prior["exact"] < 1.0


def test_of_graphs_with_one_gradient_the_one_with_usual_rings_is_taken() -> None:
    # Two triangles and a ring of six: nobody sees a difference.
    two = SmallGraph(torch.zeros(6, 1), frozenset({(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)}))
    six = SmallGraph(torch.zeros(6, 1), frozenset({(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)}))
    kinds = kinds_of(torch.zeros(6, 1), torch.zeros(2, 0, dtype=torch.long), 0)
    usual = Nodes(kinds, {}, {6: 0.5, 0: 0.4, 3: 0.1})
    assert usual.likelihood(six) > usual.likelihood(two)
    assert usual.likelihood(two) == pytest.approx(6 * math.log(0.1))


def test_usual_rings_are_those_of_graphs_that_nobody_holds() -> None:
    whole = graph_set("class")
    some = Scenario(whole, {"a": whole.divide([torch.tensor([0])])[0], "b": whole.divide([torch.tensor([2])])[0]})
    # Of the other two one has a ring of five with a tail, and one has two edges.
    assert shares_of_rings(Case(toy_course(STEP), some)) == {5: 5 / 8, 0: 3 / 8}
    assert shares_of_rings(Case(toy_course(STEP), texts())) == {}


def test_labels_are_read_off_gradients_of_scores() -> None:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    fixed = scores.detach()
    labels, learned = torch.tensor([2, 0, 1, 1]), torch.tensor([True, True, False, True])
    own = torch.nn.functional.cross_entropy(scores[learned], labels[learned])
    (towards,) = torch.autograd.grad(own, scores)
    assert float(of_classes(fixed, towards)(fixed)) == pytest.approx(own.item())
    answers = torch.tensor([[1.0, 0.0, 1.0]]).double()
    row = scores[:1, :]
    own = torch.nn.functional.binary_cross_entropy_with_logits(row[:, :2], answers[:, :2])
    (towards,) = torch.autograd.grad(own, row)
    assert float(of_answers(fixed, towards)(fixed[:1])) == pytest.approx(own.item())


def test_kinds_are_pairs_of_features_and_degrees() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    edge_index = undirected(torch.tensor([[0, 1], [1, 2]]), 4)[0]
    found = kinds_of(x, edge_index, 0)
    pairs = {(*row, degree) for row, degree in zip(found.x.tolist(), found.degrees.tolist(), strict=True)}
    assert pairs == {(1.0, 0.0, 1), (1.0, 0.0, 2), (0.0, 1.0, 1), (1.0, 0.0, 0)} and len(found) == 4
    assert distinct(x).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_near_nodes_are_connected_and_as_many_as_asked_for() -> None:
    edge_index = undirected(torch.tensor([[0, 1, 2, 3, 5], [1, 2, 3, 4, 6]]), 7)[0]
    for seed in range(5):
        nodes = near_nodes(edge_index, 7, 3, torch.Generator().manual_seed(seed)).tolist()
        assert nodes in ([5, 6], *([k, k + 1, k + 2] for k in range(3)))


def test_clients_with_several_graphs_are_not_counted() -> None:
    whole = graph_set("class")
    scenario = Scenario(
        whole, {"a": whole.divide([torch.tensor([0, 1])])[0], "b": whole.divide([torch.tensor([2])])[0]}
    )
    attack = GraphFromGradient()
    truth = attack.truth(Case(toy_course(STEP), scenario), attack.known(Case(toy_course(STEP), scenario)))
    assert set(truth) == {"b"} and same(truth["b"], SmallGraph.of(whole.graph(2)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"model": ModelSpec(GCN(layers=3, dropout=0.0), decoder=LinearDecoder(), activate=True)},
            "layers=2",
        ),
        ({"model": ModelSpec(GCN(hidden=8, dropout=0.0))}, "model.activate=true"),
        ({"model": ModelSpec(GNN, decoder=MLPDecoder(dropout=0.0), activate=True)}, "model.decoder=linear"),
        ({"model": ModelSpec(GCN(hidden=8), decoder=LinearDecoder(), activate=True)}, "dropout makes gradients random"),
        ({"algorithm": FedAvg(local_steps=4, optimizer=SGD(lr=0.1)), "model": NODES}, "here are 4"),
    ],
)
def test_gradients_that_cannot_be_undone_are_refused(changes: dict[str, Any], told: str) -> None:
    made = isthmus.Course(**{"algorithm": STEP, **changes})
    assert told in GraphFromGradient().problem(made)
