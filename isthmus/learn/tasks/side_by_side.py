"""Batches of nodes and of links of many clients side by side: sampled neighbourhoods, pairs of nodes.

A client's batch is made as it would be alone, with its own stream; the graphs of a step are then put side by side. A
graph that is the same in every step, as the message edges of a link task mostly are, is put there once.

Where clients draw negatives of links, each draws for itself, and all draws are looked up at once: what they are drawn
from is sorted once for all clients; where every step sees all training links, all but the draws is the same in every
step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether
from isthmus.data.graph import select_rows, spans
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import Batching, NeighborBatch
from isthmus.learn.metrics.classification import IGNORED, cross_entropy
from isthmus.learn.neighbors import Adjacency, Numbers, sample_neighborhoods
from isthmus.learn.tasks.known_links import Chances, KnownLinks, Room, side_by_side
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated, Placed, StackedBatch
from isthmus.models.dropout import Streams, of_items
from isthmus.models.inputs import GraphInput, Reach, stack_graphs, stack_weights
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix

if TYPE_CHECKING:  # which import this file
    from isthmus.learn.tasks.link_prediction import LinkPrediction
    from isthmus.learn.tasks.link_task import LinkTask, PreparedLinks
    from isthmus.learn.tasks.node_classification import NodeClassification, PreparedNodes

# Clients with more nodes than these, padding included, are evaluated one by one.
MAX_NODES = 200_000
# The links of a step and what is drawn for their negatives.
Drawn: TypeAlias = tuple[Tensor, Chances]


class StackedGraphs(BatchStack):
    """What batches on one graph for each client have in common."""

    @property
    def is_sparse(self) -> bool:
        """Whether features are sparse."""
        return isinstance(self.prepared[0].graph.x, SparseMatrix)

    def whole(self, owners: Sequence[int]) -> tuple[GraphInput, int]:
        """Return the whole graphs of some clients side by side, and the rows of each; the last ones are kept."""
        make = lambda: stacked_input([self.prepared[k].graph for k in owners])  # noqa: E731
        found: tuple[GraphInput, int] = self.kept(("graphs", *owners), make)
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
        return stack_weights([each.graph for each in self.prepared])

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
        graphs, sampled = [each.graph for each in drawn], isinstance(self.batching, NeighborBatch)
        graph, rows = stacked_input(graphs) if sampled else self.without(owners, graphs)
        nodes, entries = self.placed(graphs, rows)
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

    def without(self, owners: Sequence[int], left: Sequence[GraphInput]) -> tuple[GraphInput, int]:
        """Return the whole graphs side by side, but for the edges that are left out of each client's."""
        graph, rows = self.whole(owners)
        if all(mine.kept is None for mine in left):
            return graph, rows
        parts = [torch.ones(g.num_edges, dtype=torch.bool) if g.kept is None else g.kept for g in left]
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


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs of a step but for its negatives.

    Fields:
        ends:  (2, negatives): the link that each of them is made of, as nodes of all clients
        room:  what replacing an end of it can give
        pairs: (2, clients * most), rows of the batch; zeros where negatives come
        into:  (negatives,): where they come
        shift: (negatives,): from nodes of all clients to rows of the batch
        lying: how the pairs lie
        known: relation, target and which pairs count
    """

    ends: Tensor
    room: Room
    pairs: Tensor
    into: Tensor
    shift: Tensor
    lying: Placed
    known: tuple[Tensor, Tensor, Tensor]


class DrawnPairs(LinkStack):
    """Links and as many negatives as are asked for."""

    task: LinkPrediction

    @staticmethod
    def serves(task: LinkPrediction, prepared: Sequence[PreparedLinks], batching: Batching) -> bool:
        """Whether all clients draw negatives, each of a link of its own, and nothing else."""
        if isinstance(batching, NeighborBatch) or len({each.data.undirected for each in prepared}) > 1:
            return False
        nodes = sum(each.data.num_nodes for each in prepared)
        if 2.0 * nodes * nodes * max(prepared[0].data.num_classes, 1) * len(prepared) > 2.0**56:  # keys of 64 bits
            return False
        return not any(
            task.are_given(each, "train") or not bool(task.rooms(each).of(each.index["train"]).possible.all())
            for each in prepared
        )

    @cached_property
    def _data(self) -> LinkGraph:
        return side_by_side([each.data for each in self.prepared])

    @cached_property
    def _links(self) -> KnownLinks:
        return KnownLinks.of(self._data, self.task.by_relation, self.task.self_pairs)

    @cached_property
    def _relation(self) -> Tensor:
        return self.task.relations(self._data, torch.arange(self._data.num_items))

    @cached_property
    def _room(self) -> Room:
        return self._links.rooms(self._data.links, self._relation.clamp(min=0))

    @cached_property
    def _first(self) -> list[tuple[int, int]]:
        """The first node and the first link of each client among those of all."""
        sizes = torch.tensor([(0, 0), *((each.data.num_nodes, each.data.num_items) for each in self.prepared)])
        return [(node, link) for node, link in sizes.cumsum(0).tolist()]

    def draws(self, owner: int, generator: torch.Generator) -> Iterator[Drawn]:
        """Yield the links of each step with what is drawn for their negatives."""
        train = self.prepared[owner].index["train"]
        while len(train):
            for links in self.task.supervised(train, self.batching, generator):
                yield links, Chances.drawn(len(links), self.task.num_negatives, generator)

    def batch(self, owners: Sequence[int], drawn: Sequence[Drawn]) -> StackedBatch:
        """Return message edges and pairs side by side."""
        graphs, supervised = [self.prepared[k].graph for k in owners], zip(owners, drawn, strict=True)
        left = [self.task.messages(self.prepared[k], links) for k, (links, _) in supervised if self.task.disjoint]
        graph, rows = self.without(owners, left)
        found = self._pairs(owners, [links for links, _ in drawn], rows)
        chances = Chances(*(torch.cat([mine[i] for _, mine in drawn]) for i in range(3)))
        wrong = self._links.replaced(found.ends, found.room, chances)
        pairs = found.pairs.index_copy(1, found.into, wrong + found.shift)
        nodes, entries = self.placed(graphs, rows)
        return StackedBatch(graph, nodes, entries, found.lying, (pairs, *found.known))

    def _pairs(self, owners: Sequence[int], links: Sequence[Tensor], rows: int) -> _Pairs:
        """Return the pairs of these links; those of all training links of some clients are kept."""
        every = all(mine is self.prepared[k].index["train"] for k, mine in zip(owners, links, strict=True))
        if not every:
            return self._placed(owners, links, rows)
        found: _Pairs = self.kept(("pairs", *owners), lambda: self._placed(owners, links, rows))
        return found

    def _placed(self, owners: Sequence[int], links: Sequence[Tensor], rows: int) -> _Pairs:
        number = self.task.num_negatives
        counts = [len(mine) for mine in links]
        clients, most = len(owners), max(counts) * (number + 1)
        first = [self._first[k] for k in owners]
        chosen = torch.cat([mine + link for mine, (_, link) in zip(links, first, strict=True)])
        begin = torch.arange(clients) * most  # of each client's pairs
        place = torch.cat([torch.arange(count) + at for count, at in zip(counts, begin.tolist(), strict=True)])
        size = torch.tensor(counts)
        into = torch.cat([torch.arange(c * number) + at + c for c, at in zip(counts, begin.tolist(), strict=True)])
        shift = torch.arange(clients) * rows - torch.tensor([node for node, _ in first])
        ends, kind = self._data.links.index_select(1, chosen), self._relation.index_select(0, chosen)
        again = torch.arange(len(chosen)).repeat_interleave(number)  # the link that each negative is made of
        pairs = torch.zeros(2, clients * most, dtype=torch.int64) + (torch.arange(clients) * rows).repeat_interleave(
            most
        )
        pairs[:, place] = ends + shift.repeat_interleave(size)
        relation = torch.zeros(clients * most, dtype=torch.int64)
        relation[place], relation[into] = kind, kind[again]
        target = torch.zeros(clients * most)
        target[place] = 1.0
        return _Pairs(
            ends.index_select(1, again),
            self._room.of(chosen.index_select(0, again)),
            pairs,
            into,
            shift.repeat_interleave(size * number),
            Placed(tuple(count * (number + 1) for count in counts), most),
            (relation, target, torch.arange(most) < (size * (number + 1)).unsqueeze(1)),
        )


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
