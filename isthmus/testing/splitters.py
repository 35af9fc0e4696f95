"""What every splitter must keep to.

from isthmus.testing import check_splitter
check_splitter(MySplitter())
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph, select_rows
from isthmus.data.splitters import Splitter
from isthmus.testing.inspection import generator_states
from isthmus.testing.toys import toy_graph


def check_splitter(
    splitter: Splitter,
    *,
    overlapping: bool = False,
    graph: Graph | None = None,
    num_clients: Sequence[int] = (1, 2, 5),
    seeds: Sequence[int] = (0, 1, 2),
) -> None:
    """Split a graph in several ways and raise AssertionError that says which rule is broken.

    Every client has a node; every node is with at least one client, with exactly one unless `overlapping`; features,
    labels, masks and weights are those of the whole graph, and no edge is new; the same seed gives the same split; the
    whole graph and the global generators are left as they are; too many clients are refused.
    """
    whole = toy_graph(60, weighted=True) if graph is None else graph
    for count in num_clients:
        for seed in seeds:
            place = f"{splitter!r} on {whole.num_nodes} nodes, {count} clients, seed {seed}"
            before = _contents(whole)
            parts = _split_quietly(splitter, whole, count, seed, place)
            if _contents(whole) != before:
                raise AssertionError(f"{place}: the whole graph was changed in place")
            _check_parts(whole, parts, count, overlapping, place)
            again = _split_quietly(splitter, whole, count, seed, place)
            if [_contents(part) for part in parts] != [_contents(part) for part in again]:
                raise AssertionError(f"{place}: the same seed gave another split; draw from the rng that is given")
    try:
        splitter.split(whole, whole.num_nodes + 1, np.random.default_rng(0))
    except BadInput:
        return
    raise AssertionError(f"{splitter!r} split {whole.num_nodes} nodes among more clients without a BadInput")


def _split_quietly(splitter: Splitter, whole: Graph, count: int, seed: int, place: str) -> list[Graph]:
    before = generator_states()
    parts = splitter.split(whole, count, np.random.default_rng(seed))
    if generator_states() != before:
        raise AssertionError(f"{place}: a global generator was used; draw from the rng that is given")
    return parts


def _check_parts(whole: Graph, parts: list[Graph], count: int, overlapping: bool, place: str) -> None:
    if len(parts) != count:
        raise AssertionError(f"{place}: there are {len(parts)} parts")
    held = torch.zeros(whole.num_nodes, dtype=torch.int64)
    for client, part in enumerate(parts):
        if part.num_nodes == 0:
            raise AssertionError(f"{place}: client {client} has no node")
        if bool((part.node_ids < 0).any()) or bool((part.node_ids >= whole.num_nodes).any()):
            raise AssertionError(f"{place}: client {client} has node_ids that are not in the graph")
        if len(torch.unique(part.node_ids)) != part.num_nodes:
            raise AssertionError(f"{place}: client {client} holds a node twice")
        held[part.node_ids] += 1
        _check_nothing_invented(whole, part, f"{place}: client {client}")
    if int(held.min()) == 0:
        raise AssertionError(f"{place}: node {int(held.argmin())} is with no client")
    if not overlapping and int(held.max()) > 1:
        raise AssertionError(f"{place}: node {int(held.argmax())} is with {int(held.max())} clients; expected one")


def _check_nothing_invented(whole: Graph, part: Graph, place: str) -> None:
    ids = part.node_ids
    same = {
        "features": torch.equal(_dense(select_rows(whole.x, ids)), _dense(part.x)),
        "labels": torch.equal(whole.y[ids], part.y) and whole.num_classes == part.num_classes,
        "masks": whole.masks.keys() == part.masks.keys()
        and all(torch.equal(mask[ids], part.masks[split]) for split, mask in whole.masks.items()),
        "attributes": whole.attributes.keys() == part.attributes.keys()
        and all(torch.equal(value[ids], part.attributes[key]) for key, value in whole.attributes.items()),
    }
    for what, fits in same.items():
        if not fits:
            raise AssertionError(f"{place} has {what} other than those of its nodes in the whole graph")
    known = _edges(whole, whole.edge_index)
    mine = _edges(part, ids[part.edge_index])
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


def _dense(x: Tensor) -> Tensor:
    return x.to_dense() if x.layout != torch.strided else x


def _contents(graph: Graph) -> list[bytes]:
    tensors = [_dense(graph.x), graph.edge_index, graph.y, graph.node_ids, *graph.masks.values()]
    tensors += [graph.edge_weight] if graph.edge_weight is not None else []
    return [bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data) for tensor in tensors]
