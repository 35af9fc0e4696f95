"""Several holdings side by side as one, with nothing between them: what silos would have if they pooled their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.data.features import compact, sparse_rows
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph


def renumbered(parts: Sequence[Any]) -> list[Any]:
    """Return holdings of one kind whose nodes and items have ids that differ between them, as parts of one whole."""
    found, nodes, items = [], 0, 0
    for part in parts:
        ids: dict[str, Tensor] = {}
        if not isinstance(part, GraphSet):
            ids["node_ids"] = torch.arange(nodes, nodes + part.num_nodes)
        if not isinstance(part, Graph):
            name = "link_ids" if isinstance(part, LinkGraph) else "graph_ids"
            ids[name] = torch.arange(items, items + part.num_items)
        found.append(replace(part, **ids))
        nodes, items = nodes + part.num_nodes, items + part.num_items
    return found


def joined(parts: Sequence[Any], name: str) -> Any:
    """Return holdings of one kind, with the same features, as one; ids are those that `renumbered` gives them."""
    parts = renumbered(parts)
    first = parts[0]
    sizes = torch.tensor([part.num_nodes for part in parts])
    shift = (sizes.cumsum(0) - sizes).tolist()
    names = {part.class_names for part in parts}
    same: dict[str, Any] = {
        "x": _rows([part.x for part in parts]),
        "num_classes": max(part.num_classes for part in parts),
        "masks": {
            split: torch.cat([part.mask(split) for part in parts])
            for split in dict.fromkeys(split for part in parts for split in part.masks)
        },
        "attributes": {},  # what a category's number stands for is for each folder to say
        "attribute_names": {},
        "class_names": first.class_names if len(names) == 1 else (),
        "name": name,
    }
    if isinstance(first, LinkGraph):
        return replace(first, **same, **_links(parts, shift))
    edges = torch.cat([part.edge_index + by for part, by in zip(parts, shift, strict=True)], dim=1)
    if isinstance(first, Graph):
        y, ids = (torch.cat([getattr(part, field) for part in parts]) for field in ("y", "node_ids"))
        return replace(first, **same, edge_index=edges, edge_weight=_weights(parts), y=y, node_ids=ids)
    starts = [part.node_start[:-1] + by for part, by in zip(parts, shift, strict=True)]
    attr = None if any(part.edge_attr is None for part in parts) else torch.cat([part.edge_attr for part in parts])
    return replace(
        first,
        **same,
        edge_index=edges,
        node_start=torch.cat([*starts, sizes.sum()[None]]),
        y=torch.cat([part.y for part in parts]),
        graph_ids=torch.cat([part.graph_ids for part in parts]),
        edge_attr=attr,
    )


def _links(parts: Sequence[LinkGraph], shift: Sequence[int]) -> dict[str, Any]:
    named = {key for part in parts for key in part.node_attribute_names}  # numbers of categories, each part's own
    common = [key for key in parts[0].node_attributes if all(key in part.node_attributes for part in parts)]
    return {
        "links": torch.cat([part.links + by for part, by in zip(parts, shift, strict=True)], dim=1),
        "label": torch.cat([part.label for part in parts]),
        "node_ids": torch.cat([part.node_ids for part in parts]),
        "linked": _linked(parts),
        "doubtful": next((part.doubtful for part in parts if part.doubtful), ""),
        "link_ids": torch.cat([part.link_ids for part in parts]),
        "node_attributes": {
            key: torch.cat([part.node_attributes[key] for part in parts]) for key in common if key not in named
        },
        "node_attribute_names": {},
    }


def _linked(parts: Sequence[LinkGraph]) -> Tensor | None:
    """Return which pairs are links; all are, of a part that says nothing of it."""
    if all(part.linked is None for part in parts):
        return None
    return torch.cat([part.is_link.long() if part.linked is None else part.linked for part in parts])


def _weights(parts: Sequence[Graph]) -> Tensor | None:
    """Return the weights of all edges; an edge of a graph without weights has 1."""
    if all(part.edge_weight is None for part in parts):
        return None
    return torch.cat([torch.ones(p.num_edges) if p.edge_weight is None else p.edge_weight for p in parts])


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
