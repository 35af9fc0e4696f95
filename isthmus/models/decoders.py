"""Decoders: what turns representations of nodes, of whole graphs, or of pairs of nodes into scores."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.models.dropout import dropout
from isthmus.models.parts import BatchNorm, Linear, Part, Perceptron, glorot, require_count, require_dropout
from isthmus.models.products.affine import affine


class LinkPart(nn.Module):
    """The module of a link decoder, called with the representations of heads and tails, (pairs, dim) each.

    `of` and `against` score chosen relations only, and must give what `forward` gives in their columns. A decoder of
    one's own needs `forward` alone.
    """

    if TYPE_CHECKING:

        def __call__(self, head: Tensor, tail: Tensor, generator: torch.Generator | None) -> Tensor: ...  # noqa: D102

    # About how many numbers `against` keeps at a time for each pair that it scores.
    numbers_per_pair: int = 1

    def forward(self, head: Tensor, tail: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the scores of all relations, (pairs, out)."""
        raise NotImplementedError

    def of(self, head: Tensor, tail: Tensor, relation: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the score of one relation, (pairs,) numbers of them, for each pair, (pairs,)."""
        return self(head, tail, generator).gather(1, relation.unsqueeze(1)).squeeze(1)

    def against(self, given: Tensor, others: Tensor, relation: Tensor, given_is_head: bool) -> Tensor:
        """Return the scores of every given node with every other one, (given, others), in evaluation.

        `relation`, (given,), says which one is scored; `given_is_head`, at which end the given nodes stand.
        """
        first = given.repeat_interleave(len(others), dim=0)
        second = others.repeat(len(given), 1)
        head, tail = (first, second) if given_is_head else (second, first)
        return self.of(head, tail, relation.repeat_interleave(len(others)), None).view(len(given), len(others))


def columns(weight: Tensor, number: Tensor) -> Tensor:
    """Return columns of a matrix, (numbers, in); of matrices of many clients each takes its own, equally often."""
    if weight.ndim == 2:
        return weight.t()[number]
    clients, _, out = weight.shape
    owner = torch.arange(clients).repeat_interleave(len(number) // clients)
    return weight.transpose(1, 2).flatten(0, 1).index_select(0, owner * out + number)


@dataclass(frozen=True)
class DotDecoder:
    """<h, t>; only where there is one score: whether two nodes are linked."""

    def build(self, in_dim: int, out_dim: int) -> Dot:
        """Return the module."""
        if out_dim != 1:
            raise BadInput(
                f"model.decoder is 'dot', which gives one score for a pair of nodes, but the task needs {out_dim}, one "
                "for each relation or class; for links use 'hadamard_mlp', 'distmult' or 'bilinear', for nodes and "
                "graphs 'mlp' or 'linear'"
            )
        return Dot()


@dataclass(frozen=True)
class DistMultDecoder:
    """<h, w_r, t> = sum_i h_i w_ri t_i (Yang et al., 2015): the same in both directions."""

    def build(self, in_dim: int, out_dim: int) -> DistMult:
        """Return the module."""
        return DistMult(in_dim, out_dim)


@dataclass(frozen=True)
class BilinearDecoder:
    """h^T W_r t (Nickel et al., 2011): tells directions apart. Training keeps dim^2 numbers for each pair."""

    def build(self, in_dim: int, out_dim: int) -> Bilinear:
        """Return the module."""
        return Bilinear(in_dim, out_dim)


class Dot(LinkPart):
    """The module of `DotDecoder`."""

    def forward(self, head: Tensor, tail: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (pairs, 1)."""
        return (head * tail).sum(dim=1, keepdim=True)

    def against(self, given: Tensor, others: Tensor, relation: Tensor, given_is_head: bool) -> Tensor:
        """Return (given, others) by one product."""
        return given @ others.t()


class DistMult(LinkPart):
    """The module of `DistMultDecoder`."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = glorot(in_dim, out_dim)

    def forward(self, head: Tensor, tail: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (pairs, relations)."""
        return affine(head * tail, self.weight)

    def of(self, head: Tensor, tail: Tensor, relation: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (pairs,)."""
        return (head * tail * columns(self.weight, relation)).sum(dim=1)

    def against(self, given: Tensor, others: Tensor, relation: Tensor, given_is_head: bool) -> Tensor:
        """Return (given, others) by one product."""
        return (given * self.weight.t()[relation]) @ others.t()


class Bilinear(LinkPart):
    """The module of `BilinearDecoder`."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([glorot(in_dim, in_dim).detach() for _ in range(out_dim)]))

    def forward(self, head: Tensor, tail: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (pairs, relations)."""
        outer = head.unsqueeze(2) * tail.unsqueeze(1)  # (pairs, dim, dim)
        return affine(outer.flatten(1), self.weight.flatten(-2).transpose(-1, -2))

    def of(self, head: Tensor, tail: Tensor, relation: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (pairs,); pairs of one relation are multiplied together, so that no matrix is copied."""
        weight: Tensor = self.weight
        if weight.ndim == 4:  # of many clients: each has relations of its own
            owner = torch.arange(len(weight)).repeat_interleave(len(relation) // len(weight))
            relation, weight = relation + owner * weight.shape[1], weight.flatten(0, 1)
        order = torch.argsort(relation, stable=True)
        sizes = torch.bincount(relation, minlength=len(weight)).tolist()
        parts = [rows @ weight[r] for r, rows in enumerate(torch.split(head[order], sizes)) if len(rows)]
        scores = (torch.cat(parts) * tail[order]).sum(dim=1) if parts else head.new_zeros(0)
        return torch.zeros_like(scores).index_copy(0, order, scores)

    def against(self, given: Tensor, others: Tensor, relation: Tensor, given_is_head: bool) -> Tensor:
        """Return (given, others)."""
        weight = self.weight[relation]  # (given, dim, dim)
        turned = torch.einsum("gi,gij->gj" if given_is_head else "gj,gij->gi", given, weight)
        return turned @ others.t()


class HadamardMLP(LinkPart):
    """The module of `HadamardMLPDecoder`: linear maps with relu(dropout(norm(.))) between them."""

    def __init__(self, widths: list[int], dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(Linear(inner, outer) for inner, outer in pairwise(widths))
        self.norms = nn.ModuleList(BatchNorm(width) for width in widths[1:-1] if batch_norm)
        self.numbers_per_pair = widths[1] if len(widths) > 2 else 1

    def forward(self, head: Tensor, tail: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (pairs, out)."""
        last = self._maps[-1]
        return affine(self._hidden(head * tail, generator), last.weight, last.bias)

    def of(self, head: Tensor, tail: Tensor, relation: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return (pairs,)."""
        last = self._maps[-1]
        own, bias = columns(last.weight, relation), columns(last.bias.unsqueeze(-2), relation)  # (pairs, width and 1)
        return (self._hidden(head * tail, generator) * own).sum(dim=1) + bias.squeeze(1)

    @torch.no_grad()
    def against(self, given: Tensor, others: Tensor, relation: Tensor, given_is_head: bool) -> Tensor:
        """Return (given, others): (g * o) W = o (diag(g) W), so that the first map of all pairs is one product.

        The maps' outputs are kept as (given, width, others), which needs no transpose.
        """
        first, last = self._maps[0], self._maps[-1]
        own = last.weight.t()[relation]  # (given, width)
        if len(self._maps) == 1:
            return (given * own) @ others.t() + last.bias[relation].unsqueeze(1)
        turned = (given.unsqueeze(1) * first.weight.t()).flatten(0, 1)  # (given * width, dim)
        h = (turned @ others.t()).view(len(given), first.weight.shape[1], len(others))
        h = self._between(h.add_(first.bias.unsqueeze(1)), 0, None)
        for depth, layer in enumerate(self._maps[1:-1], start=1):
            h = self._between(layer.weight.t().matmul(h) + layer.bias.unsqueeze(1), depth, None)
        return own.unsqueeze(1).bmm(h).squeeze(1) + last.bias[relation].unsqueeze(1)

    @property
    def _maps(self) -> list[Linear]:
        return cast(list[Linear], list(self.layers))

    def _hidden(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return what the last map sees, (pairs, width)."""
        for depth, layer in enumerate(self._maps[:-1]):
            h = self._between(affine(h, layer.weight, layer.bias), depth, generator)
        return h

    def _between(self, h: Tensor, depth: int, generator: torch.Generator | None) -> Tensor:
        if self.norms:
            h = self.norms[depth](h, generator)
        return dropout(h, self.dropout, generator).relu() if generator is not None or h.requires_grad else h.relu_()

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"dropout={self.dropout:g}"


class DecoderSpec(Protocol):
    """What describes a decoder: a frozen dataclass with `build`."""

    def build(self, in_dim: int, out_dim: int) -> Part | LinkPart:
        """Return the module, from (rows, in_dim) representations to (rows, out_dim) scores.

        A `LinkPart` scores pairs of nodes; it is for link tasks alone.
        """


@dataclass(frozen=True)
class LinearDecoder:
    """H W + b."""

    def build(self, in_dim: int, out_dim: int) -> Perceptron:
        """Return the module."""
        return Perceptron([in_dim, out_dim])


@dataclass(frozen=True)
class MLPDecoder:
    """Linear maps with relu(dropout(.)) between them.

    Fields:
        hidden:  width between the maps
        layers:  number of linear maps
        dropout: probability of dropping an entry between them
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        require_count("layers", self.layers)
        require_dropout("dropout", self.dropout)

    def widths(self, in_dim: int, out_dim: int) -> list[int]:
        """Return the widths before, between and after the maps."""
        return [in_dim, *[self.hidden] * (self.layers - 1), out_dim]

    def build(self, in_dim: int, out_dim: int) -> Part | LinkPart:
        """Return the module."""
        return Perceptron(self.widths(in_dim, out_dim), self.dropout)


@dataclass(frozen=True)
class HadamardMLPDecoder(MLPDecoder):
    """MLP(h * t), the element-wise product into a perceptron: the link predictor of FS-G (Wang et al., 2022, 7.1.2).

    Fields: those of `MLPDecoder`, and
        batch_norm: whether to normalise between them over the pairs, as the authors' released code does
    """

    dropout: float = 0.0
    batch_norm: bool = False

    def build(self, in_dim: int, out_dim: int) -> HadamardMLP:
        """Return the module."""
        return HadamardMLP(self.widths(in_dim, out_dim), dropout=self.dropout, batch_norm=self.batch_norm)
