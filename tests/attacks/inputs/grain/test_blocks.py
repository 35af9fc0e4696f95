"""What nodes can be: true ones lie in the spans, and are counted by what was pooled."""

from __future__ import annotations

import pytest
import torch

from isthmus.attacks.inputs.dense import mixing
from isthmus.attacks.inputs.grain import blocks as of_blocks
from isthmus.attacks.inputs.grain.blocks import (
    Kinds,
    Limits,
    Span,
    blocks,
    consistent,
    grouped,
    hidden_rows,
    in_span,
    pairs_in_span,
    present,
    second_rows,
    stocks,
    wider,
)
from isthmus.attacks.inputs.grain.gluing import Piece
from isthmus.attacks.inputs.grain.small_graph import SmallGraph

DRAW = torch.Generator().manual_seed(0)
# Five kinds with 2, 1, 2, 3 and 1 neighbours; the graph has two of the second.
KINDS = Kinds(torch.randn(5, 9, generator=DRAW).double(), torch.tensor([2, 1, 2, 3, 1]))
NODES = [3, 0, 1, 4, 2, 1]
GRAPH = SmallGraph(KINDS.x[NODES], frozenset({(0, 1), (0, 2), (0, 3), (1, 4), (4, 5)}))
W1, W2 = (torch.randn(*size, generator=DRAW).double() for size in ((9, 40), (40, 40)))
B1, B2 = (0.1 * torch.randn(40, generator=DRAW).double() for _ in range(2))
TRUE = {Piece(NODES[n], tuple(sorted(NODES[m] for m in near))) for n, near in enumerate(GRAPH.neighbors())}


def hidden() -> torch.Tensor:
    return (mixing(GRAPH.adjacency()) @ GRAPH.x @ W1 + B1).relu()


def gradient(rows: torch.Tensor) -> torch.Tensor:
    """Return (S H)^T C for some C."""
    reached = torch.randn(len(rows), 40, generator=torch.Generator().manual_seed(1)).double()
    return (mixing(GRAPH.adjacency()) @ rows).t() @ reached


def test_kinds_that_are_there_lie_in_the_span_and_others_do_not() -> None:
    others = torch.randn(30, 9, generator=DRAW).double()
    every = Kinds(torch.cat([KINDS.x, others]), torch.cat([KINDS.degrees, torch.ones(30, dtype=torch.long)]))
    found = in_span(every, Span.of(gradient(GRAPH.x), 1e-9), 1e-6)
    assert torch.equal(found.x, KINDS.x)


def test_nodes_with_their_neighbours_are_found_and_others_only_where_their_rows_are_the_same() -> None:
    found = blocks(KINDS, W1, B1, Span.of(gradient(hidden()), 1e-9), 1e-6, Limits())
    assert set(found) >= TRUE
    # Of two nodes that are joined and have equally many neighbours, either may be the one in the middle.
    apart = torch.cdist(hidden_rows(KINDS, found, W1, B1), hidden()).min(dim=1).values
    assert float(apart.max()) < 1e-6
    assert len(blocks(KINDS, W1, B1, Span.of(gradient(hidden()), 1e-9), 1e-6, Limits(all=3))) == 0


def test_where_each_kind_is_there_once_its_neighbours_are_found() -> None:
    graph = SmallGraph(KINDS.x, frozenset({(0, 1), (0, 2), (0, 3), (3, 4)}))
    kinds = Kinds(KINDS.x, torch.tensor([3, 1, 1, 2, 1]))
    mix = mixing(graph.adjacency())
    rows = (mix @ graph.x @ W1 + B1).relu()
    slope = (mix @ rows).t() @ torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).double()
    found = blocks(kinds, W1, B1, Span.of(slope, 1e-9), 1e-6, Limits(), once=True)
    assert {Piece(node, tuple(near)) for node, near in enumerate(graph.neighbors())} <= set(found)


def test_rows_of_pieces_are_those_of_the_graph() -> None:
    pieces = [Piece(NODES[n], tuple(NODES[m] for m in near)) for n, near in enumerate(GRAPH.neighbors())]
    first = hidden_rows(KINDS, pieces, W1, B1)
    assert torch.allclose(first, hidden())
    wide = [Piece(n, tuple(near)) for n, near in enumerate(GRAPH.neighbors())]
    second = second_rows(first, pieces, wide, W2, B2)
    assert torch.allclose(second, (mixing(GRAPH.adjacency()) @ hidden() @ W2 + B2).relu())


@pytest.mark.parametrize("mean", [False, True])
def test_pieces_are_counted_by_what_was_pooled(mean: bool) -> None:
    pieces = sorted(TRUE, key=str)
    wide = wider(pieces, 1000)
    assert wide is not None
    rows = second_rows(hidden_rows(KINDS, pieces, W1, B1), pieces, wide, W2, B2)
    own = (mixing(GRAPH.adjacency()) @ hidden() @ W2 + B2).relu()
    first = next(stocks(rows, own.mean(dim=0) if mean else own.sum(dim=0), 20, mean))
    assert first.nodes == 6
    # Of every group there are as many nodes as the graph has with the group's row.
    for group in set(first.group):
        place = first.group.index(group)
        there = (torch.cdist(rows[place : place + 1], own) < 1e-6).sum()
        assert first.whole[group] / first.size[place] == pytest.approx(float(there), abs=1e-3)


def test_features_without_a_gradient_rule_kinds_out() -> None:
    kinds = Kinds(torch.eye(3).double(), torch.tensor([1, 1, 2]))
    slope = torch.ones(3, 4).double()
    slope[1] = 0.0
    assert present(kinds, slope, 1e-6, 10).degrees.tolist() == [1, 2]
    assert len(present(kinds, slope, 1e-6, 1)) == 0


def test_columns_that_say_degrees_are_added() -> None:
    kinds = Kinds(torch.eye(2).double(), torch.zeros(2, dtype=torch.long), columns=3)
    slope = torch.ones(5, 4).double()
    slope[2] = slope[0] = 0.0  # nobody has the first feature, or no neighbour
    found = present(kinds, slope, 1e-6, 10)
    assert found.x.tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 1]] and found.degrees.tolist() == [1, 2]


@pytest.mark.parametrize("at_once", [1, 4, 500])
def test_of_two_that_are_joined_and_have_the_same_neighbours_the_sum_is_found(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_blocks, "PAIRED", at_once)
    x = torch.randn(2, 5, generator=DRAW).double()
    twins = Kinds(torch.cat([x, torch.randn(4, 5, generator=DRAW).double()]), torch.ones(6, dtype=torch.long))
    span = Span.of((mixing(torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()) @ x).t(), 1e-9)
    assert len(in_span(twins, span, 1e-6)) == 0
    assert torch.equal(pairs_in_span(twins, span, 1e-6).x, x)


def test_who_is_nobodys_neighbour_is_left_out() -> None:
    kept = [Piece(0, (1,)), Piece(1, (0,))]
    assert consistent([*kept, Piece(2, (0,)), Piece(3, (2,))]) == kept
    # Nobody can be 4, so not this 3, and then not this 2 either.
    assert consistent([*kept, Piece(2, (3,)), Piece(3, (2, 4))]) == kept


def test_parallel_rows_are_one_group() -> None:
    rows = torch.randn(4, 6, generator=DRAW).double().abs()
    every = torch.cat([rows, 3.0 * rows[:2], rows[3:]])
    group, first = grouped(every / every.norm(dim=1, keepdim=True))
    found = group.tolist()
    assert found[0] == found[4] and found[1] == found[5] and found[3] == found[6]
    assert len(set(found)) == len(first) == 4


def test_a_span_leaves_what_is_outside() -> None:
    span = Span.of(torch.tensor([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]).double(), 1e-6)
    assert span.rank == 1
    assert span.left(torch.tensor([[2.0, 0.0, 0.0], [3.0, 4.0, 0.0]]).double()).tolist() == pytest.approx([0.0, 0.8])
