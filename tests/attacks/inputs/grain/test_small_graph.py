"""Whether graphs are the same, against all permutations, and how much of them is."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
import torch

from isthmus.attacks.inputs.grain.small_graph import SmallGraph, alike, rings, same


def graph(kinds: list[int], edges: list[tuple[int, int]]) -> SmallGraph:
    return SmallGraph(torch.tensor(kinds).double().unsqueeze(1), frozenset((min(e), max(e)) for e in edges))


def permuted(one: SmallGraph, order: list[int]) -> SmallGraph:
    """Return the graph whose node order[i] is node i."""
    back = torch.tensor(order).argsort()
    return SmallGraph(one.x[back], frozenset((min(order[a], order[b]), max(order[a], order[b])) for a, b in one.edges))


def slowly_same(one: SmallGraph, other: SmallGraph) -> bool:
    if one.num_nodes != other.num_nodes:
        return False
    images = (permuted(one, list(order)) for order in permutations(range(one.num_nodes)))
    return any(torch.equal(each.x, other.x) and each.edges == other.edges for each in images)


def test_small_graphs_are_the_same_where_a_permutation_says_so() -> None:
    draw = torch.Generator().manual_seed(0)
    graphs = []
    for _ in range(12):
        kinds = torch.randint(2, (5,), generator=draw).tolist()
        pairs = [pair for pair in combinations(range(5), 2) if float(torch.rand(1, generator=draw)) < 0.5]
        graphs.append(graph(kinds, pairs))
        graphs.append(permuted(graphs[-1], torch.randperm(5, generator=draw).tolist()))
    assert all(same(one, other) == slowly_same(one, other) for one, other in combinations(graphs, 2))
    assert all(same(graphs[k], graphs[k + 1]) for k in range(0, 24, 2))


def test_features_whose_hashes_are_equal_are_not_the_same() -> None:
    assert hash(-1.0) == hash(-2.0)
    assert not same(graph([-1], []), graph([-2], [])) and alike(graph([-1], []), graph([-2], []), 1) == 0.0
    assert same(SmallGraph(torch.tensor([[-0.0]]), frozenset()), graph([0], []))


def test_a_graph_of_more_nodes_than_calls_can_be_within_calls_is_the_same_as_itself() -> None:
    ring = graph([0] * 60 + list(range(1, 1500)), [(k, k + 1) for k in range(1558)])
    assert same(ring, permuted(ring, torch.randperm(1559, generator=torch.Generator().manual_seed(0)).tolist()))


def test_two_triangles_are_no_hexagon() -> None:
    triangles = graph([0] * 6, [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)])
    hexagon = graph([0] * 6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)])
    # No node sees a difference, whatever the number of hops.
    assert alike(triangles, hexagon, 6) == 1.0
    assert not same(triangles, hexagon)


def test_a_place_that_was_wrong_is_taken_back() -> None:
    triangles, hexagon = (
        [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)],
        [(k, k + 1) for k in range(6, 11)] + [(6, 11)],
    )
    one = graph([0] * 12, triangles + hexagon)
    assert same(one, permuted(one, [*range(6, 12), *range(6)]))  # triangles come first in one, the hexagon in the other


def test_what_lies_within_two_hops_is_told_apart_by_the_second() -> None:
    one, other = graph([0, 0, 1], [(0, 1), (1, 2)]), graph([0, 0, 2], [(0, 1), (1, 2)])
    assert alike(one, other, 1) == pytest.approx(2 * 1 / 6) and alike(one, other, 2) == 0.0


def test_a_prism_is_not_three_nodes_joined_with_three() -> None:
    prism = graph([0] * 6, [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (0, 3), (1, 4), (2, 5)])
    joined = graph([0] * 6, [(a, b) for a in range(3) for b in range(3, 6)])
    assert alike(prism, joined, 6) == 1.0
    assert not same(prism, joined) and not same(joined, prism)


def test_rings_are_the_smallest_that_an_edge_is_in() -> None:
    # A triangle and a square that share an edge, and a tail.
    found = rings(graph([0] * 6, [(0, 1), (1, 2), (0, 2), (1, 3), (3, 4), (2, 4), (4, 5)]))
    assert found == {3: 3, 4: 3, 0: 1}
    assert rings(graph([0, 0], [])) == {}


def test_alike_is_f1_of_neighbourhoods() -> None:
    one, other = graph([0, 1, 2], [(0, 1), (1, 2)]), graph([0, 1, 2, 2], [(0, 1)])
    assert alike(one, other, 0) == pytest.approx(2 * 3 / 7)
    # With one hop: 0 beside 1 is in both; 1 beside 0 and 2 is not 1 beside 0; no 2 is alone in the first.
    assert alike(one, other, 1) == pytest.approx(2 * 1 / 7)
    assert alike(one, one, 3) == 1.0
