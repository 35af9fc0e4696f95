"""Batches of nodes and of links of many clients side by side: sampled neighbourhoods, pairs of nodes.

A client's batch is made as it would be alone, with its own stream; the graphs of a step are then put side by side. A
graph that is the same in every step, as the message edges of a link task mostly are, is put there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether
from isthmus.data.graph import select_rows, spans
from isthmus.learn.batching import Batching, NeighborBatch
from isthmus.learn.metrics.classification import IGNORED, cross_entropy
from isthmus.learn.neighbors import Adjacency, Numbers, sample_neighborhoods
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated, Placed, StackedBatch
from isthmus.models.inputs import GraphInput, Reach, stack_graphs
from isthmus.models.parts import Streams, of_items
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix

if TYPE_CHECKING:  # which import this file
    from isthmus.learn.tasks.link_task import LinkExamples, LinkTask, PreparedLinks
    from isthmus.learn.tasks.node_classification import NodeClassification, PreparedNodes

# Clients with more nodes than these, padding included, are evaluated one by one.
MAX_NODES = 200_000
# Graphs of some clients that are the same in every step; so many of them are kept.
KEPT = 4


class StackedGraphs(BatchStack):
    """What batches on one graph for each client have in common."""

    def __init__(self, task: Any, prepared: Sequence[Any], batching: Batching) -> None:
        self.task, self.prepared, self.batching = task, prepared, batching
        self._side_by_side: dict[tuple[int, ...], tuple[GraphInput, int]] = {}

    @property
    def is_sparse(self) -> bool:
        """Whether features are sparse."""
        return isinstance(self.prepared[0].graph.x, SparseMatrix)

    def per_epoch(self, owner: int) -> int:
        """Return how many batches show a client every training example once."""
        found: int = self.task.batches_per_epoch(self.prepared[owner], self.batching)
        return found

    def draws(self, owner: int, generator: torch.Generator) -> Iterator[Any]:
        """Yield a client's batches as it would have them alone."""
        found: Iterator[Any] = self.task.batches(self.prepared[owner], self.batching, generator)
        return found

    def whole(self, owners: Sequence[int]) -> tuple[GraphInput, int]:
        """Return the whole graphs of some clients side by side, and the rows of each; the last ones are kept."""
        key = tuple(owners)
        found = self._side_by_side.pop(key, None) or stacked_input([self.prepared[k].graph for k in owners])
        self._side_by_side[key] = found
        while len(self._side_by_side) > KEPT:
            del self._side_by_side[next(iter(self._side_by_side))]
        return found

    def placed(self, graphs: Sequence[GraphInput], rows: int) -> tuple[Placed, tuple[int, ...]]:
        """Return how the nodes of graphs lie, and their numbers of stored entries of features where they are sparse."""
        entries = tuple(g.x.pattern.nnz for g in graphs if isinstance(g.x, SparseMatrix))
        return Placed(tuple(graph.num_nodes for graph in graphs), rows), entries

    def _all(self) -> tuple[GraphInput, int]:
        """Return all clients' whole graphs, for an evaluation."""
        sizes = [each.graph.num_nodes for each in self.prepared]
        if len(sizes) * max(sizes) > MAX_NODES:
            raise NotTogether(f"evaluation of {len(sizes) * max(sizes):,} nodes at once, more than {MAX_NODES:,}")
        return self.whole(range(len(sizes)))


class NodeBatchStack(StackedGraphs):
    """Sampled neighbourhoods of training nodes, of all clients in one go.

    The nodes of a client lie in the order in which its hops reached them: what was asked for first.
    """

    task: NodeClassification
    prepared: Sequence[PreparedNodes]
    batching: NeighborBatch

    @cached_property
    def _adjacency(self) -> Adjacency:
        return Adjacency.side_by_side([each.in_edges() for each in self.prepared])

    @cached_property
    def _first(self) -> Numbers:
        """The first node of each client among those of all, and the number of all."""
        return np.cumsum([0, *(each.graph.num_nodes for each in self.prepared)])

    @cached_property
    def _owner(self) -> Numbers:
        return np.repeat(np.arange(len(self.prepared)), np.diff(self._first))

    @cached_property
    def _edge_weight(self) -> Tensor | None:
        weights = [each.graph.edge_weight for each in self.prepared]
        if all(weight is None for weight in weights):
            return None
        parts = zip(weights, self.prepared, strict=True)
        return torch.cat([torch.ones(each.graph.num_edges) if w is None else w for w, each in parts])

    def draws(self, owner: int, generator: torch.Generator) -> Iterator[tuple[Tensor, torch.Generator]]:
        """Yield which training nodes each batch is about, and what its neighbourhoods are drawn from."""
        for chunk in self.task.draws(self.prepared[owner], self.batching, generator):
            yield chunk, generator

    def batch(self, owners: Sequence[int], drawn: Sequence[tuple[Tensor, torch.Generator]]) -> StackedBatch:
        """Return the neighbourhoods side by side; only their first nodes, those that were asked for, have a label."""
        place = np.argsort(owners)  # in the order of all nodes
        graphs = [owners[k] for k in place]
        seeds = [self.prepared[owners[k]].index["train"][drawn[k][0]].numpy() + self._first[owners[k]] for k in place]
        found = sample_neighborhoods(
            self._adjacency,
            self._owner,
            graphs,
            np.concatenate(seeds),
            [len(each) for each in seeds],
            self.batching.fanouts,
            [drawn[k][1] for k in place],
        )
        sizes = np.empty(len(owners), dtype=np.int64)
        sizes[place] = found.counts.sum(axis=0)
        rows, row = int(sizes.max()), np.empty(self._first[-1], dtype=np.int64)
        begin = place * rows  # where the nodes of each hop begin, client by client
        for nodes, counts in zip(found.hops, found.counts, strict=True):
            row[nodes] = spans(begin, counts)
            begin = begin + counts
        nodes = np.concatenate(found.hops)
        node = np.empty(len(owners) * rows, dtype=np.int64)
        node[row[nodes]] = nodes
        ends = np.stack([row[self._adjacency.source.numpy()[found.entries]], row[found.targets]])
        x, entries = self._features(owners, node, sizes, rows)
        weight = self._edge_weight
        graph = GraphInput(
            x,
            torch.from_numpy(ends),
            None if weight is None else weight[self._adjacency.edge[torch.from_numpy(found.entries)]],
            reach=Reach(len(owners), tuple(np.cumsum(found.counts, axis=0).max(axis=1).tolist())),
        )
        target = torch.full((len(owners), max(len(chunk) for chunk, _ in drawn)), IGNORED)
        for k, (chunk, _) in enumerate(drawn):
            target[k, : len(chunk)] = self.prepared[owners[k]].labels["train"].index_select(0, chunk)
        return StackedBatch(graph, Placed(tuple(sizes.tolist()), rows), entries, None, target)

    def _features(
        self, owners: Sequence[int], node: Numbers, sizes: Numbers, rows: int
    ) -> tuple[Features, tuple[int, ...]]:
        """Return the features of each client's nodes, padded, and their numbers of entries where they are sparse."""
        own = [
            torch.from_numpy(node[k * rows : k * rows + sizes[k]] - self._first[owner])
            for k, owner in enumerate(owners)
        ]
        if self.is_sparse:
            parts = [select_rows(self.prepared[owner].data.x, mine) for owner, mine in zip(owners, own, strict=True)]
            inputs = [GraphInput(part, torch.zeros(2, 0, dtype=torch.int64)) for part in parts]
            return stacked_input(inputs)[0].x, self.placed(inputs, rows)[1]
        x = torch.empty(len(owners), rows, self.prepared[0].graph.num_features)
        for k, (owner, mine) in enumerate(zip(owners, own, strict=True)):
            features = self.prepared[owner].graph.x
            assert isinstance(features, Tensor)
            torch.index_select(features, 0, mine, out=x[k, : len(mine)])
            x[k, len(mine) :] = 0.0
        return x.flatten(0, 1), ()

    def losses(self, model: nn.Module, batch: StackedBatch, streams: Streams) -> Tensor:
        """Return the mean cross-entropy over each client's nodes, (clients,)."""
        clients, most = batch.target.shape
        logits = model(batch.graph, streams).view(clients, -1, self.task.output_dim(self.prepared[0].data))[:, :most]
        each = cross_entropy(logits.flatten(0, 1), batch.target.flatten(), reduction="none")
        counts: Tensor = (batch.target != IGNORED).sum(dim=1)
        return each.view(clients, -1).sum(dim=1) / counts

    def evaluate(self, model: nn.Module, splits: tuple[str, ...], stacked: bool) -> list[Evaluated]:
        """Run the model once over all whole graphs and measure every split of every client."""
        graph, rows = self._all()
        with torch.no_grad():
            logits = model(graph if stacked else common_columns(graph, self.prepared[0].graph.num_features), None)
        return [
            self.task.measured(logits[k * rows : k * rows + each.graph.num_nodes], each, splits)
            for k, each in enumerate(self.prepared)
        ]


class LinkStack(StackedGraphs):
    """Pairs of nodes, and the message edges that they are scored on."""

    task: LinkTask
    prepared: Sequence[PreparedLinks]

    def batch(self, owners: Sequence[int], drawn: Sequence[Any]) -> StackedBatch:
        """Return message edges and pairs side by side, as they are in `LinkExamples`."""
        graph, rows = self._messages(owners, drawn)
        nodes, entries = self.placed([each.graph for each in drawn], rows)
        counts = tuple(each.pairs.shape[1] for each in drawn)
        most = max(counts)
        pairs = torch.zeros(2, len(drawn), most, dtype=torch.int64)
        relation = torch.zeros(len(drawn), most, dtype=torch.int64)
        target = torch.zeros(len(drawn), most, dtype=drawn[0].target.dtype)
        counted = torch.arange(most) < torch.tensor(counts).unsqueeze(1)  # (clients, pairs)
        for k, each in enumerate(drawn):
            pairs[:, k, : counts[k]], relation[k, : counts[k]], target[k, : counts[k]] = (
                each.pairs,
                each.relation,
                each.target,
            )
        pairs += (torch.arange(len(drawn)) * rows).unsqueeze(1)
        known = (pairs.flatten(1), relation.flatten(), target.flatten(), counted)
        return StackedBatch(graph, nodes, entries, Placed(counts, most), known)

    def _messages(self, owners: Sequence[int], drawn: Sequence[LinkExamples]) -> tuple[GraphInput, int]:
        if isinstance(self.batching, NeighborBatch):
            return stacked_input([each.graph for each in drawn])
        graph, rows = self.whole(owners)
        kept = [each.graph.kept for each in drawn]
        if all(mine is None for mine in kept):
            return graph, rows
        parts = [
            torch.ones(e.graph.num_edges, dtype=torch.bool) if e.graph.kept is None else e.graph.kept for e in drawn
        ]
        return graph.replace(kept=torch.cat(parts)), rows

    def losses(self, model: nn.Module, batch: StackedBatch, streams: Streams) -> Tensor:
        """Return the mean loss over each client's pairs, (clients,)."""
        pairs, relation, target, counted = batch.target
        h: Tensor = model.embed(batch.graph, streams)  # type: ignore[operator]
        head, tail = (h.index_select(0, end) for end in pairs)
        each = self.task.pair_losses(model, head, tail, relation, target, of_items(streams))
        sums = (each.view(counted.shape) * counted).sum(dim=1)
        means: Tensor = sums / counted.sum(dim=1)
        return means

    def evaluate(self, model: nn.Module, splits: tuple[str, ...], stacked: bool) -> list[Evaluated]:
        """Run one model once over the message edges of all clients, and measure every split of each."""
        if stacked:
            raise NotTogether("models of different clients score their pairs one by one")
        graph, rows = self._all()
        with torch.no_grad():
            columns = self.prepared[0].graph.num_features
            h: Tensor = model.embed(common_columns(graph, columns), None)  # type: ignore[operator]
            parts = [h[k * rows : k * rows + each.graph.num_nodes] for k, each in enumerate(self.prepared)]
            pairs = zip(self.prepared, parts, strict=True)
            return [self.task.evaluated(model, each, mine, splits) for each, mine in pairs]


def stacked_input(graphs: Sequence[GraphInput]) -> tuple[GraphInput, int]:
    """Return graphs side by side, and the rows of each; sparse features have columns of each client's own."""
    graph, rows = stack_graphs(graphs)
    if not isinstance(graph.x, SparseMatrix):
        return graph, rows
    pattern, width = graph.x.pattern, graph.num_features
    owner = pattern.row.long().div(rows, rounding_mode="floor")
    size = (pattern.shape[0], width * len(graphs))
    wide = SparseMatrix(Pattern(pattern.crow, pattern.col.long() + owner * width, size), graph.x.values)
    return graph.replace(x=wide), rows


def common_columns(graph: GraphInput, width: int) -> GraphInput:
    """Return a graph whose sparse features have columns of each client's own with columns that all have in common."""
    if not isinstance(graph.x, SparseMatrix):
        return graph
    pattern = graph.x.pattern
    return graph.replace(
        x=SparseMatrix(Pattern(pattern.crow, pattern.col.long() % width, (pattern.shape[0], width)), graph.x.values)
    )
