"""A survey of a federation's data: every number about who holds what, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from isthmus.core.random import numpy_generator
from isthmus.data.dividing import Holding
from isthmus.data.graph import Graph
from isthmus.data.link_graph import LinkGraph, item_word
from isthmus.data.survey import statistics
from isthmus.data.survey.statistics import ClientStatistics, Divergences, simple_edges
from isthmus.data.survey.walks import embed

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
    total, *each = statistics.describe_clients(whole, [whole, *holdings])
    return {
        "dataset": whole.name,
        "item": item_word(whole),
        "label_names": list(statistics.label_names(whole)),
        "whole": _plain(total),
        "clients": {name: _plain(figures) for name, figures in zip(parts, each, strict=True)},
        "missing_edge_fraction": _missing_edges(whole, holdings),
        "missing_item_fraction": statistics.missing_item_fraction(whole, holdings),
        "overlap": statistics.overlap_matrix([part.item_ids for part in holdings]).tolist(),
        "node_overlap": _shared_nodes(holdings),
        **_apart(whole, parts, total, each, seed),
    }


def _apart(
    whole: Holding, parts: Mapping[str, Holding], total: ClientStatistics, each: list[ClientStatistics], seed: int
) -> dict[str, Any]:
    counts = [figures.label_counts for figures in each]
    walks = {
        name: embed(*simple_edges(part), max(WALK_LENGTHS), numpy_generator(seed, "walks", name))
        for name, part in {"": whole, **parts}.items()
    }
    found = {
        "label_kl": statistics.label_kl(counts, total.label_counts),
        "label_js": statistics.label_js(counts, total.label_counts),
    }
    for length in WALK_LENGTHS:
        embedded, *shares = (walk[length].shares for walk in walks.values())
        found[f"walk_distance_{length}"] = statistics.walk_distance(shares, embedded)
    length = max(WALK_LENGTHS)
    drawn = [{"num_walks": walk[length].num_walks, "exact": walk[length].exact} for walk in walks.values()]
    return {
        "heterogeneity": {name: _plain_divergences(values) for name, values in found.items()},
        "walks": {"whole": drawn[0], "clients": dict(zip(parts, drawn[1:], strict=True))},
    }


def _missing_edges(whole: Holding, parts: Sequence[Holding]) -> float | None:
    graphs = [part for part in parts if isinstance(part, Graph)]
    return statistics.missing_edge_fraction(whole, graphs) if isinstance(whole, Graph) else None


def _shared_nodes(parts: Sequence[Holding]) -> list[list[int]] | None:
    links = [part.node_ids for part in parts if isinstance(part, LinkGraph)]
    found: list[list[int]] | None = statistics.overlap_matrix(links).tolist() if links else None
    return found


def _plain(figures: ClientStatistics) -> dict[str, Any]:
    degrees = {degree: nodes for degree, nodes in enumerate(figures.degree_counts) if nodes}
    return {**asdict(figures), "label_counts": list(figures.label_counts), "degree_counts": degrees}


def _plain_divergences(found: Divergences) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "max": found.max,
        "mean_to_whole": found.mean_to_whole,
        "max_to_whole": found.max_to_whole,
        "between": [[_or_none(value) for value in row] for row in found.between],
        "to_whole": [_or_none(value) for value in found.to_whole],
    }


def _or_none(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
