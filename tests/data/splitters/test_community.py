from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import MissingExtra
from isthmus.data.dividing import groups_of
from isthmus.data.graph import EdgesByNode, Graph, undirected, undirected_pairs
from isthmus.data.splitters import CommunitySplitter, RandomSplitter
from isthmus.data.splitters.community import METHODS, _pieces
from isthmus.data.splitters.facts import item_values
from isthmus.data.survey.statistics import missing_edge_fraction
from isthmus.data.zoo import Cora

from ..strategies import graphs, make_graph, many, rng, seeds


def cliques(*sizes: int) -> Graph:
    """Return complete graphs side by side, each joined to the next by one edge."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    inside = [torch.combinations(torch.arange(size)) + start for size, start in zip(sizes, starts, strict=True)]
    edges = torch.cat([*inside, torch.tensor(list(pairwise(starts)))]).t()
    return replace(make_graph(sum(sizes), 0), edge_index=undirected(edges, sum(sizes))[0])


@many
@given(graphs, seeds, st.integers(1, 30))
def test_balanced_clients_differ_by_at_most_one_fair_share(graph: Graph, seed: int, wish: int) -> None:
    clients = min(wish, graph.num_nodes)
    sizes = [len(part) for part in CommunitySplitter().assign(graph, clients, rng(seed))]
    assert max(sizes) - min(sizes) <= -(-graph.num_nodes // clients)


def test_communities_stay_whole_where_they_fit() -> None:
    parts = CommunitySplitter().split(cliques(6, 6, 6), 3, rng(0))
    assert sorted(part.node_ids.tolist() for part in parts) == [
        list(range(6)),
        list(range(6, 12)),
        list(range(12, 18)),
    ]


def test_large_communities_are_dealt_before_small_ones() -> None:
    parts = CommunitySplitter().split(cliques(3, 3, 6), 2, rng(0))
    assert sorted(part.node_ids.tolist() for part in parts) == [list(range(6)), list(range(6, 12))]


def test_a_community_larger_than_a_fair_share_is_cut_when_balanced() -> None:
    graph = cliques(12, 4, 4)
    assert sorted(part.num_nodes for part in CommunitySplitter().split(graph, 2, rng(0))) == [10, 10]
    whole = CommunitySplitter(balanced=False).split(graph, 3, rng(0))
    assert sorted(part.num_nodes for part in whole) == [4, 4, 12]


@pytest.mark.parametrize("balanced", [True, False])
def test_fewer_communities_than_clients_are_cut_further(balanced: bool) -> None:
    parts = CommunitySplitter(balanced=balanced).split(cliques(8, 8), 5, rng(0))
    assert sorted(part.num_nodes for part in parts)[0] >= 2
    assert sum(part.num_nodes for part in parts) == 16


def test_a_cut_community_loses_few_edges() -> None:
    # A ladder of two rails is one community of 12; cut along its length it loses 2 of its 16 edges.
    rail = torch.stack([torch.arange(5), torch.arange(1, 6)])
    ladder = torch.cat([rail * 2, rail * 2 + 1, torch.stack([torch.arange(6) * 2, torch.arange(6) * 2 + 1])], dim=1)
    graph = replace(make_graph(12, 0), edge_index=undirected(ladder, 12)[0])
    pieces = _pieces([np.arange(12)], EdgesByNode.of(graph.edge_index, 12), 6, 2)
    parts = [graph.subgraph(torch.from_numpy(piece)) for piece in pieces]
    assert [part.num_nodes for part in parts] == [6, 6]
    assert missing_edge_fraction(graph, parts) <= 6 / 16


def breadth_first_by_hand(graph: Graph, nodes: list[int]) -> list[int]:
    """Return the nodes in breadth-first order; `nodes` ascend."""
    edges = graph.edge_index.t().tolist()
    neighbors = {node: [t for s, t in edges if s == node and t in nodes] for node in nodes}  # ascending
    ordered: list[int] = []
    while len(ordered) < len(nodes):
        # The component of the smallest node that is left, from its best connected node, the smallest of these.
        component = {min(set(nodes) - set(ordered))}
        while grown := {t for s in component for t in neighbors[s]} - component:
            component |= grown
        queue = [min(component, key=lambda node: (-len(neighbors[node]), node))]
        for node in queue:
            queue += [t for t in neighbors[node] if t not in queue]
        ordered += queue
    return ordered


def pieces_by_hand(communities: list[list[int]], graph: Graph, limit: int, num_clients: int) -> list[list[int]]:
    """Return the pieces by the rules that `CommunitySplitter` states, one look at all of them for each cut."""
    pieces: list[tuple[list[int], bool]] = []  # nodes, whether in breadth-first order
    for nodes in communities:
        cut = len(nodes) > limit
        ordered = breadth_first_by_hand(graph, nodes) if cut else nodes
        pieces += [(part.tolist(), cut) for part in np.array_split(ordered, -(-len(nodes) // limit))]
    live = set(range(len(pieces)))
    while len(live) < num_clients:
        largest = min(live, key=lambda number: (-len(pieces[number][0]), number))
        nodes, cut = pieces[largest]
        halves = np.array_split(nodes if cut else breadth_first_by_hand(graph, nodes), 2)
        live = live - {largest} | {len(pieces), len(pieces) + 1}
        pieces += [(half.tolist(), True) for half in halves]
    return [pieces[number][0] for number in sorted(live)]


@many
@given(graphs, seeds, st.integers(1, 5), st.integers(1, 30), st.integers(1, 30))
def test_pieces_are_those_of_the_rules_carried_out_by_hand(
    graph: Graph, seed: int, num_communities: int, limit: int, wish: int
) -> None:
    # Communities drawn at random fall apart into components, those of a method mostly do not.
    membership = rng(seed).integers(0, num_communities, graph.num_nodes)
    communities = [np.flatnonzero(membership == number) for number in np.unique(membership)]
    clients = min(wish, graph.num_nodes)
    pieces = _pieces(communities, EdgesByNode.of(graph.edge_index, graph.num_nodes), limit, clients)
    expected = pieces_by_hand([nodes.tolist() for nodes in communities], graph, limit, clients)
    assert [piece.tolist() for piece in pieces] == expected


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([9.0, 0.1, 9.0, 0.1], [[0, 1], [2, 3]]), ([0.1, 9.0, 0.1, 9.0], [[0, 3], [1, 2]])],
)
def test_weights_decide_where_the_communities_of_a_ring_lie(weights: list[float], expected: list[list[int]]) -> None:
    ring, weight = undirected(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), 4, torch.tensor(weights))
    graph = replace(make_graph(4, 0), edge_index=ring, edge_weight=weight)
    parts = CommunitySplitter().split(graph, 2, rng(0))
    assert sorted(part.node_ids.tolist() for part in parts) == expected


def test_a_one_way_edge_counts_like_any_other() -> None:
    graph = cliques(5, 5)
    backwards = graph.edge_index[:, graph.edge_index[0] > graph.edge_index[1]]
    parts = CommunitySplitter().split(replace(graph, edge_index=backwards), 2, rng(0))
    assert sorted(part.node_ids.tolist() for part in parts) == [list(range(5)), list(range(5, 10))]


def test_cora_keeps_most_edges_in_clients_of_equal_size() -> None:
    graph = Cora().load(Path())
    parts = CommunitySplitter().split(graph, 5, rng(0))
    assert max(part.num_nodes for part in parts) - min(part.num_nodes for part in parts) < 30
    assert missing_edge_fraction(graph, parts) < 0.2
    assert missing_edge_fraction(graph, RandomSplitter().split(graph, 5, rng(0))) == pytest.approx(0.8, abs=0.02)


def test_the_generator_of_igraph_is_pythons_again_afterwards() -> None:
    igraph = pytest.importorskip("igraph", reason="the extra 'communities' is not installed")
    CommunitySplitter("igraph_louvain").split(cliques(5, 5), 2, rng(0))

    def draw() -> list[tuple[int, int]]:
        random.seed(7)
        return igraph.Graph.Erdos_Renyi(n=20, m=30).get_edgelist()

    assert draw() == draw()


def modularity(graph: Graph, parts: list[Graph]) -> float:
    """Return the modularity of clients that are communities, by its definition."""
    degree = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes).double()
    shares = [(part.num_edges / graph.num_edges, float(degree[part.node_ids].sum() / degree.sum())) for part in parts]
    return sum(inside - reached**2 for inside, reached in shares)


@pytest.mark.parametrize("seed", range(3))
def test_the_communities_of_cora_are_as_good_as_those_of_igraph(seed: int) -> None:
    pytest.importorskip("igraph", reason="the extra 'communities' is not installed")
    graph = Cora().load(Path())
    pairs, _ = undirected_pairs(graph.edge_index, graph.num_nodes)
    found = {}
    for method in ("louvain", "igraph_louvain"):
        membership = METHODS[method](graph.num_nodes, pairs, None, 1, rng(seed))
        parts = [graph.subgraph(torch.from_numpy(nodes)) for nodes in groups_of(membership)]
        found[method] = modularity(graph, parts)
    assert found["louvain"] == pytest.approx(found["igraph_louvain"], abs=0.01) and found["louvain"] > 0.8


@pytest.mark.parametrize("method", ["louvain", "igraph_louvain"])
def test_the_seed_decides_which_communities_are_found(method: str) -> None:
    if method == "igraph_louvain":
        pytest.importorskip("igraph", reason="the extra 'communities' is not installed")
    graph = Cora().load(Path())
    pairs, _ = undirected_pairs(graph.edge_index, graph.num_nodes)
    first, again, other = (METHODS[method](graph.num_nodes, pairs, None, 1, rng(seed)).tolist() for seed in (0, 0, 1))
    assert first == again and first != other


@pytest.mark.parametrize("weight", [None, 0.0])
def test_nodes_without_edges_or_weight_are_communities_of_their_own(weight: float | None) -> None:
    graph = make_graph(4, 0) if weight is None else cliques(2, 2)
    weights = None if weight is None else torch.full((graph.num_edges,), weight)
    parts = CommunitySplitter(balanced=False).assign(replace(graph, edge_weight=weights), 4, rng(0))
    assert sorted(part.tolist() for part in parts) == [[0], [1], [2], [3]]


def test_the_default_needs_nothing_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("igraph", "leidenalg", "pymetis"):
        monkeypatch.setitem(sys.modules, package, None)
    assert len(CommunitySplitter().split(cliques(3, 3), 2, rng(0))) == 2
    assert item_values(cliques(3, 3), "density", "by").max() == 1


@many
@given(graphs, seeds, st.integers(1, 30))
def test_metis_makes_clients_of_about_equal_size(graph: Graph, seed: int, wish: int) -> None:
    clients = min(wish, graph.num_nodes)
    sizes = [len(part) for part in CommunitySplitter("metis").assign(graph, clients, rng(seed))]
    assert max(sizes) <= 1.03 * -(-graph.num_nodes // clients) + 2


@pytest.mark.parametrize("method", ["igraph_louvain", "leiden", "metis"])
@pytest.mark.parametrize("balanced", [True, False])
def test_other_methods_find_cliques_too(method: str, balanced: bool) -> None:
    parts = CommunitySplitter(method, balanced).split(cliques(6, 6, 6), 3, rng(0))
    assert sorted(part.node_ids.tolist() for part in parts) == [
        list(range(6)),
        list(range(6, 12)),
        list(range(12, 18)),
    ]


@pytest.mark.parametrize("method", ["igraph_louvain", "leiden", "metis"])
def test_other_methods_go_by_weight_too(method: str) -> None:
    weights = torch.tensor([9.0, 0.1, 9.0, 0.1])
    ring, weight = undirected(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), 4, weights)
    graph = replace(make_graph(4, 0), edge_index=ring, edge_weight=weight)
    parts = CommunitySplitter(method).split(graph, 2, rng(0))
    assert sorted(part.node_ids.tolist() for part in parts) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("method", ["igraph_louvain", "leiden", "metis"])
def test_other_methods_keep_most_edges_of_cora(method: str) -> None:
    graph = Cora().load(Path())
    parts = CommunitySplitter(method).split(graph, 5, rng(0))
    assert max(part.num_nodes for part in parts) < 1.05 * 2708 / 5
    assert missing_edge_fraction(graph, parts) < 0.2


def test_metis_can_make_more_communities_than_clients() -> None:
    graph = Cora().load(Path())
    parts = CommunitySplitter("metis", balanced=False, num_communities=40).split(graph, 4, rng(1))
    sizes = [part.num_nodes for part in parts]
    assert sum(sizes) == 2708 and max(sizes) - min(sizes) > 2708 / 40


@pytest.mark.parametrize(
    ("method", "package"),
    [("igraph_louvain", "igraph"), ("leiden", "igraph"), ("leiden", "leidenalg"), ("metis", "pymetis")],
)
def test_a_missing_package_names_the_extra(method: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"'{method}' needs the package '{package}'; .*isthmus\[communities\]"):
        CommunitySplitter(method).split(cliques(3, 3), 2, rng(0))


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match=r"method is 'louvin'; known: igraph_louvain, leiden, .*mean 'louvain'"):
        CommunitySplitter(method="louvin")
    with pytest.raises(ValueError, match=r"num_communities is 9 and method is 'louvain'; only 'metis' is told"):
        CommunitySplitter(num_communities=9)
    with pytest.raises(ValueError, match=r"num_communities is 0"):
        CommunitySplitter("metis", num_communities=0)
