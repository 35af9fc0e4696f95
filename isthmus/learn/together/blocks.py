"""Which clients are simulated together: blocks of similar size, so that padding and memory stay bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.core.client import Client
from isthmus.core.device import has_doubles
from isthmus.learn.batching import FullBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.together.layouts import feature_weights, stackable
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models.products.sparse import SparseMatrix

# What a block costs by itself, in rows of padding that would cost as much (measured; see benchmarks/simulation.py).
BLOCK_ROWS = 500
# Clients above this number of nodes gain nothing from being put together.
MAX_NODES = 20_000


class Blocks:
    """Cuts cohorts into blocks, and keeps the blocks of the last cohorts.

    Fields:
        max_bytes: memory that one block may take, about
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._kept: dict[tuple[str, ...], tuple[list[GraphCohort], list[Client]]] = {}

    def __call__(self, clients: Sequence[Client]) -> tuple[list[GraphCohort], list[Client]]:
        """Return the blocks, and the clients that are better off alone."""
        key = tuple(client.id for client in clients)
        found = self._kept.pop(key, None) or self._cut(clients)
        self._kept[key] = found  # the last one used comes last
        while len(self._kept) > 2:  # one for training, one for evaluation
            del self._kept[next(iter(self._kept))]
        return found

    def _cut(self, clients: Sequence[Client]) -> tuple[list[GraphCohort], list[Client]]:
        allowed = _models_that_stack(clients)
        groups: dict[tuple[int, bool], list[GraphClient]] = {}  # by module, and by whether there is something to train
        alone: list[Client] = []
        for client in clients:
            if isinstance(client, GraphClient) and can_stack(client, clients[0], id(client.model) in allowed):
                groups.setdefault((id(client.model), client.num_examples > 0), []).append(client)
            else:
                alone.append(client)
        blocks: list[GraphCohort] = []
        for group in groups.values():
            group.sort(key=lambda client: client.num_nodes)
            measure = _Measure(group[0])
            costs = [measure.bytes_of(client) for client in group]
            for start, end in cut([client.num_nodes for client in group], costs, self.max_bytes):
                if end - start > 1:
                    blocks.append(GraphCohort(group[start:end]))
                else:
                    alone.append(group[start])
        return blocks, alone


def _models_that_stack(clients: Sequence[Client]) -> set[int]:
    models = {id(client.model): client.model for client in clients if isinstance(client, GraphClient)}
    return {key for key, model in models.items() if stackable(model)}


def can_stack(client: GraphClient, first: Any, model_stacks: bool | None = None) -> bool:
    """Whether a client can be put together with another; classes count exactly, for a subclass may do otherwise.

    `model_stacks` says whether the model can, where that is known already.
    """
    return (
        type(client) is GraphClient
        and client.algorithm is None
        and type(client.batching) is FullBatch
        and client.task is first.task
        and "stack" in vars(type(client.task))
        and client.num_nodes <= MAX_NODES
        and has_doubles(client.device)
        and (stackable(client.model) if model_stacks is None else model_stacks)
    )


def cut(sizes: Sequence[int], costs: Sequence[int], max_bytes: int) -> list[tuple[int, int]]:
    """Return runs [start, end) of ascending sizes with the least sum of padded rows and `BLOCK_ROWS` for each run."""
    if not sizes:
        return []
    # Only the ends of equal sizes are worth a cut, but where memory asks for one.
    ends = [i for i in range(1, len(sizes)) if sizes[i] != sizes[i - 1]] + [len(sizes)]
    starts = [0, *ends[:-1]]
    best: list[tuple[int, int]] = []  # for each end: the least cost, and the start of its last run
    for j, end in enumerate(ends):
        options = [
            ((best[i - 1][0] if i else 0) + (end - starts[i]) * sizes[end - 1] + BLOCK_ROWS, i) for i in range(j + 1)
        ]
        best.append(min(options))
    runs: list[tuple[int, int]] = []
    j = len(ends) - 1
    while j >= 0:
        i = best[j][1]
        runs.append((starts[i], ends[j]))
        j = i - 1
    return [part for run in reversed(runs) for part in _bounded(run, costs, max_bytes)]


def _bounded(run: tuple[int, int], costs: Sequence[int], max_bytes: int) -> list[tuple[int, int]]:
    """Cut a run where it would take more memory than allowed."""
    parts, start, taken = [], run[0], 0
    for i in range(*run):
        if i > start and taken + costs[i] > max_bytes:
            parts.append((start, i))
            start, taken = i, 0
        taken += costs[i]
    return [*parts, (start, run[1])]


class _Measure:
    """About how many bytes a client adds to a block; all clients of a block have the same model."""

    def __init__(self, client: GraphClient) -> None:
        slots, first = client.model.state_dict(), feature_weights(client.model)
        self.widths = sum(slot.shape[-1] for slot in slots.values() if slot.ndim == 2)
        self.others = sum(slot.numel() for name, slot in slots.items() if name not in first)
        self.first = sum(slots[name].shape[-1] for name in first)

    def bytes_of(self, client: GraphClient) -> int:
        """Return the bytes of weights, gradients, moments, activations, features and edges."""
        graph = client.prepared.graph
        x = graph.x
        entries = x.pattern.nnz if isinstance(x, SparseMatrix) else x.numel()
        rows = min(entries, graph.num_features)
        numbers = 5 * (rows * self.first + self.others) + 8 * graph.num_nodes * self.widths
        numbers += 3 * (graph.num_edges + graph.num_nodes) + (3 if isinstance(x, SparseMatrix) else 1) * entries
        return int(4 * numbers)
