"""How models are scored, in four modes: {global, local model} x {global graph, local graph}.

The modes on local graphs are also what real silos can do. Those on the global graph exist in simulation only, where
somebody holds the whole graph; local models are scored there by their mean, each on all test nodes (FS-G, 7.1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from isthmus.core.client import Client, NotTogether
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.steps import load_params
from isthmus.learn.tasks.task import Task

if TYPE_CHECKING:
    from isthmus.learn.together.stacked_clients import GraphCohort

Scores = dict[str, float]
Gather: TypeAlias = "Callable[[Sequence[Client]], tuple[list[GraphCohort], list[Client]]]"


def one_by_one(clients: Sequence[Client]) -> tuple[list[GraphCohort], list[Client]]:
    """Put no clients together."""
    return [], list(clients)


def score_model(task: Task, model: nn.Module, params: Params, prepared: Any, split: str) -> tuple[Scores, int]:
    """Return the metrics of one model on one split of one graph, and the number of examples."""
    load_params(model, params)
    metrics, counts = task.evaluate(model, prepared, (split,))
    return metrics[split], counts[split]


def score_on_global_graph(
    task: Task, model: nn.Module, prepared: Any, models: Mapping[str, Params], split: str
) -> Scores:
    """Return the mean of each metric on the whole graph over the models that have it, all counting the same."""
    scores = [score_model(task, model, params, prepared, split)[0] for params in models.values()]
    names = dict.fromkeys(name for score in scores for name in score)
    having = {name: [score[name] for score in scores if name in score] for name in names}
    return {name: sum(values) / len(values) for name, values in having.items()}


def score_on_local_graphs(
    task: Task,
    clients: Mapping[str, GraphClient],
    models: Mapping[str, Params],
    split: str,
    gather: Gather = one_by_one,
    data_of: Callable[[GraphClient], Any] = lambda client: client.prepared,
) -> tuple[Scores, dict[str, Scores]]:
    """Return the mean over clients, weighted by their examples, and each client's own metrics.

    `gather` says which clients can be looked at together; `data_of` what those that are looked at alone are scored on.
    """
    each: dict[str, Scores] = {name: {} for name in models}
    counts: dict[str, int] = {}
    blocks, alone = gather([clients[name] for name in models])
    left_over = list(alone)
    for block in blocks:
        try:
            results = block.evaluate([models[client.id] for client in block], (split,))
        except NotTogether:
            left_over += block
            continue
        for client, (metrics, found) in zip(block, results, strict=True):
            each[client.id], counts[client.id] = metrics[split], found[split]
    for left in left_over:
        client = clients[left.id]
        each[left.id], counts[left.id] = score_model(task, client.model, models[left.id], data_of(client), split)
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
