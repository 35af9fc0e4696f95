"""A set of small graphs with a label for each: molecules, proteins, networks of actors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from isthmus.data.dividing import Holding
from isthmus.data.graph import Graph, select_rows, spans


@dataclass(frozen=True, eq=False)
class GraphSet(Holding):
    """Many graphs, their nodes and edges one below the other; an undirected edge is stored in both directions.

    Fields: those of `Holding`, where graphs are the items, and
        edge_index:      (2, edges), int64, rows of `x`; sorted by source then target, so graph after graph
        node_start:      (graphs + 1,), int64; the nodes of graph g are those from node_start[g] to node_start[g + 1]
        y:               class of each graph, (graphs,), int64, -1 for none; or (graphs, tasks), float32, NaN for none
        target:          "class" (one of several), "binary" (tasks of yes or no) or "value" (tasks of regression)
        graph_ids:       (graphs,), int64; index of each graph in the set this one was cut from
        edge_attr:       (edges, edge features), float32, or None
        x_sizes:         where every column of `x` is a number of a category: how many each has; else empty
        edge_sizes:      the same for `edge_attr`
        edge_feature_names: names of the columns of `edge_attr`, or empty
    """

    item = "graph"
    id_field = "graph_ids"
    label_field = "y"

    x: Tensor
    edge_index: Tensor
    node_start: Tensor
    y: Tensor
    num_classes: int
    target: str
    graph_ids: Tensor
    edge_attr: Tensor | None = None
    x_sizes: tuple[int, ...] = ()
    edge_sizes: tuple[int, ...] = ()
    edge_feature_names: tuple[str, ...] = ()

    @property
    def num_edges(self) -> int:
        """Number of stored (directed) edges of all graphs together."""
        return int(self.edge_index.shape[1])

    @property
    def sizes(self) -> Tensor:
        """Number of nodes of each graph, (graphs,)."""
        return self.node_start.diff()

    @property
    def edge_start(self) -> Tensor:
        """(graphs + 1,); the edges of graph g are those from edge_start[g] to edge_start[g + 1]."""
        return torch.searchsorted(self.edge_index[0].contiguous(), self.node_start)

    def divide(self, parts: Sequence[Tensor]) -> list[GraphSet]:
        """Return the set of each part's graphs, in their order."""
        node_start, edge_start = self.node_start.numpy(), self.edge_start.numpy()
        return [self._part(graphs, node_start, edge_start) for graphs in parts]

    def _part(self, graphs: Tensor, node_start: np.ndarray, edge_start: np.ndarray) -> GraphSet:
        chosen = graphs.numpy()
        sizes = node_start[chosen + 1] - node_start[chosen]
        counts = edge_start[chosen + 1] - edge_start[chosen]
        nodes = torch.from_numpy(spans(node_start[chosen], sizes))
        edges = torch.from_numpy(spans(edge_start[chosen], counts))
        first = np.concatenate([[0], np.cumsum(sizes)])
        shift = torch.from_numpy(np.repeat(first[:-1] - node_start[chosen], counts))
        return replace(
            self,
            x=select_rows(self.x, nodes),
            edge_index=self.edge_index[:, edges] + shift,
            node_start=torch.from_numpy(first),
            edge_attr=None if self.edge_attr is None else self.edge_attr[edges],
            **self._facts_of(graphs),
        )

    def graph(self, position: int) -> Graph:
        """Return one graph by itself, its nodes without labels of their own."""
        (alone,) = self.divide([torch.tensor([position])])
        nodes = torch.arange(alone.num_nodes)
        return Graph(
            x=alone.x,
            edge_index=alone.edge_index,
            y=torch.full((alone.num_nodes,), -1),
            num_classes=0,
            node_ids=nodes,
            name=f"{self.name}[{int(self.graph_ids[position])}]",
        )

    def __repr__(self) -> str:
        size = f"{self.num_items} graphs, {self.num_nodes} nodes"
        return self._told(size, f"{self.num_features} features", f"{self.num_classes} {self.target} labels")
