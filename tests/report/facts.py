"""Numbers of a survey, written by hand: two clients that share two of their nodes."""

from __future__ import annotations

from typing import Any


def figures(nodes: int, labels: list[int], homophily: float | None = 0.5, **others: Any) -> dict[str, Any]:
    return {
        "num_items": nodes,
        "num_nodes": nodes,
        "num_edges": 2 * nodes,
        "num_features": 3,
        "num_train": nodes // 2,
        "num_val": 1,
        "num_test": 1,
        "num_classes": sum(number > 0 for number in labels),
        "label_counts": labels,
        "mean_degree": 4.0,
        "homophily": homophily,
        "degree_counts": {0: 1, 1: nodes - 3, 12: 2},
        **others,
    }


def divergence(value: float | None, size: int) -> dict[str, Any]:
    between = [[0.0 if i == j else value for j in range(size)] for i in range(size)]
    to_whole = [value] * size
    return {"mean": value, "max": value, "mean_to_whole": value, "max_to_whole": value} | {
        "between": between,
        "to_whole": to_whole,
    }


def survey_of(clients: dict[str, dict[str, Any]], shared: int = 2, **others: Any) -> dict[str, Any]:
    size = len(clients)
    names = ("label_kl", "label_js", "walk_distance_4", "walk_distance_5")
    items = [client["num_items"] for client in clients.values()]
    labels = [sum(column) for column in zip(*(client["label_counts"] for client in clients.values()), strict=True)]
    return {
        "origin": "dataset toy; 2 clients",
        "dataset": "toy",
        "item": "node",
        "label_names": [f"class {number}" for number in range(len(labels))],
        "whole": figures(sum(items), labels, 0.75),
        "clients": clients,
        "missing_edge_fraction": 0.125,
        "missing_item_fraction": 0.0,
        "overlap": [[items[i] if i == j else shared for j in range(size)] for i in range(size)],
        "node_overlap": None,
        "heterogeneity": {name: divergence(0.25, size) for name in names},
        **others,
    }


def two_clients(**others: Any) -> dict[str, Any]:
    return survey_of({"a": figures(10, [6, 2]), "b": figures(20, [0, 20], None)}, **others)
