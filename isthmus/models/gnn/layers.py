"""The contract of a graph neural network, and the stack of layers that most of them are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from isthmus.models.checks import require_count, require_dropout
from isthmus.models.dropout import dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.norm import BatchNorm
from isthmus.models.parts import Part
from isthmus.models.products.sparse import Features, dense


class GNN(nn.Module):
    """A graph neural network in two pieces: an extractor, `hidden`, and the last learnable layer, `last`."""

    if TYPE_CHECKING:

        def __call__(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor: ...  # noqa: D102

    def hidden(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return what the last learnable layer sees, (nodes, width)."""
        raise NotImplementedError

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return the last layer's output for hidden representations, (nodes, out)."""
        raise NotImplementedError

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return `last` of `hidden`, (nodes, out); a subclass may reach the same numbers by a shorter way."""
        return self.last(graph, self.hidden(graph, generator), generator)


class GNNSpec(Protocol):
    """What describes a graph neural network: a frozen dataclass with a width and `build`."""

    @property
    def hidden(self) -> int:
        """Width of the hidden layers, and of the output where a decoder follows."""

    def build(self, in_dim: int, out_dim: int) -> GNN:
        """Return the module; its parameters are drawn from torch's global generator."""


@dataclass(frozen=True)
class StackSpec:
    """What every stack of layers has.

    Fields:
        hidden:        width of the hidden layers, and of the output where a decoder follows
        layers:        number of learnable layers
        dropout:       probability of dropping an entry of a hidden layer's output
        batch_norm:    whether to normalise each hidden layer's output over the nodes
        input_dropout: probability of dropping an entry of the features
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5
    batch_norm: bool = False
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        require_count("layers", self.layers)
        require_dropout("dropout", self.dropout)
        require_dropout("input_dropout", self.input_dropout)

    def widths(self, in_dim: int, out_dim: int) -> list[int]:
        """Return the widths before, between and after the layers."""
        return [in_dim, *[self.hidden] * (self.layers - 1), out_dim]


class LayerStack(GNN):
    """Layers one after the other: H' = relu(dropout(norm(layer(H)))) for all but the last, which stands alone."""

    def __init__(self, spec: StackSpec, layers: Sequence[Part]) -> None:
        super().__init__()
        self.dropout, self.input_dropout = spec.dropout, spec.input_dropout
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(BatchNorm(spec.hidden) for _ in layers[1:] if spec.batch_norm)

    def hidden(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return the output of the last hidden layer, (nodes, hidden); with one layer, the features."""
        return dense(self._extract(graph, generator))

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return the last layer's output, (nodes, out)."""
        out: Tensor = self.layers[-1](graph, h, generator)
        return out

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return `last` of `hidden`; a single layer takes sparse features as they are."""
        return self.last(graph, self._extract(graph, generator), generator)

    def _extract(self, graph: GraphInput, generator: torch.Generator | None) -> Features:
        h = dropout(graph.x, self.input_dropout, generator)
        for depth, layer in enumerate(self.layers):
            if depth == len(self.layers) - 1:
                break
            out: Tensor = layer(graph, h, generator)  # (nodes, hidden)
            if self.norms:
                out = self.norms[depth](out, generator)
            h = dropout(out, self.dropout, generator).relu()
        return h

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"dropout={self.dropout:g}, input_dropout={self.input_dropout:g}"
