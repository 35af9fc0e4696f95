"""Who holds what: the figures that tell one client's graph from another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.data.edges import count_pairs, pair_keys
from isthmus.data.graph import Graph


@dataclass(frozen=True)
class ClientStatistics:
    """Figures of one client's graph.

    Fields:
        num_nodes:    nodes
        num_edges:    undirected edges
        num_train:    labelled nodes of the training mask; `num_val` and `num_test` alike
        num_classes:  classes with at least one labelled node here
        label_counts: labelled nodes of each class of the whole dataset
        homophily:    share of the edges between labelled nodes that join nodes of one class, or None
    """

    num_nodes: int
    num_edges: int
    num_train: int
    num_val: int
    num_test: int
    num_classes: int
    label_counts: tuple[int, ...]
    homophily: float | None


def describe_clients(whole: Graph, parts: Sequence[Graph]) -> list[ClientStatistics]:
    """Return the figures of every client, with the classes of the whole graph."""
    return [_describe(part, whole.num_classes) for part in parts]


def _describe(part: Graph, num_classes: int) -> ClientStatistics:
    labelled = part.y >= 0
    counts = torch.bincount(part.y[labelled], minlength=num_classes)
    return ClientStatistics(
        num_nodes=part.num_nodes,
        num_edges=count_pairs(part),
        num_train=int((part.mask("train") & labelled).sum()),
        num_val=int((part.mask("val") & labelled).sum()),
        num_test=int((part.mask("test") & labelled).sum()),
        num_classes=int((counts > 0).sum()),
        label_counts=tuple(counts.tolist()),
        homophily=edge_homophily(part),
    )


def edge_homophily(graph: Graph) -> float | None:
    """Return the share of edges between labelled nodes whose ends have one class; None without such edges."""
    ends = graph.y[graph.edge_index]  # (2, edges)
    ends = ends[:, (ends >= 0).all(dim=0)]
    if ends.shape[1] == 0:
        return None
    return float((ends[0] == ends[1]).double().mean())


def missing_edge_fraction(whole: Graph, parts: Sequence[Graph]) -> float:
    """Return the share of the whole graph's undirected edges that no client holds; 0 without edges."""
    num_ids = int(whole.node_ids.max()) + 1 if whole.num_nodes else 1
    pairs = _pairs_by_id(whole, num_ids)
    if len(pairs) == 0:
        return 0.0
    held = torch.cat([_pairs_by_id(part, num_ids) for part in parts]) if parts else pairs[:0]
    return 1.0 - float(torch.isin(pairs, held).double().mean())


def _pairs_by_id(graph: Graph, num_ids: int) -> Tensor:
    ends = graph.node_ids[graph.edge_index]
    keys: Tensor = torch.unique(pair_keys(ends[0], ends[1], num_ids))
    return keys
