"""The edges between clients: lost to all of them, and kept apart for those who must know what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.data.dividing import Splitter
from isthmus.data.graph import EdgesByNode, Graph, pair_keys


@dataclass(frozen=True, eq=False)
class CrossEdges:
    """Edges of a whole graph whose ends no client holds both; no client's graph has them.

    Fields:
        edge_index:  (2, edges), int64: ids of nodes, as the clients' `node_ids`; sorted as in the whole graph
        edge_weight: (edges,), float32, or None for all ones
        num_whole:   stored (directed) edges of the whole graph
    """

    edge_index: Tensor
    edge_weight: Tensor | None
    num_whole: int

    @property
    def num_edges(self) -> int:
        """Number of stored (directed) edges between clients."""
        return int(self.edge_index.shape[1])

    @property
    def num_pairs(self) -> int:
        """Number of undirected edges between clients."""
        largest = int(self.edge_index.max()) + 1 if self.num_edges else 1
        return len(torch.unique(pair_keys(self.edge_index[0], self.edge_index[1], largest)))

    @property
    def fraction(self) -> float:
        """Share of the whole graph's stored edges that are between clients."""
        return self.num_edges / self.num_whole if self.num_whole else 0.0

    def leaving(self, part: Graph) -> CrossEdges:
        """Return those that start at a node of one client."""
        mine = torch.isin(self.edge_index[0], part.node_ids)
        weight = None if self.edge_weight is None else self.edge_weight[mine]
        return CrossEdges(self.edge_index[:, mine], weight, self.num_whole)

    def __repr__(self) -> str:
        return f"CrossEdges({self.num_edges} of {self.num_whole} directed edges)"


def cross_edges(whole: Graph, parts: Sequence[Graph]) -> CrossEdges:
    """Return the edges of `whole` whose ends no part holds both; edges removed within a part are not among them."""
    edges = EdgesByNode.of(whole.edge_index, whole.num_nodes)
    ids, order = torch.sort(whole.node_ids)
    lost = np.ones(whole.num_edges, dtype=bool)
    for part in parts:
        nodes = order[torch.searchsorted(ids, part.node_ids)]
        lost[edges.between(nodes.numpy()).column] = False
    kept = torch.from_numpy(lost)
    weight = None if whole.edge_weight is None else whole.edge_weight[kept]
    return CrossEdges(whole.node_ids[whole.edge_index[:, kept]], weight, whole.num_edges)


def split_with_cross_edges(
    splitter: Splitter, graph: Graph, num_clients: int, rng: np.random.Generator
) -> tuple[list[Graph], CrossEdges]:
    """Return the parts that `splitter.split` gives, and beside them the edges that are in none."""
    parts = splitter.split(graph, num_clients, rng)
    return parts, cross_edges(graph, parts)
