from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.products.pooled import ActivateSome, CommonRows, Part, Piece, pooled_relu
from isthmus.models.products.sparse import SparseMatrix

# Of each of three parts: rows that are read, nodes, graphs.
SIZES = ((3, 4, 2), (2, 5, 1), (3, 2, 2))
IN, HIDDEN, OUT = 3, 4, 2


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sparse(rows: int, columns: int, seed: int) -> SparseMatrix:
    full = drawn(rows, columns, seed=seed)
    return SparseMatrix.from_csr((full * (full > -0.5)).to_sparse_csr())


def pieces_of(clients: bool, spare: int) -> list[Piece]:
    """Return three parts of one client, or of two: the first two parts are tiles of one piece then."""
    found, row, graph, node = [], 0, 0, 0
    for k, (rows, nodes, graphs) in enumerate(SIZES):
        tiles = slice(k, k + 1) if clients else slice(0, None)
        part = Part(tiles, slice(node, node + nodes), slice(graph, graph + graphs))
        read = slice(row, row + rows)
        found.append(Piece(part, read, spare, sparse(nodes, rows, k), sparse(graphs, nodes, k + 5)))
        row, graph, node = row + rows + spare, graph + graphs, node + nodes
    return found


def expected(pieces: list[Piece], h: Tensor, *maps: Tensor) -> Tensor:
    """Return the same, map by map."""
    found = []
    for k, piece in enumerate(pieces):
        mine = [each if maps[0].ndim == 2 else each[k] for each in maps]
        rows = h[piece.read]
        for weight, bias in zip(mine[:-2:2], mine[1:-2:2], strict=True):
            rows = (rows @ weight + bias).relu()
        out = (piece.operator.to_dense() @ rows @ mine[-2] + mine[-1]).relu()
        found.append(piece.pool.to_dense() @ out)
    return torch.cat(found)


def assert_same_to_second_order(found: Tensor, wanted: Tensor, of: tuple[Tensor, ...]) -> None:
    """Compare gradients that gradients are taken of: `gradgradcheck` takes the first ones as they are."""
    first, second = [], []
    for out in (found, wanted):
        first.append(torch.autograd.grad(out.square().sum(), of, create_graph=True))
        second.append(torch.autograd.grad(sum(each.square().sum() for each in first[-1]), of))  # type: ignore[arg-type]
    for mine, theirs in (*zip(*first, strict=True), *zip(*second, strict=True)):
        torch.testing.assert_close(mine, theirs)


def maps_of(clients: bool, deep: bool) -> list[Tensor]:
    lead = (3,) if clients else ()
    first = [drawn(*lead, IN, HIDDEN, seed=1), drawn(*lead, HIDDEN, seed=2)] if deep else []
    last = [drawn(*lead, HIDDEN if deep else IN, OUT, seed=3), drawn(*lead, OUT, seed=4)]
    return [each.requires_grad_() for each in (*first, *last)]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("clients", [False, True])
def test_equals_the_formula_with_gradients_to_second_order(clients: bool, spare: int, deep: bool) -> None:
    pieces, maps = pieces_of(clients, spare), maps_of(clients, deep)
    h = drawn(sum(rows + spare for rows, _, _ in SIZES), IN, seed=9).requires_grad_()
    found, wanted = pooled_relu(pieces, h, *maps), expected(pieces, h, *maps)
    torch.testing.assert_close(found, wanted)
    assert_same_to_second_order(found, wanted, (h, *maps))
    assert torch.autograd.gradcheck(lambda *given: pooled_relu(pieces, *given), (h, *maps))
    assert torch.autograd.gradgradcheck(lambda *given: pooled_relu(pieces, *given), (h, *maps))


def test_tiles_of_several_clients_in_one_piece_have_their_own_weights() -> None:
    maps = maps_of(True, deep=True)
    h = drawn(6, IN, seed=9)
    operator, pool = sparse(9, 6, 0), sparse(4, 9, 1)
    blocks = torch.block_diag(*(torch.ones(3, 2) for _ in range(3)))
    operator = SparseMatrix.from_csr((operator.to_dense() * blocks).to_sparse_csr())
    one = [Piece(Part(slice(0, 3), slice(0, 9), slice(0, 4)), slice(0, 6), 0, operator, pool)]
    rows = torch.cat([(h[2 * k : 2 * k + 2] @ maps[0][k] + maps[1][k]).relu() @ maps[2][k] for k in range(3)])
    out = operator.to_dense() @ rows + maps[3].repeat_interleave(3, dim=0)
    wanted = pool.to_dense() @ out.relu()
    found = pooled_relu(one, h, *maps)
    torch.testing.assert_close(found, wanted)
    pairs = zip(torch.autograd.grad(found.sum(), maps), torch.autograd.grad(wanted.sum(), maps), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)


# ---- random zeros between the maps, and clients with several tiles

KEPT = 0.5  # a multiple of what is kept


def opened(masks: dict[int, Tensor]) -> ActivateSome:
    """Return what makes hidden rows with zeros where a mask has them, by the first row."""

    def activate(rows: Tensor, at: slice) -> float:
        assert len(masks[at.start]) == len(rows) == at.stop - at.start
        rows.mul_(masks[at.start] / KEPT).relu_()
        return 1.0 / KEPT

    return activate


def dropped(pieces: list[Piece], h: Tensor, masks: dict[int, Tensor], *maps: Tensor) -> Tensor:
    """Return the same, map by map."""
    found = []
    for k, piece in enumerate(pieces):
        mine = [each if maps[0].ndim == 2 else each[k] for each in maps]
        rows = h[piece.read]
        if len(mine) > 2:
            rows = rows @ mine[0] + mine[1]
        if piece.back is not None:
            rows = piece.back.to_dense() @ rows
        rows = (rows * masks[piece.part.nodes.start] / KEPT).relu()
        out = (piece.operator.to_dense() @ rows @ mine[-2] + mine[-1]).relu()
        found.append(piece.pool.to_dense() @ out)
    return torch.cat(found)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("clients", [False, True])
def test_rows_opened_between_the_maps_equal_the_formula_to_second_order(clients: bool, back: bool, deep: bool) -> None:
    pieces, maps = [], maps_of(clients, deep)
    for k, (piece, (rows, nodes, _)) in enumerate(zip(pieces_of(clients, 1), SIZES, strict=True)):
        own = torch.eye(rows, dtype=torch.float64)[torch.arange(nodes) % rows]
        found = piece._replace(operator=sparse(nodes, nodes, k + 20), back=SparseMatrix.from_csr(own.to_sparse_csr()))
        pieces.append(found if back else piece)
    h = drawn(sum(rows + 1 for rows, _, _ in SIZES), IN, seed=9).requires_grad_()
    width = HIDDEN if deep else IN
    rows_of = [nodes if back else rows for rows, nodes, _ in SIZES]
    starts = [piece.part.nodes.start for piece in pieces]
    masks = {start: (drawn(n, width, seed=30 + n) > 0).double() for start, n in zip(starts, rows_of, strict=True)}
    before = h.detach().clone()
    found = pooled_relu(pieces, h, *maps, activate=opened(masks))
    wanted = dropped(pieces, h, masks, *maps)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(h, before)
    assert_same_to_second_order(found, wanted, (h, *maps))
    again = lambda *given: pooled_relu(pieces, *given, activate=opened(masks))  # noqa: E731
    assert torch.autograd.gradcheck(again, (h, *maps))
    assert torch.autograd.gradgradcheck(again, (h, *maps))


def test_tiles_of_one_client_have_one_weight_whose_gradient_is_the_first_ones() -> None:
    maps = [each.detach()[:1].repeat(3, *(1,) * (each.ndim - 1)).requires_grad_() for each in maps_of(True, deep=True)]
    h, operator, pool = drawn(6, IN, seed=9), sparse(9, 6, 0), sparse(4, 9, 1)
    part = Part(slice(0, 3), slice(0, 9), slice(0, 4), single=True)
    found = pooled_relu([Piece(part, slice(0, 6), 0, operator, pool)], h, *maps)
    alone = [each.detach()[0].requires_grad_() for each in maps]
    wanted = expected([Piece(part, slice(0, 6), 0, operator, pool)], h, *alone)
    torch.testing.assert_close(found, wanted)
    pairs = zip(torch.autograd.grad(found.sum(), maps), torch.autograd.grad(wanted.sum(), alone), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine[0], theirs)
        assert not mine[1:].any()  # tiles of a client are copies, whose gradients are added up


# ---- rows that clients with the same weights have in common


def common_of(pieces: list[Piece]) -> tuple[Tensor, CommonRows]:
    """Return rows of H, of which some are several clients', and the distinct ones; the parts have two spare rows."""
    rows = drawn(4, IN, seed=9)
    place = torch.tensor([0, 1, 2, 3, 3, 2, 0, 3, 3, 1, 3, 0, 3, 3])
    assert len(place) == sum(piece.read.stop - piece.read.start + piece.spare for piece in pieces)
    return rows[place], CommonRows(rows, place)


def alike_maps() -> list[Tensor]:
    """Return maps of three clients of which one tensor stands for all."""
    return [each[:1].detach().expand(3, *each.shape[1:]).requires_grad_() for each in maps_of(True, deep=True)]


def test_common_rows_give_the_same_with_every_clients_gradients_to_second_order() -> None:
    pieces, maps = pieces_of(clients=True, spare=2), alike_maps()
    h, common = common_of(pieces)
    found, wanted = pooled_relu(pieces, h, *maps, common=common), expected(pieces, h, *maps)
    torch.testing.assert_close(found, wanted)
    assert common._made is not None  # they were used
    for mine, theirs in zip(
        torch.autograd.grad(found.square().sum(), maps),
        torch.autograd.grad(wanted.square().sum(), maps),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
        assert len(mine.flatten(1).unique(dim=0)) == 3  # each client has its own
    again = pooled_relu(pieces, h, *maps, common=common)
    assert_same_to_second_order(again, expected(pieces, h, *maps), tuple(maps))


def test_weights_that_differ_see_every_clients_own_rows() -> None:
    pieces, maps = pieces_of(clients=True, spare=2), maps_of(True, deep=True)
    h, common = common_of(pieces)
    torch.testing.assert_close(pooled_relu(pieces, h, *maps, common=common), expected(pieces, h, *maps))
    assert common._made is None


def test_rows_with_a_gradient_are_no_common_ones() -> None:
    pieces, maps = pieces_of(clients=True, spare=2), alike_maps()
    h, common = common_of(pieces)
    h.requires_grad_()
    (mine,) = torch.autograd.grad(pooled_relu(pieces, h, *maps, common=common).sum(), h)
    (theirs,) = torch.autograd.grad(expected(pieces, h, *maps).sum(), h)
    torch.testing.assert_close(mine, theirs)
