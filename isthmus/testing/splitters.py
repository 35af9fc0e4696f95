"""What every splitter must keep to.

from isthmus.testing import check_splitter
check_splitter(MySplitter())
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.dividing import Holding, Splitter
from isthmus.data.graph import Graph, select_rows
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph
from isthmus.testing.inspection import generator_states
from isthmus.testing.toys import toy_graph


def check_splitter(
    splitter: Splitter,
    *,
    overlapping: bool = False,
    data: Holding | None = None,
    num_clients: Sequence[int] = (1, 2, 5),
    seeds: Sequence[int] = (0, 1, 2),
) -> None:
    """Split data in several ways and raise AssertionError that says which rule is broken.

    `data` is a toy graph unless given: a `Graph`, a `LinkGraph` or a `GraphSet`, with item ids from 0 on. Every client
    has an item; every item is with at least one client, with exactly one unless `overlapping`; features, labels, masks,
    attributes and weights are those of the whole (a label of several tasks may be hidden as NaN; attributes that the
    splitter names in `adds` are its own), and no edge is new;
    the same seed gives the same split; the whole and the global generators are left as they are; too many clients are
    refused.
    """
    whole: Holding = toy_graph(60, weighted=True) if data is None else data
    before = _contents(whole)
    # The first split may import libraries, and an import may draw from a generator.
    splitter.split(whole, num_clients[0], np.random.default_rng(0))
    for count in num_clients:
        for seed in seeds:
            place = f"{splitter!r} on {whole.num_items} {whole.item}s, {count} clients, seed {seed}"
            parts = _split_quietly(splitter, whole, count, seed, place)
            if _contents(whole) != before:
                raise AssertionError(f"{place}: the whole {_WORDS[whole.item]} was changed in place")
            _check_parts(whole, parts, count, overlapping, place, getattr(splitter, "adds", ()))
            again = _split_quietly(splitter, whole, count, seed, place)
            if [_contents(part) for part in parts] != [_contents(part) for part in again]:
                raise AssertionError(f"{place}: the same seed gave another split; draw from the rng that is given")
    try:
        splitter.split(whole, whole.num_items + 1, np.random.default_rng(0))
    except BadInput:
        return
    raise AssertionError(f"{splitter!r} split {whole.num_items} {whole.item}s among more clients without a BadInput")


_WORDS = {"node": "graph", "link": "graph", "graph": "set"}


def _split_quietly(splitter: Splitter, whole: Holding, count: int, seed: int, place: str) -> list[Holding]:
    before = generator_states()
    parts = splitter.split(whole, count, np.random.default_rng(seed))
    if generator_states() != before:
        raise AssertionError(f"{place}: a global generator was used; draw from the rng that is given")
    return parts


def _check_parts(
    whole: Holding, parts: list[Holding], count: int, overlapping: bool, place: str, adds: Sequence[str]
) -> None:
    if len(parts) != count:
        raise AssertionError(f"{place}: there are {len(parts)} parts")
    item = whole.item
    held = torch.zeros(whole.num_items, dtype=torch.int64)
    for client, part in enumerate(parts):
        if part.num_items == 0:
            raise AssertionError(f"{place}: client {client} has no {item}")
        if bool((part.item_ids < 0).any()) or bool((part.item_ids >= whole.num_items).any()):
            raise AssertionError(f"{place}: client {client} has {item}_ids that are not in the whole")
        if len(torch.unique(part.item_ids)) != part.num_items:
            raise AssertionError(f"{place}: client {client} holds a {item} twice")
        held[part.item_ids] += 1
        _check_nothing_invented(whole, part, f"{place}: client {client}", adds)
    if int(held.min()) == 0:
        raise AssertionError(f"{place}: {item} {int(held.argmin())} is with no client")
    if not overlapping and int(held.max()) > 1:
        raise AssertionError(f"{place}: {item} {int(held.argmax())} is with {int(held.max())} clients; expected one")


def _check_nothing_invented(whole: Holding, part: Holding, place: str, adds: Sequence[str]) -> None:
    ids = part.item_ids
    attributes = {key: value for key, value in part.attributes.items() if key not in adds}
    if type(whole) is not type(part):
        raise AssertionError(f"{place} has a {type(part).__name__}, cut from a {type(whole).__name__}")
    same = {
        "labels": _fits(whole.labels[ids], part.labels) and whole.num_classes == part.num_classes,
        "masks": _same(whole.masks, part.masks, ids),
        "attributes": _same(whole.attributes, attributes, ids),
        **_same_of_its_kind(whole, part),
    }
    for what, fits in same.items():
        if not fits:
            raise AssertionError(f"{place} has {what} other than those of its {whole.item}s in the whole")
    if isinstance(whole, Graph) and isinstance(part, Graph):
        _check_edges(whole, part, place)


def _same_of_its_kind(whole: Holding, part: Holding) -> dict[str, bool]:
    """Return of what graphs, links or sets of graphs have by themselves whether it is the whole's."""
    if isinstance(whole, LinkGraph) and isinstance(part, LinkGraph):
        return _same_links(whole, part)
    if isinstance(whole, GraphSet) and isinstance(part, GraphSet):
        return _same_graphs(whole, part)
    if isinstance(whole, Graph) and isinstance(part, Graph):
        return {"features": torch.equal(_dense(select_rows(whole.x, part.item_ids)), _dense(part.x))}
    return {}


def _same_links(whole: LinkGraph, part: LinkGraph) -> dict[str, bool]:
    nodes = part.node_ids
    return {
        "features": torch.equal(_dense(select_rows(whole.x, nodes)), _dense(part.x)),
        "attributes of nodes": _same(whole.node_attributes, part.node_attributes, nodes),
        "links": torch.equal(whole.links[:, part.item_ids], nodes[part.links]),
    }


def _same_graphs(whole: GraphSet, part: GraphSet) -> dict[str, bool]:
    (cut,) = whole.divide([part.item_ids])
    if cut.edge_attr is None or part.edge_attr is None:
        of_edges = cut.edge_attr is part.edge_attr
    else:
        of_edges = torch.equal(cut.edge_attr, part.edge_attr)
    return {
        "features": torch.equal(_dense(cut.x), _dense(part.x)) and torch.equal(cut.node_start, part.node_start),
        "edges": torch.equal(cut.edge_index, part.edge_index),
        "features of edges": of_edges,
    }


def _check_edges(whole: Graph, part: Graph, place: str) -> None:
    known = _edges(whole, whole.edge_index)
    mine = _edges(part, part.node_ids[part.edge_index])
    strange = sorted(edge for edge, weight in mine.items() if known.get(edge) != weight)
    if strange:
        raise AssertionError(f"{place} has the edge {strange[0]}, which the whole graph has not, or not so weighted")
    if len(mine) != part.num_edges:
        raise AssertionError(f"{place} has {part.num_edges - len(mine)} edges twice")
    directed = any((target, source) not in known for source, target in known)
    if not directed and any((target, source) not in mine for source, target in mine):
        raise AssertionError(f"{place} has an edge in one direction only, though the whole graph has both")


def _edges(graph: Graph, ends: Tensor) -> dict[tuple[int, int], float]:
    weights = [1.0] * graph.num_edges if graph.edge_weight is None else graph.edge_weight.tolist()
    return {(s, t): w for (s, t), w in zip(ends.t().tolist(), weights, strict=True)}


def _fits(labels: Tensor, mine: Tensor) -> bool:
    """Tell whether labels are the same; of those that are numbers, some may be hidden as NaN."""
    if labels.shape != mine.shape or labels.dtype != mine.dtype:
        return False
    return bool(((labels == mine) | torch.isnan(mine)).all())


def _same(whole: Mapping[str, Tensor], part: Mapping[str, Tensor], rows: Tensor) -> bool:
    return whole.keys() == part.keys() and all(
        torch.equal(torch.nan_to_num(value[rows], nan=-1e30), torch.nan_to_num(part[key], nan=-1e30))
        for key, value in whole.items()
    )


def _dense(x: Tensor) -> Tensor:
    return x.to_dense() if x.layout != torch.strided else x


def _contents(data: Holding) -> list[bytes]:
    """Return the bytes of all tensors of a holding, in the order of its fields."""
    found: list[Tensor] = []
    for field in dataclasses.fields(cast(Any, data)):
        value = getattr(data, field.name)
        found += [value] if isinstance(value, Tensor) else []
        found += [entry for entry in value.values() if isinstance(entry, Tensor)] if isinstance(value, Mapping) else []
    return [bytes(_dense(tensor).contiguous().reshape(-1).view(torch.uint8).numpy().data) for tensor in found]
