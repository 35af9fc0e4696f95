"""Links and drawn negatives of many clients side by side: each draws for itself, and all draws are looked up at once.

What the negatives of links are drawn from is sorted once for all clients; where every step sees all training links, all
but the draws is the same in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import Batching, NeighborBatch
from isthmus.learn.tasks.known_links import Chances, KnownLinks, Room, side_by_side
from isthmus.learn.tasks.side_by_side import LinkStack
from isthmus.learn.tasks.stacked_batches import Placed, StackedBatch
from isthmus.models.inputs import GraphInput

if TYPE_CHECKING:  # which imports this file
    from isthmus.learn.tasks.link_prediction import LinkPrediction
    from isthmus.learn.tasks.link_task import PreparedLinks

# The links of a step and what is drawn for their negatives.
Drawn: TypeAlias = tuple[Tensor, Chances]


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

    @cached_property
    def _full(self) -> dict[tuple[int, ...], _Pairs]:
        return {}

    def draws(self, owner: int, generator: torch.Generator) -> Iterator[Drawn]:
        """Yield the links of each step with what is drawn for their negatives."""
        train = self.prepared[owner].index["train"]
        while len(train):
            for links in self.task.supervised(train, self.batching, generator):
                yield links, Chances.drawn(len(links), self.task.num_negatives, generator)

    def batch(self, owners: Sequence[int], drawn: Sequence[Drawn]) -> StackedBatch:
        """Return message edges and pairs side by side."""
        graph, rows = self._graph(owners, drawn)
        found = self._pairs(owners, [links for links, _ in drawn], rows)
        chances = Chances(*(torch.cat([mine[i] for _, mine in drawn]) for i in range(3)))
        wrong = self._links.replaced(found.ends, found.room, chances)
        pairs = found.pairs.index_copy(1, found.into, wrong + found.shift)
        nodes, entries = self.placed([self.prepared[k].graph for k in owners], rows)
        return StackedBatch(graph, nodes, entries, found.lying, (pairs, *found.known))

    def _graph(self, owners: Sequence[int], drawn: Sequence[Drawn]) -> tuple[GraphInput, int]:
        graph, rows = self.whole(owners)
        if not self.task.disjoint:
            return graph, rows
        left = [self.task.messages(self.prepared[k], links) for k, (links, _) in zip(owners, drawn, strict=True)]
        return graph.replace(kept=torch.cat([each.kept for each in left if each.kept is not None])), rows

    def _pairs(self, owners: Sequence[int], links: Sequence[Tensor], rows: int) -> _Pairs:
        """Return the pairs of these links; those of all training links of some clients are kept."""
        every = all(mine is self.prepared[k].index["train"] for k, mine in zip(owners, links, strict=True))
        if not every:
            return self._placed(owners, links, rows)
        key = tuple(owners)
        if key not in self._full:
            self._full.clear()
            self._full[key] = self._placed(owners, links, rows)
        return self._full[key]

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
