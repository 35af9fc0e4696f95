"""The contract of a graph neural network, and the stack of layers that most of them are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from isthmus.models.dropout import activation, activation_of_some, dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import BatchNorm, Linear, Part, require_count, require_dropout
from isthmus.models.products.affine import affine
from isthmus.models.products.sparse import Features, SparseMatrix, dense
from isthmus.models.streams import Streams


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


def _gives_rows(layer: nn.Module) -> bool:
    """Whether a layer gives each row by itself, of what an operator or `GraphInput.own` takes together for it."""
    return bool(getattr(layer, "gives_rows", False)) and "forward" in vars(type(layer))  # a subclass may do otherwise


def _sums(layer: nn.Module) -> str:
    """Return the operator whose product with the features is all that a layer reads of a graph; empty without one."""
    known = {"row_maps", "forward"} <= vars(type(layer)).keys()  # a subclass may do otherwise
    return str(layer.sums) if known else ""


class LayerStack(GNN):
    """Layers one after the other: H' = relu(dropout(norm(layer(H)))) for all but the last, which stands alone."""

    def __init__(self, spec: StackSpec, layers: Sequence[Part]) -> None:
        super().__init__()
        self.dropout, self.input_dropout = spec.dropout, spec.input_dropout
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(BatchNorm(spec.hidden) for _ in layers[1:] if spec.batch_norm)

    def hidden(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return the output of the last hidden layer, (nodes, hidden); with one layer, the features."""
        h, seen = self._extract(graph, generator)
        return dense(h) if seen is graph else seen.own(dense(h))

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return the last layer's output, (nodes, out)."""
        out: Tensor = self.layers[-1](graph, h, generator)
        return out

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return `last` of `hidden`, of the wanted nodes; a single layer takes sparse features as they are."""
        levels = self._levels(graph)
        h, seen = self._extract(graph, generator, levels)
        return self.last(seen, h, generator)

    def _levels(self, graph: GraphInput) -> list[GraphInput]:
        """Return what each layer sees; where only some nodes are wanted, and all layers can, no more than they need."""
        one_by_one = not self.norms and isinstance(graph.x, Tensor) and all(_gives_rows(part) for part in self.layers)
        return graph.levels(len(self.layers)) if one_by_one else [graph] * len(self.layers)

    def pooled(self, graph: GraphInput, generator: torch.Generator | None, mean: bool) -> Tensor:
        """Return the sums, or means, of the output's rows of each graph, (graphs, out); by a shorter way if any."""
        last: Any = self.layers[-1]
        if not {"pooled", "forward"} <= vars(type(last)).keys():  # a subclass may have a forward of its own
            h, seen = self._extract(graph, generator)
            return graph.pooling(mean).matmul(self.last(seen, h, generator))
        found = self._pooled_in_parts(graph, generator, mean)
        if found is None:
            h, seen = self._extract(graph, generator)
            found = last.pooled(seen, h, generator, mean)
        return found

    def _pooled_in_parts(
        self, graph: GraphInput, generator: torch.Generator | Streams | None, mean: bool
    ) -> Tensor | None:
        """Return the same of two layers, both made part by part; None where they cannot be or nothing is gained."""
        if not self._pairs_rows:
            return None
        first, last = cast("tuple[Any, Any]", self.layers)
        found: Tensor
        alike = self._alike(graph, graph.x, generator)
        if self.dropout == 0 or generator is None:
            if alike is None:
                return None
            rows, back = alike
            found = last.pooled(graph.reading(back), rows, generator, mean, *first.row_maps)
            return found
        given = alike or self._narrow_sums(graph)
        if given is None or not isinstance(generator, Streams):
            return None
        activate = activation_of_some(self.dropout, generator, (graph.num_nodes, first.row_maps[2].shape[-1]))
        found = last.pooled(graph, given[0], generator, mean, *first.row_maps, back=given[1], activate=activate)
        return found

    @property
    def _pairs_rows(self) -> bool:
        """Whether there are two layers that give each row by itself, with nothing between them but random zeros."""
        return len(self.layers) == 2 and not self.norms and bool(_sums(self.layers[0])) and _gives_rows(self.layers[1])

    def _narrow_sums(self, graph: GraphInput) -> tuple[Tensor, None] | None:
        """Return what the first layer reads of each node, where it is dense, constant and narrower than its weights."""
        first: Any = self.layers[0]
        x, width = graph.x, first.row_maps[0].shape[-1]
        if not isinstance(x, Tensor) or x.requires_grad or x.shape[1] >= width or self.input_dropout > 0:
            return None
        return graph.aggregated(first.sums), None

    def _alike(
        self, graph: GraphInput, h: Features, generator: torch.Generator | Streams | None
    ) -> tuple[Tensor, SparseMatrix] | None:
        """Return the distinct rows of what the first layer reads, where many are equal, and what puts them back."""
        dropped = self.input_dropout > 0 and generator is not None
        return None if dropped else graph.distinct(_sums(self.layers[0]), h)

    def _parts_rows(self, generator: object) -> bool:
        """Whether rows that the first layer makes equal are not when the second layer reads them."""
        drawn = bool(self.norms) or (self.dropout > 0 and generator is not None)
        return drawn or len(self.layers) == 1 or not _gives_rows(self.layers[1])

    @property
    def merges(self) -> bool:
        """Whether weights multiply equal sums of features once in training (see `_first` and `_pooled_in_parts`)."""
        return (
            not self.input_dropout and bool(_sums(self.layers[0])) and (self._pairs_rows or not self._parts_rows(self))
        )

    def _extract(
        self, graph: GraphInput, generator: torch.Generator | None, levels: Sequence[GraphInput] | None = None
    ) -> tuple[Features, GraphInput]:
        """Return what the last layer reads, and what it sees of the graph."""
        h = dropout(graph.x, self.input_dropout, generator)
        *before, _ = self.layers
        seen = list(levels or [graph] * len(self.layers))
        for depth, layer in enumerate(before):
            if isinstance(generator, Streams) and not self.norms and hasattr(layer, "activated"):
                h = layer.activated(seen[depth], h, activation(self.dropout, generator))  # (nodes, hidden)
                continue
            if depth == 0:
                out, seen[1] = self._first(seen, h, generator)
            else:
                out = layer(seen[depth], h, generator)  # (nodes, hidden)
            if self.norms:
                out = self.norms[depth](out, generator)
            h = dropout(out, self.dropout, generator).relu()
        return h, seen[-1]

    def _first(
        self, seen: Sequence[GraphInput], h: Features, generator: torch.Generator | None
    ) -> tuple[Tensor, GraphInput]:
        """Return the first layer's output, and what the second one sees; where many rows are equal, each is made once.

        They stay together up to the next sums over neighbours, unless each is given random bits or a norm before.
        """
        graph, alike = seen[0], self._alike(seen[0], h, generator)
        if alike is None:
            out: Tensor = self.layers[0](graph, h, generator)
            return out, seen[1]
        rows, back = alike
        first, bias, second, other_bias = self.layers[0].row_maps  # type: ignore[misc]
        out = affine(affine(rows, first, bias).relu(), second, other_bias)
        return (back.matmul(out), seen[1]) if self._parts_rows(generator) else (out, graph.reading(back))

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"dropout={self.dropout:g}, input_dropout={self.input_dropout:g}"


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

    # The module, and what it is made of: their exact classes tell whether many clients can run it at once.
    module: ClassVar[type[LayerStack]] = LayerStack
    layer_type: ClassVar[type[Part]] = Linear

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

    def layer(self, in_dim: int, out_dim: int) -> Part:
        """Return one layer."""
        return self.layer_type(in_dim, out_dim)

    def all_layers(self, in_dim: int, out_dim: int) -> list[Part]:
        """Return the layers from the features to the output."""
        return [self.layer(inner, outer) for inner, outer in pairwise(self.widths(in_dim, out_dim))]

    def build(self, in_dim: int, out_dim: int) -> LayerStack:
        """Return the module."""
        return self.module(self, self.all_layers(in_dim, out_dim))
