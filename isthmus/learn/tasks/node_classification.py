"""Node classification: cross-entropy on the labelled training nodes of one graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.data.conventions import SPLITS
from isthmus.data.graph import Graph, select_rows
from isthmus.learn.batching import Batching, FullBatch, NeighborBatch
from isthmus.learn.metrics import classification as metrics
from isthmus.learn.metrics.classification import Examples, cross_entropy, losses_of_clients
from isthmus.learn.neighbors import Adjacency, sample_neighborhood
from isthmus.learn.tasks.side_by_side import NodeBatchStack
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated
from isthmus.learn.tasks.task import Predictions, StackedData, Task, by_split, require_rows_of_nodes
from isthmus.models.dropout import Streams
from isthmus.models.inputs import GraphInput, stack_graphs
from isthmus.models.products.sparse import SparseMatrix


@dataclass(frozen=True)
class NodeBatch:
    """A graph to run the model on, and the nodes in it whose loss counts."""

    graph: GraphInput
    index: Tensor  # (examples,)
    labels: Tensor  # (examples,)


@dataclass
class PreparedNodes:
    """A client's graph with the operators that models cache on it."""

    data: Graph
    graph: GraphInput
    index: dict[str, Tensor]  # split -> labelled nodes of it
    labels: dict[str, Tensor]
    adjacency: Adjacency | None = field(default=None, repr=False)

    def in_edges(self) -> Adjacency:
        """Return the in-edges of every node, sorted at the first call."""
        if self.adjacency is None:
            self.adjacency = Adjacency.of(self.data.edge_index, self.data.num_nodes)
        return self.adjacency


@dataclass(frozen=True)
class NodeClassification(Task):
    """Every node has one of `num_classes` classes; nodes without a label (-1) are in no split."""

    known_metrics: ClassVar[tuple[str, ...]] = tuple(metrics.CLASSIFICATION)
    known_batchings: ClassVar[tuple[type[Batching], ...]] = (FullBatch, NeighborBatch)

    def input_dim(self, data: Graph) -> int:
        """Return the number of feature columns."""
        return data.num_features

    def output_dim(self, data: Graph) -> int:
        """Return the number of classes."""
        return data.num_classes

    def require_model(self, model: nn.Module, data: Graph) -> None:
        """Raise BadInput unless the model gives one row of scores for each node."""
        super().require_model(model, data)
        require_rows_of_nodes(model, data.item)

    def count(self, data: Graph, split: str) -> int:
        """Return the number of labelled nodes in a split."""
        return int((data.mask(split) & (data.y >= 0)).sum())

    def holds(self, data: Graph) -> str:
        """Return the numbers of nodes, edges and examples."""
        examples = "/".join(str(self.count(data, split)) for split in SPLITS)
        return f"{data.num_nodes} nodes, {data.num_edges // 2} edges, {examples} train/val/test"

    def prepare(self, data: Graph) -> PreparedNodes:
        """Return the graph as models take it, and the nodes of each split."""
        index = {split: (data.mask(split) & (data.y >= 0)).nonzero().flatten() for split in SPLITS}
        graph = GraphInput(x=data.x, edge_index=data.edge_index, edge_weight=data.edge_weight)
        return PreparedNodes(data, graph, index, {split: data.y[nodes] for split, nodes in index.items()})

    def batches_per_epoch(self, prepared: PreparedNodes, batching: Batching) -> int:
        """Return how many batches show every training node once."""
        count = len(prepared.index["train"])
        return -(-count // batching.batch_size) if isinstance(batching, NeighborBatch) else min(count, 1)

    def batches(self, prepared: PreparedNodes, batching: Batching, generator: torch.Generator) -> Iterator[NodeBatch]:
        """Yield the whole graph again and again, or sampled neighbourhoods of shuffled training nodes."""
        train, labels = prepared.index["train"], prepared.labels["train"]
        if isinstance(batching, FullBatch):
            while len(train):
                yield NodeBatch(prepared.graph, train, labels)
            return
        if not isinstance(batching, NeighborBatch):
            raise BadInput(self.batching_problem(batching))
        for chunk in self.draws(prepared, batching, generator):
            yield _sampled(prepared, train[chunk], labels[chunk], batching, generator)

    def draws(self, prepared: PreparedNodes, batching: NeighborBatch, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield which training nodes each batch is about, in an order drawn for each epoch."""
        train = prepared.index["train"]
        while len(train):
            order = torch.randperm(len(train), generator=generator).to(train.device)
            yield from torch.split(order, batching.batch_size)

    def loss(self, model: nn.Module, batch: NodeBatch, generator: torch.Generator) -> Tensor:
        """Return the mean cross-entropy over the batch's nodes."""
        logits: Tensor = model(batch.graph, generator)
        return cross_entropy(logits.index_select(0, batch.index), batch.labels)

    def evaluate(self, model: nn.Module, prepared: PreparedNodes, splits: tuple[str, ...]) -> Evaluated:
        """Run the model once over the whole graph and measure every split."""
        if not any(len(prepared.index[split]) for split in splits):
            return {split: {} for split in splits}, dict.fromkeys(splits, 0)
        # Not inference_mode: what the model caches on the graph here must serve training later.
        with torch.no_grad():
            return self.measured(model(prepared.graph, None), prepared, splits)

    def measured(self, logits: Tensor, prepared: PreparedNodes, splits: tuple[str, ...]) -> Evaluated:
        """Return the metrics and counts of every split, from the logits of all nodes."""
        index, labels = prepared.index, prepared.labels
        return by_split(index, splits, lambda split: self._measure(logits[index[split]], labels[split]))

    def evaluate_groups(
        self, model: nn.Module, prepared: PreparedNodes, split: str, groups: Sequence[Tensor]
    ) -> list[dict[str, float]]:
        """Run the model once over the whole graph and measure each group's nodes of the split."""
        mine = prepared.index[split]
        wanted = torch.zeros(prepared.graph.num_nodes, dtype=torch.bool, device=mine.device)
        wanted[mine] = True
        chosen = [nodes[wanted[nodes]] for nodes in groups]
        index = torch.cat(chosen)
        with torch.no_grad():
            logits: Tensor = model(prepared.graph, None)
            return self._measure_each(logits, index, prepared.data.y[index], tuple(map(len, chosen)))

    def stack(self, prepared: Sequence[PreparedNodes]) -> StackedData:
        """Return the clients' graphs side by side."""
        graph, rows = stack_graphs([each.graph for each in prepared])
        splits = {}
        for split in SPLITS:
            index = torch.cat([each.index[split] + k * rows for k, each in enumerate(prepared)])
            labels = torch.cat([each.labels[split] for each in prepared])
            splits[split] = (index, labels, tuple(len(each.index[split]) for each in prepared))
        sizes = tuple(each.graph.num_nodes for each in prepared)
        sparse = [each.graph.x.pattern.nnz for each in prepared if isinstance(each.graph.x, SparseMatrix)]
        if 0 < len(sparse) < len(prepared):
            raise ValueError("some clients have sparse features and others dense ones")
        return StackedData(graph, rows, sizes, tuple(sparse), splits, Examples.of(*splits["train"]))

    def stacked_loss(self, model: nn.Module, data: StackedData, streams: Streams) -> Tensor:
        """Return each client's mean cross-entropy over its training nodes, (clients,)."""
        return losses_of_clients(model(data.graph, streams), data.learned)

    def evaluate_stacked(self, model: nn.Module, data: StackedData, splits: tuple[str, ...]) -> list[Evaluated]:
        """Run the model once over all graphs and measure every split of every client."""
        with torch.no_grad():
            logits: Tensor = model(data.graph, None)
            found = {split: self._measure_each(logits, *data.splits[split]) for split in splits}
        return [
            ({split: found[split][k] for split in splits}, {split: data.splits[split][2][k] for split in splits})
            for k in range(len(data.sizes))
        ]

    def _measure_each(
        self, logits: Tensor, index: Tensor, labels: Tensor, counts: tuple[int, ...]
    ) -> list[dict[str, float]]:
        """Return the metrics of each client on its examples; those without any have none."""
        return metrics.measured_each(self.metrics, logits.index_select(0, index).cpu(), labels.cpu(), counts)

    def stack_batches(self, prepared: Sequence[PreparedNodes], batching: Batching) -> BatchStack:
        """Return what sampled neighbourhoods of many clients are put side by side from."""
        return NodeBatchStack(self, prepared, batching)

    def rows_of_step(self, data: Graph, batching: Batching) -> int:
        """Return the number of nodes of a step, about."""
        return min(batching.most_nodes, data.num_nodes) if isinstance(batching, NeighborBatch) else data.num_nodes

    def predict(self, model: nn.Module, prepared: PreparedNodes) -> Predictions:
        """Return class probabilities of every node."""
        with torch.no_grad():
            logits: Tensor = model(prepared.graph, None)
            return Predictions(prepared.data.node_ids, logits.softmax(dim=1))

    def _measure(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        logits, labels = logits.cpu(), labels.cpu()
        return metrics.defined({name: metrics.CLASSIFICATION[name](logits, labels) for name in self.metrics})


def _sampled(
    prepared: PreparedNodes,
    seeds: Tensor,
    labels: Tensor,
    batching: NeighborBatch,
    generator: torch.Generator,
) -> NodeBatch:
    data = prepared.data
    hood = sample_neighborhood(prepared.in_edges(), seeds, batching.fanouts, generator)
    weight = None if data.edge_weight is None else data.edge_weight[hood.edges]
    graph = GraphInput(x=select_rows(data.x, hood.nodes), edge_index=hood.edge_index, edge_weight=weight)
    return NodeBatch(graph, torch.arange(hood.num_seeds, device=labels.device), labels)
