"""GAP's network: sums over neighbours that are made once, with noise. Sajadmanesh et al. (2023), "GAP"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from isthmus.models.dropout import dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import GNN, Perceptron, require_count, require_dropout
from isthmus.models.products.sparse import Features, dense

# What is put on the sums of a hop, (nodes, dim), before its rows are made as long as all others.
Blur = Callable[[Tensor], Tensor]

# Rows are shorter than one by so much, so that rounding makes none longer.
MARGIN = 1e-6


class RowsAlone(GraphInput):
    """What nodes read, each of which is one row of it: the module reads no edge, whatever there is."""

    def of_nodes(self, x: Features, nodes: list[int]) -> RowsAlone:
        """Return what some nodes read, whose features are these."""
        return type(self)(x, self.edge_index[:, :0])


class OwnRows(RowsAlone):
    """What nodes have themselves: the module takes all sums for nothing, so that it learns without an edge."""


class SummedRows(RowsAlone):
    """What a node's row and the sums of its neighbours' came to, (nodes, (hops + 1) dim): the head scores it."""


@dataclass(frozen=True)
class HeadOnRowsSpec:
    """What networks have whose head reads a node's own row and sums over neighbours.

    Fields:
        hidden:        width of hidden layers, and of the output where a decoder follows
        dim:           columns of what is added up over neighbours: the fewer, the less noise in all
        hops:          how often neighbours are added up
        layers:        linear maps of the head
        dropout:       probability of dropping an entry of a hidden layer's output
        input_dropout: probability of dropping an entry of the features
    """

    hidden: int = 64
    dim: int = 16
    hops: int = 2
    layers: int = 2
    dropout: float = 0.5
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("hidden", "dim", "layers"):
            require_count(name, getattr(self, name))
        require_count("hops", self.hops, least=0)
        require_dropout("dropout", self.dropout)
        require_dropout("input_dropout", self.input_dropout)

    def head(self, out_dim: int) -> Perceptron:
        """Return the head."""
        return Perceptron([(self.hops + 1) * self.dim, *[self.hidden] * (self.layers - 1), out_dim], self.dropout)


class HeadOnRows(GNN):
    """A head on rows that are made of sums over neighbours; `hidden` is all but the head's last linear map.

    Attributes:
        hops:      how often neighbours are added up
        summed_by: what the parameters' names begin with that each set of sums is made by, in the order of the sets
    """

    summed_by: tuple[str, ...]
    head: Perceptron

    def __init__(self, spec: HeadOnRowsSpec) -> None:
        super().__init__()
        self.hops, self.dropout, self.input_dropout = spec.hops, spec.dropout, spec.input_dropout
        self.width = (spec.hops + 1) * spec.dim

    def with_sums(self, view: GraphInput, graph: GraphInput, blur: Blur) -> GraphInput:
        """Return what nodes read with one more set of sums over a graph's edges than in `view`, at first `OwnRows`."""
        raise NotImplementedError

    def idle(self, num_sets: int) -> tuple[str, ...]:
        """Return what the parameters' names begin with that have no part yet, where so many sets of sums are made."""
        return ()

    def rows_of(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return what the head reads, (nodes, (hops + 1) dim): made before, or now, with the edges or without."""
        raise NotImplementedError

    def hidden(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return what the head's last linear map sees, (nodes, hidden)."""
        h = self.rows_of(graph, generator)
        for layer in self.head.layers[:-1]:
            out: Tensor = layer(graph, h, generator)
            h = dropout(out, self.dropout, generator).relu()
        return h

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return the scores, (nodes, out)."""
        out: Tensor = self.head.layers[-1](graph, h, generator)
        return out

    def padded(self, rows: Tensor) -> Tensor:
        """Return rows as wide as the head reads them, with zeros for sums that are not there."""
        return functional.pad(rows, (0, self.width - rows.shape[1]))

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"hops={self.hops}, dropout={self.dropout:g}, input_dropout={self.input_dropout:g}"


@dataclass(frozen=True)
class GAP(HeadOnRowsSpec):
    """An encoder that sees no edge, sums over neighbours that have nothing to learn, and a head on all of them.

        X_0 = u(encoder(X)),   X_k = u(A X_(k-1)),   H = head([X_0 | X_1 | ... | X_hops]),   u(x) = x / |x| row by row

    With the encoder fixed, X_0 to X_hops never change: they are made once, and what noise is put on the sums makes them
    as private as all that is learned of them ever after. The method `fedgap` does that, and guards say how much noise
    (edge_dp, node_dp). By itself the network has none, and any method trains it, encoder and all, on the edges as they
    are.

    Fields:
        dim:            columns of each X_k: the fewer, the less noise in all
        encoder_layers: linear maps of the encoder
        hidden, hops, layers, dropout, input_dropout: as in `HeadOnRowsSpec`
    """

    encoder_layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("encoder_layers", self.encoder_layers)

    def build(self, in_dim: int, out_dim: int) -> GAPStack:
        """Return the module."""
        return GAPStack(self, in_dim, out_dim)


class GAPStack(HeadOnRows):
    """The module of `GAP`; all its sums are one set, made by the encoder."""

    summed_by = ("encoder.",)

    def __init__(self, spec: GAP, in_dim: int, out_dim: int) -> None:
        super().__init__(spec)
        self.encoder = Perceptron([in_dim, *[spec.hidden] * (spec.encoder_layers - 1), spec.dim], spec.dropout)
        self.head = spec.head(out_dim)

    def summed(self, graph: GraphInput, generator: torch.Generator | None, blur: Blur | None = None) -> Tensor:
        """Return [X_0 | ... | X_hops], (nodes, (hops + 1) dim), with what `blur` makes of each hop's sums."""
        rows = [unit_rows(self.encoded(graph, generator))]
        for _ in range(self.hops):
            sums = graph.operator("sum").matmul(rows[-1])
            rows.append(unit_rows(sums if blur is None else blur(sums)))
        return torch.cat(rows, dim=1)

    def with_sums(self, view: GraphInput, graph: GraphInput, blur: Blur) -> SummedRows:
        """Return what the head reads, with all sums."""
        return SummedRows(self.summed(graph, None, blur), view.edge_index)

    def encoded(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return what the encoder makes of the features, (nodes, dim)."""
        rows: Tensor = self.encoder(graph, dropout(graph.x, self.input_dropout, generator), generator)
        return rows

    def rows_of(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return what the head reads, (nodes, (hops + 1) dim): made before, or now, with the edges or without."""
        if isinstance(graph, SummedRows):
            return dense(graph.x)
        if isinstance(graph, OwnRows):
            return self.padded(unit_rows(self.encoded(graph, generator)))
        return self.summed(graph, generator)


def unit_rows(h: Tensor) -> Tensor:
    """Return rows in the same directions, no longer than one; zeros stay zeros, of which nothing is learned."""
    lengths: Tensor = h.norm(dim=1, keepdim=True)
    return h * ((1.0 - MARGIN) / lengths.clamp(min=1e-12)).where(lengths > 0.0, 0.0)
