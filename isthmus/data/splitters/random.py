"""Nodes go to clients at random, as in FedGL (Chen et al., 2021) and FS-G (Wang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.edges import remove_pairs
from isthmus.data.graph import Graph
from isthmus.data.splitters.splitter import Splitter


@dataclass(frozen=True)
class RandomSplitter(Splitter):
    """Splits the nodes at random, with or without intersections.

    Of N nodes, round(overlap_fraction * N) drawn at random are held by every client; the others are divided
    at random without overlap, in parts whose sizes differ by at most one.

    With `shares`, each client instead draws max(1, round(share * N)) nodes without regard to the others; a
    node that nobody drew goes to one client at random, so that no node is lost.

    Fields:
        overlap_fraction:      share of all nodes that every client holds
        removed_edge_fraction: share of each client's undirected edges that is removed at random
        shares:                share of all nodes for each client, in place of overlap_fraction
    """

    overlap_fraction: float = 0.0
    removed_edge_fraction: float = 0.0
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for field in ("overlap_fraction", "removed_edge_fraction"):
            if not 0.0 <= getattr(self, field) <= 1.0:
                raise ValueError(f"{field} is {getattr(self, field)!r}; a fraction lies between 0 and 1")
        if self.shares is None:
            return
        wrong = [share for share in self.shares if not 0.0 < share <= 1.0]
        if wrong or not self.shares:
            raise ValueError(f"shares is {self.shares!r}; a share lies above 0 and is at most 1, one for each client")
        if self.overlap_fraction > 0.0:
            raise ValueError(
                f"overlap_fraction is {self.overlap_fraction!r} and shares is {self.shares!r}; only one of "
                "them can say how clients overlap"
            )

    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's nodes."""
        if self.shares is not None:
            return self._sample(self.shares, graph.num_nodes, num_clients, rng)
        order = torch.from_numpy(rng.permutation(graph.num_nodes))
        num_common = round(self.overlap_fraction * graph.num_nodes)
        own = torch.tensor_split(order[num_common:], num_clients)
        return [torch.cat([order[:num_common], part]).sort().values for part in own]

    def after_cut(self, part: Graph, rng: np.random.Generator) -> Graph:
        """Return a client's graph without the share of edges that is removed."""
        return remove_pairs(part, self.removed_edge_fraction, rng) if self.removed_edge_fraction > 0.0 else part

    @staticmethod
    def _sample(shares: tuple[float, ...], num_nodes: int, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        if len(shares) != num_clients:
            raise BadInput(
                f"splitter 'random': shares has {len(shares)} numbers, {shares!r}, but num_clients is "
                f"{num_clients}; give one share for each client"
            )
        drawn = [rng.choice(num_nodes, max(1, round(share * num_nodes)), replace=False) for share in shares]
        left_over = np.ones(num_nodes, dtype=bool)
        for nodes in drawn:
            left_over[nodes] = False
        owner = rng.integers(num_clients, size=np.count_nonzero(left_over))
        given = np.flatnonzero(left_over)[np.argsort(owner, kind="stable")]
        extra = np.split(given, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])
        return [torch.from_numpy(np.sort(np.concatenate(both))) for both in zip(drawn, extra, strict=True)]
