"""Each client hosts one node, or a few, and knows who their neighbours are, as in GFL-APPNP (Wu et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.data.dividing import Held, Holding, Splitter
from isthmus.data.graph import EdgesByNode, Graph

ORDERS = ("ids", "random")


@dataclass(frozen=True)
class NodeHostsSplitter(Splitter):
    """Gives every client one node; with fewer clients than nodes, every client hosts about equally many.

    A client holds its nodes' features, samples and labels, and the ids of their neighbours: attribute "neighbors",
    (nodes, most neighbours), int64, filled up with -1. It holds no features of nodes that others host. Where edges
    have weights, "neighbor_weights" has them in the same places, filled up with 0. Set `num_clients` to the number of
    nodes for one node each: then client k hosts node k.

    Fields:
        order: clients host runs of nodes in the order of their "ids", or in "random" order
    """

    items = ("node",)
    adds: ClassVar[tuple[str, ...]] = ("neighbors", "neighbor_weights")

    order: str = "ids"

    def __post_init__(self) -> None:
        refuse(self.order not in ORDERS, self, "order", f"choose from {', '.join(ORDERS)}")

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's nodes; their numbers differ by at most one."""
        nodes = np.arange(data.num_items) if self.order == "ids" else rng.permutation(data.num_items)
        return [torch.from_numpy(np.sort(part)) for part in np.array_split(nodes, num_clients)]

    def split(self, data: Held, num_clients: int, rng: np.random.Generator) -> list[Held]:
        """Return one part for each client, with the ids of its nodes' neighbours."""
        parts = super().split(data, num_clients, rng)
        assert isinstance(data, Graph)
        edges = EdgesByNode.of(data.edge_index, data.num_nodes)
        position = {id: place for place, id in enumerate(data.node_ids.tolist())}
        return [cast(Held, _with_neighbors(data, edges, position, cast(Graph, part))) for part in parts]


def _with_neighbors(whole: Graph, edges: EdgesByNode, position: dict[int, int], part: Graph) -> Graph:
    """Return a part with the ids of its nodes' neighbours in the whole graph, and the weights of these edges."""
    rows = [position[id] for id in part.node_ids.tolist()]
    lists = [np.arange(edges.start[row], edges.start[row + 1]) for row in rows]
    width = max(map(len, lists))
    ids = torch.full((len(rows), width), -1, dtype=torch.int64)
    weights = torch.zeros(len(rows), width)
    for place, found in enumerate(lists):
        ids[place, : len(found)] = whole.node_ids[torch.from_numpy(edges.target[found])]
        if whole.edge_weight is not None:
            column = found if edges.column is None else edges.column[found]
            weights[place, : len(found)] = whole.edge_weight[torch.from_numpy(column)]
    added = {"neighbors": ids} if whole.edge_weight is None else {"neighbors": ids, "neighbor_weights": weights}
    return replace(part, attributes={**part.attributes, **added})
