"""What a client holds: one attributed graph with labels and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from isthmus.data.cuts import EdgesByNode, spans


@dataclass(frozen=True, eq=False)
class Graph:
    """An attributed graph; an undirected edge is stored in both directions, once each; no self-loops.

    Fields:
        x:           features, (nodes, features), float32; dense, or `torch.sparse_csr` when few are set
        edge_index:  (2, edges), int64, sorted by source then target
        y:           class of each node, (nodes,), int64; -1 where there is no label
        num_classes: number of classes of the whole dataset, also where a client sees only some
        node_ids:    (nodes,), int64; index of each node in the graph this one was cut from
        masks:       boolean (nodes,) for each of "train", "val", "test" that is set
        edge_weight: (edges,), float32, or None for all ones
        attributes:  further facts per node, (nodes,) or (nodes, ...), for splitters that go by attribute
        attribute_names: names of the categories of attributes that are numbers of categories
        class_names: names of the classes, or empty
        name:        name of the dataset
        feature_names: names of the feature columns, or empty
    """

    item: ClassVar[str] = "node"

    x: Tensor
    edge_index: Tensor
    y: Tensor
    num_classes: int
    node_ids: Tensor
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    edge_weight: Tensor | None = None
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    attribute_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    name: str = ""
    feature_names: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.x.shape[0])

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return int(self.x.shape[1])

    @property
    def num_edges(self) -> int:
        """Number of stored (directed) edges: twice the number of undirected ones."""
        return int(self.edge_index.shape[1])

    @property
    def num_items(self) -> int:
        """Number of nodes: what is divided among clients."""
        return self.num_nodes

    @property
    def item_ids(self) -> Tensor:
        """The nodes' ids."""
        return self.node_ids

    @property
    def labels(self) -> Tensor:
        """The nodes' classes."""
        return self.y

    def mask(self, split: str) -> Tensor:
        """Boolean (nodes,) mask of a split; all False when the split is not set."""
        if split in self.masks:
            return self.masks[split]
        return torch.zeros(self.num_nodes, dtype=torch.bool)

    def with_masks(self, masks: Mapping[str, Tensor]) -> Graph:
        """Return the same graph with other masks."""
        return replace(self, masks=dict(masks))

    def subgraph(self, nodes: Tensor) -> Graph:
        """Return the graph induced by `nodes` (int64 indices, without repetition), in their order."""
        position = torch.full((self.num_nodes,), -1, dtype=torch.int64)
        position[nodes] = torch.arange(len(nodes))
        ends = position[self.edge_index]  # (2, edges)
        kept = (ends >= 0).all(dim=0)
        edge_index = ends[:, kept]
        order = torch.argsort(edge_index[0] * max(len(nodes), 1) + edge_index[1])
        weight = None if self.edge_weight is None else self.edge_weight[kept][order]
        return self._part(nodes, edge_index[:, order], weight)

    def divide(self, parts: Sequence[Tensor]) -> list[Graph]:
        """Return `subgraph(nodes)` for each of many `parts`, which may overlap.

        `subgraph` looks at every edge of the graph; here, each part looks only at the edges of its own nodes.
        """
        edges = EdgesByNode.of(self.edge_index, self.num_nodes)
        graphs = []
        for nodes in parts:
            ends, column = edges.between(nodes.numpy())
            weight = None if self.edge_weight is None else self.edge_weight[torch.from_numpy(column)]
            graphs.append(self._part(nodes, torch.from_numpy(ends), weight))
        return graphs

    def _part(self, nodes: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Graph:
        """Return the given nodes with what belongs to them, and edges between their positions."""
        return replace(
            self,
            x=select_rows(self.x, nodes),
            edge_index=edge_index,
            edge_weight=edge_weight,
            y=self.y[nodes],
            node_ids=self.node_ids[nodes],
            masks={split: mask[nodes] for split, mask in self.masks.items()},
            attributes={key: value[nodes] for key, value in self.attributes.items()},
        )

    def __repr__(self) -> str:
        marks = ", ".join(f"{split}={int(mask.sum())}" for split, mask in self.masks.items())
        return (
            f"Graph({self.name or 'unnamed'}: {self.num_nodes} nodes, {self.num_edges} directed edges, "
            f"{self.num_features} features, {self.num_classes} classes{', ' + marks if marks else ''})"
        )


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return the given rows of a dense or sparse CSR matrix, in the same layout."""
    if x.layout != torch.sparse_csr:
        return x.index_select(0, rows)
    # Small torch calls cost more than small numpy ones, and `repeat_interleave` waits for all threads each time.
    start = x.crow_indices().numpy()
    first = start[rows.numpy()]
    length = start[rows.numpy() + 1] - first
    crow = np.zeros(len(length) + 1, dtype=np.int64)
    np.cumsum(length, out=crow[1:])
    entries = torch.from_numpy(spans(first, length))
    return torch.sparse_csr_tensor(
        torch.from_numpy(crow),
        x.col_indices()[entries],
        x.values()[entries],
        (len(rows), x.shape[1]),
        check_invariants=False,
    )
