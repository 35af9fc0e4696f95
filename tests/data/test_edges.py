from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.graph import Graph, count_pairs, directed, remove_pairs, undirected, undirected_pairs

from .strategies import adjacency, graphs, make_graph, many, pairs_by_id, rng, seeds

edge_lists = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40)


def tensor(edges: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()


@many
@given(edge_lists)
def test_undirected_equals_the_set_of_both_directions_without_loops(edges: list[tuple[int, int]]) -> None:
    expected = sorted({pair for a, b in edges if a != b for pair in ((a, b), (b, a))})
    assert undirected(tensor(edges), 9)[0].t().tolist() == [list(pair) for pair in expected]


@many
@given(edge_lists)
def test_directed_equals_the_set_of_edges_without_loops(edges: list[tuple[int, int]]) -> None:
    expected = sorted({(a, b) for a, b in edges if a != b})
    assert directed(tensor(edges), 9)[0].t().tolist() == [list(pair) for pair in expected]


@many
@given(edge_lists)
def test_the_first_weight_of_an_edge_counts_in_both_directions(edges: list[tuple[int, int]]) -> None:
    expected: dict[tuple[int, int], float] = {}
    for number, (a, b) in enumerate(edges):
        if a != b:
            expected.setdefault((a, b), expected.setdefault((b, a), float(number)))
    edge_index, weight = undirected(tensor(edges), 9, torch.arange(len(edges), dtype=torch.float32))
    assert weight is not None
    assert dict(zip(map(tuple, edge_index.t().tolist()), weight.tolist(), strict=True)) == expected


def test_undirected_pairs_lists_each_pair_once_smaller_end_first() -> None:
    assert undirected_pairs(tensor([(3, 1), (1, 3), (2, 2), (0, 4)]), 5)[0].t().tolist() == [[0, 4], [1, 3]]


@many
@given(graphs, seeds, st.floats(0, 1))
def test_removal_takes_the_rounded_share_of_pairs_and_both_directions(graph: Graph, seed: int, fraction: float) -> None:
    before = pairs_by_id(graph)
    after = remove_pairs(graph, fraction, rng(seed))
    assert pairs_by_id(after) <= before
    assert len(before) - len(pairs_by_id(after)) == round(fraction * len(before))
    matrix = adjacency(after)
    assert torch.equal(matrix, matrix.t())
    assert torch.equal(matrix, adjacency(graph) * (matrix != 0)), "a kept edge changed its weight"


def test_removal_is_random() -> None:
    graph = make_graph(30, 60)
    first, again, other = (pairs_by_id(remove_pairs(graph, 0.5, rng(seed))) for seed in (1, 1, 2))
    assert first == again != other


def test_count_pairs_counts_a_one_way_edge_too() -> None:
    graph = make_graph(4, 0)
    one_way = Graph(graph.x, tensor([(0, 1), (1, 0), (2, 3)]), graph.y, 3, graph.node_ids)
    assert count_pairs(one_way) == 2
