"""Readouts: one representation for each graph, from those of its nodes; a graph without nodes gets zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Part, require_count
from isthmus.models.products.affine import affine
from isthmus.models.products.sparse import Features, dense


class ReadoutSpec(Protocol):
    """What describes a readout: a frozen dataclass with `out_dim` and `build`."""

    def out_dim(self, in_dim: int) -> int:
        """Return the width of a graph's representation, for nodes' of width `in_dim`."""

    def build(self, in_dim: int) -> Part:
        """Return the module, from (nodes, in_dim) to (graphs, out_dim)."""


class SumPool(Part):
    """The module of `SumReadout`."""

    mean = False

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (graphs, dim)."""
        return graph.pooling(self.mean).matmul(dense(h))


class MeanPool(SumPool):
    """The module of `MeanReadout`."""

    mean = True


class MaxPool(Part):
    """The module of `MaxReadout`."""

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (graphs, dim)."""
        h = dense(h)
        empty = h.new_zeros(graph.num_graphs or 0, h.shape[1])
        return empty.scatter_reduce(0, graph.graph_of.unsqueeze(1).expand_as(h), h, "amax", include_self=False)


@dataclass(frozen=True)
class PoolReadout:
    """One number out of each column of a graph's nodes, as `module` has it."""

    module: ClassVar[type[Part]]

    def out_dim(self, in_dim: int) -> int:
        """Return the nodes' width."""
        return in_dim

    def build(self, in_dim: int) -> Part:
        """Return the module."""
        return self.module()


class MeanReadout(PoolReadout):
    """The mean over a graph's nodes."""

    module = MeanPool


class SumReadout(PoolReadout):
    """The sum over a graph's nodes, which keeps their number (Xu et al., 2019)."""

    module = SumPool


class MaxReadout(PoolReadout):
    """The largest value of each column over a graph's nodes."""

    module = MaxPool


@dataclass(frozen=True)
class Set2SetReadout:
    """A query attends to the nodes of its graph, and an LSTM makes the next query of what it found.

        q_t   = LSTM(q*_{t-1})                              q*_0 = 0, and so is the LSTM's memory
        a_it  = softmax over the graph's nodes i of <h_i, q_t>
        r_t   = sum_i a_it h_i
        q*_t  = [q_t, r_t]

    The graph's representation is q* of the last step, twice as wide as the nodes'. A graph without nodes has r = 0.

    Fields:
        steps: how often the nodes are looked at
    """

    steps: int = 3

    def __post_init__(self) -> None:
        require_count("steps", self.steps)

    def out_dim(self, in_dim: int) -> int:
        """Return twice the nodes' width."""
        return 2 * in_dim

    def build(self, in_dim: int) -> Set2Set:
        """Return the module."""
        return Set2Set(in_dim, self.steps)


class Set2Set(Part):
    """The module of `Set2SetReadout`."""

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.dim, self.steps = dim, steps
        self.lstm = nn.LSTMCell(2 * dim, dim)

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (graphs, 2 dim)."""
        h = dense(h)
        pool = graph.pooling(mean=False)  # (graphs, nodes)
        batch = graph.graph_of
        num_graphs = graph.num_graphs or 0
        query = memory = h.new_zeros(num_graphs, self.dim)
        star = h.new_zeros(num_graphs, 2 * self.dim)
        for _ in range(self.steps):
            query, memory = self._next(star, query, memory)
            score = (h * query.index_select(0, batch)).sum(dim=1)  # (nodes,)
            # Softmax within each graph; the greatest score is taken off first, so that no exponential overflows.
            greatest = (
                score.detach().new_full((num_graphs,), -torch.inf).scatter_reduce(0, batch, score.detach(), "amax")
            )
            weight = (score - greatest.index_select(0, batch)).exp().unsqueeze(1)  # (nodes, 1), one of a graph's is 1
            total = pool.matmul(weight).clamp(min=1.0)  # at least 1 but for a graph without nodes
            star = torch.cat([query, pool.matmul(weight * h) / total], dim=1)
        return star

    def _next(self, star: Tensor, query: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the LSTM's output and memory; weights of many clients each read their own rows."""
        cell = self.lstm
        if cell.weight_ih.ndim == 2:
            found: tuple[Tensor, Tensor] = cell(star, (query, memory))
            return found
        read = affine(star, cell.weight_ih.transpose(1, 2), cell.bias_ih)
        gates = read + affine(query, cell.weight_hh.transpose(1, 2), cell.bias_hh)
        take, keep, new, give = gates.chunk(4, dim=1)  # (graphs, dim) each, in the order of `torch.nn.LSTM`
        memory = keep.sigmoid() * memory + take.sigmoid() * new.tanh()
        return give.sigmoid() * memory.tanh(), memory

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{self.dim}, steps={self.steps}"
