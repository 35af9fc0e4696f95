"""Parts from which models are put together: what each part is called with, a linear map and a perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isthmus.models.dropout import dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.products.affine import affine
from isthmus.models.products.sparse import Features


class Part(nn.Module):
    """A piece of a model, called with the graph, the representations so far, and a generator (None to evaluate).

    No part looks at `nn.Module.training`, and none draws from torch's global generator when called.
    """

    if TYPE_CHECKING:

        def __call__(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor: ...  # noqa: D102

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return new representations, (nodes or graphs, width)."""
        raise NotImplementedError


class Linear(Part):
    """H W + b, row by row, W drawn after Glorot and Bengio (2010).

    `weight` is (in, out), so that sparse features are multiplied without a transpose.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = glorot(in_dim, out_dim)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return H W + b, (rows, out); the graph's edges play no part."""
        return affine(h, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return shape_of(self.weight)


class Perceptron(Part):
    """Linear maps with relu(dropout(.)) between them; one map is plain linear."""

    def __init__(self, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(Linear(inner, outer) for inner, outer in pairwise(widths))

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (rows, last width)."""
        *before, last = self.layers
        for layer in before:
            h = dropout(layer(graph, h, generator), self.dropout, generator).relu()
        out: Tensor = last(graph, h, generator)
        return out

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"dropout={self.dropout:g}"


def glorot(rows: int, columns: int) -> nn.Parameter:
    """Return a (rows, columns) parameter, uniform within sqrt(6 / (rows + columns)) (Glorot and Bengio, 2010)."""
    weight = nn.Parameter(torch.empty(rows, columns))
    nn.init.xavier_uniform_(weight)
    return weight


def shape_of(weight: Tensor) -> str:
    """Return "in, out" of a weight, for reprs."""
    return f"{weight.shape[0]}, {weight.shape[1]}"


def lack_of(bias: Tensor | None) -> str:
    """Return ", bias=False" where there is none, for reprs."""
    return ", bias=False" if bias is None else ""
