from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.edges import undirected
from isthmus.data.graph import Graph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.statistics import ClientStatistics, describe_clients, edge_homophily, missing_edge_fraction

from .strategies import graphs, make_graph, many, pairs_by_id, rng, seeds


def path_graph() -> Graph:
    """Nodes 0-1-2-3-4 in a row, classes 0 0 1 - 1 (node 3 has none)."""
    graph = make_graph(5, 0)
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    masks = {"train": torch.tensor([True, False, False, True, False]), "test": torch.tensor([False] * 4 + [True])}
    return replace(graph, edge_index=undirected(edges, 5)[0], y=torch.tensor([0, 0, 1, -1, 1]), masks=masks)


def test_figures_of_a_graph_worked_out_by_hand() -> None:
    whole = path_graph()
    first, second = describe_clients(whole, [whole, whole.subgraph(torch.tensor([3, 4]))])
    # Node 3 is in the training mask but has no label; edges between labelled nodes are 0-1 and 1-2.
    assert first == ClientStatistics(5, 4, 1, 0, 1, 2, (2, 2, 0), 0.5)
    assert second == ClientStatistics(2, 1, 0, 0, 1, 1, (0, 1, 0), None)


def test_homophily_of_a_graph_without_edges_is_none() -> None:
    assert edge_homophily(make_graph(4, 0)) is None


def test_missing_edges_worked_out_by_hand() -> None:
    whole = path_graph()
    parts = [whole.subgraph(torch.tensor([1, 0])), whole.subgraph(torch.tensor([2, 3, 4]))]
    assert missing_edge_fraction(whole, parts) == pytest.approx(0.25)
    assert missing_edge_fraction(whole, [whole]) == 0.0
    assert missing_edge_fraction(whole, []) == 1.0
    assert missing_edge_fraction(make_graph(3, 0), []) == 0.0


@many
@given(graphs, seeds, st.integers(1, 4), st.floats(0, 1))
def test_missing_edges_equal_the_difference_of_sets(graph: Graph, seed: int, clients: int, overlap: float) -> None:
    # The whole graph may itself be a part of another one: ids, not positions, tell the nodes.
    whole = graph.subgraph(torch.arange(graph.num_nodes - 1, -1, -1)[: max(1, graph.num_nodes - 2)])
    parts = RandomSplitter(overlap).split(whole, min(clients, whole.num_nodes), rng(seed))
    pairs = pairs_by_id(whole)
    held = set().union(*(pairs_by_id(part) for part in parts))
    expected = len(pairs - held) / len(pairs) if pairs else 0.0
    assert missing_edge_fraction(whole, parts) == pytest.approx(expected)
