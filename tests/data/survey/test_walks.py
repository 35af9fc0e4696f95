from __future__ import annotations

import doctest
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given

from isthmus.data.graph import Graph, undirected
from isthmus.data.survey import walks
from isthmus.data.survey.statistics import simple_edges
from isthmus.data.survey.walks import WalkEmbedding, anonymous, embed, patterns, walks_needed
from tests.data.strategies import graphs, make_graph, many, rng, seeds

TRIANGLE = [(0, 1), (1, 2), (2, 0)]


def edges_of(pairs: list[tuple[int, int]], num_nodes: int) -> torch.Tensor:
    return undirected(torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t(), num_nodes)[0]


def by_enumeration(pairs: list[tuple[int, int]], num_nodes: int, length: int) -> dict[tuple[int, ...], Fraction]:
    """Return the exact probability of each pattern, walk by walk."""
    both = [*pairs, *((b, a) for a, b in pairs)]
    near = {u: sorted({b for a, b in both if a == u}) or [u] for u in range(num_nodes)}
    found: Counter[tuple[int, ...]] = Counter()

    def walk(path: list[int], chance: Fraction) -> None:
        if len(path) == length + 1:
            first: dict[int, int] = {}
            found[tuple(first.setdefault(node, len(first)) for node in path)] += chance  # type: ignore[assignment]
            return
        for to in near[path[-1]]:
            walk([*path, to], chance / len(near[path[-1]]))

    for node in range(num_nodes):
        walk([node], Fraction(1, num_nodes))
    return dict(found)


def as_shares(found: dict[tuple[int, ...], Fraction], length: int) -> list[float]:
    return [float(found.get(pattern, 0)) for pattern in patterns(length)]


def test_the_examples_in_the_docstrings_hold() -> None:
    failed, tried = doctest.testmod(walks)
    assert failed == 0 and tried == 2


def test_patterns_are_as_many_as_the_paper_says_and_one_for_nodes_without_neighbours() -> None:
    assert [len(patterns(length)) for length in (1, 4, 5, 8)] == [2, 16, 53, 4141]
    assert patterns(3) == ((0, 0, 0, 0), (0, 1, 0, 1), (0, 1, 0, 2), (0, 1, 2, 0), (0, 1, 2, 1), (0, 1, 2, 3))


def test_walks_of_a_triangle_worked_out_by_hand() -> None:
    found = embed(edges_of(TRIANGLE, 3), 3, 3, rng(0))
    assert found[2].exact and found[2].num_walks == 3 * 2**3
    # From any node: after a step, half go back and half go on.
    assert found[2].shares.tolist() == [0.0, 0.5, 0.5]
    # 0101, 0102, 0120, 0121 one quarter each; there is no fourth node.
    assert found[3].shares.tolist() == [0.0, 0.25, 0.25, 0.25, 0.25, 0.0]


def test_a_node_without_neighbours_stays_where_it_is() -> None:
    found = embed(edges_of(TRIANGLE, 4), 4, 2, rng(0))[2]
    assert found.shares.tolist() == pytest.approx([0.25, 0.375, 0.375])
    assert embed(edges_of([], 3), 3, 2, rng(0))[2].shares.tolist() == [1.0, 0.0, 0.0]
    assert embed(edges_of([], 3), 3, 2, rng(0), num_walks=10, exact_walks=0)[2].shares.tolist() == [1.0, 0.0, 0.0]


def test_an_empty_graph_has_no_walks() -> None:
    found = embed(edges_of([], 0), 0, 2, rng(0))[2]
    assert found.num_walks == 0 and found.shares.sum() == 0.0


@pytest.mark.parametrize("length", [4, 5])
@pytest.mark.parametrize(
    ("pairs", "num_nodes"),
    [
        (TRIANGLE, 4),
        ([(0, 1), (1, 2), (2, 3), (3, 4)], 5),
        ([(0, i) for i in range(1, 6)], 6),
        ([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3), (0, 6)], 8),
    ],
    ids=["triangle", "path", "star", "two triangles"],
)
def test_shares_equal_the_enumeration_of_all_walks(pairs: list[tuple[int, int]], num_nodes: int, length: int) -> None:
    expected = as_shares(by_enumeration(pairs, num_nodes, length), length)
    edge_index = edges_of(pairs, num_nodes)
    exact = embed(edge_index, num_nodes, 5, rng(0))[length]
    assert exact.exact and exact.shares == pytest.approx(expected)
    drawn = embed(edge_index, num_nodes, 5, rng(1), exact_walks=0)[length]
    assert not drawn.exact and drawn.num_walks == walks_needed(5)
    # The paper's bound: the errors add up to more than 0.03 once in a hundred times.
    assert np.abs(drawn.shares - expected).sum() <= 0.03


@many
@given(graphs, seeds)
def test_exact_and_drawn_shares_agree_within_the_error_of_sampling(graph: Graph, seed: int) -> None:
    edge_index, num_nodes = simple_edges(graph)
    exact = embed(edge_index, num_nodes, 3, rng(0), exact_walks=10**7)[3]
    drawn = embed(edge_index, num_nodes, 3, rng(seed), num_walks=20_000, exact_walks=0)[3]
    assert exact.exact and exact.shares.sum() == pytest.approx(1.0) and drawn.shares.sum() == pytest.approx(1.0)
    deviation = np.sqrt(exact.shares * (1 - exact.shares) / 20_000)
    # Five walks more, for patterns so rare that one walk is many deviations.
    assert (np.abs(drawn.shares - exact.shares) <= 6 * deviation + 5 / 20_000).all()


def test_a_shorter_walk_is_the_beginning_of_a_longer_one() -> None:
    edge_index, num_nodes = simple_edges(make_graph(12, 20))
    assert embed(edge_index, num_nodes, 5, rng(0))[4].shares == pytest.approx(
        embed(edge_index, num_nodes, 4, rng(0))[4].shares
    )


def test_the_seed_decides_which_walks_are_drawn() -> None:
    edge_index, num_nodes = simple_edges(make_graph(30, 60))

    def drawn(seed: int) -> WalkEmbedding:
        return embed(edge_index, num_nodes, 5, rng(seed), num_walks=500, exact_walks=0)[5]

    assert (drawn(1).shares == drawn(1).shares).all() and (drawn(1).shares != drawn(2).shares).any()


def test_nodes_become_the_numbers_of_their_first_occurrence() -> None:
    assert anonymous(np.array([[7, 3, 7, 9, 3], [4, 4, 4, 4, 4], [1, 2, 3, 4, 1]])).tolist() == [
        [0, 1, 0, 2, 1],
        [0, 0, 0, 0, 0],
        [0, 1, 2, 3, 0],
    ]


def test_the_number_of_walks_is_that_of_the_bound() -> None:
    # 2 / 0.1^2 * (ln(2^6 - 2) - ln 0.05) = 200 * (4.12713 + 2.99573) = 1424.57
    assert walks_needed(3, error=0.1, doubt=0.05) == 1425


@pytest.mark.parametrize("length", [0, 9])
def test_a_length_out_of_range_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="1 to 8 steps"):
        embed(edges_of(TRIANGLE, 3), 3, length, rng(0))
