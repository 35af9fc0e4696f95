"""Parts from which models are put together: checked fields, normalisation, linear maps.

Nothing here looks at `nn.Module.training` or draws from torch's global generator when it is called: a generator that
is given says that a model trains, and gives what is drawn. For many clients at once it is `Streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus.models.dropout import dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.products.affine import affine
from isthmus.models.products.sparse import Features
from isthmus.models.streams import Streams

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
