"""The last layer of a network of graphs in one step for autograd, some graphs after others: P relu(S H W + b).

What is made of all nodes, S H W + b and its gradient, is as large as a batch and needed at once: part by part it stays
in the cache, where all at once every pass over it goes through memory (5 against 1.5 ms of 27,000 rows of 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isthmus.models.products.affine import add_bias_, affine, bias_gradient, dense_gradients, dense_product
from isthmus.models.products.sparse import SparseMatrix


class Part(NamedTuple):
    """Some graphs of a batch that have no edges to others, few enough for what is made of them to stay in the cache.

    Fields:
        tiles:  whose weights they are read with, where there are weights of many clients
        nodes:  rows of their nodes
        graphs: rows of these graphs
    """

    tiles: slice
    nodes: slice
    graphs: slice


class Piece(NamedTuple):
    """A part of a batch, and what aggregates it.

    Fields:
        part:     where it is
        read:     the rows of H that it is made of
        spare:    how many rows after these nobody reads
        operator: S, (nodes, rows of H)
        pool:     P, (graphs, nodes)
    """

    part: Part
    read: slice
    spare: int
    operator: SparseMatrix
    pool: SparseMatrix


def pooled_relu(pieces: Sequence[Piece], h: Tensor, *maps: Tensor) -> Tensor:
    """Return P relu(S (H W) + b), (graphs, out), of weights and biases; pieces follow each other in H and in graphs.

    Maps of rows may come before, H <- relu(H W + b), theirs first: the last weight and bias are those above.
    """
    out: Tensor = _PooledRelu.apply(pieces, h, *maps)  # type: ignore[no-untyped-call]
    return out


def _of(parameters: Sequence[Tensor], part: Part) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of a weight and a bias, of the part's clients where there are several: of one by itself."""
    if parameters[0].ndim == 3:
        first, end = part.tiles.start, part.tiles.stop
        tiles = first if end == first + 1 else part.tiles
        parameters = [each[tiles] for each in parameters]
    return list(zip(parameters[::2], parameters[1::2], strict=True))


class _PooledRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: Sequence[Piece], h: Tensor, *maps: Tensor) -> Tensor:
        ctx.pieces, ctx.kept = pieces, []
        ctx.save_for_backward(h, *maps)
        pooled = []
        for part, read, _, operator, pool in pieces:
            outs = [h[read]]
            *before, (weight, bias) = _of(maps, part)
            for earlier, its_bias in before:
                outs.append(add_bias_(dense_product(outs[-1], earlier), its_bias).relu_())
            outs.append(add_bias_(operator.matmul(dense_product(outs[-1], weight)), bias).relu_())
            pooled.append(pool.matmul(outs[-1]))
            ctx.kept.append(outs)
        return torch.cat(pooled)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # Written with differentiable operations, as all gradients of products are (`affine.py`).
        h, *maps = ctx.saved_tensors
        wants_h = ctx.needs_input_grad[1]
        by_h: list[Tensor] = []
        by_maps: list[list[Tensor]] = [[] for _ in maps]
        for (part, read, spare, operator, pool), outs in zip(ctx.pieces, ctx.kept, strict=True):
            pairs = _of(maps, part)
            rows = _read(h[read], pairs) if torch.is_grad_enabled() else outs
            grad = pool.t().matmul(grads[0][part.graphs])
            for depth in reversed(range(len(pairs))):
                weight, bias = pairs[depth]
                grad = torch.ops.aten.threshold_backward(grad, outs[depth + 1], 0)  # 0 where the relu is shut
                by_maps[2 * depth + 1].append(bias_gradient(grad, bias.shape))
                grad = operator.t().matmul(grad) if depth == len(pairs) - 1 else grad
                before, by_weight = dense_gradients(grad, rows[depth], weight, depth > 0 or wants_h, True)
                by_maps[2 * depth].append(by_weight)  # type: ignore[arg-type]
                grad = grad if before is None else before
            by_h += [grad, grad.new_zeros(spare, grad.shape[1])] if wants_h else []
        if maps[0].ndim == 3:
            found = [
                torch.cat([part.view(-1, *of.shape[1:]) for part in each])
                for each, of in zip(by_maps, maps, strict=True)
            ]
        else:
            found = [torch.stack(each).sum(dim=0) for each in by_maps]
        return None, torch.cat(by_h) if wants_h else None, *found


def _read(rows: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return what each map reads, as a function of the maps before it, which a gradient of a gradient needs."""
    found = [rows]
    for weight, bias in pairs[:-1]:
        found.append(affine(found[-1], weight, bias).relu())
    return found
