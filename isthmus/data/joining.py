"""Holdings put together: side by side with nothing between them, or the parts of one graph with the edges they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.data.features import compact
from isthmus.data.graph import Graph, sparse_rows
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph


def renumbered(parts: Sequence[Any]) -> list[Any]:
    """Return holdings of one kind whose nodes and items have ids that differ between them, as parts of one whole."""
    found, nodes, items = [], 0, 0
    for part in parts:
        ids = {part.id_field: torch.arange(items, items + part.num_items)}
        if isinstance(part, LinkGraph):
            ids["node_ids"] = torch.arange(nodes, nodes + part.num_nodes)
        found.append(replace(part, **ids))
        nodes, items = nodes + part.num_nodes, items + part.num_items
    return found


def joined(parts: Sequence[Any], name: str) -> Any:
    """Return holdings of one kind, with the same features, as one; ids are those that `renumbered` gives them."""
    parts = renumbered(parts)
    if isinstance(parts[0], LinkGraph):
        own = _links(parts)
    elif isinstance(parts[0], Graph):
        weight = _or_ones([part.edge_weight for part in parts], [torch.ones(part.num_edges) for part in parts])
        own = {"edge_index": shifted(parts, "edge_index"), "edge_weight": weight}
    else:
        own = joined_edges(parts)
    return replace(parts[0], **_shared(parts), **own, name=name)


def _below(parts: Sequence[Any], field: str) -> Tensor:
    return torch.cat([getattr(part, field) for part in parts])


def shifted(parts: Sequence[Any], field: str) -> Tensor:
    """Return pairs of nodes, (2, pairs), by the places that nodes have among those of all parts."""
    sizes = torch.tensor([part.num_nodes for part in parts])
    shift = (sizes.cumsum(0) - sizes).tolist()
    return torch.cat([getattr(part, field) + by for part, by in zip(parts, shift, strict=True)], dim=1)


def _shared(parts: Sequence[Any]) -> dict[str, Any]:
    """Return what holdings of every kind have."""
    names = {part.class_names for part in parts}
    splits = dict.fromkeys(split for part in parts for split in part.masks)
    return {
        **{field: _below(parts, field) for field in (parts[0].id_field, parts[0].label_field)},
        "x": _rows([part.x for part in parts]),
        "num_classes": max(part.num_classes for part in parts),
        "masks": {split: torch.cat([part.mask(split) for part in parts]) for split in splits},
        "attributes": {},  # what a category's number stands for is for each folder to say
        "attribute_names": {},
        "class_names": parts[0].class_names if len(names) == 1 else (),
    }


def joined_edges(parts: Sequence[GraphSet]) -> dict[str, Any]:
    """Return the edges of sets one below the other, and where each graph begins, by the names of a set's fields."""
    bare = any(part.edge_attr is None for part in parts)
    return {
        "edge_index": shifted(parts, "edge_index"),
        "edge_attr": None if bare else _below(parts, "edge_attr"),
        "node_start": torch.cat([torch.zeros(1, dtype=torch.int64), _below(parts, "sizes").cumsum(0)]),
    }


def _links(parts: Sequence[LinkGraph]) -> dict[str, Any]:
    return {
        "links": shifted(parts, "links"),
        "node_ids": _below(parts, "node_ids"),
        "linked": _or_ones([part.linked for part in parts], [part.is_link.long() for part in parts]),
        "doubtful": next((part.doubtful for part in parts if part.doubtful), ""),
        "node_attributes": _node_attributes(parts),
        "node_attribute_names": {},
    }


def _node_attributes(parts: Sequence[LinkGraph]) -> dict[str, Tensor]:
    """Return what all parts say of their nodes, but for numbers of categories, which are each part's own."""
    named = {key for part in parts for key in part.node_attribute_names}
    shared = [key for key in parts[0].node_attributes if all(key in part.node_attributes for part in parts)]
    return {key: torch.cat([part.node_attributes[key] for part in parts]) for key in shared if key not in named}


def _or_ones(values: Sequence[Tensor | None], ones: Sequence[Tensor]) -> Tensor | None:
    """Return what some parts say one below the other, with ones for a part that says nothing; None where all do."""
    if all(value is None for value in values):
        return None
    return torch.cat([one if value is None else value for value, one in zip(values, ones, strict=True)])


def _rows(blocks: Sequence[Tensor]) -> Tensor:
    """Return features one below the other."""
    if any(block.layout != torch.sparse_csr for block in blocks):
        return compact(torch.cat([block.to_dense() for block in blocks]))
    entries = torch.tensor([len(block.values()) for block in blocks])
    before = (entries.cumsum(0) - entries).tolist()
    start = [block.crow_indices()[:-1] + by for block, by in zip(blocks, before, strict=True)]
    return sparse_rows(
        torch.cat([*start, entries.sum()[None]]),
        torch.cat([block.col_indices() for block in blocks]),
        torch.cat([block.values() for block in blocks]),
        (sum(block.shape[0] for block in blocks), blocks[0].shape[1]),
    )


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
