"""Readouts: one representation for each graph, from those of its nodes; a graph without nodes gets zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Part
from isthmus.models.products.sparse import Features, dense


class ReadoutSpec(Protocol):
    """What describes a readout: a frozen dataclass with `out_dim` and `build`."""

    def out_dim(self, in_dim: int) -> int:
        """Return the width of a graph's representation, for nodes' of width `in_dim`."""

    def build(self, in_dim: int) -> Part:
        """Return the module, from (nodes, in_dim) to (graphs, out_dim)."""


@dataclass(frozen=True)
class MeanReadout:
    """The mean over a graph's nodes."""

    def out_dim(self, in_dim: int) -> int:
        """Return the nodes' width."""
        return in_dim

    def build(self, in_dim: int) -> MeanPool:
        """Return the module."""
        return MeanPool()


@dataclass(frozen=True)
class SumReadout:
    """The sum over a graph's nodes, which keeps their number (Xu et al., 2019)."""

    def out_dim(self, in_dim: int) -> int:
        """Return the nodes' width."""
        return in_dim

    def build(self, in_dim: int) -> SumPool:
        """Return the module."""
        return SumPool()


@dataclass(frozen=True)
class MaxReadout:
    """The largest value of each column over a graph's nodes."""

    def out_dim(self, in_dim: int) -> int:
        """Return the nodes' width."""
        return in_dim

    def build(self, in_dim: int) -> MaxPool:
        """Return the module."""
        return MaxPool()


class MeanPool(Part):
    """The module of `MeanReadout`."""

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (graphs, dim)."""
        return graph.pooling(mean=True).matmul(dense(h))


class SumPool(Part):
    """The module of `SumReadout`."""

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (graphs, dim)."""
        return graph.pooling(mean=False).matmul(dense(h))


class MaxPool(Part):
    """The module of `MaxReadout`."""

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (graphs, dim)."""
        h = dense(h)
        batch = torch.zeros(len(h), dtype=torch.int64) if graph.batch is None else graph.batch
        empty = h.new_zeros(graph.num_graphs or 0, h.shape[1])
        return empty.scatter_reduce(0, batch.unsqueeze(1).expand_as(h), h, "amax", include_self=False)
