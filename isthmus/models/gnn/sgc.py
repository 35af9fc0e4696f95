"""Simplified graph convolution. Wu et al. (2019), "Simplifying graph convolutional networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from isthmus.models.dropout import dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import GNN, Linear, require_count, require_dropout
from isthmus.models.products.affine import affine, per_row
from isthmus.models.products.propagation import propagate
from isthmus.models.products.sparse import Features, dense


@dataclass(frozen=True)
class SGC:
    """S^hops X W + b with S as in GCN: one learnable layer, so there is no hidden layer to drop from or to normalise.

    Fields:
        hidden:        width of the output where a decoder follows; without one it is not used
        hops:          the power of S
        input_dropout: probability of dropping an entry of the features
    """

    hidden: int = 64
    hops: int = 2
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        require_count("hops", self.hops, least=0)
        require_dropout("input_dropout", self.input_dropout)

    def build(self, in_dim: int, out_dim: int) -> SGCStack:
        """Return the module."""
        return SGCStack(self, in_dim, out_dim)


class SGCStack(GNN):
    """The module of `SGC`: `hidden` is S^hops X, `last` the linear map; `forward` multiplies first."""

    def __init__(self, spec: SGC, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.hops, self.input_dropout = spec.hops, spec.input_dropout
        self.layers = nn.ModuleList([Linear(in_dim, out_dim)])
        self._weights = (*[0.0] * spec.hops, 1.0)

    def hidden(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return S^hops X, (nodes, features)."""
        x = dropout(graph.x, self.input_dropout, generator)
        return propagate(graph.operator("gcn"), dense(x), self._weights)

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return H W + b, (nodes, out)."""
        out: Tensor = self.layers[0](graph, h, generator)
        return out

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return S^hops (X W) + b, (nodes, out), which is `last` of `hidden`."""
        layer = cast(Linear, self.layers[0])
        x = dropout(graph.x, self.input_dropout, generator)
        z = affine(x, layer.weight)  # (nodes, out)
        return propagate(graph.operator("gcn"), z, self._weights) + per_row(layer.bias, 1, len(z))

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"hops={self.hops}, input_dropout={self.input_dropout:g}"
