"""What clients hold, put together again: the graph of all their nodes and all their edges, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from isthmus.data.graph import Graph


def merged(whole: Graph, parts: Iterable[Graph]) -> Graph:
    """Return the whole graph with only those edges that some part has; nodes that no part has are in no split.

    Nodes keep their places. An edge between nodes of two parts that is in neither is lost, which is what tells this
    graph from the one that the parts were cut from.
    """
    place = torch.argsort(whole.node_ids)
    ordered = whole.node_ids[place]
    held = torch.zeros(whole.num_nodes, dtype=torch.bool)
    keys: list[Tensor] = []
    for part in parts:
        nodes = place[torch.searchsorted(ordered, part.node_ids)]
        held[nodes] = True
        ends = nodes[part.edge_index]
        keys.append(ends[0] * whole.num_nodes + ends[1])
    key = torch.unique(torch.cat(keys)) if keys else torch.empty(0, dtype=torch.int64)
    weight = whole.edge_weight
    if weight is not None:
        weight = weight[torch.searchsorted(whole.edge_index[0] * whole.num_nodes + whole.edge_index[1], key)]
    return replace(
        whole,
        edge_index=torch.stack(
            [key.div(max(whole.num_nodes, 1), rounding_mode="floor"), key % max(whole.num_nodes, 1)]
        ),
        edge_weight=weight,
        masks={split: mask & held for split, mask in whole.masks.items()},
    )
