"""FedGL against its paper, read a second time: `fedgl_reference.py` holds the equations in plain loops."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import isthmus as ist
from isthmus.algorithms import FedGL, fedgl
from isthmus.algorithms.fedgl import (
    FedGLState,
    Guidance,
    LocalView,
    NodeList,
    ShareNodes,
    TrainWithGuidance,
    View,
    aligned,
    fuse,
    pseudo_graph,
    pseudo_labels,
)
from isthmus.config.load import course_to_yaml, load_course
from isthmus.core.errors import BadInput, TooFewReplies
from isthmus.core.federation import Federation
from isthmus.core.protocol import EvaluateModel, Failure, Position, Request
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params, Record, leaves
from isthmus.data.graph import Graph
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, Adam, StepDecay, read_params
from isthmus.learn.tasks import NodeClassification
from isthmus.learn.tasks.node_classification import NodeBatch
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models import APPNP, GAT, GCN, GIN, GPRGNN, MLP, SAGE, SGC, LinearDecoder, LinearEncoder, ModelSpec
from isthmus.testing import ScriptedClients, check_algorithm, toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import Fault, Message, Trace, require_close, require_same, trace_course
from tests.algorithms.fedgl import fedgl_reference as reference
from tests.algorithms.reference import assert_close, assert_equal

NAMES = ("a", "b", "c", "d")
CLASSES = ("x", "y", "z")
NO_RANDOMNESS = torch.Generator()
PARAMS: Params = {"w": torch.zeros(2)}


def node_list(ids: Sequence[int], classes: tuple[str, ...] = CLASSES) -> NodeList:
    return NodeList(torch.tensor(ids, dtype=torch.int64), classes)


def view(num_nodes: int, seed: int, width: int = 3, classes: int = 3) -> View:
    draw = torch.Generator().manual_seed(seed)
    predictions = torch.randn(num_nodes, classes, generator=draw).mul(2.0).softmax(dim=1)
    return View(predictions, torch.randn(num_nodes, width, generator=draw))


def discovered(algorithm: FedGL, held: Mapping[str, Sequence[int]], views: Mapping[str, View]) -> fedgl.Discovery:
    return algorithm.discover({c: node_list(ids) for c, ids in held.items()}, views, NO_RANDOMNESS)


def expected(
    algorithm: FedGL, held: Mapping[str, Sequence[int]], views: Mapping[str, View], ids: Sequence[int]
) -> tuple[list[int], Tensor]:
    """Equations 11 to 14 and the projection, by the reference."""
    if not views:
        return [-1] * len(ids), torch.zeros(len(ids), len(ids))
    mean = algorithm.fusion == "mean"
    predictions = reference.fused(held, {c: v.predictions for c, v in views.items()}, mean)
    embeddings = reference.fused(held, {c: v.embeddings for c, v in views.items()}, mean)
    labels = reference.labels_of(predictions, algorithm.threshold) if algorithm.alpha else {}
    edges = reference.graph_of(embeddings, algorithm.num_neighbors) if algorithm.beta else {}
    return reference.projected(ids, labels, edges)


def check_guidance(found: Guidance, labels: Sequence[int], graph: Tensor) -> None:
    assert found.labels.tolist() == list(labels)
    assert (found.labels.dtype, found.start.dtype, found.neighbors.dtype) == (torch.int32,) * 3
    assert found.weights.dtype == torch.float32 and found.weights.shape == found.neighbors.shape
    torch.testing.assert_close(found.graph.to_dense(), graph, rtol=1e-4, atol=1e-6)
    assert len(found.weights) == int((graph > 0).sum())


# ---- the server: equations 11 to 14


DIVISIONS: dict[str, dict[str, list[int]]] = {
    "the same nodes": {"a": [0, 1, 2, 3], "b": [3, 1, 0, 2]},
    "no node in common": {"a": [0, 1, 2], "b": [5, 4], "c": [9]},
    "some in common": {"a": [7, 2, 9, 4], "b": [4, 3, 7], "c": [2, 4, 11, 5, 6]},
    "negative and far apart": {"a": [-5, 2**62, 0], "b": [-(2**63), -5, 2**63 - 1, 0]},
    "one client": {"a": [3, 1, 2]},
    "one holds all": {"a": [6, 5, 4, 3, 2, 1], "b": [1], "c": [6, 2]},
    "one holds nothing": {"a": [2, 1, 0], "b": [], "c": [0, 2]},
}


@pytest.mark.meet(1)
@pytest.mark.parametrize("fusion", ["sum", "mean"])
@pytest.mark.parametrize("division", DIVISIONS)
def test_guidance_is_the_dense_formula_projected_on_the_clients_nodes(division: str, fusion: str) -> None:
    held = DIVISIONS[division]
    views = {client: view(len(ids), seed) for seed, (client, ids) in enumerate(held.items())}
    for threshold, num_neighbors in ((0.0, 1), (0.3, 2), (0.5, 3), (0.9, 50)):
        algorithm = FedGL(fusion=fusion, threshold=threshold, num_neighbors=num_neighbors)
        found = discovered(algorithm, held, views)
        for ids in [*held.values(), [99, *held["a"], -99], []]:
            guidance = found.projected(torch.tensor(ids, dtype=torch.int64))
            check_guidance(guidance, *expected(algorithm, held, views, ids))


@st.composite
def divisions(draw: st.DrawFn) -> dict[str, list[int]]:
    ids = st.one_of(st.integers(-6, 6), st.integers(-(2**63), 2**63 - 1))
    lists = draw(st.lists(st.lists(ids, unique=True, max_size=7), min_size=1, max_size=4))
    assume(any(lists))
    return dict(zip(NAMES, lists, strict=False))


@settings(deadline=None, max_examples=60)
@given(
    held=divisions(),
    seed=st.integers(0, 2**31),
    fusion=st.sampled_from(["sum", "mean"]),
    threshold=st.sampled_from([0.0, 0.2, 0.4, 0.6]),
    num_neighbors=st.integers(1, 9),
    width=st.integers(1, 5),
)
def test_guidance_is_the_dense_formula_for_any_division(
    held: dict[str, list[int]], seed: int, fusion: str, threshold: float, num_neighbors: int, width: int
) -> None:
    views = {client: view(len(ids), seed + k, width) for k, (client, ids) in enumerate(held.items())}
    algorithm = FedGL(fusion=fusion, threshold=threshold, num_neighbors=num_neighbors)
    embeddings = reference.fused(held, {c: v.embeddings for c, v in views.items()}, fusion == "mean")
    assume(reference.edge_gaps(embeddings, num_neighbors) > 1e-4)  # or rounding decides who is a neighbour
    found = discovered(algorithm, held, views)
    for ids in held.values():
        guidance = found.projected(torch.tensor(ids, dtype=torch.int64))
        check_guidance(guidance, *expected(algorithm, held, views, ids))


def test_fusion_by_hand() -> None:
    """Client a holds nodes 1, 2, 3 and b node 3: M = 4, so a's rows count 3/4 and b's 1/4."""
    parts = [torch.tensor([[0.8], [0.4], [0.0]]), torch.tensor([[1.0]])]
    places = [torch.tensor([0, 1, 2]), torch.tensor([2])]
    summed = fuse(parts, places, [3.0, 1.0], 3, mean=False)
    torch.testing.assert_close(summed, torch.tensor([[0.6], [0.3], [0.25]]))
    averaged = fuse(parts, places, [3.0, 1.0], 3, mean=True)
    torch.testing.assert_close(averaged, torch.tensor([[0.8], [0.4], [0.25]]))


def test_views_of_half_or_double_precision_are_fused_in_single_precision() -> None:
    parts = [torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[0.25]], dtype=torch.float16)]
    found = fuse(parts, [torch.tensor([0])] * 2, [1.0, 1.0], 1, mean=False)
    assert found.dtype == torch.float32 and found.tolist() == [[0.375]]


def test_rows_are_numbered_as_nodes_first_appear_and_ids_ascend() -> None:
    ids, place, places = aligned([torch.tensor([30, -10]), torch.tensor([20, 30, 40])])
    assert ids.tolist() == [-10, 20, 30, 40]
    assert place.tolist() == [1, 2, 0, 3]
    assert [rows.tolist() for rows in places] == [[0, 1], [2, 0, 3]]


def test_other_names_for_the_same_nodes_change_nothing_to_the_bit() -> None:
    """Also where products are equal and only some can be neighbours: between sites the ids are a hash."""
    held = DIVISIONS["some in common"]
    other = {node: (-(node**5)) % 1009 - 500 for ids in held.values() for node in ids}
    assert len(set(other.values())) == len(other)
    renamed = {client: [other[node] for node in ids] for client, ids in held.items()}
    algorithm = FedGL(num_neighbors=2, threshold=0.0)
    for alike in (False, True):
        views = {client: view(len(ids), seed) for seed, (client, ids) in enumerate(held.items())}
        if alike:
            views = {c: View(v.predictions, torch.ones_like(v.embeddings)) for c, v in views.items()}
        first, second = discovered(algorithm, held, views), discovered(algorithm, renamed, views)
        for client in held:
            mine = first.projected(torch.tensor(held[client]))
            theirs = second.projected(torch.tensor(renamed[client]))
            assert all(torch.equal(leaf, leaves(theirs)[path]) for path, leaf in leaves(mine).items())


@pytest.mark.parametrize(
    ("row", "threshold", "label"),
    [
        ([0.5, 0.3, 0.2], 0.5, -1),  # strictly above
        ([0.5, 0.3, 0.2], 0.4999, 0),
        ([0.2, 0.3, 0.5], 0.4, 2),
        ([0.4, 0.4, 0.2], 0.3, 0),  # of equal ones the first
        ([0.2, 0.4, 0.4], 0.3, 1),
        ([0.0, 0.0, 0.0], 0.0, -1),
        ([0.0, 1e-30, 0.0], 0.0, 1),
        ([0.01, 0.02, 0.01], 0.0, 1),  # a node that few hold
        ([0.5, 0.5, 0.5], 0.5, -1),
    ],
)
def test_a_pseudo_label_is_the_most_probable_class_if_it_is_above_the_threshold(
    row: list[float], threshold: float, label: int
) -> None:
    assert pseudo_labels(torch.tensor([row]), threshold).tolist() == [label]


def test_the_pseudo_graph_by_hand() -> None:
    """Products: 0-0 4, 0-1 2, 0-2 -2 (no edge), 1-1 2, 1-2 0 (no edge), 2-2 2; node 3 is zero and has no edge."""
    h = torch.tensor([[2.0, 0.0], [1.0, 1.0], [-1.0, 1.0], [0.0, 0.0]])
    whole = pseudo_graph(h, 4, 10).to_dense()
    expected = [[2 / 3, 1 / 3, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(whole, torch.tensor(expected))
    two = pseudo_graph(torch.tensor([[2.0, 0.0], [1.0, 1.0], [1.0, 0.0]]), 2, 10).to_dense()
    torch.testing.assert_close(
        two[0], torch.tensor([4 / 6, 2 / 6, 0]) if two[0, 1] else torch.tensor([4 / 6, 0, 2 / 6])
    )
    torch.testing.assert_close(two[1], torch.tensor([0.5, 0.5, 0.0]))
    one = pseudo_graph(torch.tensor([[2.0, 0.0], [1.0, 0.5], [0.0, 3.0]]), 1, 10).to_dense()
    assert one.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]  # a node need not be its own neighbour


def test_among_equal_products_exactly_num_neighbors_are_kept() -> None:
    found = pseudo_graph(torch.ones(7, 2), 3, 10)
    assert found.pattern.crow.diff().tolist() == [3] * 7
    torch.testing.assert_close(found.values, torch.full((21,), 1 / 3))


def test_rows_add_up_to_one_over_all_nodes_and_to_less_over_the_clients_own() -> None:
    held = DIVISIONS["some in common"]
    views = {client: view(len(ids), seed) for seed, (client, ids) in enumerate(held.items())}
    found = discovered(FedGL(num_neighbors=4), held, views)
    torch.testing.assert_close(found.graph.row_sums(), torch.ones(len(found.ids)))
    own = found.projected(torch.tensor(held["b"])).graph.row_sums()
    assert bool((own <= 1.0 + 1e-6).all()) and bool((own < 0.99).any())


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_what_is_switched_off_is_not_sent(alpha: float, beta: float) -> None:
    held = DIVISIONS["some in common"]
    views = {client: view(len(ids), seed) for seed, (client, ids) in enumerate(held.items())}
    found = discovered(FedGL(alpha=alpha, beta=beta, threshold=0.0), held, views).projected(torch.tensor(held["a"]))
    assert bool((found.labels >= 0).any()) == bool(alpha)
    assert bool(len(found.weights)) == bool(beta)
    assert found.start.tolist() == [0] * 5 if not beta else True


def test_exact_nodes_decides_which_search_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        search = getattr(fedgl, name)

        def call(*arguments: Any) -> Any:
            asked.append(name)
            return search(*arguments)

        return call

    for name in ("exact_top_products", "approximate_top_products"):
        monkeypatch.setattr(fedgl, name, watched(name))
    h = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    for exact_nodes in (11, 10, 9, 0):
        pseudo_graph(h, 3, exact_nodes, torch.Generator().manual_seed(0))
    assert asked == ["exact_top_products"] * 2 + ["approximate_top_products"] * 2


def test_the_approximate_search_of_a_round_draws_from_the_servers_stream_of_that_round() -> None:
    held = {"a": list(range(60)), "b": list(range(40, 100))}
    state = FedGLState(
        PARAMS, {c: node_list(ids) for c, ids in held.items()}, {c: view(60, k, 16) for k, c in enumerate(held)}
    )

    def neighbors(seed: int, round: int) -> list[int]:
        clients = ScriptedClients(lambda client, request: LocalView(PARAMS, 1.0, view(60, 0, 16)), list(held))
        algorithm = FedGL(exact_nodes=0, num_neighbors=2, embeddings="hidden")
        algorithm.round(state, clients.federation(seed=seed, round=round))
        request = clients.sent[0][1]
        assert isinstance(request, TrainWithGuidance)
        return request.guidance.neighbors.tolist()

    assert neighbors(0, 1) == neighbors(0, 1)
    assert neighbors(0, 1) != neighbors(1, 1) and neighbors(0, 1) != neighbors(0, 2)


# ---- the client: equations 7 to 9


def odd_graph() -> Graph:
    """Fourteen nodes: 2 and 3 without edges, weights that differ, some without a label, one of them for training."""
    graph = toy_graph(14, weighted=True, unlabelled_fraction=0.3)
    alone = torch.zeros(14, dtype=torch.bool)
    alone[[2, 3]] = True
    kept = ~(alone[graph.edge_index[0]] | alone[graph.edge_index[1]])
    assert graph.edge_weight is not None
    train = graph.mask("train").clone()
    train[(graph.y < 0).nonzero().flatten()[0]] = True
    graph = graph.with_masks({**graph.masks, "train": train})
    return replace(graph, edge_index=graph.edge_index[:, kept], edge_weight=graph.edge_weight[kept])


def odd_guidance(data: Graph, seed: int = 0) -> tuple[list[int], Tensor]:
    """Labels of which some are wrong, some missing; an asymmetric graph with an empty row and an empty column."""
    draw = torch.Generator().manual_seed(seed)
    size = data.num_nodes
    graph = torch.rand(size, size, generator=draw) * (torch.rand(size, size, generator=draw) < 0.3)
    graph[1], graph[:, 5] = 0.0, 0.0
    graph[0, 0], graph[4, 1], graph[2, 3] = 0.4, 0.3, 0.2  # a loop, an edge to the empty row, one of isolated nodes
    labels = torch.randint(-1, data.num_classes, (size,), generator=draw).tolist()
    labels[int((data.y < 0).nonzero()[0]) if bool((data.y < 0).any()) else 0] = 1
    assert -1 in labels and not torch.equal(graph, graph.t())
    return labels, graph


def wise_client(data: Graph | None = None, **options: Any) -> tuple[GraphClient, Params]:
    """A client, and parameters whose biases matter too."""
    client = toy_client(odd_graph() if data is None else data, **options)
    draw = torch.Generator().manual_seed(7)
    return client, {n: t + 0.2 * torch.randn(t.shape, generator=draw) for n, t in read_params(client.model).items()}


def ask_to_train(algorithm: FedGL, client: GraphClient, params: Params, guidance: Guidance) -> LocalView:
    return algorithm.train(TrainWithGuidance(params, guidance), client)


FIELDS: dict[str, dict[str, Any]] = {
    "as printed": {"reduction": "sum"},
    "defaults": {},
    "by weights": {"degrees": "weights"},
    "strong": {"alpha": 1.7, "beta": 2.5},
    "by weights, summed": {"degrees": "weights", "reduction": "sum", "alpha": 0.9, "beta": 0.3},
    "labels only": {"beta": 0.0, "alpha": 0.7},
    "graph only": {"alpha": 0.0},
    "nothing": {"alpha": 0.0, "beta": 0.0},
}


@pytest.mark.parametrize("name", FIELDS)
def test_training_descends_the_dense_loss_on_the_dense_graph(name: str) -> None:
    client, params = wise_client()
    labels, graph = odd_guidance(client.data)
    algorithm = FedGL(local_steps=1, optimizer=SGD(lr=0.1), **FIELDS[name])
    operator = reference.normalized(client.data) + reference.complement(graph, algorithm.beta, algorithm.degrees)
    guidance = reference.guidance_of(labels, graph)
    for steps, decay in ((1, 0.0), (3, 0.02)):
        trained, _ = reference.descended(
            client.data, params, operator, labels, algorithm.alpha, algorithm.reduction, steps=steps, lr=0.1,
            weight_decay=decay,
        )  # fmt: skip
        several = replace(algorithm, local_steps=steps, optimizer=SGD(lr=0.1, weight_decay=decay))
        reply = ask_to_train(several, client, params, guidance)
        assert_close(reply.params, trained, 1e-5)
        hidden, scores = reference.gcn(client.data, trained, operator)
        torch.testing.assert_close(reply.view.predictions, scores.softmax(dim=1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(reply.view.embeddings, scores, rtol=1e-4, atol=1e-5)
        by_hidden = ask_to_train(replace(several, embeddings="hidden"), client, params, guidance)
        torch.testing.assert_close(by_hidden.view.embeddings, hidden, rtol=1e-4, atol=1e-5)
        assert torch.equal(by_hidden.view.predictions, reply.view.predictions)
        assert reply.weight == client.num_nodes == 14.0 and not reply.view.predictions.requires_grad


@pytest.mark.parametrize("name", FIELDS)
def test_the_loss_is_the_dense_loss(name: str) -> None:
    client, params = wise_client()
    labels, graph = odd_guidance(client.data)
    algorithm = FedGL(**FIELDS[name])
    operator = reference.normalized(client.data) + reference.complement(graph, algorithm.beta, algorithm.degrees)
    wanted = reference.loss_of(client.data, params, operator, labels, algorithm.alpha, algorithm.reduction)
    prepared, loss = algorithm.guided(client.prepared, reference.guidance_of(labels, graph))
    client.model.load_state_dict(params)
    batch = NodeBatch(prepared.graph, prepared.index["train"], prepared.labels["train"])
    found = (loss or client.task.loss)(client.model, batch, torch.Generator())
    torch.testing.assert_close(found.detach(), wanted, rtol=1e-5, atol=1e-6)
    assert (loss is None) == (algorithm.alpha == 0.0)
    assert (prepared.graph is client.prepared.graph) == (algorithm.beta == 0.0)
    torch.testing.assert_close(prepared.graph.operator("gcn").to_dense(), operator, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("degrees", fedgl.DEGREES)
def test_clients_side_by_side_have_the_complements_that_each_has_alone_to_the_bit(degrees: str) -> None:
    algorithm = FedGL(beta=0.7, degrees=degrees)
    clients = [toy_client(toy_graph(size, seed=size), id=f"client-{size}") for size in (9, 12)]
    held = {client.id: client.data.node_ids.tolist() for client in clients}
    found = discovered(algorithm, held, {client.id: view(client.num_nodes, 3) for client in clients})
    guidance = [found.projected(client.data.node_ids) for client in clients]
    together = algorithm.guided_together(GraphCohort(clients), guidance).graph.complement
    assert together is not None
    whole = together.to_dense()
    for k, each in enumerate(guidance):
        alone, rows = algorithm.complement(each.graph).to_dense(), slice(12 * k, 12 * k + len(each.labels))
        assert torch.equal(whole[rows, rows], alone) and float(alone.abs().sum()) > 0.0
        whole[rows, rows] = 0.0
    assert not bool(whole.any())


def test_each_term_alone_moves_the_parameters() -> None:
    client, params = wise_client()
    guidance = reference.guidance_of(*odd_guidance(client.data))
    base = FedGL(alpha=0.0, beta=0.0, local_steps=1, optimizer=SGD(lr=0.3))
    plain = ask_to_train(base, client, params, guidance).params
    for change in ({"alpha": 0.5}, {"beta": 0.5}):
        moved = ask_to_train(replace(base, **change), client, params, guidance).params  # type: ignore[arg-type]
        assert max(float((moved[n] - plain[n]).abs().max()) for n in plain) > 1e-4


def test_a_pseudo_label_of_a_training_node_plays_no_part_right_or_wrong() -> None:
    client, params = wise_client()
    labels, graph = odd_guidance(client.data)
    train = (client.data.mask("train") & (client.data.y >= 0)).nonzero().flatten().tolist()
    algorithm = FedGL(alpha=3.0, optimizer=SGD(lr=0.3), local_steps=2)
    found = []
    for value in (lambda y: -1, lambda y: y, lambda y: (y + 1) % 3):
        for node in train:
            labels[node] = value(int(client.data.y[node]))
        found.append(ask_to_train(algorithm, client, params, reference.guidance_of(labels, graph)).params)
    assert_equal(found[0], found[1])
    assert_equal(found[0], found[2])
    other = next(node for node in range(14) if node not in train)
    labels[other] = (labels[other] + 1) % 3
    changed = ask_to_train(algorithm, client, params, reference.guidance_of(labels, graph)).params
    assert not torch.equal(changed["gnn.layers.1.bias"], found[0]["gnn.layers.1.bias"])


def test_nodes_for_validation_and_test_and_unlabelled_ones_may_have_pseudo_labels_but_not_their_labels() -> None:
    """What counts is the pseudo label: another label of such a node in the client's data changes nothing."""
    client, params = wise_client(odd_graph())
    guidance = reference.guidance_of([0] * 14, torch.zeros(14, 14))
    algorithm = FedGL(optimizer=SGD(lr=0.3), local_steps=2)
    prepared, _ = algorithm.guided(client.prepared, guidance)
    assert sorted(prepared.index["train"].tolist()) == list(range(14))
    train = client.data.mask("train")
    assert bool((client.data.y[train] < 0).any())
    other, _ = wise_client(replace(client.data, y=torch.where(train, client.data.y, 2)))
    assert_equal(
        ask_to_train(algorithm, client, params, guidance).params,
        ask_to_train(algorithm, other, params, guidance).params,
    )


def test_a_client_without_training_labels_trains_on_pseudo_labels_alone() -> None:
    data = odd_graph().with_masks({})
    client, params = wise_client(data)
    labels, graph = odd_guidance(data)
    for reduction in ("mean", "sum"):
        algorithm = FedGL(alpha=0.6, reduction=reduction, local_steps=2, optimizer=SGD(lr=0.3))
        operator = reference.normalized(data) + reference.complement(graph, 1.0, "counts")
        trained, _ = reference.descended(data, params, operator, labels, 0.6, reduction, steps=2, lr=0.3)
        reply = ask_to_train(algorithm, client, params, reference.guidance_of(labels, graph))
        assert_close(reply.params, trained, 2e-5)
        assert reply.weight == 14.0


def test_a_client_with_nothing_to_learn_from_gives_the_model_back_with_weight_zero_and_a_view() -> None:
    data = odd_graph().with_masks({})
    client, params = wise_client(data)
    _, graph = odd_guidance(data)
    operator = reference.normalized(data) + reference.complement(graph, 1.0, "counts")
    for algorithm, labels in ((FedGL(), [-1] * 14), (FedGL(alpha=0.0), [0] * 14)):
        reply = ask_to_train(algorithm, client, params, reference.guidance_of(labels, graph))
        assert reply.weight == 0.0
        assert_equal(reply.params, params)
        scores = reference.gcn(data, params, operator)[1]
        torch.testing.assert_close(reply.view.embeddings, scores, rtol=1e-4, atol=1e-5)


def test_a_client_without_any_pseudo_label_or_edge_has_the_loss_of_the_task_to_the_bit() -> None:
    client, params = wise_client()
    nothing = reference.guidance_of([-1] * 14, torch.zeros(14, 14))
    fitted = client.fit(params, steps=3, optimizer=SGD(lr=0.3))
    assert_equal(
        ask_to_train(FedGL(local_steps=3, optimizer=SGD(lr=0.3)), client, params, nothing).params, fitted.params
    )


def test_views_are_made_without_dropout_and_training_with_it() -> None:
    client, params = wise_client(model=ModelSpec(GCN(hidden=5, dropout=0.6)))
    labels, graph = odd_guidance(client.data)
    guidance = reference.guidance_of(labels, graph)
    algorithm = FedGL(local_steps=2, optimizer=SGD(lr=0.3))
    reply = ask_to_train(algorithm, client, params, guidance)
    operator = reference.normalized(client.data) + reference.complement(graph, 1.0, "counts")
    still, _ = reference.descended(client.data, params, operator, labels, 0.2, "mean", steps=2, lr=0.3)
    assert max(float((reply.params[n] - still[n]).abs().max()) for n in still) > 1e-3
    scores = reference.gcn(client.data, reply.params, operator)[1]
    torch.testing.assert_close(reply.view.predictions, scores.softmax(dim=1), rtol=1e-4, atol=1e-5)


def test_the_learning_rate_is_that_of_the_round_and_the_optimiser_starts_anew() -> None:
    client, params = wise_client()
    labels, graph = odd_guidance(client.data)
    guidance = reference.guidance_of(labels, graph)
    operator = reference.normalized(client.data) + reference.complement(graph, 1.0, "counts")
    algorithm = FedGL(local_steps=2, optimizer=SGD(lr=0.4, schedule=StepDecay(every=2, gamma=0.5)))
    for round, lr in ((1, 0.4), (3, 0.2)):
        client.position = Position(0, round, 1)
        trained, _ = reference.descended(client.data, params, operator, labels, 0.2, "mean", steps=2, lr=lr)
        assert_close(ask_to_train(algorithm, client, params, guidance).params, trained, 1e-5)
    heavy = FedGL(local_steps=3, optimizer=Adam(lr=0.01))
    first, again = (ask_to_train(heavy, client, params, guidance) for _ in range(2))
    assert_equal(first.params, again.params)
    assert client.state == {}


def test_an_epoch_is_a_step_also_for_a_client_that_has_pseudo_labels_only() -> None:
    for data in (odd_graph(), odd_graph().with_masks({})):
        client, params = wise_client(data)
        guidance = reference.guidance_of(*odd_guidance(data))
        by_batch, by_epoch = (
            ask_to_train(FedGL(local_steps=3, step_unit=unit), client, params, guidance) for unit in ("batch", "epoch")
        )
        assert_equal(by_batch.params, by_epoch.params)
        assert by_epoch.weight == 14.0


def test_training_leaves_the_clients_own_data_as_it_was() -> None:
    """Scores are those of the own graph, and the next round's guidance is not added to this one's."""
    client, params = wise_client()
    before = client.evaluate(params, ("train", "val", "test"))
    index = {split: nodes.clone() for split, nodes in client.prepared.index.items()}
    algorithm = FedGL(beta=5.0, alpha=1.0, optimizer=SGD(lr=0.1), local_steps=2)
    guidance = reference.guidance_of(*odd_guidance(client.data))
    first = ask_to_train(algorithm, client, params, guidance)
    ask_to_train(algorithm, client, params, reference.guidance_of(*odd_guidance(client.data, seed=3)))
    assert client.prepared.graph.complement is None
    assert all(torch.equal(nodes, index[split]) for split, nodes in client.prepared.index.items())
    assert client.evaluate(params, ("train", "val", "test")) == before
    assert_equal(ask_to_train(algorithm, client, params, guidance).params, first.params)


def test_the_clients_labels_reach_the_view_only_through_the_model() -> None:
    """Every node has a row in the view, training nodes too, and it is the model's and not the label."""
    client, params = wise_client()
    reply = ask_to_train(FedGL(), client, params, reference.guidance_of(*odd_guidance(client.data)))
    assert reply.view.predictions.shape == (14, 3) and reply.view.embeddings.shape == (14, 3)
    torch.testing.assert_close(reply.view.predictions.sum(dim=1), torch.ones(14))
    assert float(reply.view.predictions.max()) < 1.0


# ---- the sequence of messages

HELD = {"a": [1, 2, 3], "b": [3, 4], "c": [2, 4, 5, 6], "d": [9, 1]}


class Play:
    """A course with written replies: what every client would say in every round, and what the server sent it.

    Clients that are `late` fail to say in the setup which nodes they hold.
    """

    def __init__(self, algorithm: FedGL, held: Mapping[str, Sequence[int]] = HELD, late: Sequence[str] = ()) -> None:
        self.algorithm, self.held = algorithm, held
        self.width = 3 if algorithm.embeddings == "output" else 5
        self.round = 0
        self.ill: set[tuple[str, type[Request[Any]]]] = {(client, ShareNodes) for client in late}
        self.views: dict[str, View] = {}
        self.clients = ScriptedClients(self.reply, list(held))
        self.state = algorithm.setup(self.clients.federation(PARAMS, round=0))

    def reply(self, client: str, request: Request[Any]) -> Record:
        if (client, type(request)) in self.ill:
            return Failure(client, "error", "ill")
        if isinstance(request, ShareNodes):
            return node_list(self.held[client])
        number = NAMES.index(client)
        seen = view(len(self.held[client]), 100 * self.round + number, self.width)
        return LocalView({"w": torch.tensor([1.0, self.round]) * number}, float(len(self.held[client])), seen)

    def go(self, *cohort: str, ill: Sequence[tuple[str, type[Request[Any]]]] = ()) -> dict[str, TrainWithGuidance]:
        """Play a round and return the requests to train; check them, and the state after, against the reference."""
        self.round, self.ill = self.round + 1, set(ill)
        self.clients.sent.clear()
        self.clients.reports.clear()
        strange = [client for client in cohort if client not in self.state.nodes]
        self.state = self.algorithm.round(self.state, self.clients.federation(cohort=cohort, round=self.round))
        assert self.asked() == strange
        positions = [(report.request, report.position.exchange) for report in self.clients.reports]
        assert positions == ([("ShareNodes", 0), ("TrainWithGuidance", 1)] if strange else [("TrainWithGuidance", 0)])
        sent = {client: request for client, request in self.clients.sent if isinstance(request, TrainWithGuidance)}
        assert list(sent) == [c for c in self.held if c in cohort and (c, ShareNodes) not in self.ill]
        known = self.algorithm.embeddings == "output" or bool(self.views)
        for client, request in sent.items():
            wanted = expected(self.algorithm, self.held, self.views, self.held[client])
            check_guidance(request.guidance, *wanted)
            assert (request.num_classes, request.width) == (3, self.width if known else 0)
        heard = [client for client in sent if (client, TrainWithGuidance) not in self.ill]
        new = {client: self.reply(client, sent[client]).view for client in heard}  # type: ignore[attr-defined]
        self.views = {**self.views, **new} if self.algorithm.views == "latest" else new
        assert self.state.views.keys() == self.views.keys()
        total = sum(len(self.held[client]) for client in heard)
        mean = sum(len(self.held[c]) / total * NAMES.index(c) for c in heard)  # equation 10
        torch.testing.assert_close(self.state.params["w"], torch.tensor([1.0, self.round]) * mean)
        return sent

    def asked(self) -> list[str]:
        return [client for client, request in self.clients.sent if isinstance(request, ShareNodes)]


def played(late: Sequence[str] = (), **fields: Any) -> Play:
    return Play(FedGL(threshold=0.2, num_neighbors=3, **fields), late=late)


def test_setup_asks_everybody_which_nodes_it_holds_and_the_first_round_has_no_guidance() -> None:
    play = played()
    assert play.clients.sent == [(client, ShareNodes()) for client in NAMES]
    assert [(r.request, r.position) for r in play.clients.reports] == [("ShareNodes", Position(0, 0, 0))]
    assert play.state.params is PARAMS and play.state.views == {}
    assert {client: held.ids.tolist() for client, held in play.state.nodes.items()} == HELD
    assert list(play.state.nodes) == list(NAMES)
    sent = play.go("a", "b", "c", "d")
    assert play.asked() == []
    for client, request in sent.items():
        assert request.params is PARAMS
        assert request.guidance.labels.tolist() == [-1] * len(HELD[client])
        assert request.guidance.start.tolist() == [0] * (len(HELD[client]) + 1) and not len(request.guidance.weights)


@pytest.mark.meet(2)
@pytest.mark.parametrize("late", [(), ("c", "d")], ids=["all in time", "two late"])
@pytest.mark.parametrize("embeddings", ["output", "hidden"])
@pytest.mark.parametrize("views", ["round", "latest"])
@pytest.mark.parametrize("fusion", ["sum", "mean"])
def test_guidance_comes_from_the_clients_of_the_last_round_or_from_everybodys_latest_view(
    fusion: str, views: str, embeddings: str, late: tuple[str, ...]
) -> None:
    play = played(late, views=views, fusion=fusion, embeddings=embeddings)
    assert list(play.state.nodes) == [client for client in NAMES if client not in late]
    play.go("a", "b")
    assert play.asked() == []  # of those that are not known, only clients of the round are asked
    sent = play.go("b", "c")
    assert play.asked() == [client for client in late if client == "c"]
    assert (sent["c"].guidance.labels >= 0).tolist()[2:] == [False, False]  # nobody has spoken of 5 and 6
    assert bool((sent["c"].guidance.labels >= 0).any())  # but of 2 and 4
    play.go("a", "d")  # nobody in round 3 had a view in round 2 but for "latest"
    assert play.asked() == [client for client in late if client == "d"]
    assert list(play.state.nodes) == ["a", "b", "c", "d"]
    play.go("a", "b", "c", "d")
    assert play.asked() == []
    assert list(play.state.views) == list(play.views)
    play.go("d")
    play.go("c", "a")


@pytest.mark.parametrize("views", ["round", "latest"])
def test_a_client_that_fails_in_training_is_left_out_of_that_round(views: str) -> None:
    play = played(views=views)
    play.go("a", "b", "c", "d")
    play.go("a", "b", "c", "d", ill=[("b", TrainWithGuidance)])
    assert ("b" in play.state.views) == (views == "latest")
    sent = play.go("a", "b", "c", "d")
    assert list(sent) == ["a", "b", "c", "d"] and "b" in play.state.views
    assert play.asked() == []


def test_a_client_that_fails_to_say_what_it_holds_is_asked_again_in_its_next_round_and_then_guided() -> None:
    play = played(late=["c"])
    assert list(play.state.nodes) == ["a", "b", "d"]
    sent = play.go("a", "b", "c", "d", ill=[("c", ShareNodes)])
    assert play.asked() == ["c"]
    assert list(sent) == ["a", "b", "d"] and list(play.state.nodes) == ["a", "b", "d"]
    play.go("a", "b")
    assert play.asked() == []
    sent = play.go("a", "b", "c", "d")
    assert play.asked() == ["c"] and list(sent) == ["a", "b", "c", "d"]
    assert list(play.state.nodes) == list(play.state.views) == ["a", "b", "c", "d"]
    assert bool((sent["c"].guidance.labels >= 0).any()) and len(sent["c"].guidance.weights)
    sent = play.go("a", "b", "c", "d")
    assert play.asked() == []
    assert bool((sent["c"].guidance.labels >= 0)[2:].any())  # 5 and 6, which nobody else holds


def test_a_client_that_never_says_what_it_holds_does_not_end_the_course_of_the_others() -> None:
    play = played(late=["c"])
    for _ in range(3):
        sent = play.go("a", "b", "c", "d", ill=[("c", ShareNodes)])
        assert list(sent) == ["a", "b", "d"] and play.asked() == ["c"]


def test_when_nobody_says_what_it_holds_the_course_ends() -> None:
    said = r"clients said which nodes they hold, 1 needed"
    reasons = r"\(a, b, c and 1 more: error: ill\)$"
    with pytest.raises(TooFewReplies, match=rf"^round 0, ShareNodes: 0 of 4 {said} {reasons}"):
        played(late=NAMES)
    play = played(late=["c"])
    play.go("a", "b")
    with pytest.raises(TooFewReplies, match=rf"^round 2, ShareNodes: 0 of 1 {said} \(c: error: ill\)$"):
        play.go("c", ill=[("c", ShareNodes)])


ENOUGH: dict[str, tuple[str, str, str, int, str]] = {
    # who is known, who is in the round, who is ill, how many are needed, what is said ("": the round is played)
    "three of four in the setup": ("", "abcd", "d", 3, ""),
    "one of four in the setup": ("", "abcd", "bcd", 3, "1 of 4 clients said which nodes they hold, 3 needed"),
    "those that are known count": ("ab", "abcd", "d", 3, ""),
    "but only in their round": ("ab", "bcd", "c", 3, "2 of 3 clients said which nodes they hold, 3 needed"),
    "known ones are too few": ("ab", "abcd", "cd", 3, "2 of 4 clients said which nodes they hold, 3 needed"),
    "a small cohort owes no more than it has": ("a", "ab", "", 3, ""),
    "a small cohort owes all it has": ("a", "ab", "b", 3, "1 of 2 clients said which nodes they hold, 2 needed"),
    "nobody new": ("abc", "ab", "d", 3, ""),
    "everybody": ("", "abcd", "", 4, ""),
}


@pytest.mark.parametrize("case", ENOUGH)
def test_clients_that_do_not_say_what_they_hold_are_missing_among_the_replies_that_the_course_needs(case: str) -> None:
    known, cohort, ill, needed, said = ENOUGH[case]

    def script(client: str, request: Request[Any]) -> Record:
        if isinstance(request, ShareNodes):
            return node_list(HELD[client]) if client not in ill else Failure(client, "error", "ill")
        return LocalView(PARAMS, 1.0, view(len(HELD[client]), 0))

    clients = ScriptedClients(script, NAMES)
    state = FedGLState(PARAMS, {client: node_list(HELD[client]) for client in known}, {})

    def play() -> None:
        if not known:
            nodes = FedGL().setup(clients.federation(PARAMS, round=0, min_replies=needed)).nodes
            assert list(nodes) == [client for client in NAMES if client not in ill]
        after = FedGL().round(state, clients.federation(cohort=tuple(cohort), round=2, min_replies=needed))
        assert list(after.views) == [client for client in cohort if client in known or client not in ill]

    if not said:
        play()
        return
    with pytest.raises(TooFewReplies) as caught:
        play()
    failed = f"{', '.join(ill)}: error: ill"
    assert str(caught.value) == f"round {2 if known else 0}, ShareNodes: {said} ({failed})"
    assert not any(isinstance(request, TrainWithGuidance) for _, request in clients.sent)
    assert [f.client for f in clients.reports[-1].failures] == list(ill)  # in the journal all the same


def test_weights_of_models_are_what_clients_say_and_weights_of_views_their_nodes() -> None:
    """An idle client has no say in the model, and its view of its nodes counts all the same."""

    def script(client: str, request: Request[Any]) -> Record:
        if isinstance(request, ShareNodes):
            return node_list(HELD[client])
        number = NAMES.index(client)
        weight = 0.0 if client == "c" else float(len(HELD[client]))
        return LocalView({"w": torch.full((2,), float(number))}, weight, view(len(HELD[client]), number))

    algorithm = FedGL(threshold=0.2)
    clients = ScriptedClients(script, NAMES)
    state = algorithm.round(algorithm.setup(clients.federation(PARAMS, round=0)), clients.federation())
    torch.testing.assert_close(state.params["w"], torch.full((2,), (3 * 0 + 2 * 1 + 2 * 3) / 7))
    clients.sent.clear()
    algorithm.round(state, clients.federation(round=2))
    views = {client: view(len(HELD[client]), number) for number, client in enumerate(NAMES)}
    for client, request in clients.sent:
        assert isinstance(request, TrainWithGuidance)
        check_guidance(request.guidance, *expected(algorithm, HELD, views, HELD[client]))


# ---- what a client is told


def test_a_client_is_told_nothing_about_nodes_that_it_does_not_hold() -> None:
    """Others' nodes lie at right angles to its own: whatever their clients say of them, its request is the same."""
    held = {"a": [4, 8, 6], "b": [6, 20, 21, 22], "c": [23, 20, 24]}
    algorithm = FedGL(threshold=0.1, num_neighbors=4, embeddings="hidden")

    def request(change: int) -> TrainWithGuidance:
        draw = torch.Generator().manual_seed(change)
        views, mine = {}, set(held["a"])
        for number, (client, ids) in enumerate(held.items()):
            known = view(len(ids), number, 4)
            own = torch.tensor([node in mine for node in ids])[:, None]
            strange = view(len(ids), 50 + change, 4)
            embeddings = torch.zeros(len(ids), 8)
            embeddings[:, :4] = torch.where(own, known.embeddings, 0.0)
            embeddings[:, 4:] = torch.where(own, 0.0, strange.embeddings * torch.rand(1, generator=draw))
            views[client] = View(torch.where(own, known.predictions, strange.predictions), embeddings)
        others = {c: [node if node in mine else node + 1000 * change for node in ids] for c, ids in held.items()}
        state = FedGLState(PARAMS, {c: node_list(ids) for c, ids in others.items()}, views)
        clients = ScriptedClients(lambda c, r: LocalView(PARAMS, 1.0, view(len(held[c]), 0, 8)), list(held))
        algorithm.round(state, clients.federation(round=5))
        (found,) = [r for c, r in clients.sent if c == "a"]
        assert isinstance(found, TrainWithGuidance)
        return found

    first = leaves(request(0))
    assert first[".guidance.labels"].shape == (3,) and first[".guidance.start"].shape == (4,)
    assert bool((first[".guidance.labels"] >= 0).any()) and len(first[".guidance.neighbors"]) > 3
    for change in (1, 2, 3):
        other = leaves(request(change))
        assert other.keys() == first.keys()
        for path, leaf in first.items():
            assert torch.equal(other[path], leaf) if isinstance(leaf, Tensor) else other[path] == leaf, path
    assert (first[".num_classes"], first[".width"]) == (3, 8)


def test_nodes_that_a_client_holds_alone_are_not_mixed_with_others() -> None:
    held = {"a": [1, 2], "b": [3, 4]}
    views = {client: view(2, seed) for seed, client in enumerate(held)}
    algorithm = FedGL(fusion="mean", threshold=0.0, num_neighbors=1)
    found = discovered(algorithm, held, views)
    for client, ids in held.items():
        guidance = found.projected(torch.tensor(ids))
        assert guidance.labels.tolist() == views[client].predictions.argmax(dim=1).tolist()


def guided_messages(trace: Trace) -> list[Message]:
    return [m for m in trace.messages if isinstance(m.request, TrainWithGuidance)]


@pytest.mark.parametrize("views", ["round", "latest"])
def test_with_half_of_the_clients_every_message_is_the_projection_on_the_clients_own_nodes(views: str) -> None:
    scenario = toy_scenario(4, num_nodes=60, num_common=6)
    algorithm = FedGL(local_steps=2, threshold=0.05, num_neighbors=5, views=views)
    course = toy_course(algorithm, rounds=6, num_clients=4, sampling=UniformSampling(fraction=0.5))
    trace = trace_course(course, scenario)
    held = {client: part.node_ids.tolist() for client, part in scenario.parts.items()}
    known: dict[str, View] = {}
    labelled = edges = 0
    asked = [(m.client, m.position) for m in trace.messages if isinstance(m.request, ShareNodes)]
    assert asked == [(client, Position(course.seed, 0, 0)) for client in held]
    for round in range(1, 7):
        messages = [m for m in guided_messages(trace) if m.position.round == round]
        assert {m.client for m in messages} == set(trace.rounds[round - 1].cohort) and len(messages) == 2
        for message in messages:
            request = message.request
            assert isinstance(request, TrainWithGuidance)
            assert message.position.exchange == 0 and (request.num_classes, request.width) == (3, 3)
            labels, graph = expected(algorithm, held, known, held[message.client])
            assert request.guidance.labels.tolist() == labels
            torch.testing.assert_close(request.guidance.graph.to_dense(), graph, rtol=1e-3, atol=1e-5)
            labelled += sum(label >= 0 for label in labels)
            edges += len(request.guidance.weights)
        seen = {m.client: m.outcome.reply.view for m in messages}  # type: ignore[union-attr]
        known = {**known, **seen} if views == "latest" else seen
    assert labelled and edges and {m.client for m in guided_messages(trace)} == set(held)


# ---- whole courses: every model, both runtimes

ZOO: dict[str, ModelSpec] = {
    "gcn": ModelSpec(GCN(hidden=4)),
    "sage": ModelSpec(SAGE(hidden=4, batch_norm=True)),
    "gat": ModelSpec(GAT(hidden=4, heads=2, last_heads=2)),
    "gin": ModelSpec(GIN(hidden=4)),
    "gprgnn": ModelSpec(GPRGNN(hidden=4, hops=3)),
    "appnp": ModelSpec(APPNP(hidden=4, hops=3)),
    "sgc": ModelSpec(SGC()),
    "mlp": ModelSpec(MLP(hidden=4)),
}
SHORT = FedGL(local_steps=2, num_neighbors=6, threshold=0.3, optimizer=SGD(lr=0.05))


def final(trace: Trace) -> Params:
    assert trace.ended_by is None
    assert not any(report.failures for report in trace.exchanges)
    params: Params = trace.standings[trace.last].state.params  # type: ignore[attr-defined]
    return params


# Models with one layer in the graph network that have something learnable before it or after it.
SHALLOW: dict[str, ModelSpec] = {
    "sgc with decoder": ModelSpec(SGC(hidden=4), decoder=LinearDecoder()),
    "sgc with encoder": ModelSpec(SGC(), encoder=LinearEncoder(dim=4)),
    "one layer with decoder": ModelSpec(SAGE(hidden=4, layers=1), decoder=LinearDecoder()),
}


@pytest.mark.meet(1)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("name", "embeddings"),
    [(name, "output") for name in ZOO] + [(name, "hidden") for name in [*ZOO, *SHALLOW] if name != "sgc"],
)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05), Adam(lr=0.01, eps=1e-3)], ids=["sgd", "adam"])
def test_every_model_learns_with_the_pseudo_graph_together_as_alone(
    optimizer: Any, name: str, embeddings: str, is_sparse: bool
) -> None:
    algorithm = replace(SHORT, embeddings=embeddings, alpha=0.5, optimizer=optimizer)
    scenario = toy_scenario(sparse=is_sparse, client_without_edges=True)
    course = toy_course(algorithm, model=(ZOO | SHALLOW)[name], rounds=2)
    loop, stacked = (trace_course(replace(course, runtime=runtime), scenario) for runtime in ("loop", "auto"))
    assert stacked.notes == {} and stacked.together["TrainWithGuidance"] == 6
    final(stacked)
    widths = [(m.position.round, m.request.width) for m in guided_messages(loop)]  # type: ignore[attr-defined]
    assert {width for round, width in widths if round == 1} == {3 if embeddings == "output" else 0}
    assert {width for round, width in widths if round > 1} == {3 if embeddings == "output" else 4}
    require_close(loop.values(), stacked.values(), f"{name} alone and together", 1e-3)


@pytest.mark.parametrize("name", ZOO)
def test_the_pseudo_graph_changes_what_every_model_learns_but_the_one_that_looks_at_no_edge(name: str) -> None:
    with_graph, without = (
        final(trace_course(toy_course(replace(SHORT, alpha=0.0, beta=beta), model=ZOO[name], rounds=2), toy_scenario()))
        for beta in (1.0, 0.0)
    )
    gap = max(float((with_graph[n] - without[n]).abs().max()) for n in without)
    assert (gap == 0.0) if name == "mlp" else (gap > 1e-4)


def cohort_of(algorithm: FedGL, datas: Sequence[Graph], **options: Any) -> tuple[GraphCohort, Params, list[Guidance]]:
    _, params = wise_client(datas[0], **options)
    model = toy_client(datas[0], **options)
    clients = [
        GraphClient(f"client-{k}", data, NodeClassification(), model.model, model.batching)
        for k, data in enumerate(datas)
    ]
    guidance = [reference.guidance_of(*odd_guidance(data, seed=k)) for k, data in enumerate(datas)]
    return GraphCohort(clients), params, guidance


@pytest.mark.parametrize("name", FIELDS)
def test_clients_that_train_together_descend_the_dense_loss_each_on_its_own_graph(name: str) -> None:
    """Of ragged sizes; one has no pseudo label, one no pseudo edge, one neither."""
    algorithm = FedGL(local_steps=2, embeddings="hidden", optimizer=SGD(lr=0.3), **FIELDS[name])
    datas = [toy_graph(14, weighted=True), toy_graph(9, seed=1), toy_graph(12, seed=2), toy_graph(7, seed=3)]
    cohort, params, guidance = cohort_of(algorithm, datas)
    guidance[1] = replace(guidance[1], labels=torch.full_like(guidance[1].labels, -1))
    guidance[2] = reference.guidance_of(guidance[2].labels.tolist(), torch.zeros(12, 12))
    guidance[3] = reference.guidance_of([-1] * 7, torch.zeros(7, 7))
    replies = algorithm.train_together([TrainWithGuidance(params, each) for each in guidance], cohort)
    assert (algorithm.guided_together(cohort, guidance).graph is cohort.data.graph) == (algorithm.beta == 0.0)
    for data, mine, reply in zip(datas, guidance, replies, strict=True):
        graph = mine.graph.to_dense()
        operator = reference.normalized(data) + reference.complement(graph, algorithm.beta, algorithm.degrees)
        trained, _ = reference.descended(
            data, params, operator, mine.labels.tolist(), algorithm.alpha, algorithm.reduction, steps=2, lr=0.3
        )
        assert_close(reply.params, trained, 2e-5)
        hidden, scores = reference.gcn(data, trained, operator)
        torch.testing.assert_close(reply.view.predictions, scores.softmax(dim=1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(reply.view.embeddings, hidden, rtol=1e-4, atol=1e-5)
        assert reply.weight == data.num_nodes
        for tensor in (reply.view.predictions, reply.view.embeddings):
            assert tensor.untyped_storage().nbytes() == tensor.numel() * 4  # nobody's else's rows behind it


def test_requests_with_models_of_their_own_are_answered_one_by_one() -> None:
    algorithm = FedGL(local_steps=2, optimizer=SGD(lr=0.3))
    cohort, params, guidance = cohort_of(algorithm, [toy_graph(14), toy_graph(9, seed=1)])
    other = {name: 0.5 * tensor for name, tensor in params.items()}
    requests = [TrainWithGuidance(params, guidance[0]), TrainWithGuidance(other, guidance[1])]
    for request, client, reply in zip(
        requests, cohort.clients, algorithm.train_together(requests, cohort), strict=True
    ):
        assert_equal(reply.params, algorithm.train(request, client).params)


CONFORMING: dict[str, dict[str, Any]] = {
    "no labels, mean": {"alpha": 0.0, "fusion": "mean", "num_neighbors": 4},
    "no graph, summed": {"beta": 0.0, "reduction": "sum", "threshold": 0.3},
    "latest, hidden, by weights": {"views": "latest", "threshold": 0.2, "embeddings": "hidden", "degrees": "weights"},
    "mean, latest, summed": {"fusion": "mean", "views": "latest", "reduction": "sum", "threshold": 0.4},
    "approximate, by epoch": {"exact_nodes": 0, "num_neighbors": 3, "step_unit": "epoch", "optimizer": SGD(lr=0.1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFORMING)
def test_every_setting_conforms(name: str) -> None:
    check_algorithm(FedGL(local_steps=2, **CONFORMING[name]))


def test_clients_without_labels_learn_from_pseudo_labels_and_count_together_as_alone() -> None:
    scenario = toy_scenario(4, num_nodes=60, num_common=6)
    parts = dict(scenario.parts)
    for name in ("client-1", "client-2"):
        parts[name] = parts[name].with_masks({**parts[name].masks, "train": torch.zeros(parts[name].num_nodes).bool()})
    scenario = replace(scenario, parts=parts)
    algorithm = replace(SHORT, threshold=0.0, alpha=1.0)
    loop, stacked = (
        trace_course(toy_course(algorithm, num_clients=4, runtime=runtime), scenario) for runtime in ("loop", "auto")
    )
    weights = {(m.position.round, m.client): m.outcome.reply.weight for m in guided_messages(loop)}  # type: ignore[union-attr]
    sizes = {client: part.num_nodes for client, part in parts.items()}
    assert weights == {
        (round, client): 0.0 if round == 1 and client in ("client-1", "client-2") else sizes[client]
        for round in (1, 2, 3)
        for client in parts
    }
    final(stacked)
    assert stacked.notes == {}
    require_close(loop.values(), stacked.values(), "idle clients alone and together", 1e-3)


def test_a_course_that_stops_in_the_middle_ends_with_the_same_bits_with_latest_views_and_half_of_the_clients() -> None:
    scenario = toy_scenario(4, num_nodes=60, num_common=6)
    algorithm = FedGL(local_steps=2, threshold=0.05, num_neighbors=5, views="latest", fusion="mean")
    course = toy_course(algorithm, rounds=5, num_clients=4, sampling=UniformSampling(fraction=0.5))
    whole = trace_course(course, scenario)
    state = whole.standings[3].state
    assert isinstance(state, FedGLState) and len(state.views) > 2  # more than one round's
    for round in (1, 2, 3, 4):
        resumed = trace_course(course, scenario, resume_from=(whole, round))
        require_same(whole.values(), resumed.values(), f"resumed after round {round}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("round", "request_name"), [(0, "ShareNodes"), (1, "TrainWithGuidance")])
def test_a_failure_in_a_real_course_is_named_and_the_client_comes_back(
    round: int, request_name: str, when: Literal["before", "after"]
) -> None:
    scenario = toy_scenario()
    trace = trace_course(toy_course(SHORT), scenario, fault=Fault("client-1", round, 0, when))
    assert trace.ended_by is None
    failed = [(r.request, f.client) for r in trace.exchanges for f in r.failures]
    assert failed == [(request_name, "client-1")]
    asked = [(m.client, m.position.round) for m in trace.messages if isinstance(m.request, ShareNodes)]
    assert asked == [(client, 0) for client in scenario.parts] + [("client-1", 1)] * (round == 0)
    trained = {(m.position.round, m.position.exchange, m.client) for m in guided_messages(trace)}
    first = 1 if round == 0 else 0  # who is asked again is asked before the training
    assert trained == {(r, first if r == 1 else 0, client) for r in (1, 2, 3) for client in scenario.parts}
    state = trace.standings[3].state
    assert isinstance(state, FedGLState) and list(state.nodes) == list(state.views) == list(scenario.parts)


def test_scores_are_those_of_the_models_on_the_clients_own_graphs() -> None:
    scenario = toy_scenario()
    trace = trace_course(toy_course(replace(SHORT, beta=20.0)), scenario)
    message = next(m for m in reversed(trace.messages) if isinstance(m.request, EvaluateModel))
    alone = toy_client(scenario.parts[message.client], id=message.client)
    assert isinstance(message.request, EvaluateModel)
    assert message.outcome.reply.metrics == alone.evaluate(message.request.params, message.request.splits)[0]  # type: ignore[union-attr]


# ---- bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_steps": 0}, "local_steps is 0; it must be at least 1"),
        ({"step_unit": "hour"}, "step_unit is 'hour'; choose from batch, epoch"),
        ({"alpha": -0.1}, "alpha is -0.1; it must be at least 0"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"alpha": math.inf}, "alpha is inf"),
        ({"beta": -1.0}, r"beta is -1.0; it must be at least 0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"beta": math.inf}, "beta is inf"),
        ({"threshold": 1.0}, r"threshold is 1.0; a probability that can be exceeded is in \[0, 1\)"),
        ({"threshold": -0.01}, "threshold is -0.01"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"num_neighbors": 0}, r"num_neighbors is 0; it must be at least 1 \(beta=0: no pseudo graph\)"),
        ({"exact_nodes": -1}, "exact_nodes is -1; it must be at least 0"),
        ({"fusion": "max"}, "fusion is 'max'; choose from sum, mean"),
        ({"reduction": "max"}, "reduction is 'max'; choose from mean, sum"),
        ({"embeddings": "input"}, "embeddings is 'input'; choose from output, hidden"),
        ({"views": "all"}, "views is 'all'; choose from round, latest"),
        ({"degrees": "in"}, "degrees is 'in'; choose from counts, weights"),
    ],
    ids=lambda value: "".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedGL(**fields)


def test_extreme_fields_are_taken() -> None:
    FedGL(alpha=0.0, beta=0.0, threshold=0.0, num_neighbors=1, exact_nodes=0, local_steps=1)


def test_node_lists_say_ids_and_classes() -> None:
    data = replace(toy_graph(6), node_ids=torch.tensor([5, -3, 9, 0, 2, 1]))
    found = FedGL().share_nodes(ShareNodes(), toy_client(data))
    assert torch.equal(found.ids, data.node_ids) and found.classes == ("0", "1", "2")
    named = FedGL().share_nodes(ShareNodes(), toy_client(replace(data, class_names=("r", "g", "b"))))
    assert named.classes == ("r", "g", "b")


def test_a_client_that_cannot_name_its_nodes_says_what_to_do() -> None:
    client = toy_client()
    client.node_keys = None
    with pytest.raises(
        BadInput, match=r"client-0 cannot say which of its nodes others hold too.*--id-secret-file FILE"
    ):
        FedGL().share_nodes(ShareNodes(), client)


def test_a_client_with_two_nodes_of_one_name_is_refused() -> None:
    client = toy_client(replace(toy_graph(6), node_ids=torch.tensor([5, 3, 9, 3, 2, 1])))
    with pytest.raises(BadInput, match="client-0 holds the id 3 twice; every node needs an id of its own"):
        FedGL().share_nodes(ShareNodes(), client)


def test_other_batches_and_other_tasks_are_refused_by_both_handlers() -> None:
    class Other(NodeClassification):
        pass

    sampled, strange = toy_client(batching=NeighborBatch(8, (2, 2))), toy_client()
    strange.task = Other()
    nothing = reference.guidance_of([-1] * 48, torch.zeros(48, 48))
    for client, message in (
        (sampled, r"batching is NeighborBatch.*use full batches \(batching.name=full\)"),
        (strange, "the task is Other"),
    ):
        with pytest.raises(BadInput, match=message):
            FedGL().share_nodes(ShareNodes(), client)
        with pytest.raises(BadInput, match=message):
            ask_to_train(FedGL(), client, read_params(client.model), nothing)


def test_hidden_embeddings_of_a_model_of_ones_own_are_refused_and_its_output_taken() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, graph: Any, generator: Any) -> Tensor:
            found: Tensor = self.linear(graph.x)
            return found

    client = toy_client()
    client.model = Own()
    nothing = reference.guidance_of([-1] * 48, torch.zeros(48, 48))
    params = read_params(client.model)
    with pytest.raises(BadInput, match="embeddings is 'hidden', but Own is no model of this package's; use 'output'"):
        ask_to_train(FedGL(embeddings="hidden"), client, params, nothing)
    assert ask_to_train(FedGL(), client, params, nothing).view.embeddings.shape == (48, 3)


ONE_LAYER = {
    "gcn": ModelSpec(GCN(layers=1)),
    "sage": ModelSpec(SAGE(layers=1)),
    "gat": ModelSpec(GAT(layers=1)),
    "gin": ModelSpec(GIN(layers=1)),
    "mlp": ModelSpec(MLP(layers=1)),
    "appnp": ModelSpec(APPNP(layers=1)),
    "gprgnn": ModelSpec(GPRGNN(layers=1)),
    "sgc": ModelSpec(SGC()),
    "sgc with many hops": ModelSpec(SGC(hops=4)),
}


@pytest.mark.parametrize("name", ONE_LAYER)
def test_hidden_embeddings_never_are_the_features_themselves(name: str) -> None:
    client = toy_client(toy_graph(12), model=ONE_LAYER[name])
    nothing = reference.guidance_of([-1] * 12, torch.zeros(12, 12))
    params, hidden = read_params(client.model), FedGL(embeddings="hidden", local_steps=1)
    for ask in (
        lambda: hidden.share_nodes(ShareNodes(), client),
        lambda: ask_to_train(hidden, client, params, nothing),
    ):
        with pytest.raises(BadInput, match=r"embeddings is 'hidden', but the model has one learnable.*'output'"):
            ask()
    output = replace(hidden, embeddings="output")
    assert len(output.share_nodes(ShareNodes(), client).ids) == 12
    assert ask_to_train(output, client, params, nothing).view.embeddings.shape == (12, 3)


@pytest.mark.parametrize(
    "spec",
    [
        *SHALLOW.values(),
        ModelSpec(GCN(layers=1, hidden=4), encoder=LinearEncoder(dim=4)),
        ModelSpec(GCN(layers=2, hidden=4)),
        ModelSpec(MLP(layers=3, hidden=4)),
    ],
    ids=[*SHALLOW, "one layer with encoder", "two layers", "three layers"],
)
def test_hidden_embeddings_of_a_model_that_learns_before_its_last_layer_are_taken(spec: ModelSpec) -> None:
    client, params = wise_client(toy_graph(12), model=spec)
    nothing = reference.guidance_of([-1] * 12, torch.zeros(12, 12))
    hidden = FedGL(embeddings="hidden", local_steps=1)
    assert len(hidden.share_nodes(ShareNodes(), client).ids) == 12
    found = ask_to_train(hidden, client, params, nothing).view.embeddings
    assert found.shape == (12, 4)
    other = ask_to_train(hidden, client, {n: 2.0 * t for n, t in params.items()}, nothing).view.embeddings
    assert not torch.allclose(found, other)  # it is the model's, not the features'


@pytest.mark.parametrize("runtime", ["loop", "auto"])
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_a_course_that_would_send_features_ends_before_anything_is_sent(is_sparse: bool, runtime: str) -> None:
    algorithm = replace(SHORT, embeddings="hidden")
    course = toy_course(algorithm, model=ZOO["sgc"], runtime=runtime)
    with pytest.raises(BadInput, match=r"but the model has one learnable layer"):
        trace_course(course, toy_scenario(sparse=is_sparse))
    # Between sites nobody asks before the course; the first handler refuses.
    client = toy_client(toy_graph(sparse=is_sparse), model=ZOO["sgc"])
    with pytest.raises(BadInput, match=r"but the model has one learnable layer"):
        algorithm.share_nodes(ShareNodes(), client)


@pytest.mark.parametrize("classes", [("x", "z", "y"), ("x", "y"), ("x", "y", "z", "w")])
@pytest.mark.parametrize("odd", ["a", "b", "c"])
def test_other_classes_than_most_clients_have_or_another_order_are_their_clients_failure(
    odd: str, classes: tuple[str, ...]
) -> None:
    replies = {name: node_list([k], classes if name == odd else CLASSES) for k, name in enumerate("abc")}
    clients = ScriptedClients(replies)
    state = FedGL().setup(clients.federation(PARAMS, round=0))
    assert set(state.nodes) == set("abc") - {odd}
    (failure,) = clients.reports[0].failures
    assert (failure.client, failure.kind) == (odd, "malformed") and "those of 2 of 3 clients" in failure.reason


def test_a_client_met_later_with_other_classes_stays_out_and_is_named() -> None:
    def script(client: str, request: Request[Any]) -> Record:
        if isinstance(request, ShareNodes):
            return node_list([2], ("p", "q", "r"))
        assert isinstance(request, TrainWithGuidance)
        return LocalView(request.params, 1.0, View(torch.full((1, 3), 1 / 3), torch.ones(1, 3)))

    clients, said = ScriptedClients(script, ("a", "b")), []
    fed = clients.federation(PARAMS, round=4)
    fed._note = said.append
    after = FedGL().round(FedGLState(PARAMS, {"a": node_list([1])}, {}), fed)
    assert list(after.nodes) == ["a"]
    assert said[0].startswith("round 4: b stays out: it has the classes p, q, r (3), a has x, y, z (3)")


NODE_LISTS: dict[str, tuple[NodeList, str]] = {
    "repeated": (node_list([7, 3, 7]), "ids holds 7 twice"),
    "two axes": (NodeList(torch.zeros(2, 2, dtype=torch.int64), CLASSES), r"ids has shape \(2, 2\) of torch.int64"),
    "no axis": (NodeList(torch.tensor(3), CLASSES), r"ids has shape \(\) of torch.int64"),
    "short": (NodeList(torch.zeros(2, dtype=torch.int32), CLASSES), r"ids has shape \(2,\) of torch.int32"),
    "real": (NodeList(torch.zeros(2), CLASSES), r"of torch.float32, expected \(nodes,\) of torch.int64"),
}


@pytest.mark.parametrize("fault", NODE_LISTS)
def test_a_list_of_nodes_that_cannot_be_is_its_clients_failure(fault: str) -> None:
    bad, message = NODE_LISTS[fault]

    def script(client: str, request: Request[Any]) -> Record:
        if isinstance(request, ShareNodes):
            return bad if client == "b" else node_list(HELD[client])
        return LocalView(PARAMS, 1.0, view(len(HELD[client]), 0))

    clients = ScriptedClients(script, NAMES)
    state = FedGL().setup(clients.federation(PARAMS, round=0))
    assert list(state.nodes) == ["a", "c", "d"]
    state = FedGL().round(state, clients.federation())
    assert list(state.nodes) == list(state.views) == ["a", "c", "d"]
    failures = [(r.position.round, r.position.exchange, f) for r in clients.reports for f in r.failures]
    assert [place[:2] for place in failures] == [(0, 0), (1, 0)]  # asked again, and no better
    for _, _, failure in failures:
        assert (failure.client, failure.kind) == ("b", "malformed")
        assert failure.reason.startswith("NodeList: ") and re.search(message, failure.reason)


def bad_views(good: View) -> dict[str, tuple[View, str]]:
    """Views of two nodes that cannot be, and what is said of them."""
    p, h = good.predictions, good.embeddings
    width, one = h.shape[1], torch.eye(2, 3)
    far = 1.1e15 * torch.eye(2, width)

    def odd(name: str, *shape: int, kind: str = "torch.float32") -> str:
        expected = (2, 3 if name == "predictions" else width)
        return f"LocalView: view.{name} has shape {shape} of {kind}, expected {expected} of floats"

    no_probability = "LocalView: view.predictions holds numbers that are no probabilities"
    too_large = "LocalView: view.embeddings holds numbers beyond 1e+15, whose products overflow"
    return {
        "a row too few": (View(p[:-1], h), odd("predictions", 1, 3)),
        "a row too many": (View(p, torch.cat([h, h])), odd("embeddings", 4, width)),
        "one axis": (View(p[:, 0], h), odd("predictions", 2)),
        "three axes": (View(p, h[None]), odd("embeddings", 1, 2, width)),
        "no axis": (View(p, torch.tensor(1.0)), odd("embeddings")),
        "whole numbers": (View(p, h.long()), odd("embeddings", 2, width, kind="torch.int64")),
        "whole predictions": (View(one.long(), h), odd("predictions", 2, 3, kind="torch.int64")),
        "fewer classes": (View(p[:, :2], h), odd("predictions", 2, 2)),
        "more classes": (View(torch.cat([p, p], dim=1), h), odd("predictions", 2, 6)),
        "no classes": (View(p[:, :0], h), odd("predictions", 2, 0)),
        "wider": (View(p, torch.cat([h, h], dim=1)), odd("embeddings", 2, 2 * width)),
        "narrower": (View(p, h[:, :-1]), odd("embeddings", 2, width - 1)),
        "no column": (View(p, h[:, :0]), odd("embeddings", 2, 0)),
        "not a number": (View(p * math.nan, h), no_probability),
        "below zero": (View(torch.where(one > 0, -0.0011, p), h), no_probability),
        "above one": (View(torch.where(one > 0, 1.0011, p), h), no_probability),
        "infinitely probable": (View(p * math.inf, h), no_probability),
        "scores": (View(50.0 * (p - 0.5), h), no_probability),
        "infinite": (View(p, h * math.inf), too_large),
        "large": (View(p, h * 1e25), too_large),
        "one too large": (View(p, h + far), too_large),
        "one too small": (View(p, h - far), too_large),
        "no embedding": (
            View(p, h * math.nan),
            f"LocalView.view.embeddings has {2 * width} of {2 * width} entries that are NaN or infinite",
        ),
    }


WIDTHS = ("wider", "narrower", "no column")  # what nobody can judge as long as there has been no view


def play_with(fault: str, algorithm: FedGL, since: int, rounds: int = 4) -> tuple[FedGLState, ScriptedClients]:
    """Play rounds in which client b, from round `since` on, sends views that cannot be."""
    width = 3 if algorithm.embeddings == "output" else 5

    def script(client: str, request: Request[Any]) -> Record:
        if isinstance(request, ShareNodes):
            return node_list(HELD[client])
        good = view(len(HELD[client]), 0, width)
        spoilt = client == "b" and fed.round >= since
        return LocalView(PARAMS, 1.0, bad_views(good)[fault][0] if spoilt else good)

    clients = ScriptedClients(script, NAMES)
    state = algorithm.setup(clients.federation(PARAMS, round=0))
    for round in range(1, rounds + 1):
        fed = clients.federation(round=round)
        state = algorithm.round(state, fed)
    return state, clients


@pytest.mark.meet(2)
@pytest.mark.parametrize("views", ["round", "latest"])
@pytest.mark.parametrize(
    ("fault", "embeddings", "since"),
    [(fault, "output", since) for fault in bad_views(view(2, 0)) for since in (1, 3)]
    + [(fault, "hidden", 2) for fault in bad_views(view(2, 0))]
    + [(fault, "hidden", 1) for fault in bad_views(view(2, 0)) if fault not in WIDTHS],
)
def test_a_view_that_cannot_be_is_its_clients_failure_and_not_the_courses(
    fault: str, embeddings: str, since: int, views: str
) -> None:
    algorithm = FedGL(threshold=0.2, embeddings=embeddings, views=views)
    state, clients = play_with(fault, algorithm, since)
    failures = [(r.position.round, f) for r in clients.reports for f in r.failures]
    assert [(round, failure.client) for round, failure in failures] == [(r, "b") for r in range(since, 5)]
    _, reason = bad_views(view(2, 0, 3 if embeddings == "output" else 5))[fault]
    for round, failure in failures:
        assert failure.kind == ("not_finite" if fault == "no embedding" else "malformed")
        known = embeddings == "output" or round > 1  # what width to expect
        cut = slice(None) if known else slice(reason.find(", expected") if ", expected" in reason else None)
        assert failure.reason[cut] == reason[cut]
    assert set(state.views) == set("abcd" if views == "latest" and since > 1 else "acd")
    for client, request in clients.sent:
        if isinstance(request, TrainWithGuidance):
            assert bool(request.guidance.weights.isfinite().all()), client


def test_views_at_the_edge_of_what_can_be_are_taken_and_leave_guidance_finite() -> None:
    """Rounding takes probabilities a little out of their range; 1e15 is the largest number whose products are safe."""
    p, h = view(2, 0).predictions, view(2, 0).embeddings
    edge = {
        "rounded": View(torch.tensor([[1.0009, -0.0009, 0.0], [0.0, 1.0, 0.0]]), h),
        "large": View(p, 1e15 * h.sign()),
        "half precision": View(p.half(), h.bfloat16()),
        "double precision": View(p.double(), 1e15 * h.sign().double()),
        "zero": View(torch.zeros_like(p), torch.zeros_like(h)),
    }

    for name, odd in edge.items():

        def script(client: str, request: Request[Any], odd: View = odd) -> Record:
            if isinstance(request, ShareNodes):
                return node_list(HELD[client])
            return LocalView(PARAMS, 1.0, odd if client == "b" else view(len(HELD[client]), 0))

        clients, algorithm = ScriptedClients(script, NAMES), FedGL(threshold=0.1)
        state = algorithm.setup(clients.federation(PARAMS, round=0))
        for round in (1, 2, 3):
            state = algorithm.round(state, clients.federation(round=round))
        assert not any(report.failures for report in clients.reports), name
        for client, request in dict(clients.sent).items():  # the last
            assert isinstance(request, TrainWithGuidance)
            assert bool(request.guidance.weights.isfinite().all()), (name, client)
            assert bool((request.guidance.labels >= 0).any()) and len(request.guidance.weights), (name, client)


def test_large_embeddings_of_one_client_do_not_spoil_the_guidance_of_the_others() -> None:
    """Its view is left out, so guidance is what the others' views give."""
    algorithm = FedGL(threshold=0.2)
    _, clients = play_with("large", algorithm, since=1, rounds=2)
    views = {client: view(len(HELD[client]), 0) for client in "acd"}
    second = [(c, r) for c, r in clients.sent if isinstance(r, TrainWithGuidance)][4:]
    assert [client for client, _ in second] == list(NAMES)  # b is guided too
    for client, request in second:
        check_guidance(request.guidance, *expected(algorithm, HELD, views, HELD[client]))
        assert len(request.guidance.weights)


def test_views_without_nodes_are_judged_by_their_shapes() -> None:
    nothing = reference.guidance_of([], torch.zeros(0, 0))
    request = TrainWithGuidance(PARAMS, nothing, 3, 5)
    assert request.problem(LocalView(PARAMS, 0.0, View(torch.zeros(0, 3), torch.zeros(0, 5)))) == ""
    assert "expected (0, 5)" in request.problem(LocalView(PARAMS, 0.0, View(torch.zeros(0, 3), torch.zeros(0, 4))))
    assert "expected (0, 3)" in request.problem(LocalView(PARAMS, 0.0, View(torch.zeros(1, 3), torch.zeros(0, 5))))
    anything = TrainWithGuidance(PARAMS, nothing)
    assert (anything.num_classes, anything.width) == (0, 0)
    assert anything.problem(LocalView(PARAMS, 0.0, View(torch.zeros(0, 7), torch.zeros(0, 9)))) == ""
    assert "view.embeddings has shape (0,)" in anything.problem(
        LocalView(PARAMS, 0.0, View(torch.zeros(0, 7), torch.zeros(0)))
    )


def test_clients_without_classes_are_their_own_failure_and_all_of_them_the_courses() -> None:
    replies = {"a": node_list([1, 2]), "b": node_list([2]), "c": node_list([3], ())}
    state = FedGL().setup(ScriptedClients(replies).federation(PARAMS, round=0))
    assert sorted(state.nodes) == ["a", "b"]
    nobody = ScriptedClients({name: node_list([1], ()) for name in "abc"})
    with pytest.raises(TooFewReplies, match=r"0 of 3 .*classes is empty"):
        FedGL().setup(nobody.federation(PARAMS, round=0))


@pytest.mark.parametrize("fault", WIDTHS)
@pytest.mark.parametrize("views", ["round", "latest"])
def test_hidden_views_of_another_width_than_those_of_most_clients_are_their_clients_failure(
    views: str, fault: str
) -> None:
    state, clients = play_with(fault, FedGL(embeddings="hidden", views=views), since=1)
    failures = [failure for report in clients.reports for failure in report.failures]
    assert {(failure.client, failure.kind) for failure in failures} == {("b", "malformed")} and len(failures) == 4
    assert "b" not in state.views and len(state.views) > 1


@pytest.mark.parametrize("views", ["round", "latest"])
def test_the_width_is_that_of_the_views_so_far_whoever_comes_later(views: str) -> None:
    """Clients of later rounds, which the first views were not about, are held to the width of the first."""

    def script(client: str, request: Request[Any]) -> Record:
        if isinstance(request, ShareNodes):
            return node_list(HELD[client])
        return LocalView(PARAMS, 1.0, view(len(HELD[client]), 0, width=5 if client == "b" else 4))

    clients = ScriptedClients(script, NAMES)
    algorithm = FedGL(views=views, embeddings="hidden")
    state = algorithm.setup(clients.federation(PARAMS, round=0))
    for round, cohort in enumerate((("a",), ("b", "c"), ("a", "b"), ("b", "d")), start=1):
        clients.sent.clear()
        clients.reports.clear()
        state = algorithm.round(state, clients.federation(cohort=cohort, round=round))
        assert [r.width for _, r in clients.sent] == [4 if round > 1 else 0] * len(cohort)  # type: ignore[attr-defined]
        failures = [(f.client, f.kind, f.reason) for report in clients.reports for f in report.failures]
        reason = "LocalView: view.embeddings has shape (2, 5) of torch.float32, expected (2, 4) of floats"
        assert failures == [("b", "malformed", reason)] * ("b" in cohort)
        assert "b" not in state.views
    assert list(state.views) == (["a", "c", "d"] if views == "latest" else ["d"])
    with pytest.raises(TooFewReplies, match=r"round 5, TrainWithGuidance: 0 of 1 .*b: malformed.*expected \(2, 4\)"):
        algorithm.round(state, clients.federation(cohort=("b",), round=5))


# ---- clients without a common node


def test_without_a_common_node_a_note_says_so_once_and_the_course_goes_on() -> None:
    trace = trace_course(toy_course(SHORT), toy_scenario(num_common=0))
    final(trace)
    (note,) = trace.said
    assert note.startswith("no two clients hold a common node")
    assert trace_course(toy_course(SHORT), toy_scenario(num_common=1)).said == []
    alone = toy_scenario(1)
    assert trace_course(toy_course(SHORT, num_clients=1), alone).said == []


def test_the_note_comes_when_the_last_client_has_said_what_it_holds_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[int] = []
    monkeypatch.setattr(Federation, "note", lambda fed, text: said.append(fed.round))
    held = {"a": [1, 2], "b": [3], "c": [4, 5], "d": [6]}
    cohorts = (("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("a", "d"))
    for late, rounds in (((), [0]), (("b", "d"), [4]), (("b",), [1]), (("c", "b"), [2])):
        said.clear()
        play = Play(FedGL(), held, late)
        for cohort in cohorts:
            play.go(*cohort)
        assert said == rounds


def test_the_note_is_in_the_journal_and_in_the_result(tmp_path: Path) -> None:
    course = toy_course(SHORT, rounds=2)
    result = ist.run(course, scenario=toy_scenario(num_common=0), run_dir=tmp_path / "run")
    assert len([note for note in result.notes if "common node" in note]) == 1
    assert (tmp_path / "run" / "journal.jsonl").read_text().count("no two clients hold a common node") == 1
    assert ist.run(course, scenario=toy_scenario()).notes == []


# ---- the object


def test_idle_clients_are_noted_only_where_pseudo_labels_cannot_help_them() -> None:
    scenario = toy_scenario(client_without_training=True)
    for alpha, notes in ((0.2, 0), (0.0, 1)):
        algorithm = replace(SHORT, alpha=alpha)
        assert algorithm.learns_without_labels == (alpha > 0)
        result = ist.run(toy_course(algorithm, rounds=1), scenario=scenario)
        assert len([note for note in result.notes if "has no training examples" in note]) == notes


def test_a_course_in_words_is_the_same_course_again(tmp_path: Path) -> None:
    algorithm = FedGL(
        alpha=0.7, beta=0.3, threshold=0.25, num_neighbors=17, fusion="mean", reduction="sum", embeddings="hidden",
        views="latest", degrees="weights", exact_nodes=12, local_steps=3, step_unit="epoch", optimizer=SGD(lr=0.2),
    )  # fmt: skip
    for each in (algorithm, FedGL()):
        (tmp_path / "course.yaml").write_text(course_to_yaml(ist.Course(algorithm=each)))
        back = load_course(tmp_path / "course.yaml")
        assert back.algorithm == each and repr(back.algorithm) == repr(each)
    changed = load_course(tmp_path / "course.yaml", ["algorithm.fusion=mean", "algorithm.beta=0"])
    assert changed.algorithm == FedGL(fusion="mean", beta=0.0)


def test_a_bad_field_in_a_course_is_an_error_that_names_it() -> None:
    with pytest.raises(BadInput, match="fusion is 'max'; choose from sum, mean"):
        load_course({"algorithm": {"name": "fedgl", "fusion": "max"}})
    with pytest.raises(BadInput, match="num_neighbours"):
        load_course({"algorithm": {"name": "fedgl", "num_neighbours": 3}})


def test_the_defaults_are_those_that_the_paper_states() -> None:
    """Section 5.3.2, but for Wiki: s = 100, lambda 0.5, alpha 0.2, beta 1, 10 local epochs, GCN's optimiser."""
    algorithm = FedGL()
    assert (algorithm.num_neighbors, algorithm.threshold, algorithm.alpha, algorithm.beta) == (100, 0.5, 0.2, 1.0)
    assert algorithm.local_steps == 10 and algorithm.optimizer == Adam(lr=0.01, weight_decay=5e-4)
