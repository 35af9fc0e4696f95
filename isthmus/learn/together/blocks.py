"""Which clients are simulated together: blocks of similar size, so that padding and memory stay bounded.

A part of a model that gives each of many clients the same numbers when it runs for all at once is named here by its
exact class: a subclass may do something else, and would be simulated as its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from isthmus.core.client import Client
from isthmus.core.memory import keep_freed_memory
from isthmus.core.record import has_doubles
from isthmus.data.graph import Graph
from isthmus.learn.batching import FullBatch, LinkBatch, MiniBatch, NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.together.batch_cohort import BatchCohort
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.learn.together.stacked_features import LAYERS, feature_weights
from isthmus.models.decoders import Bilinear, DistMult, Dot, HadamardMLP
from isthmus.models.gnn.appnp import APPNPStack
from isthmus.models.gnn.gat import GATLayer
from isthmus.models.gnn.gprgnn import GPRGNNStack
from isthmus.models.gnn.sgc import SGCStack
from isthmus.models.model import Activation, Model
from isthmus.models.parts import BatchNorm, LayerStack, Perceptron
from isthmus.models.products.sparse import SparseMatrix
from isthmus.models.readouts import MaxPool, MeanPool, Set2Set, SumPool

# Parts of models besides `LAYERS`.
OTHERS: frozenset[type[nn.Module]] = frozenset(
    {
        Model,
        Activation,
        Perceptron,
        LayerStack,
        GPRGNNStack,
        APPNPStack,
        SGCStack,
        BatchNorm,
        Bilinear,
        Dot,
        DistMult,
        HadamardMLP,
        MeanPool,
        SumPool,
        MaxPool,
        Set2Set,
        nn.LSTMCell,
        nn.ModuleList,
    }
)


def stackable(model: nn.Module) -> bool:
    """Whether a model gives each client the same numbers when it runs for many of them at once."""
    if type(model) is not Model:
        return False
    named = list(model.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in named}) < len(named) or not all(p.requires_grad for _, p in named):
        return False  # tied or frozen
    return all(
        (type(part) in LAYERS or type(part) in OTHERS) and not getattr(part, "attention_dropout", 0.0)
        for part in model.modules()
    )


# What a block costs by itself, in rows of padding that would cost as much. With 500, which cuts the 50 clients of
# benchmarks/methods.py into two blocks, their rounds take a tenth to a quarter longer.
BLOCK_ROWS = 2_000
# Clients above this number of nodes gain nothing from being put together.
MAX_NODES = 20_000


# Exact classes of batches that are put side by side; one's own may mean anything to a task.
KNOWN = frozenset({FullBatch, MiniBatch, NeighborBatch, LinkBatch})


class Blocks:
    """Cuts cohorts into blocks, and keeps the blocks of the last cohorts.

    Fields:
        max_bytes: memory that one block may take, about
        reasons:   why clients are better off alone, by client, as far as that is not their number
    """

    def __init__(self, max_bytes: int) -> None:
        keep_freed_memory()
        self.max_bytes = max_bytes
        self.reasons: dict[str, str] = {}
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
            why = why_alone(client, clients[0], id(getattr(client, "model", None)) in allowed)
            if why:
                self.reasons[client.id] = why
                alone.append(client)
            else:
                assert isinstance(client, GraphClient)
                groups.setdefault((id(client.model), client.num_examples > 0), []).append(client)
        blocks: list[GraphCohort] = []
        for group in groups.values():
            kind = GraphCohort if takes_all(group[0]) else BatchCohort
            rows = {client.id: rows_of_step(client) for client in group}
            group.sort(key=lambda client: rows[client.id])
            measure = _Measure(group[0])
            costs = [measure.bytes_of(client) for client in group]
            # Of what is put side by side in tiles, nothing is padded to the size of the largest.
            tiled = kind is BatchCohort and group[0].task.tiles_batches
            sizes = [0 if tiled else rows[client.id] for client in group]
            for start, end in cut(sizes, costs, self.max_bytes):
                if end - start > 1:
                    blocks.append(kind(group[start:end]))
                else:
                    alone.append(group[start])
        return blocks, alone


def _models_that_stack(clients: Sequence[Client]) -> set[int]:
    models = {id(client.model): client.model for client in clients if isinstance(client, GraphClient)}
    return {key for key, model in models.items() if stackable(model)}


def can_stack(client: GraphClient, first: Any) -> bool:
    """Whether a client can be put together with another; classes count exactly, for a subclass may do otherwise."""
    return not why_alone(client, first, stackable(client.model))


def why_alone(client: Any, first: Any, model_stacks: bool) -> str:
    """Return why a client cannot be put together with another; empty where it can."""
    if type(client) is not GraphClient:
        return f"{type(client).__name__} is not known to be simulated together"
    if client.algorithm is not None:
        return "it has settings of the algorithm of its own"
    if client.task is not first.task or client.batching != first.batching:
        return "its task or its batches are not those of the others"
    method = "stack" if takes_all(client) else "stack_batches"
    if method not in vars(type(client.task)):
        return f"{type(client.task).__name__} has no {method!r}, by which its examples could be put side by side"
    if not takes_all(client) and type(client.batching) not in KNOWN:
        return f"{type(client.batching).__name__} is not known to be put side by side"
    if not has_doubles(client.device):
        return f"sums of many are taken in double precision, which {client.device} has not"
    if not takes_all(client) and client.device.type != "cpu":
        return f"batches that are not whole graphs are put side by side on the CPU only, not on {client.device}"
    if not model_stacks:
        return "its model has a part that is not known to run for many at once"
    if rows_of_step(client) > MAX_NODES:
        return f"it has {rows_of_step(client):,} nodes in a step, more than {MAX_NODES:,}"
    return ""


def takes_all(client: GraphClient) -> bool:
    """Whether every step of a client sees all nodes of its one graph."""
    return type(client.batching) is FullBatch and client.task.data_type is Graph


def rows_of_step(client: GraphClient) -> int:
    """Return about how many nodes a step of a client sees."""
    return client.num_nodes if takes_all(client) else client.task.rows_of_step(client.data, client.batching)


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
        self.rows = max((len(slots[name]) for name in first), default=0)
        # Activations and their gradients for each column of weights; measured on batches of graphs, with a margin.
        heavy = any(isinstance(part, BatchNorm | GATLayer) for part in client.model.modules())
        self.activations = 10 if heavy else 5

    def bytes_of(self, client: GraphClient) -> int:
        """Return the bytes of weights, gradients, moments, activations, features and edges."""
        if not takes_all(client):
            activations = self.activations * rows_of_step(client) * self.widths
            return int(4 * (5 * (self.rows * self.first + self.others) + activations))
        graph = client.prepared.graph
        x = graph.x
        entries = x.pattern.nnz if isinstance(x, SparseMatrix) else x.numel()
        rows = min(entries, graph.num_features)
        numbers = 5 * (rows * self.first + self.others) + 8 * graph.num_nodes * self.widths
        numbers += 3 * (graph.num_edges + graph.num_nodes) + (3 if isinstance(x, SparseMatrix) else 1) * entries
        return int(4 * numbers)
