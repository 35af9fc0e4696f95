"""Who holds what: the figures that tell one client's data from another's, and how far clients are from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.core.random import numpy_generator
from isthmus.data.conventions import SPLITS
from isthmus.data.dividing import Holding
from isthmus.data.graph import Graph, pair_keys, undirected
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph, item_word
from isthmus.data.on_demand import sparse
from isthmus.data.survey.walks import embed

Matrix = npt.NDArray[np.int64]

QUARTERS = ("lowest quarter", "second quarter", "third quarter", "highest quarter")


@dataclass(frozen=True)
class ClientStatistics:
    """Figures of one client's data. An item is a node, a link or a graph, whichever the data is divided by.

    Fields:
        num_items:     items
        num_nodes:     nodes; of all graphs together, where items are graphs
        num_edges:     pairs of nodes that an edge or link joins, either way; a node's edge to itself does not count
        num_features:  feature columns of the nodes
        num_train:     labelled items of the training mask; `num_val` and `num_test` alike
        num_classes:   classes with at least one labelled item here
        label_counts:  labelled items of each class of the whole dataset, as `Labels.names` has them
        mean_degree:   neighbours of a node, on average
        homophily:     share of the edges between labelled nodes that join nodes of one class, or None
        degree_counts: nodes with 0 neighbours, with 1, with 2, and so on to the largest degree
        num_links:     items that are links, and not told to be none; None where items are nodes or graphs
    """

    num_items: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_train: int
    num_val: int
    num_test: int
    num_classes: int
    label_counts: tuple[int, ...]
    mean_degree: float
    homophily: float | None
    degree_counts: tuple[int, ...]
    num_links: int | None = None


@dataclass(frozen=True, eq=False)
class Labels:
    """How the labels of a dataset are counted: a class each, or several tasks for an item.

    Tasks of yes or no count their two answers apart; tasks of numbers count the quarters of the whole dataset.

    Fields:
        names:   one for each count
        kind:    "class", "binary" or "value"
        borders: (3, tasks) quartiles of the whole dataset's numbers, for the kind "value"
    """

    names: tuple[str, ...]
    kind: str
    borders: Tensor | None = None

    @staticmethod
    def of(whole: Holding) -> Labels:
        """Return how the whole dataset's labels are counted."""
        kind = whole.target if isinstance(whole, GraphSet) and whole.labels.dim() > 1 else "class"
        if kind == "class":
            return Labels(whole.named_classes, kind)
        answers = ("no", "yes") if kind == "binary" else QUARTERS
        names = tuple(f"{name}: {answer}" for name in whole.named_classes for answer in answers)
        if kind == "binary":
            return Labels(names, kind)
        borders = torch.nanquantile(whole.labels.double(), torch.tensor([0.25, 0.5, 0.75]).double(), dim=0)
        return Labels(names, kind, borders)

    def counts(self, part: Holding) -> Tensor:
        """Return how many labels of each name a part has, (names,), int64."""
        labels = part.labels
        if self.kind == "class":
            return torch.bincount(labels[labels >= 0], minlength=len(self.names))
        tasks = torch.arange(labels.shape[1])
        if self.borders is None:
            number = 2 * tasks + (labels > 0.5)
        else:
            number = len(QUARTERS) * tasks + (labels.double() > self.borders[:, None]).sum(dim=0)
        return torch.bincount(number[~labels.isnan()], minlength=len(self.names))


def describe_clients(whole: Holding, parts: Sequence[Holding]) -> list[ClientStatistics]:
    """Return the figures of every client, with the classes of the whole dataset."""
    labels = Labels.of(whole)
    return [_describe(part, labels) for part in parts]


def _describe(part: Holding, labels: Labels) -> ClientStatistics:
    counts = labels.counts(part)
    edge_index, num_nodes = simple_edges(part)
    degree = torch.bincount(edge_index[0], minlength=num_nodes)
    labelled = part.labels >= 0 if part.labels.dim() == 1 else (~part.labels.isnan()).any(dim=1)
    train, val, test = (int((part.mask(split) & labelled).sum()) for split in SPLITS)
    return ClientStatistics(
        num_items=part.num_items,
        num_nodes=num_nodes,
        num_edges=edge_index.shape[1] // 2,
        num_features=part.num_features,
        num_train=train,
        num_val=val,
        num_test=test,
        num_classes=int((counts > 0).sum()),
        label_counts=tuple(counts.tolist()),
        mean_degree=edge_index.shape[1] / max(num_nodes, 1),
        homophily=edge_homophily(part) if isinstance(part, Graph) else None,
        degree_counts=tuple(torch.bincount(degree).tolist()),
        num_links=int(part.is_link.sum()) if isinstance(part, LinkGraph) else None,
    )


def simple_edges(part: Holding) -> tuple[Tensor, int]:
    """Return the edges beneath a client's data, both ways, sorted, without loops or repetition; and how many nodes.

    Those of a link graph are the pairs that any link joins; those of a set of graphs are of all graphs together.
    """
    if not isinstance(part, Graph | LinkGraph | GraphSet):
        raise BadInput(f"{part!r} is a {type(part).__name__}; known: Graph, GraphSet, LinkGraph")
    ends = part.links[:, part.is_link] if isinstance(part, LinkGraph) else part.edge_index
    return undirected(ends, part.num_nodes)[0], part.num_nodes


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
    return _missing(_pairs_by_id(whole, num_ids), [_pairs_by_id(part, num_ids) for part in parts])


def missing_item_fraction(whole: Holding, parts: Sequence[Holding]) -> float:
    """Return the share of the whole dataset's items that no client holds; 0 without items."""
    return _missing(whole.item_ids, [part.item_ids for part in parts])


def _missing(ids: Tensor, held: Sequence[Tensor]) -> float:
    return 1.0 - float(torch.isin(ids, torch.cat([ids[:0], *held])).double().mean()) if len(ids) else 0.0


def overlap_matrix(ids: Sequence[Tensor]) -> Matrix:
    """Return how many ids each two clients share, (clients, clients); the diagonal has how many each holds."""
    held = [np.unique(each.numpy()) for each in ids]
    _, column = np.unique(np.concatenate([np.empty(0, np.int64), *held]), return_inverse=True)
    start = np.concatenate([[0], np.cumsum([len(each) for each in held])]).astype(np.int64)
    ones = np.ones(len(column), dtype=np.int64)
    who_holds_what = sparse.csr_matrix((ones, column, start), shape=(len(held), int(column.max(initial=-1)) + 1))
    shared: Matrix = (who_holds_what @ who_holds_what.T).toarray()
    return shared


def _pairs_by_id(graph: Graph, num_ids: int) -> Tensor:
    ends = graph.node_ids[graph.edge_index]
    keys: Tensor = torch.unique(pair_keys(ends[0], ends[1], num_ids))
    return keys


Shares = npt.NDArray[np.float64]

SMOOTHING = 1.0  # labels added to each class where a divergence would be infinite without


@dataclass(frozen=True, eq=False)
class Divergences:
    """A measure between each two clients and from each client to the whole; NaN where one of them has nothing to count.

    Fields:
        between:  (clients, clients), from the row's client to the column's
        to_whole: (clients,)
    """

    between: Shares
    to_whole: Shares

    @property
    def mean(self) -> float | None:
        """Mean over pairs of different clients, or None without a pair."""
        return _over(np.mean, self._pairs)

    @property
    def max(self) -> float | None:
        """Largest over pairs of different clients, or None without a pair."""
        return _over(np.max, self._pairs)

    @property
    def mean_to_whole(self) -> float | None:
        """Mean over clients of the divergence to the whole."""
        return _over(np.mean, self.to_whole)

    @property
    def max_to_whole(self) -> float | None:
        """Largest divergence of a client to the whole."""
        return _over(np.max, self.to_whole)

    @property
    def _pairs(self) -> Shares:
        pairs: Shares = self.between[~np.eye(len(self.between), dtype=bool)]
        return pairs


def _over(fold: Callable[[Shares], np.float64], values: Shares) -> float | None:
    values = values[~np.isnan(values)]
    return float(fold(values)) if len(values) else None


def label_kl(counts: npt.ArrayLike, whole: npt.ArrayLike, smoothing: float = SMOOTHING) -> Divergences:
    """Return the Kullback-Leibler divergences of label distributions, in bits.

        KL(p || q) = sum over classes of p log2(p / q)

    A class that one client lacks and another has would make it infinite, so every class of the whole dataset is counted
    `smoothing` times more than it is there (Laplace): p = (count + s) / (labels + s * classes), for clients and the
    whole alike. Clients without a label have none.
    """
    return _apart(*_filled(counts, whole, smoothing), kl_divergence)


def label_js(counts: npt.ArrayLike, whole: npt.ArrayLike) -> Divergences:
    """Return the Jensen-Shannon divergences of label distributions, in bits and so from 0 to 1; without smoothing."""
    return _apart(*_filled(counts, whole, 0.0), js_divergence)


def walk_distance(shares: npt.ArrayLike, whole: npt.ArrayLike) -> Divergences:
    """Return the Jensen-Shannon distances of walk embeddings: roots of the divergences in bits, from 0 to 1."""
    return _apart(*_filled(shares, whole, 0.0), lambda p, rows: np.sqrt(js_divergence(p, rows)))


def kl_divergence(p: Shares, q: Shares) -> Shares:
    """Return KL(p || q) in bits along the last axis; infinite where `q` lacks what `p` has."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log2(p / q), 0.0)
    total: Shares = np.maximum(terms.sum(axis=-1), 0.0)
    return total


def js_divergence(p: Shares, q: Shares) -> Shares:
    """Return the Jensen-Shannon divergence in bits along the last axis.

        JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2,  m = (p + q) / 2

    It is the same both ways, 0 for equal distributions and 1 for distributions that have nothing in common.
    """
    middle = (p + q) / 2
    return np.clip((kl_divergence(p, middle) + kl_divergence(q, middle)) / 2, 0.0, 1.0)


def _filled(counts: npt.ArrayLike, whole: npt.ArrayLike, smoothing: float) -> tuple[Shares, Shares]:
    """Return counts as shares of 1, (clients, classes) and (classes,), of the classes that anyone has; NaN for none."""
    total = np.asarray(whole, dtype=np.float64)
    each = np.asarray(counts, dtype=np.float64)
    rows = np.vstack([total, each.reshape(len(each), len(total))])
    empty = rows.sum(axis=1) == 0
    rows = rows[:, (rows > 0).any(axis=0) | empty.all()] + smoothing
    rows[empty] = np.nan
    shares = rows / rows.sum(axis=1, keepdims=True)
    return shares[1:], shares[0]


def _apart(rows: Shares, whole: Shares, measure: Callable[[Shares, Shares], Shares]) -> Divergences:
    """Measure each row against all rows and against the whole; NaN where a row is NaN."""
    blank = np.isnan(rows).any(axis=1)
    between = np.array([measure(row, rows) for row in rows]).reshape(len(rows), len(rows))
    between[blank] = np.nan
    between[:, blank] = np.nan
    to_whole = np.full(len(rows), np.nan) if np.isnan(whole).any() else measure(rows, whole)
    return Divergences(between, np.where(blank, np.nan, to_whole))


WALK_LENGTHS = (4, 5)


def survey(whole: Holding, parts: Mapping[str, Holding], seed: int = 0) -> dict[str, Any]:
    """Return the figures of the whole and of each client, what is lost and shared, and how far clients are apart.

    `seed` decides which walks are drawn in graphs with too many to look at each. Keys:

        dataset, item, label_names      what is divided, and what `label_counts` count
        whole, clients                  `ClientStatistics`, with degrees as {degree: nodes}
        missing_edge_fraction           edges that no client holds; null where items are not nodes
        missing_item_fraction           items that no client holds
        overlap, node_overlap           shared items of each two clients; shared nodes, where items are links
        heterogeneity                   label_kl, label_js, walk_distance_4, walk_distance_5; each with mean and max
                                        over pairs, mean and max to the whole, and the numbers themselves
        walks                           for the whole and each client: how many walks, and whether these are all
    """
    holdings = list(parts.values())
    links = [part for part in holdings if isinstance(part, LinkGraph)]
    graphs = [part for part in holdings if isinstance(part, Graph)]
    total, *each = describe_clients(whole, [whole, *holdings])
    return {
        "dataset": whole.name,
        "item": item_word(whole),
        "label_names": list(Labels.of(whole).names),
        "whole": _plain(total),
        "clients": {name: _plain(figures) for name, figures in zip(parts, each, strict=True)},
        "missing_edge_fraction": missing_edge_fraction(whole, graphs) if isinstance(whole, Graph) else None,
        "missing_item_fraction": missing_item_fraction(whole, holdings),
        "overlap": overlap_matrix([part.item_ids for part in holdings]).tolist(),
        "node_overlap": overlap_matrix([part.node_ids for part in links]).tolist() if links else None,
        **_how_far(whole, parts, total, each, seed),
    }


def _how_far(
    whole: Holding, parts: Mapping[str, Holding], total: ClientStatistics, each: list[ClientStatistics], seed: int
) -> dict[str, Any]:
    counts = [figures.label_counts for figures in each]
    walks = {
        name: embed(*simple_edges(part), max(WALK_LENGTHS), numpy_generator(seed, "walks", name))
        for name, part in {"": whole, **parts}.items()
    }
    found = {"label_kl": label_kl(counts, total.label_counts), "label_js": label_js(counts, total.label_counts)}
    for length in WALK_LENGTHS:
        embedded, *shares = (walk[length].shares for walk in walks.values())
        found[f"walk_distance_{length}"] = walk_distance(shares, embedded)
    length = max(WALK_LENGTHS)
    drawn = [{"num_walks": walk[length].num_walks, "exact": walk[length].exact} for walk in walks.values()]
    return {
        "heterogeneity": {name: _plain_divergences(values) for name, values in found.items()},
        "walks": {"whole": drawn[0], "clients": dict(zip(parts, drawn[1:], strict=True))},
    }


def _plain(figures: ClientStatistics) -> dict[str, Any]:
    degrees = {degree: nodes for degree, nodes in enumerate(figures.degree_counts) if nodes}
    return {**asdict(figures), "label_counts": list(figures.label_counts), "degree_counts": degrees}


def _plain_divergences(found: Divergences) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "max": found.max,
        "mean_to_whole": found.mean_to_whole,
        "max_to_whole": found.max_to_whole,
        "between": [_or_none(row) for row in found.between],
        "to_whole": _or_none(found.to_whole),
    }


def _or_none(values: Shares) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]
