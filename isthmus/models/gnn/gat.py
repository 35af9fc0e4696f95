"""Graph attention network. Velickovic et al. (2018), "Graph attention networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from isthmus.models.dropout import dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Part, StackSpec, glorot, lack_of, require_count, require_dropout
from isthmus.models.products.affine import affine, per_row
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix


@dataclass(frozen=True)
class GAT(StackSpec):
    """H' = relu(concat over heads(alpha H W) + b), the last layer averaging its heads.

    Fields: those of `StackSpec`, and
        heads:             attention heads of a hidden layer; each gets hidden / heads columns
        last_heads:        attention heads of the last layer
        attention_dropout: probability of dropping an attention coefficient
    """

    heads: int = 8
    last_heads: int = 1
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("heads", self.heads)
        require_count("last_heads", self.last_heads)
        require_dropout("attention_dropout", self.attention_dropout)
        if self.hidden % self.heads:
            raise ValueError(f"hidden is {self.hidden} and heads is {self.heads}; hidden must be a multiple of heads")

    def all_layers(self, in_dim: int, out_dim: int) -> list[Part]:
        """Return the layers; the heads of the last one are averaged."""
        *inputs, last_input, _ = self.widths(in_dim, out_dim)
        rate, each = self.attention_dropout, self.hidden // self.heads
        layers: list[Part] = [GATLayer(width, each, self.heads, True, rate) for width in inputs]
        return [*layers, GATLayer(last_input, out_dim, self.last_heads, False, rate)]


class GATLayer(Part):
    """alpha Z + b with Z = H W and attention over in-neighbours and the node itself (Velickovic et al., 2018).

        alpha_ij = softmax over j of leaky_relu(<a_target, Z_i> + <a_source, Z_j>), slope 0.2

    for each head; the heads stand side by side (`concat`) or are averaged. Edge weights play no part; a complement of
    the graph enters with C_ij as a factor on the exponential, for w exp(x) = exp(x + log w).
    """

    def __init__(
        self, in_dim: int, out_dim: int, heads: int = 1, concat: bool = True, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.concat, self.attention_dropout = heads, concat, attention_dropout
        self.weight = glorot(in_dim, heads * out_dim)
        self.attention_source = glorot(heads, out_dim)
        self.attention_target = glorot(heads, out_dim)
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(heads * out_dim if concat else out_dim))

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (nodes, heads * out), or (nodes, out) if the heads are averaged."""
        pattern, factor = graph.attention(self.heads)
        z = affine(h, self.weight).view(graph.num_nodes, *self.attention_source.shape[-2:])  # (nodes, heads, out)
        source = (z * per_row(self.attention_source, 2, len(z))).sum(dim=-1).view(-1)  # (nodes * heads,)
        target = (z * per_row(self.attention_target, 2, len(z))).sum(dim=-1).view(-1)  # (nodes * heads,)
        score = source.index_select(0, pattern.col) + target.index_select(0, pattern.row)
        score = leaky_relu(score, 0.2) if factor is None else leaky_relu(score, 0.2) + factor
        alpha = row_softmax(pattern, score)  # ((edges + nodes) * heads,)
        alpha = dropout(alpha, self.attention_dropout, generator)
        out = SparseMatrix(pattern, alpha).matmul(z.flatten(0, 1)).view(z.shape)  # (nodes, heads, out)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out if self.bias is None else out + per_row(self.bias, 1, len(out))

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        in_dim, out_dim = len(self.weight), self.attention_source.shape[1]
        return (
            f"{in_dim}, {out_dim}, heads={self.heads}, concat={self.concat}, "
            f"attention_dropout={self.attention_dropout:g}{lack_of(self.bias)}"
        )


def row_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Return the softmax of the scores within each row of the pattern, (entries,)."""
    alpha: Tensor = _RowSoftmax.apply(scores, pattern)  # type: ignore[no-untyped-call]
    return alpha


class _RowSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, pattern: Pattern) -> Tensor:
        # The largest score of each row is taken off first, so that no exponential overflows.
        rows = pattern.row.long()
        largest = scores.new_zeros(pattern.shape[0]).scatter_reduce_(0, rows, scores, "amax", include_self=False)
        alpha = (scores - largest.index_select(0, rows)).exp_()
        alpha /= _row_sums(pattern, alpha)
        ctx.pattern = pattern
        ctx.save_for_backward(alpha)
        return alpha

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (alpha,) = ctx.saved_tensors
        weighted = alpha * grads[0]
        return weighted - alpha * _row_sums(ctx.pattern, weighted), None


def _row_sums(pattern: Pattern, values: Tensor) -> Tensor:
    """Return, for each entry, the sum over its row, (entries,)."""
    sums = values.new_zeros(pattern.shape[0]).index_add(0, pattern.row, values)  # (rows,)
    return sums.index_select(0, pattern.row)
