"""Evaluation in four modes: {global, local model} x {global graph, local graph}.

The modes on local graphs are also what real silos can do. Those on the global graph exist in simulation only, where
somebody holds the whole graph; local models are scored there by their mean, each on all test nodes (FS-G, 7.1.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from isthmus.core.record import Params
from isthmus.learn.client import GraphClient
from isthmus.learn.fit import load_params
from isthmus.learn.tasks.task import Task

Scores = dict[str, float]


def score_model(task: Task, model: nn.Module, params: Params, prepared: Any, split: str) -> tuple[Scores, int]:
    """Return the metrics of one model on one split of one graph, and the number of examples."""
    load_params(model, params)
    metrics, counts = task.evaluate(model, prepared, (split,))
    return metrics[split], counts[split]


def score_on_global_graph(
    task: Task, model: nn.Module, prepared: Any, models: Mapping[str, Params], split: str
) -> Scores:
    """Return the mean over models of their metrics on the whole graph, every model counting the same."""
    scores = [score_model(task, model, params, prepared, split)[0] for params in models.values()]
    return {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]} if scores else {}


def score_on_local_graphs(
    task: Task, clients: Mapping[str, GraphClient], models: Mapping[str, Params], split: str
) -> tuple[Scores, dict[str, Scores]]:
    """Return the mean over clients, weighted by their examples, and each client's own metrics."""
    each: dict[str, Scores] = {}
    counts: dict[str, int] = {}
    for name, params in models.items():
        client = clients[name]
        each[name], counts[name] = score_model(task, client.model, params, client.prepared, split)
    return weighted(each, counts), each


def weighted(each: Mapping[str, Scores], counts: Mapping[str, int]) -> Scores:
    """Return the mean of each metric over the clients that have it, weighted by their examples."""
    names = sorted({name for scores in each.values() for name in scores})
    result: Scores = {}
    for name in names:
        having = [client for client in each if name in each[client] and counts[client]]
        total = sum(counts[client] for client in having)
        if total:
            result[name] = sum(counts[client] * each[client][name] for client in having) / total
    return result
