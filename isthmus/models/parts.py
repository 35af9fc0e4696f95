"""Parts from which models are put together: checked fields, normalisation, linear maps, stacks of layers.

Nothing here looks at `nn.Module.training` or draws from torch's global generator when it is called: a generator that
is given says that a model trains, and gives what is drawn. For many clients at once it is `Streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus.models.dropout import Streams, activation, activation_of_some, dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.products.affine import affine, are_alike
from isthmus.models.products.sparse import Features, SparseMatrix, dense

# ---- checks that specs make of their own fields; each names the field, the value and what would do


def require_count(field: str, value: int, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{field} is {value!r}; it must be a whole number of at least {least}")


def require_dropout(field: str, value: float) -> None:
    """Raise unless `value` is a probability below one (dropping everything leaves nothing to rescale)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ValueError(f"{field} is {value!r}; it must be at least 0 and below 1")


def require_fraction(field: str, value: float) -> None:
    """Raise unless `value` lies in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{field} is {value!r}; it must be between 0 and 1")


# ---- normalisation


class BatchNorm(nn.Module):
    """Like `torch.nn.BatchNorm1d`, but training or not is an argument, and there is no counter of batches.

    Ioffe and Szegedy (2015): y = (x - mean) / sqrt(var + eps) * weight + bias, each feature by itself.

    The counter would be an integer among the averaged tensors, and nothing reads it. With one node there is no
    variance to take: the running statistics serve then, unchanged.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, h: Tensor, generator: torch.Generator | Streams | None) -> Tensor:
        """Normalise (nodes, dim) by this batch's statistics when there is a generator, else by the running ones."""
        if self.weight.ndim == 2:
            return self._of_each_client(h, generator if isinstance(generator, Streams) else None)
        assert not isinstance(generator, Streams)
        return functional.batch_norm(
            h,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=generator is not None and len(h) > 1,
            momentum=self.momentum,
            eps=self.eps,
        )

    def _of_each_client(self, h: Tensor, streams: Streams | None) -> Tensor:
        """Normalise the rows of many clients, (clients * rows, dim), each by its own statistics."""
        x = h.view(len(self.weight), -1, h.shape[1])  # a client's rows may be several tiles (`Streams.tiles`)
        mean, var = self.running_mean, self.running_var  # (clients, dim)
        if streams is not None:
            sizes = torch.tensor(streams.sizes, dtype=h.dtype, device=h.device).view(-1, 1)  # (clients, 1)
            filled = streams.filled.to(h.device).unsqueeze(1)
            real = (torch.arange(x.shape[1], device=h.device) < filled).unsqueeze(2)  # (tiles, rows, 1)
            some = sizes.clamp(min=1)  # a client may have no row in a batch
            batch_mean = streams.collected((x * real).sum(dim=1)) / some
            apart = x - streams.spread(batch_mean).unsqueeze(1)
            batch_var = streams.collected((apart.square() * real).sum(dim=1)) / some
            several = sizes > 1
            with torch.no_grad():
                share = torch.where(several, self.momentum, 0.0)
                mean.lerp_(batch_mean, share.expand_as(mean))
                var.lerp_(batch_var * sizes / (sizes - 1).clamp(min=1), share.expand_as(var))
            mean = streams.spread(torch.where(several, batch_mean, mean))
            var = streams.spread(torch.where(several, batch_var, var))
        scale = self.weight * (var + self.eps).rsqrt()
        return torch.addcmul(self.bias.unsqueeze(1), x - mean.unsqueeze(1), scale.unsqueeze(1)).view(h.shape)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{len(self.weight)}, eps={self.eps:g}, momentum={self.momentum:g}"


# ---- what a part is called with, and maps of rows


class Part(nn.Module):
    """A piece of a model, called with the graph, the representations so far, and a generator (None to evaluate).

    No part looks at `nn.Module.training`, and none draws from torch's global generator when called.
    """

    if TYPE_CHECKING:

        def __call__(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor: ...  # noqa: D102

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return new representations, (nodes or graphs, width)."""
        raise NotImplementedError


class BiasFreeLinear(Part):
    """H W, row by row, W drawn after Glorot and Bengio (2010).

    `weight` is (in, out), so that sparse features are multiplied without a transpose.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = glorot(in_dim, out_dim)

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return H W, (rows, out); the graph's edges play no part."""
        return affine(h, self.weight)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return shape_of(self.weight)


class Linear(BiasFreeLinear):
    """H W + b, row by row, W drawn after Glorot and Bengio (2010)."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__(in_dim, out_dim)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return H W + b, (rows, out); the graph's edges play no part."""
        return affine(h, self.weight, self.bias)


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
            if isinstance(generator, Streams):
                h = affine(h, layer.weight, layer.bias, None, activation(self.dropout, generator))
            else:
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


# ---- graph neural networks, and the stack of layers that most of them are


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
            common = graph.common_rows(first.sums) if are_alike(first.row_maps[0]) else None
            found = last.pooled(graph.reading(back), rows, generator, mean, *first.row_maps, common=common)
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

    def pools_in_parts(self, graph: GraphInput, streams: Streams) -> bool:
        """Whether sums over graphs are made of both layers part by part, which is one recorded step."""
        if not self._pairs_rows or not vars(type(self.layers[1])).get("pools_in_one_step", False):
            return False
        alike = self._alike(graph, graph.x, streams)
        return alike is not None or (self.dropout > 0 and self._narrow_sums(graph) is not None)

    @property
    def is_chain(self) -> bool:
        """Whether every layer is one recorded step, of many clients at once, and nothing comes between."""
        return not self.norms and all("activated" in vars(type(layer)) for layer in self.layers)

    @property
    def draws_once(self) -> bool:
        """Whether a training step draws once."""
        return len(self.layers) == 2 and self.dropout > 0.0 and not self.input_dropout

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
