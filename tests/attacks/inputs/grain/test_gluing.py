"""Graphs put together: each node has just the neighbours that it names, and all such graphs are found."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations

from isthmus.attacks.inputs.grain.gluing import Budget, Glued, Gluing, Piece, Stock, all_right

# A path of labels 0 - 1 - 2 - 1 - 0, by what each label is next to.
PATH = [Piece(0, (1,)), Piece(1, (0, 2)), Piece(2, (1, 1))]


def near(glued: Glued, pieces: list[Piece], node: int) -> tuple[int, ...]:
    ends = [a + b - node for a, b in glued.edges if node in (a, b)]
    return tuple(sorted(pieces[glued.pieces[end]].label for end in ends))


def test_each_node_has_the_neighbours_that_it_names() -> None:
    stock = Stock((0, 1, 2), (1.0, 1.0, 1.0), (2.0, 2.0, 1.0), 5)
    found = list(Gluing(PATH, Budget(1000), 9, stock=stock).graphs())
    assert found
    for glued in found:
        assert Counter(glued.pieces) == {0: 2, 1: 2, 2: 1}
        assert all(near(glued, PATH, node) == PATH[piece].near for node, piece in enumerate(glued.pieces))


def test_what_is_left_becomes_another_component() -> None:
    pieces = [Piece(0, (1,)), Piece(1, (0,)), Piece(2, ())]
    stock = Stock((0, 1, 2), (1.0, 1.0, 1.0), (1.0, 1.0, 2.0), 4)
    (first, *_) = Gluing(pieces, Budget(100), 9, stock=stock).graphs()
    assert Counter(first.pieces) == {0: 1, 1: 1, 2: 2} and len(first.edges) == 1


def test_of_a_group_any_may_be_taken() -> None:
    # Pieces 0 and 1 look the same; the second is half as large. What there is of both fits one large and two small.
    pieces = [Piece(0, ()), Piece(1, ())]
    stock = Stock((0, 0), (2.0, 1.0), (4.0,), 3)
    found = {tuple(sorted(glued.pieces)) for glued in Gluing(pieces, Budget(100), 9, stock=stock).graphs()}
    assert found == {(0, 1, 1)}


def test_rings_of_one_label_are_as_long_as_there_are_nodes() -> None:
    pieces = [Piece(0, (0, 0))]
    for length in (3, 4, 6):
        stock = Stock((0,), (1.0,), (float(length),), length)
        found = next(all_right(Gluing(pieces, Budget(10_000), 9, stock=stock).graphs(), lambda glued: True, 5))
        assert len(found.edges) == length
        degrees = Counter(end for edge in found.edges for end in edge)
        assert set(degrees.values()) == {2}


def test_with_once_no_label_is_there_twice() -> None:
    pieces = [Piece(0, (1,)), Piece(1, (0,)), Piece(1, (0, 2)), Piece(2, (1,))]
    for glued in Gluing(pieces, Budget(1000), 9, once=True).graphs():
        labels = [pieces[piece].label for piece in glued.pieces]
        assert len(set(labels)) == len(labels)


def test_all_graphs_are_found_that_a_slow_search_finds() -> None:
    pieces = [Piece(0, (0, 1)), Piece(1, (0, 0)), Piece(1, (0,)), Piece(0, (1,))]
    nodes = [0, 0, 1]  # two of the first, one of the second
    stock = Stock((0, 1, 2, 3), (1.0,) * 4, (2.0, 1.0, 0.0, 0.0), 3)
    found = [glued.edges for glued in Gluing(pieces, Budget(1000), 9, stock=stock).graphs()]
    pairs = list(combinations(range(3), 2))
    slow = []
    for number in range(4):
        for edges in combinations(pairs, number):
            glued = Glued(tuple(nodes), frozenset(edges))
            if all(near(glued, pieces, node) == pieces[piece].near for node, piece in enumerate(nodes)):
                slow.append(frozenset(edges))
    assert len(slow) == 1 and {len(edges) for edges in found} == {len(slow[0])}


def test_a_graph_of_more_edges_than_calls_can_be_within_calls_is_found() -> None:
    every = [Piece(label, tuple(other for other in range(60) if other != label)) for label in range(60)]
    found = next(Gluing(every, Budget(5000), 80, once=True).graphs())
    assert len(found.edges) == 60 * 59 / 2 > sys.getrecursionlimit()


def test_a_spent_budget_ends_the_search() -> None:
    budget = Budget(3)
    assert not list(Gluing([Piece(0, (0, 0))], budget, 50).graphs())
    assert budget.left < 0
    five = [Glued((number,), frozenset()) for number in range(5)]
    assert list(all_right(iter(five), lambda glued: glued.pieces[0] != 1, 3)) == [five[0], five[2]]
