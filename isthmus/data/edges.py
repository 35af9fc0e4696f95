"""Edge lists as `Graph` stores them: both directions of each undirected edge, sorted, no self-loops."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from isthmus.data.graph import Graph

AnyGraph = TypeVar("AnyGraph", bound=Graph)


def directed(edge_index: Tensor, num_nodes: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the edges sorted by source then target, each once, no self-loops; the first weight counts."""
    distinct = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, distinct]
    key = edge_index[0] * num_nodes + edge_index[1]
    if weight is None:
        kept = torch.unique(key, sorted=True)
    else:
        kept, order = torch.sort(key, stable=True)
        first = torch.ones_like(kept, dtype=torch.bool)
        first[1:] = kept[1:] != kept[:-1]
        kept, weight = kept[first], weight[distinct][order][first]
    return torch.stack([kept // max(num_nodes, 1), kept % max(num_nodes, 1)]), weight


def undirected_pairs(edge_index: Tensor, num_nodes: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return each undirected edge once, smaller end first, sorted; the first weight of either way counts."""
    low, high = torch.minimum(edge_index[0], edge_index[1]), torch.maximum(edge_index[0], edge_index[1])
    return directed(torch.stack([low, high]), num_nodes, weight)


def undirected(edge_index: Tensor, num_nodes: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the edges in both directions, sorted, each once, no self-loops; the first weight counts."""
    pairs, weight = undirected_pairs(edge_index, num_nodes, weight)
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    return directed(both, num_nodes, None if weight is None else torch.cat([weight, weight]))


def pair_keys(first: Tensor, second: Tensor, num_ids: int) -> Tensor:
    """Return one number for each edge, the same for both directions; ids lie below `num_ids`."""
    return torch.minimum(first, second) * num_ids + torch.maximum(first, second)


def count_pairs(graph: Graph) -> int:
    """Return the number of undirected edges."""
    return len(torch.unique(pair_keys(graph.edge_index[0], graph.edge_index[1], graph.num_nodes)))


def remove_pairs(graph: AnyGraph, fraction: float, rng: np.random.Generator) -> AnyGraph:
    """Return the graph without a random `fraction` of its undirected edges, rounded to whole edges."""
    keys = pair_keys(graph.edge_index[0], graph.edge_index[1], graph.num_nodes)
    pairs, pair_of = torch.unique(keys, return_inverse=True)
    num_removed = round(fraction * len(pairs))
    if num_removed == 0:
        return graph
    kept = torch.ones(len(pairs), dtype=torch.bool)
    kept[torch.from_numpy(rng.choice(len(pairs), num_removed, replace=False))] = False
    edges = kept[pair_of]  # (edges,)
    return replace(
        graph,
        edge_index=graph.edge_index[:, edges],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[edges],
    )
