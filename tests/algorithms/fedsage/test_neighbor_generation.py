"""Hidden neighbours, generated ones and mended graphs, each against plain loops."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedsage import neighbor_generation
from isthmus.algorithms.fedsage.neighbor_generation import (
    FeatureGenerator,
    Generated,
    Impaired,
    NeighborGenerator,
    closest_hidden,
    count_loss,
    draw_hidden,
    feature_loss,
    foreign_loss,
    generate,
    mended,
    nearest_rows,
    whole_counts,
)
from isthmus.core.random import ProtectingStream, Secret
from isthmus.data.graph import Graph, select_rows
from isthmus.models.inputs import GraphInput
from isthmus.testing import toy_graph

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


def stream(number: int = 0) -> ProtectingStream:
    return Secret(bytes(32)).stream(number)


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def impaired(sparse: bool = False, weighted: bool = False) -> tuple[Graph, Tensor, Impaired]:
    graph = toy_graph(20, sparse=sparse, weighted=weighted)
    hidden = draw_hidden(20, 0.4, stream())
    return graph, hidden, Impaired.of(graph, hidden)


def built(num_features: int = 6, num_slots: int = 3, seed: int = 0) -> NeighborGenerator:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = NeighborGenerator(num_features, latent=4, hidden=5, num_slots=num_slots)
        for slot in model.parameters():
            torch.nn.init.normal_(slot, std=0.5)  # biases too, so that they count
    return model


def by_hand(graph: Graph, rows: Tensor, counts: list[int]) -> Generated:
    """Neighbours that are given, `counts[v]` for each node v, in the order of slots."""
    owner = [v for slot in range(max(counts)) for v, count in enumerate(counts) if count > slot]
    assert len(owner) == len(rows)
    nothing = torch.empty(0)
    return Generated(nothing, nothing, torch.tensor(counts), rows, torch.tensor(owner), graph.num_nodes)


# ---- hiding


@pytest.mark.parametrize(("num_nodes", "expected"), [(0, 0), (1, 0), (2, 1), (7, 3), (20, 10)])
def test_half_of_the_nodes_are_hidden_and_one_stays_at_least(num_nodes: int, expected: int) -> None:
    hidden = draw_hidden(num_nodes, 0.5, stream())
    assert hidden.shape == (num_nodes,) and int(hidden.sum()) == expected
    assert torch.equal(hidden, draw_hidden(num_nodes, 0.5, stream()))


@pytest.mark.parametrize("sparse", [False, True])
def test_hiding_keeps_the_visible_nodes_their_edges_and_who_lost_whom(sparse: bool) -> None:
    graph, hidden, found = impaired(sparse, weighted=True)
    visible = [v for v in range(20) if not hidden[v]]
    away = [v for v in range(20) if hidden[v]]
    x = graph.x.to_dense()
    assert graph.edge_weight is not None and found.graph.edge_weight is not None
    edges = {(int(u), int(v)): float(w) for (u, v), w in zip(graph.edge_index.t(), graph.edge_weight, strict=True)}
    left = {
        (visible[int(u)], visible[int(v)]): float(w)
        for (u, v), w in zip(found.graph.edge_index.t(), found.graph.edge_weight, strict=True)
    }
    assert left == {(u, v): w for (u, v), w in edges.items() if u in visible and v in visible}
    assert torch.equal(found.graph.x.to_dense(), x[visible]) and torch.equal(found.hidden_x.to_dense(), x[away])
    assert torch.equal(found.graph.y, graph.y[visible])
    assert torch.equal(found.graph.mask("train"), graph.mask("train")[visible])
    pairs = [(visible[int(v)], away[int(u)]) for v, u in zip(found.owner, found.neighbor, strict=True)]
    assert pairs == sorted((u, v) for u, v in edges if u in visible and v in away) and len(pairs) > 3
    assert found.counts.tolist() == [sum((v, u) in edges for u in away) for v in visible]


# ---- generating


def test_the_feature_generator_gives_each_node_its_first_neighbours() -> None:
    model = FeatureGenerator(latent=2, hidden=3, num_slots=3, num_features=4)
    torch.nn.init.normal_(model.hidden_bias, generator=drawn(1))
    torch.nn.init.normal_(model.slot_bias, generator=drawn(2))
    inputs = torch.randn(4, 2, generator=drawn(3))
    rows, owner = model(inputs, torch.tensor([2, 0, 1, 3]))
    wanted, whose = [], []
    for slot in range(3):
        for node, count in enumerate((2, 0, 1, 3)):
            if slot < count:
                h = torch.clamp(inputs[node] @ model.hidden_weight + model.hidden_bias, min=0.0)
                wanted.append(h @ model.slot_weight[slot] + model.slot_bias[slot])
                whose.append(node)
    assert rows.shape == (6, 4) and owner.tolist() == whose == [0, 2, 3, 0, 3, 3]
    torch.testing.assert_close(rows, torch.stack(wanted))


def test_nothing_is_generated_for_nobody() -> None:
    model = FeatureGenerator(latent=2, hidden=3, num_slots=3, num_features=4)
    for counts in (torch.zeros(5, dtype=torch.int64), torch.empty(0, dtype=torch.int64)):
        rows, owner = model(torch.ones(len(counts), 2), counts)
        assert rows.shape == (0, 4) and owner.shape == (0,)


def test_numbers_of_neighbours_are_rounded_and_bounded() -> None:
    assert whole_counts(torch.tensor([-3.0, 0.4, 0.6, 1.5, 2.4, 9.0]), 3).tolist() == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_generator_reads_the_graph_by_graphsage_and_adds_noise(sparse: bool) -> None:
    graph = toy_graph(12, sparse=sparse)
    model = built()
    torch.nn.init.constant_(model.number.bias, 2.0)
    found = generate(model, GraphInput(x=graph.x, edge_index=graph.edge_index), stream(7))
    params = dict(model.named_parameters())
    h = graph.x.to_dense()
    for layer in range(2):
        means = torch.zeros_like(h)
        for v in range(12):
            around = [int(u) for u, w in graph.edge_index.t() if int(w) == v]
            if around:
                means[v] = h[around].mean(dim=0)
        name = f"encoder.layers.{layer}"
        h = means @ params[f"{name}.neighbor_weight"] + h @ params[f"{name}.own_weight"] + params[f"{name}.bias"]
        h = h.relu() if layer == 0 else h
    torch.testing.assert_close(found.inputs, h + stream(7).normal((12, 4)))
    torch.testing.assert_close(found.scores, (h @ params["number.weight"] + params["number.bias"])[:, 0])
    assert torch.equal(found.counts, whole_counts(found.scores, 3)) and found.num_nodes == 12
    assert len(found.rows) == len(found.owner) == int(found.counts.sum()) > 3
    torch.testing.assert_close(found.rows, model.features(found.inputs, found.counts)[0])


def test_at_most_so_many_nodes_are_given_neighbours() -> None:
    graph = toy_graph(12)
    model = built()
    torch.nn.init.constant_(model.number.bias, 50.0)  # all lack all
    found = generate(model, GraphInput(x=graph.x, edge_index=graph.edge_index), stream(), max_nodes=5)
    assert sorted(found.counts.tolist()) == [0] * 7 + [3] * 5 and found.num_nodes == 5 and len(found.rows) == 15
    assert len(found.scores) == 12
    every = generate(model, GraphInput(x=graph.x, edge_index=graph.edge_index), stream(), max_nodes=12)
    assert every.num_nodes == 12 and int(every.counts.sum()) == 36


# ---- losses


def test_the_loss_of_numbers_is_the_mean_smooth_l1() -> None:
    scores, counts = torch.tensor([0.2, 3.0, 1.5, -2.0]), torch.tensor([0, 1, 2, 0])
    total = 0.0
    for score, count in zip(scores.tolist(), counts.tolist(), strict=True):
        gap = abs(score - count)
        total += 0.5 * gap**2 if gap < 1 else gap - 0.5
    assert float(count_loss(scores, counts)) == pytest.approx(total / 4)


@pytest.mark.parametrize("chunk", [1, 4_000_000])
@pytest.mark.parametrize("sparse", [False, True])
def test_generated_features_are_held_against_the_nearest_hidden_neighbour(
    sparse: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbor_generation, "CHUNK", chunk)
    graph, _, found = impaired(sparse)
    counts = [(3, 1, 0, 2)[v % 4] for v in range(found.graph.num_nodes)]
    assert any(n and c > 1 for n, c in zip(found.counts.tolist(), counts, strict=True))
    assert any(c and not n for n, c in zip(found.counts.tolist(), counts, strict=True))
    rows = torch.randn(sum(counts), graph.num_features, generator=drawn(5)).requires_grad_()
    given = by_hand(found.graph, rows, counts)
    hidden_x = found.hidden_x.to_dense()
    terms = []
    for row, v in zip(rows, given.owner.tolist(), strict=True):
        others = [int(u) for w, u in zip(found.owner, found.neighbor, strict=True) if int(w) == v]
        if others:
            terms.append(min(((row - hidden_x[u]) ** 2).sum() for u in others))
    wanted = torch.stack(terms).sum() / found.graph.num_nodes
    loss = feature_loss(given, found)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each, rows)[0] for each in (loss, wanted)))


def test_of_equally_near_hidden_neighbours_the_first_counts_and_without_any_there_is_none() -> None:
    graph = replace(toy_graph(4), edge_index=torch.tensor([[0, 0, 1, 2], [1, 2, 0, 0]]), x=torch.ones(4, 6))
    found = Impaired.of(graph, torch.tensor([False, True, True, False]))
    assert closest_hidden(torch.zeros(3, 6), torch.tensor([0, 1, 0]), found).tolist() == [0, -1, 0]


def test_without_hidden_neighbours_the_loss_of_features_is_zero() -> None:
    graph = toy_graph(8)
    found = Impaired.of(graph, torch.zeros(8, dtype=torch.bool))
    rows = torch.randn(8, 6, generator=drawn()).requires_grad_()
    loss = feature_loss(by_hand(graph, rows, [1] * 8), found)
    assert float(loss.detach()) == 0.0 and not torch.autograd.grad(loss, rows)[0].any()


@pytest.mark.parametrize("chunk", [1, 100, 4_000_000])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_held_against_the_nearest_of_another_clients_nodes(
    sparse: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbor_generation, "CHUNK", chunk)
    graph = toy_graph(15, sparse=sparse)
    rows = torch.randn(7, 6, generator=drawn(2)).requires_grad_()
    x = graph.x.to_dense()
    wanted = sum(min(((row - other) ** 2).sum() for other in x) for row in rows)
    loss = foreign_loss(rows, graph.x, GraphInput(x=graph.x, edge_index=graph.edge_index).x)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each, rows)[0] for each in (loss, wanted)))


def test_a_client_without_nodes_has_no_opinion() -> None:
    rows = torch.ones(3, 6).requires_grad_()
    loss = foreign_loss(rows, torch.empty(0, 6), torch.empty(0, 6))
    assert float(loss.detach()) == 0.0 and not torch.autograd.grad(loss, rows)[0].any()


def test_no_rows_have_no_nearest_ones() -> None:
    assert nearest_rows(torch.empty(0, 6), torch.ones(4, 6)).shape == (0,)


# ---- mending


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_mended_graph_has_the_generated_nodes_beside_their_owners(sparse: bool, weighted: bool) -> None:
    graph = toy_graph(10, sparse=sparse, weighted=weighted)
    rows = torch.randn(3, 6, generator=drawn())
    found = mended(graph, rows, torch.tensor([4, 9, 4]))
    edges = {(int(u), int(v)) for u, v in graph.edge_index.t()} | {(4, 10), (10, 4), (9, 11), (11, 9), (4, 12), (12, 4)}
    assert [(int(u), int(v)) for u, v in found.edge_index.t()] == sorted(edges)
    assert found.x.layout == graph.x.layout  # sparse ones stay so, for few are added
    torch.testing.assert_close(found.x.to_dense(), torch.cat([graph.x.to_dense(), rows]))
    assert found.y.tolist() == [*graph.y.tolist(), -1, -1, -1] and len(found.node_ids) == 13
    for split, mask in graph.masks.items():
        assert found.mask(split).tolist() == [*mask.tolist(), False, False, False]
    if weighted:
        assert graph.edge_weight is not None and found.edge_weight is not None
        old = {(int(u), int(v)): float(w) for (u, v), w in zip(graph.edge_index.t(), graph.edge_weight, strict=True)}
        for (u, v), weight in zip(found.edge_index.t(), found.edge_weight, strict=True):
            usual = float(graph.edge_weight.mean())
            assert float(weight) == pytest.approx(old.get((int(u), int(v)), usual))
    else:
        assert found.edge_weight is None


def test_many_generated_nodes_or_ones_to_be_differentiated_make_features_dense() -> None:
    graph = toy_graph(10, sparse=True)
    for rows in (torch.rand(6, 6), torch.rand(2, 6).requires_grad_()):
        found = mended(graph, rows, torch.arange(len(rows))).x
        assert found.layout == torch.strided and found.requires_grad == rows.requires_grad
        torch.testing.assert_close(found, torch.cat([graph.x.to_dense(), rows]))


def test_rows_of_mended_sparse_features_can_be_chosen_and_multiplied() -> None:
    graph = toy_graph(10, sparse=True)
    found = mended(graph, torch.rand(2, 6), torch.tensor([4, 9]))
    x, weight = found.x.to_dense(), torch.rand(6, 3)
    torch.testing.assert_close(select_rows(found.x, torch.tensor([11, 0, 10])).to_dense(), x[[11, 0, 10]])
    torch.testing.assert_close(GraphInput(x=found.x, edge_index=found.edge_index).features_times(weight), x @ weight)


def test_a_graph_that_lacks_nothing_stays_as_it_is() -> None:
    graph = toy_graph(10, sparse=True)
    assert mended(graph, torch.empty(0, 6), torch.empty(0, dtype=torch.int64)) is graph


def test_a_weighted_graph_without_edges_gets_edges_of_weight_one() -> None:
    graph = replace(toy_graph(4), edge_index=torch.empty(2, 0, dtype=torch.int64), edge_weight=torch.empty(0))
    found = mended(graph, torch.ones(1, 6), torch.tensor([2]))
    assert found.edge_weight is not None and found.edge_weight.tolist() == [1.0, 1.0]
