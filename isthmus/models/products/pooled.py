"""The last layer of a network of graphs, some graphs after others: P relu(S H W + b).

What is made of all nodes, S H W + b and its gradient, is as large as a batch and needed at once: part by part it stays
in the cache, where all at once every pass over it goes through memory (5 against 1.5 ms of 27,000 rows of 64). So do
the maps before it that give each row by itself, and the random zeros between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from isthmus.models.products.affine import add_bias_, affine, are_alike, bias_gradient, dense_gradients, dense_product
from isthmus.models.products.chain import stepped
from isthmus.models.products.sparse import Pattern, SparseMatrix

# Makes hidden rows of some nodes in place, as `Activate` does of all; the slice says which nodes they are.
ActivateSome: TypeAlias = Callable[[Tensor, slice], float]


class Part(NamedTuple):
    """Some graphs of a batch that have no edges to others, few enough for what is made of them to stay in the cache.

    Fields:
        tiles:  whose weights they are read with, where there are weights of many clients
        nodes:  rows of their nodes
        graphs: rows of these graphs
        single: whether all tiles are one client's, which have the same weights
    """

    tiles: slice
    nodes: slice
    graphs: slice
    single: bool = False


class Piece(NamedTuple):
    """A part of a batch, and what aggregates it.

    Fields:
        part:     where it is
        read:     the rows of H that it is made of
        spare:    how many rows after these nobody reads
        operator: S, (nodes, rows of H), or (nodes, nodes) where there is a `back`
        pool:     P, (graphs, nodes)
        back:     puts the rows of H, made by the maps before, to the nodes that have them, (nodes, rows of H); None
                  where S does
    """

    part: Part
    read: slice
    spare: int
    operator: SparseMatrix
    pool: SparseMatrix
    back: SparseMatrix | None = None


@dataclass(eq=False)
class CommonRows:
    """Rows that several clients have, for as long as their weights are the same: what is made of each, is made once.

    Fields:
        rows:  the distinct rows of all clients, (common, in)
        place: which of them each row of H is, (rows of H,); of padding, any
    """

    rows: Tensor
    place: Tensor
    _made: tuple[Sequence[Piece], list[SparseMatrix]] | None = field(default=None, init=False, repr=False)

    def operators(self, pieces: Sequence[Piece]) -> list[SparseMatrix]:
        """Return S of each piece, with a column for each of the common rows; made once."""
        if self._made is None or self._made[0] is not pieces:
            self._made = (pieces, [self._operator(piece) for piece in pieces])
        return self._made[1]

    def _operator(self, piece: Piece) -> SparseMatrix:
        own = piece.operator
        column = self.place[piece.read].index_select(0, own.pattern.col)
        return SparseMatrix(Pattern(own.pattern.crow, column, (own.shape[0], len(self.rows))), own.values)


def trimmed(reads: Sequence[tuple[Part, slice, int]], back: SparseMatrix) -> list[tuple[Part, slice, int]]:
    """Return which rows the parts read, without the padding after a client that is alone; others' is between them."""
    crow, col = back.pattern.crow, back.pattern.col
    found = []
    for part, read, _ in reads:
        mine = col[int(crow[part.nodes.start]) : int(crow[part.nodes.stop])]
        stop = read.stop
        if part.single:
            stop = int(mine.max()) + 1 if len(mine) else read.start
        found.append((part, slice(read.start, stop), read.stop - stop))
    return found


def pooled_relu(
    pieces: Sequence[Piece],
    h: Tensor,
    *maps: Tensor,
    activate: ActivateSome | None = None,
    common: CommonRows | None = None,
) -> Tensor:
    """Return P relu(S (H W) + b), (graphs, out), of weights and biases; pieces follow each other in H and in graphs.

    Maps of rows may come before, H <- relu(H W + b), theirs first: the last weight and bias are those above. With
    `activate`, which takes the place of the relu of the last of them, their rows are put to the nodes before. Where
    clients have the same weights, rows that they have in `common` are computed once; their gradients are each client's.
    """
    if activate is not None or h.requires_grad or not all(map(are_alike, maps[::2])):
        common = None
    return stepped(_PooledRelu, pieces, activate, common, h, *maps)


def _of(
    parameters: Sequence[Tensor], part: Part, apart: Sequence[Sequence[Tensor]] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of a weight and a bias, of the part's clients where there are several: of one by itself."""
    if parameters[0].ndim == 3:
        first, end = part.tiles.start, part.tiles.stop
        if part.single or end == first + 1:
            parameters = [each[first] for each in apart or parameters]
        else:
            parameters = [each[part.tiles] for each in parameters]
    return list(zip(parameters[::2], parameters[1::2], strict=True))


class _Kept(NamedTuple):
    """What a piece's gradient needs.

    Fields:
        rows:  what each map reads, and last what the layer gives
        slope: what activated entries were multiplied by; None where nothing was activated
    """

    rows: list[Tensor]
    slope: float | None


def _forward(piece: Piece, h: Tensor, maps: Sequence[Tensor], activate: ActivateSome | None) -> _Kept:
    """Return what is made of a piece's rows."""
    rows, slope = [h[piece.read]], None
    *before, (weight, bias) = _of(maps, piece.part)
    for left, (earlier, its_bias) in zip(reversed(range(len(before))), before, strict=True):
        out = add_bias_(dense_product(rows[-1], earlier), its_bias)
        rows.append(out if activate is not None and left == 0 else out.relu_())
    if activate is not None:
        own = rows.pop()
        spread = own if piece.back is None else piece.back.matmul(own)
        spread = spread.clone() if not before and piece.back is None else spread  # H is not ours to change
        first = piece.part.nodes.start
        slope = activate(spread, slice(first, first + len(spread)))
        rows.append(spread)
    rows.append(add_bias_(piece.operator.matmul(dense_product(rows[-1], weight)), bias).relu_())
    return _Kept(rows, slope)


def _made_common(common: CommonRows, maps: Sequence[Tensor]) -> list[Tensor]:
    """Return the common rows, what each map before makes of them, and what the last weight does."""
    one = [each[0] for each in maps]
    rows = [common.rows]
    for earlier, its_bias in zip(one[:-2:2], one[1:-2:2], strict=True):
        rows.append(add_bias_(dense_product(rows[-1], earlier), its_bias).relu_())
    return [*rows, dense_product(rows[-1], one[-2])]


def _taken(piece: Piece, common: CommonRows, h: Tensor, rows: Sequence[Tensor], out: Tensor) -> _Kept:
    """Return what a piece's gradient needs, of what was made of the common rows."""
    place = common.place[piece.read]
    return _Kept([h[piece.read], *(each.index_select(0, place) for each in rows), out], None)


def _backward(
    piece: Piece, kept: _Kept, grad: Tensor, h: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], wants_h: bool
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of a piece by its rows of H, and by the maps, of the gradient by its graphs' rows."""
    # Written with differentiable operations, as all gradients of products are.
    last = len(pairs) - 1
    rows = _read(piece, kept, h, pairs) if torch.is_grad_enabled() else kept.rows
    by_maps: list[Tensor] = []
    grad = _shut(piece.pool.t().matmul(grad), kept.rows[-1])
    for depth in reversed(range(len(pairs))):
        weight, bias = pairs[depth]
        by_bias = bias_gradient(grad, bias.shape)
        grad = piece.operator.t().matmul(grad) if depth == last else grad
        before, by_weight = dense_gradients(grad, rows[depth], weight, depth > 0 or wants_h, True)
        assert by_weight is not None
        by_maps[:0] = by_weight, by_bias
        if before is None:
            continue
        grad = before
        if depth == last and kept.slope is not None:
            grad = _shut(grad, kept.rows[last])
            grad = grad if kept.slope == 1.0 else grad * kept.slope
            grad = grad if piece.back is None else piece.back.t().matmul(grad)
        elif depth > 0:
            grad = _shut(grad, kept.rows[depth])
    return grad, by_maps


def _shut(grad: Tensor, out: Tensor) -> Tensor:
    """Return 0 where the relu is shut, in the memory of the gradient, which is nobody else's."""
    if torch.is_grad_enabled():
        found: Tensor = torch.ops.aten.threshold_backward(grad, out, 0)
        return found
    torch.ops.aten.threshold_backward.grad_input(grad, out, 0, grad_input=grad)
    return grad


def _read(piece: Piece, kept: _Kept, h: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return what each map reads, as a function of the maps before it, which a gradient of a gradient needs."""
    found = [h[piece.read]]
    for weight, bias in pairs[:-1]:
        found.append(affine(found[-1], weight, bias))
        if kept.slope is None or len(found) < len(pairs):
            found[-1] = found[-1].relu()
    if kept.slope is not None:
        rows = found[-1] if piece.back is None else piece.back.matmul(found[-1])
        found[-1] = rows * (kept.rows[len(pairs) - 1] > 0) * kept.slope
    return found


class _PooledRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pieces: Sequence[Piece],
        activate: ActivateSome | None,
        common: CommonRows | None,
        h: Tensor,
        *maps: Tensor,
    ) -> Tensor:
        ctx.pieces = pieces
        ctx.save_for_backward(h, *maps)
        pooled = []
        if common is None:
            kept = []
            for piece in pieces:
                kept.append(_forward(piece, h, maps, activate))
                pooled.append(piece.pool.matmul(kept[-1].rows[-1]))  # as long as they are in the cache
            ctx.kept = kept.__getitem__
        else:
            (_, *rows, seen), found = _made_common(common, maps), []
            for piece, own in zip(pieces, common.operators(pieces), strict=True):
                found.append(add_bias_(own.matmul(seen), maps[-1][0]).relu_())
                pooled.append(piece.pool.matmul(found[-1]))
            ctx.kept = lambda number: _taken(pieces[number], common, h, rows, found[number])
        return torch.cat(pooled)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        h, *maps = ctx.saved_tensors
        wants_h = ctx.needs_input_grad[3]
        by_h: list[Tensor] = []
        by_maps: list[list[Tensor]] = [[] for _ in maps]
        apart = [each.unbind() for each in maps] if maps[0].ndim == 3 else None
        for number, piece in enumerate(ctx.pieces):
            pairs = _of(maps, piece.part, apart)
            grad, found = _backward(piece, ctx.kept(number), grads[0][piece.part.graphs], h, pairs, wants_h)
            by_h += [grad, grad.new_zeros(piece.spare, grad.shape[1])] if wants_h else []
            for all_of, one in zip(by_maps, found, strict=True):
                all_of.append(one)
        parts = [piece.part for piece in ctx.pieces]
        if maps[0].ndim == 3:
            joined = [_of_tiles(parts, each, of.shape[1:]) for each, of in zip(by_maps, maps, strict=True)]
        else:
            joined = [torch.stack(each).sum(dim=0) for each in by_maps]
        return None, None, None, torch.cat(by_h) if wants_h else None, *joined


def _of_tiles(parts: Sequence[Part], each: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """Return the gradient of each tile, of those by the parts' clients; a single client's first tile has all of it."""
    found = []
    if all(part.tiles.stop - part.tiles.start == 1 for part in parts):
        return torch.stack([mine.view(shape) for mine in each])
    for part, mine in zip(parts, each, strict=True):
        by_tile = mine.view(-1, *shape)
        spare = part.tiles.stop - part.tiles.start - len(by_tile)
        found += [by_tile, mine.new_zeros(spare, *shape)] if spare else [by_tile]
    return torch.cat(found)
