from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph, undirected
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.survey.statistics import (
    ClientStatistics,
    Labels,
    describe_clients,
    edge_homophily,
    missing_edge_fraction,
    missing_item_fraction,
    overlap_matrix,
    simple_edges,
)
from tests.data.strategies import graphs, make_graph, many, pairs_by_id, rng, seeds


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
    assert first == ClientStatistics(
        num_items=5,
        num_nodes=5,
        num_edges=4,
        num_features=4,
        num_train=1,
        num_val=0,
        num_test=1,
        num_classes=2,
        label_counts=(2, 2, 0),
        mean_degree=1.6,
        homophily=0.5,
        degree_counts=(0, 2, 3),
    )
    assert second == ClientStatistics(2, 2, 1, 4, 0, 0, 1, 1, (0, 1, 0), 1.0, None, (0, 2))


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


def small_links() -> LinkGraph:
    """Three nodes; links 0-1 of kind 0 and, back and again, of kind 1; a loop at 2 without a kind."""
    return LinkGraph(
        x=torch.ones(3, 2),
        links=torch.tensor([[0, 1, 0, 2], [1, 0, 1, 2]]),
        label=torch.tensor([0, 1, 1, -1]),
        num_classes=2,
        node_ids=torch.arange(3),
        link_ids=torch.arange(4),
        masks={"train": torch.tensor([True, False, True, True])},
        class_names=("likes", "knows"),
    )


def small_set(y: torch.Tensor, target: str) -> GraphSet:
    """A path of three nodes and a single edge."""
    edges = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    return GraphSet(torch.ones(5, 1), edges, torch.tensor([0, 3, 5]), y, 2, target, torch.arange(2))


def test_links_are_items_and_their_pairs_are_edges() -> None:
    whole = small_links()
    (found,) = describe_clients(whole, [whole])
    assert found == ClientStatistics(4, 3, 1, 2, 2, 0, 0, 2, (1, 2), 2 / 3, None, (1, 2), num_links=4)
    assert Labels.of(whole).names == ("likes", "knows")


def test_graphs_are_items_and_their_nodes_are_counted_together() -> None:
    whole = small_set(torch.tensor([1, -1]), "class")
    both, second = describe_clients(whole, [whole, *whole.divide([torch.tensor([1])])])
    assert both == ClientStatistics(2, 5, 3, 1, 0, 0, 0, 1, (0, 1), 1.2, None, (0, 4, 1))
    assert (second.num_items, second.num_nodes, second.num_edges, second.label_counts) == (1, 2, 1, (0, 0))


def test_tasks_of_yes_or_no_count_both_answers() -> None:
    whole = small_set(torch.tensor([[1.0, torch.nan], [0.0, 1.0]]), "binary")
    assert Labels.of(whole).names == ("0: no", "0: yes", "1: no", "1: yes")
    assert describe_clients(whole, [whole])[0].label_counts == (1, 1, 0, 1)


def test_tasks_of_numbers_count_the_quarters_of_the_whole() -> None:
    edges = torch.empty(2, 0, dtype=torch.int64)
    y = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [8.0], [torch.nan]])
    whole = GraphSet(torch.ones(9, 1), edges, torch.arange(10), y, 1, "value", torch.arange(9), class_names=("gap",))
    assert Labels.of(whole).names[0] == "gap: lowest quarter"
    all_of_it, low = describe_clients(whole, [whole, *whole.divide([torch.tensor([0, 1, 2, 8])])])
    assert all_of_it.label_counts == (2, 2, 2, 2) and low.label_counts == (2, 1, 0, 0)


@many
@given(graphs)
def test_figures_equal_a_count_by_hand(graph: Graph) -> None:
    (found,) = describe_clients(graph, [graph])
    neighbours = {node: set() for node in range(graph.num_nodes)}
    for source, target in graph.edge_index.t().tolist():
        neighbours[source].add(target)
        neighbours[target].add(source)
    degrees = [len(those) for those in neighbours.values()]
    assert found.num_edges == sum(degrees) / 2
    assert found.mean_degree == pytest.approx(sum(degrees) / graph.num_nodes)
    assert list(found.degree_counts) == [degrees.count(d) for d in range(max(degrees) + 1)]
    assert list(found.label_counts) == [graph.y.tolist().count(c) for c in range(3)]
    pairs = [(u, v) for u in neighbours for v in neighbours[u] if graph.y[u] >= 0 and graph.y[v] >= 0]
    same = [graph.y[u] == graph.y[v] for u, v in pairs]
    assert found.homophily == (pytest.approx(sum(same) / len(same)) if same else None)


@many
@given(st.lists(st.sets(st.integers(0, 9)), max_size=6))
def test_overlap_equals_the_intersection_of_sets(held: list[set[int]]) -> None:
    found = overlap_matrix([torch.tensor(sorted(ids), dtype=torch.int64) for ids in held])
    assert found.tolist() == [[len(first & second) for second in held] for first in held]


def test_missing_items_are_those_that_no_client_holds() -> None:
    whole = path_graph()
    parts = [whole.subgraph(torch.tensor([0, 1])), whole.subgraph(torch.tensor([1, 3]))]
    assert missing_item_fraction(whole, parts) == pytest.approx(0.4)
    assert missing_item_fraction(whole, []) == 1.0
    assert missing_item_fraction(whole.subgraph(torch.tensor([], dtype=torch.int64)), []) == 0.0


def test_data_of_another_kind_is_refused() -> None:
    with pytest.raises(BadInput, match="str; known: Graph"):
        simple_edges("a graph")  # type: ignore[arg-type]
