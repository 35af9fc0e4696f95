"""Readouts: one representation for each graph, from those of its nodes; a graph without nodes gets zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Part
from isthmus.models.sparse import Features, dense


class ReadoutSpec(Protocol):
    """What describes a readout: a frozen dataclass with `build`."""

    def build(self) -> Part:
        """Return the module, from (nodes, dim) to (graphs, dim)."""


@dataclass(frozen=True)
class MeanReadout:
    """The mean over a graph's nodes."""

    def build(self) -> MeanPool:
        """Return the module."""
        return MeanPool()


@dataclass(frozen=True)
class SumReadout:
    """The sum over a graph's nodes, which keeps their number (Xu et al., 2019)."""

    def build(self) -> SumPool:
        """Return the module."""
        return SumPool()


@dataclass(frozen=True)
class MaxReadout:
    """The largest value of each column over a graph's nodes."""

    def build(self) -> MaxPool:
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
