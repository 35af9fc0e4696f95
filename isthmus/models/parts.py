"""Parts from which models are put together: checked fields, dropout, normalisation, linear maps, stacks of layers.

Nothing here looks at `nn.Module.training` or draws from torch's global generator when it is called: a generator that
is given says that a model trains, and gives what is drawn. For many clients at once it is `Streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus.models.inputs import GraphInput
from isthmus.models.products.affine import Activate, affine
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


# ---- dropout, and the random streams it draws from


class Streams:
    """Many clients' random streams in the place of one generator; their rows lie one below the other, padded to `rows`.

    A model that runs for many clients at once is called with this where it would get a generator. Every client's
    stream gives the bits that the client would have drawn alone.

    Fields:
        sizes:   number of nodes of each client
        rows:    rows that each client takes up, at least its number of nodes; with `tiles`, that each tile does
        entries: number of stored entries of each client's sparse features; empty when they are dense
        order:   gives which row each row's bits are drawn for, where a client alone would have its rows in another
                 order; None where it would not
        tiles:   how many runs of rows each client takes up, a multiple of eight rows each; None for one each. A model
                 sees each run as a client, with weights that are the same for all runs of a client
        items:   the same streams for what is made of nodes, graphs or pairs, whose rows are others; None for none
    """

    def __init__(
        self,
        start: Callable[[], Sequence[torch.Generator]],
        sizes: Sequence[int],
        rows: int,
        entries: Sequence[int],
        order: Callable[[], Tensor] | None = None,
        tiles: Sequence[int] | None = None,
    ) -> None:
        self._start = start
        self._slots: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        self.sizes, self.rows, self.entries, self.order = sizes, rows, entries, order
        self.tiles = tiles
        self.items: Streams | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def generators(self) -> Sequence[torch.Generator]:
        """Each client's own stream."""
        return self._start()

    def words(self, width: int, bits: int) -> Tensor:
        """Return random bits for (rows, width) entries of `bits` bits for each client, (clients, words), int64.

        With tiles it is (tiles, words). What lies beyond a client's own nodes is arbitrary. The tensor is used again by
        the next call of its kind.
        """
        slots = self._slots.get((width, bits))
        if slots is None:
            tiles = [1] * len(self) if self.tiles is None else self.tiles
            buffer = torch.zeros(sum(tiles), _num_words(self.rows * width, bits), dtype=torch.int64)
            flat, first = buffer.view(-1), accumulate(tiles, initial=0)
            begins = (tile * buffer.shape[1] for tile in first)
            sizes = (_num_words(size * width, bits) for size in self.sizes)
            mine = [flat[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
            slots = self._slots[width, bits] = (buffer, mine)
        self._fill(slots[1])
        return slots[0]

    @cached_property
    def _owner(self) -> Tensor | None:
        """Whose each tile is, (tiles,); None where everybody has one."""
        return None if self.tiles is None else torch.repeat_interleave(torch.tensor(self.tiles))

    def spread(self, by_client: Tensor) -> Tensor:
        """Return rows of clients, (clients, ...), as a model sees them: one for each tile."""
        return by_client if self._owner is None else by_client.index_select(0, self._owner)

    def collected(self, by_tile: Tensor) -> Tensor:
        """Return the sums over each client's tiles, (clients, ...), of rows of tiles."""
        if self._owner is None:
            return by_tile
        return by_tile.new_zeros(len(self), *by_tile.shape[1:]).index_add(0, self._owner, by_tile)

    @cached_property
    def filled(self) -> Tensor:
        """Number of rows of each tile that are no padding, (tiles,); without tiles, of each client."""
        if self._owner is None or self.tiles is None:
            return torch.tensor(self.sizes)
        number = torch.cat([torch.arange(tiles) for tiles in self.tiles])  # among the tiles of its client
        return (torch.tensor(self.sizes)[self._owner] - number * self.rows).clamp(0, self.rows)

    def entry_words(self, bits: int) -> list[Tensor]:
        """Return random bits for the stored entries of each client's sparse features, (words,) for each."""
        drawn = [torch.empty(_num_words(count, bits), dtype=torch.int64) for count in self.entries]
        self._fill(drawn)
        return drawn

    def _fill(self, parts: Sequence[Tensor]) -> None:
        for part, generator in zip(parts, self.generators, strict=True):
            part.random_(-(2**63), None, generator=generator)


def of_items(generator: torch.Generator | Streams | None) -> torch.Generator | Streams | None:
    """Return what graphs or pairs draw from, where nodes draw from `generator`."""
    if not isinstance(generator, Streams):
        return generator
    if generator.items is None:
        raise ValueError("these streams are for nodes alone: nothing says how many graphs or pairs each client has")
    return generator.items


def _num_words(count: int, bits: int) -> int:
    return -(-count * bits // 64)


F = TypeVar("F", Tensor, SparseMatrix, Tensor | SparseMatrix)

_TOLERANCE = 1e-6


def dropout(x: F, p: float, generator: torch.Generator | Streams | None) -> F:
    """Return `x` with entries zeroed with probability `p` and the others scaled by 1 / (1 - p).

    Srivastava et al. (2014), in the inverted form, and drawn from a generator that is given, never from torch's own.
    Without a generator (evaluation), and for p = 0, it returns `x` itself. Of a sparse matrix it drops stored entries.
    """
    if generator is None or p == 0.0:
        return x
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * _scaled_mask(x.values, p, generator))
    return x * _scaled_mask(x, p, generator)


def activation(p: float, generator: torch.Generator | Streams | None) -> Activate:
    """Return what makes relu(dropout(.)) of rows in place, where they are nobody else's."""
    dropping = generator is not None and p > 0.0

    def activate(rows: Tensor) -> float:
        if dropping:
            rows.mul_(_scaled_mask(rows, p, generator))  # type: ignore[arg-type]
        rows.relu_()
        return 1.0 / (1.0 - p) if dropping else 1.0

    return activate


def _scaled_mask(like: Tensor, p: float, generator: torch.Generator | Streams) -> Tensor:
    """Return 0 with probability `p` and 1 / (1 - p) otherwise, in the shape and type of `like`.

    Random integers are compared with a threshold, with as few bits for each entry as give p within 1e-6:
    the generator's time is most of the cost, and p = 0.5 needs one byte. The in-place comparison keeps the
    integer type, which torch vectorises; a boolean mask would be several times slower to make and to apply.
    """
    if not 0.0 < p < 1.0:
        raise ValueError(f"dropout probability is {p!r}; it must be at least 0 and below 1")
    kind, bits = _kind(p)
    # Uniform over [-2^(bits-1), 2^(bits-1)); drawn by the CPU, so that it is the same wherever `like` lies.
    entries = _random_entries(like, kind, bits, generator).to(like.device)
    threshold = min(round(p * 2**bits), 2**bits - 1) - 2 ** (bits - 1)
    kept = entries.ge_(threshold)
    return kept.to(like.dtype).mul_(1.0 / (1.0 - p)).view(like.shape)


def _random_entries(like: Tensor, kind: torch.dtype, bits: int, generator: torch.Generator | Streams) -> Tensor:
    """Return a random integer for each entry of `like`, in some shape with as many entries."""
    if not isinstance(generator, Streams):
        count = like.numel()
        words = torch.empty(_num_words(count, bits), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        return words.view(kind)[:count]
    if like.ndim == 1:
        drawn = zip(generator.entry_words(bits), generator.entries, strict=True)
        return torch.cat([words.view(kind)[:count] for words, count in drawn])
    width = like.shape[1]
    entries = generator.words(width, bits).view(kind)[:, : generator.rows * width]
    given = like.numel() // len(entries)  # of each client: its first rows, where others are not wanted
    entries = entries[:, :given].reshape(like.shape)
    return entries if generator.order is None else entries.index_select(0, generator.order())


def _kind(p: float) -> tuple[torch.dtype, int]:
    for kind, bits in ((torch.int8, 8), (torch.int16, 16)):
        if abs(round(p * 2**bits) / 2**bits - p) < _TOLERANCE and 0 < round(p * 2**bits) < 2**bits:
            return kind, bits
    return torch.int32, 32


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


# ---- the contract of a graph neural network, and the stack of layers that most of them are


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
        last = self.layers[-1]
        pools = {"pooled", "forward"} <= vars(type(last)).keys()  # a subclass may have a forward of its own
        alike = self._alike(graph, graph.x, generator)
        if pools and alike is not None and len(self.layers) == 2 and not self._parts_rows(generator):
            rows, back = alike
            found: Tensor = last.pooled(graph.reading(back), rows, generator, mean, *self.layers[0].row_maps)  # type: ignore[operator,misc]
            return found
        h, seen = self._extract(graph, generator)
        if pools:
            found = last.pooled(seen, h, generator, mean)  # type: ignore[operator]
            return found
        return graph.pooling(mean).matmul(self.last(seen, h, generator))

    def _alike(
        self, graph: GraphInput, h: Features, generator: torch.Generator | None
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
        """Whether equal sums of features stay one row in training up to the second layer (see `_first`)."""
        return not self.input_dropout and bool(_sums(self.layers[0])) and not self._parts_rows(self)

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
