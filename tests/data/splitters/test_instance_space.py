from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.dividing import Holding
from isthmus.data.graph import undirected
from isthmus.data.splitters import InstanceSpaceSplitter, facts
from isthmus.data.splitters.facts import item_features, item_values

from ..strategies import dense, many, rng, seeds
from .holdings import holdings, make_links, make_nodes, make_set


@many
@given(holdings, seeds, st.integers(1, 12), st.sampled_from(["venue", "year", "degree", "principal", "feature.0"]))
def test_clients_are_segments_of_the_sorted_items_in_equal_sizes(data: Holding, seed: int, wish: int, by: str) -> None:
    clients = min(wish, data.num_items)
    values = item_values(data, by, "by")
    parts = InstanceSpaceSplitter(by).assign(data, clients, rng(seed))
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
    for low, high in pairwise(parts):
        assert values[low].max() <= values[high].min()


def test_what_is_not_known_comes_last() -> None:
    graph = replace(make_nodes(4, 0), attributes={"year": torch.tensor([torch.nan, 3.0, 1.0, 2.0])})
    parts = InstanceSpaceSplitter("year").assign(graph, 2, rng(0))
    assert [part.tolist() for part in parts] == [[2, 3], [0, 1]]


def test_an_attribute_comes_before_a_measure_of_its_name() -> None:
    graph = replace(make_nodes(4, 9), attributes={"degree": torch.tensor([3, 2, 1, 0])})
    assert item_values(graph, "degree", "by").tolist() == [3, 2, 1, 0]


def test_values_of_nodes_worked_out_by_hand() -> None:
    # A triangle 0-1-2 with a tail 2-3, and 4 alone.
    edges = undirected(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]]), 5)[0]
    graph = replace(make_nodes(5, 0), edge_index=edges, y=torch.tensor([0, 0, 1, -1, 1]))
    assert item_values(graph, "degree", "by").tolist() == [2, 2, 3, 1, 0]
    assert item_values(graph, "density", "by").tolist() == pytest.approx([1, 1, 1 / 3, 0, 0])
    homophily = item_values(graph, "homophily", "by").tolist()
    assert homophily[:3] == [0.5, 0.5, 0.0] and np.isnan(homophily[3:]).all()


def test_density_counts_the_joined_pairs_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MAX_WALKS", 7)  # many blocks
    for seed in range(5):
        drawn = torch.from_numpy(rng(seed).integers(0, 30, (2, 90)) ** 2 // 30)  # low numbers are hubs
        graph = replace(make_nodes(30, 0), edge_index=undirected(drawn[:, drawn[0] != drawn[1]], 30)[0])
        joined = set(map(tuple, graph.edge_index.t().tolist()))
        for node, found in enumerate(item_values(graph, "density", "by").tolist()):
            pairs = list(combinations([other for other in range(30) if (node, other) in joined], 2))
            assert found == pytest.approx(sum(pair in joined for pair in pairs) / max(len(pairs), 1), rel=1e-15)


def test_values_of_links_and_graphs_worked_out_by_hand() -> None:
    data = make_links(12)
    degree = torch.bincount(data.links.reshape(-1), minlength=data.num_nodes)
    assert item_values(data, "degree", "by").tolist() == degree[data.links].sum(dim=0).tolist()
    assert np.allclose(item_features(data), data.x[data.links].mean(dim=0))
    graphs = make_set(8)
    for position in range(8):
        graph = graphs.graph(position)
        size, edges = graph.num_nodes, graph.num_edges
        assert item_values(graphs, "size", "by")[position] == size
        assert item_values(graphs, "degree", "by")[position] == pytest.approx(edges / size)
        assert item_values(graphs, "density", "by")[position] == pytest.approx(edges / max(size * (size - 1), 1))
        assert np.allclose(item_features(graphs)[position], graph.x.mean(dim=0))


@pytest.mark.parametrize("sparse", [False, True])
def test_the_principal_value_is_along_the_direction_in_which_features_differ_most(sparse: bool) -> None:
    graph = make_nodes(50, 0, sparse=sparse)
    x = dense(graph.x).double().numpy()
    centred = x - x.mean(axis=0)
    expected = centred @ np.linalg.svd(centred)[2][0]
    found = item_values(graph, "principal", "by")
    assert np.allclose(found, expected, atol=1e-5) or np.allclose(found, -expected, atol=1e-5)


def test_large_sparse_features_need_not_be_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_nodes(50, 0, sparse=True)
    expected = item_values(graph, "principal", "by")
    monkeypatch.setattr("isthmus.data.splitters.facts.DENSE_LIMIT", 10)
    assert np.allclose(np.abs(item_values(graph, "principal", "by")), np.abs(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("data", "by", "message"),
    [
        (make_nodes(5, 5), "yeer", "is 'yeer', which no node of 'toy' has; known: degree, density, .* mean 'year'"),
        (make_nodes(5, 5), "size", "is 'size', which nodes do not have; known: degree, density, homophily, place"),
        (make_links(5), "homophily", "is 'homophily', which links do not have; known: degree, head.color"),
        (make_set(5), "feature.3", "is 'feature.3', but 'set' has 3 features, from 0 on"),
        (make_set(5), "feature.x", "is 'feature.x', which no graph of 'set' has"),
        (make_set(5), "place", r"is 'place', of shape \(5, 2\)"),
    ],
)
def test_what_items_do_not_have_is_refused(data: Holding, by: str, message: str) -> None:
    with pytest.raises(BadInput, match=r"splitter.by " + message):
        InstanceSpaceSplitter(by).split(data, 2, rng(0))
