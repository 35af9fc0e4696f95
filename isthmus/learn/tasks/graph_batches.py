"""Some graphs of a set side by side, as models read them: cut from the set's arrays, without a loop over graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.graph import select_rows, spans
from isthmus.data.graph_set import GraphSet
from isthmus.models.encoders import dense_indicators, indicators, places
from isthmus.models.inputs import GraphInput
from isthmus.models.products.sparse import Features

# Nodes and edges that are looked at together where nothing is learnt, about; larger blocks leave the cache.
BLOCK_ROWS = 8_192


class GraphPile:
    """A set of graphs from which batches are cut.

    Columns that are numbers of categories become indicators, one column for each category: sparse features of nodes,
    and features of edges of one byte each. So a first linear layer, of whatever model, adds up embeddings.
    """

    def __init__(self, data: GraphSet) -> None:
        self.data = data
        self._node_start = data.node_start.cpu().numpy()
        self._edge_start = data.edge_start.cpu().numpy()
        self._sizes = np.diff(self._node_start)
        self._counts = np.diff(self._edge_start)

    @cached_property
    def node_places(self) -> Tensor:
        """Where the ones of each node's indicators are, (nodes, columns)."""
        return _places(self.data.x, self.data.x_sizes, f"the nodes of {self.data.name!r}")

    @cached_property
    def edge_places(self) -> Tensor:
        """Where the ones of each edge's indicators are, (edges, columns)."""
        assert self.data.edge_attr is not None
        return _places(self.data.edge_attr, self.data.edge_sizes, f"the edges of {self.data.name!r}")

    def batch(self, graphs: Tensor) -> GraphInput:
        """Return the graphs at these positions, in this order, side by side."""
        chosen, device = graphs.cpu().numpy(), self.data.x.device
        sizes, counts = self._sizes[chosen], self._counts[chosen]
        first = np.cumsum(sizes) - sizes  # of each graph's nodes, in the batch
        nodes = torch.from_numpy(spans(self._node_start[chosen], sizes)).to(device)
        edges = torch.from_numpy(spans(self._edge_start[chosen], counts)).to(device)
        shift = torch.from_numpy(np.repeat(first - self._node_start[chosen], counts)).to(device)
        return GraphInput(
            x=self._features(nodes),
            edge_index=self.data.edge_index.index_select(1, edges) + shift,
            batch=torch.from_numpy(np.repeat(np.arange(len(chosen)), sizes)).to(device),
            num_graphs=len(chosen),
            edge_attr=self._edge_features(edges),
        )

    def blocks(self, graphs: Tensor) -> Iterator[GraphInput]:
        """Yield the graphs at these positions, in this order, in batches of about `BLOCK_ROWS` nodes and edges."""
        for part in self.cut(graphs):
            yield self.batch(part)

    def cut(self, graphs: Tensor, most: int | None = None) -> list[Tensor]:
        """Return these positions in runs of at most `most` nodes and edges, or `BLOCK_ROWS`; a larger graph alone."""
        most = BLOCK_ROWS if most is None else most
        chosen = graphs.cpu().numpy()
        ends = np.cumsum(self._sizes[chosen] + self._counts[chosen])
        parts, start = [], 0
        while start < len(chosen):
            before = ends[start - 1] if start else 0
            end = max(int(np.searchsorted(ends, before + most, side="right")), start + 1)
            parts.append(graphs[start:end])
            start = end
        return parts

    def _features(self, nodes: Tensor) -> Features:
        if self.data.x_sizes:
            return indicators(self.node_places.index_select(0, nodes), sum(self.data.x_sizes))
        return select_rows(self.data.x, nodes)

    def _edge_features(self, edges: Tensor) -> Tensor | None:
        if self.data.edge_attr is None:
            return None
        if self.data.edge_sizes:
            return dense_indicators(self.edge_places.index_select(0, edges), sum(self.data.edge_sizes))
        return self.data.edge_attr.index_select(0, edges)


def _places(codes: Tensor, sizes: tuple[int, ...], what: str) -> Tensor:
    try:
        return places(codes, sizes, what)
    except ValueError as error:
        raise BadInput(str(error)) from None
