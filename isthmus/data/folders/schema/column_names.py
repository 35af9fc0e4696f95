"""What feature columns mean, by their names: whether two lists are the same, and the first differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.data.graph_set import GraphSet

# What stands before the name of a feature of edges in a list of all that a model reads.
EDGE = "edge: "
# Differences told of each kind; the first ones show what happened.
MOST_TOLD = 3


def input_names(data: Any, edges: bool = False) -> tuple[str, ...]:
    """Return what the columns that a model reads are called, in order; empty where those of nodes have no names.

    With `edges`, the features of edges in a set of graphs come after those of nodes.
    """
    names: tuple[str, ...] = data.feature_names
    if not names or not edges or not isinstance(data, GraphSet):
        return names
    return (*names, *(EDGE + name for name in data.edge_feature_names))


def names_digest(names: Sequence[str]) -> str:
    """Return a short text that differs between lists of names that differ; empty where there are no names."""
    # A letter in front, or YAML would take one in two thousand for a number.
    return "f" + hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:31] if names else ""


def feature_facts(names: Sequence[str], digest: str = "") -> dict[str, str]:
    """Return what a model file says of the columns its model reads; a digest alone where the names are not known."""
    if not names:
        return {"features": digest} if digest else {}
    return {"features": names_digest(names), "feature_names": json.dumps(list(names))}


def name_differences(own: Sequence[str], wanted: Sequence[str], theirs: str) -> list[str]:
    """Return in words where columns are not those wanted, the first of each kind; `theirs` is whose those are."""
    place = {name: number for number, name in enumerate(own)}
    there = {name: number for number, name in enumerate(wanted)}
    missing = [
        f"column {name!r} is missing, number {i + 1} of {theirs}" for name, i in there.items() if name not in place
    ]
    extra = [
        f"column {name!r} (number {i + 1}) is not among {theirs}" for name, i in place.items() if name not in there
    ]
    told = [*_first(missing), *_first(extra)]
    if told:
        return told
    moved = [
        f"column {name!r} is number {place[name] + 1} here, number {i + 1} of {theirs}"
        for name, i in there.items()
        if place[name] != i
    ]
    return _first(moved)


def _first(lines: list[str]) -> list[str]:
    rest = len(lines) - MOST_TOLD
    return lines if rest <= 0 else [*lines[:MOST_TOLD], f"{rest} more like this"]


def in_order(data: Any, wanted: Sequence[str]) -> Any:
    """Return data whose columns have the wanted names, as `input_names` tells them, in the wanted order."""
    nodes = [name for name in wanted if not name.startswith(EDGE)]
    edges = [name.removeprefix(EDGE) for name in wanted if name.startswith(EDGE)]
    if tuple(nodes) != data.feature_names:
        data = replace(data, x=_columns(data.x, data.feature_names, nodes), feature_names=tuple(nodes))
    if edges and tuple(edges) != data.edge_feature_names:
        attr = _columns(data.edge_attr, data.edge_feature_names, edges)
        data = replace(data, edge_attr=attr, edge_feature_names=tuple(edges))
    return data


def _columns(x: Tensor, names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return the columns of a matrix in another order."""
    place = {name: number for number, name in enumerate(names)}
    order = torch.tensor([place[name] for name in wanted])
    if x.layout != torch.sparse_csr:
        return x[:, order]
    new = torch.empty_like(order)
    new[order] = torch.arange(len(order))
    parts = x.to_sparse(layout=torch.sparse_coo).coalesce()
    index = torch.stack([parts.indices()[0], new[parts.indices()[1]]])
    return torch.sparse_coo_tensor(index, parts.values(), x.shape, check_invariants=False).coalesce().to_sparse_csr()
