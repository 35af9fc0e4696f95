"""What is known of a client's links: who stands at the other end, who could, and pairs that are no link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.link_graph import LinkGraph


@dataclass(frozen=True)
class RowSets:
    """For each row, some of the places 0, 1, ..., `num_places` - 1. Rows may be any numbers from 0 on.

    Fields:
        key:        row * num_places + place, ascending, each once
        missing:    row * num_places + how many smaller places the row lacks; ascending too
        num_places: how many places there are
    """

    key: Tensor  # (entries,)
    missing: Tensor  # (entries,)
    num_places: int

    @staticmethod
    def of(row: Tensor, place: Tensor, num_places: int) -> RowSets:
        """Sort pairs of row and place, (pairs,) each; repeated ones count once."""
        key = torch.unique(row * num_places + place)
        first = torch.searchsorted(key, key - key % max(num_places, 1))  # where each entry's row begins
        return RowSets(key, key - (torch.arange(len(key), device=key.device) - first), num_places)

    def count(self, row: Tensor) -> Tensor:
        """Return how many places each row has, (rows,)."""
        return self.start(row + 1) - self.start(row)

    def absent(self, row: Tensor, number: Tensor, begin: Tensor | None = None) -> Tensor:
        """Return the place that is the `number`-th, from 0, of those that a row lacks, (rows,); `begin` is `start`."""
        passed = torch.searchsorted(self.missing, row * self.num_places + number, right=True)
        return number + passed - (self.start(row) if begin is None else begin)

    def followed(self, other: RowSets, rows: int) -> RowSets:
        """Return these rows, so many of them, and then another's, with as many places."""
        shift = rows * self.num_places
        key, missing = torch.cat([self.key, other.key + shift]), torch.cat([self.missing, other.missing + shift])
        return RowSets(key, missing, self.num_places)

    def entries(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return all places of the given rows: the position of the row in `row`, and the place, (found,) each."""
        count = self.count(row)
        owner = torch.repeat_interleave(torch.arange(len(row), device=row.device), count)
        before = count.cumsum(0) - count
        position = self.start(row)[owner] + torch.arange(len(owner), device=row.device) - before[owner]
        return owner, self.key[position] % max(self.num_places, 1)

    def start(self, row: Tensor) -> Tensor:
        """Return where rows begin, (rows,)."""
        return torch.searchsorted(self.key, row * self.num_places)


HEAD, TAIL = 0, 1


@dataclass(frozen=True)
class Candidates:
    """Which nodes could stand in a node's place: all of its side (users, items), or all where there are no sides.

    Fields:
        side:  (nodes,), the side of each node, from 0
        place: (nodes,), its number among the nodes of its side
        nodes: (nodes,), those of side 0, then those of side 1, ...; ascending within each
        first: (sides + 1,), where each side begins in `nodes`
    """

    side: Tensor
    place: Tensor
    nodes: Tensor
    first: Tensor

    @staticmethod
    def of(data: LinkGraph) -> Candidates:
        """Read the sides off the node attribute "side", if there is one."""
        found = data.node_attributes.get("side")
        side = data.links.new_zeros(data.num_nodes)
        if found is not None:
            side = torch.unique(found, return_inverse=True)[1]
        nodes = torch.argsort(side, stable=True)
        count = torch.bincount(side, minlength=1)
        first = torch.cat([count.new_zeros(1), count.cumsum(0)])
        place = torch.empty_like(nodes).index_copy_(0, nodes, torch.arange(len(nodes), device=nodes.device))
        return Candidates(side, place - first[side], nodes, first)

    @property
    def num_sides(self) -> int:
        """Number of sides."""
        return len(self.first) - 1

    @property
    def sizes(self) -> Tensor:
        """Number of nodes of each side, (sides,)."""
        return self.first.diff()

    def members(self, side: int) -> Tensor:
        """Return the nodes of a side, ascending."""
        return self.nodes[self.first[side] : self.first[side + 1]]

    def node_at(self, side: Tensor, place: Tensor) -> Tensor:
        """Return the nodes of given sides and places."""
        return self.nodes.index_select(0, self.first.index_select(0, side) + place)


class Room(NamedTuple):
    """What replacing an end of some links can give: for the head, and below for the tail, (2, links) each.

    Fields:
        number: how many nodes make a pair that is no known link
        row:    the row of what is known at that end; those of tails come after those of heads
        begin:  where that row begins
    """

    number: Tensor
    row: Tensor
    begin: Tensor

    def of(self, links: Tensor) -> Room:
        """Return that of some of the links."""
        return Room(*(each.index_select(1, links) for each in self))

    @property
    def possible(self) -> Tensor:
        """Whether a link has a negative of its own, (links,)."""
        return (self.number > 0).any(dim=0)


class Chances(NamedTuple):
    """What is drawn for the negatives of some links: which end is replaced, and by which of those that could be.

    Fields:
        spare: (links,): which other link's negatives are taken where a link has none
        coin:  (negatives,): the end, where both could be replaced
        share: (negatives,): the node, as a share of their number
    """

    spare: Tensor
    coin: Tensor
    share: Tensor

    @staticmethod
    def drawn(links: int, number: int, generator: torch.Generator) -> Chances:
        """Draw for so many links with so many negatives each."""
        spare = torch.rand(links, dtype=torch.float64, generator=generator)
        coin = torch.randint(2, (links * number,), generator=generator)
        return Chances(spare, coin, torch.rand(links * number, dtype=torch.float64, generator=generator))


@dataclass(frozen=True)
class KnownLinks:
    """All links of a client's graph, whatever split they are in: what no negative may be, and what a rank leaves out.

    Pairs that are told to be no links, or of which that is not known, are none of them.

    A link is known by its ends, or by its ends and its relation where relations are told apart. A link of an undirected
    graph is known in both directions.

    Fields:
        links:         (2, links), as the graph has them
        relation:      (links,), that of each; 0 where relations are not told apart
        candidates:    who could stand at an end
        partners:      for HEAD and TAIL: known nodes at that end, for each row of other end, relation and side
        num_relations: how many relations are told apart, or 1
        name:          name of the graph, for errors
    """

    links: Tensor
    relation: Tensor
    candidates: Candidates
    partners: tuple[RowSets, RowSets]
    num_relations: int
    name: str

    @staticmethod
    def of(data: LinkGraph, by_relation: bool, self_pairs: bool) -> KnownLinks:
        """Sort all links of a graph; without `self_pairs`, a pair of a node with itself counts as known."""
        candidates = Candidates.of(data)
        kept = data.is_link & (data.label >= 0) if by_relation else data.is_link
        links = data.links[:, kept]
        relation = data.label[kept] if by_relation else torch.zeros_like(links[0])
        num_relations = max(data.num_classes, 1) if by_relation else 1
        known = KnownLinks(links, relation, candidates, (_NONE, _NONE), num_relations, data.name)
        if data.undirected:
            links, relation = torch.cat([links, links.flip(0)], dim=1), relation.repeat(2)
        partners = []
        for end in (HEAD, TAIL):
            row, place = known.rows(links, relation, end), candidates.place[links[end]]
            if not self_pairs:
                own = candidates.side[links[HEAD]] == candidates.side[links[TAIL]]
                row = torch.cat([row, row[own]])
                place = torch.cat([place, candidates.place[links[1 - end, own]]])
            partners.append(RowSets.of(row, place, max(data.num_nodes, 1)))
        return replace(known, partners=(partners[HEAD], partners[TAIL]))

    @cached_property
    def open(self) -> Tensor:
        """Which links have a negative of their own: an end that another node could take, (open,)."""
        rooms = [self.room(self.links, self.relation, end) for end in (HEAD, TAIL)]
        return (torch.stack(rooms) > 0).any(dim=0).nonzero().flatten()

    def rows(self, links: Tensor, relation: Tensor, end: int) -> Tensor:
        """Return the row of `partners[end]` of each link, (links,)."""
        row = links[1 - end] * self.num_relations + relation
        return row * self.candidates.num_sides + self.candidates.side.index_select(0, links[end])

    def room(self, links: Tensor, relation: Tensor, end: int) -> Tensor:
        """Return how many nodes could replace an end of each link and make a pair that is no known link, (links,)."""
        size = self.candidates.sizes[self.candidates.side[links[end]]]
        return size - self.partners[end].count(self.rows(links, relation, end))

    def rooms(self, links: Tensor, relation: Tensor) -> Room:
        """Return what replacing the head, and the tail, of each link can give."""
        row = torch.stack([self.rows(links, relation, end) + end * self._num_rows for end in (HEAD, TAIL)])
        number = torch.stack([self.room(links, relation, end) for end in (HEAD, TAIL)])
        return Room(number, row, self._both.start(row))

    @property
    def _num_rows(self) -> int:
        return len(self.candidates.side) * self.num_relations * self.candidates.num_sides

    @cached_property
    def _both(self) -> RowSets:
        """What is known at the heads, and after it at the tails, so that one search serves both ends."""
        return self.partners[HEAD].followed(self.partners[TAIL], self._num_rows)

    def negatives(
        self, links: Tensor, relation: Tensor, number: int, generator: torch.Generator, rooms: Room | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return `number` pairs for each known link, (2, links * number), that are no known links, and their relations.

        One end, head or tail with the same chance, is replaced by a node of its side, drawn evenly from those that do
        not make a known link. Where an end has no such node, it is the other that is replaced; where neither has, the
        negatives are those of another of the links, drawn evenly; where none of these has any, of any known link. When
        no known link has any, the graph is complete (`has_negatives`): an error. `rooms` of the links may be given,
        where they are known.
        """
        rooms = self.rooms(links, relation) if rooms is None else rooms
        possible = rooms.possible.nonzero().flatten()
        if links.shape[1] and len(possible) == 0:
            if len(self.open) == 0:
                raise BadInput(complete(self.name, len(self.candidates.side)))
            share = torch.rand(links.shape[1], dtype=torch.float64, generator=generator)
            others = self.open[_share_of(share, torch.full_like(links[0], len(self.open)))]
            return self.negatives(self.links[:, others], self.relation[others], number, generator)
        chances = Chances.drawn(links.shape[1], number, generator)
        which = torch.arange(links.shape[1], device=links.device)
        if len(possible) < len(which):
            spare = possible[_share_of(chances.spare, torch.full_like(which, len(possible)))]
            which = torch.where(rooms.possible, which, spare)
        which = which.repeat_interleave(number)
        kind = relation.index_select(0, which)
        # `index_select` takes a third of the time of brackets.
        return self.replaced(links.index_select(1, which), rooms.of(which), chances), kind

    def replaced(self, links: Tensor, rooms: Room, chances: Chances) -> Tensor:
        """Return links with an end of each replaced as was drawn, (2, links); each has room at one end at least."""
        coin = chances.coin.to(links.device)
        end = torch.where(rooms.number[HEAD] == 0, TAIL, torch.where(rooms.number[TAIL] == 0, HEAD, coin)).unsqueeze(0)
        number, row, begin = (each.gather(0, end).squeeze(0) for each in rooms)
        place = self._both.absent(row, _share_of(chances.share, number), begin)
        side = self.candidates.side.index_select(0, links.gather(0, end).squeeze(0))
        return links.scatter(0, end, self.candidates.node_at(side, place).unsqueeze(0))


def side_by_side(graphs: Sequence[LinkGraph]) -> LinkGraph:
    """Return graphs as one, the nodes and links of each after those of the one before; a side is one graph's alone."""
    count = [graph.num_nodes for graph in graphs]
    nodes, first = sum(count), torch.tensor([0, *count]).cumsum(0).tolist()
    links = torch.cat([graph.links + shift for graph, shift in zip(graphs, first, strict=False)], dim=1)
    sides = [Candidates.of(graph) for graph in graphs]
    most = max(each.num_sides for each in sides)
    linked = None
    if any(graph.linked is not None for graph in graphs):
        linked = torch.cat([torch.ones_like(g.label) if g.linked is None else g.linked for g in graphs])
    return LinkGraph(
        x=torch.empty(nodes, 0),
        links=links,
        label=torch.cat([graph.label for graph in graphs]),
        num_classes=graphs[0].num_classes,
        node_ids=torch.arange(nodes),
        link_ids=torch.arange(links.shape[1]),
        linked=linked,
        node_attributes={"side": torch.cat([each.side + k * most for k, each in enumerate(sides)])},
        undirected=graphs[0].undirected,
    )


def has_negatives(data: LinkGraph, by_relation: bool, self_pairs: bool) -> bool:
    """Whether a graph has links, and replacing an end of some link gives a pair that is no known link.

    It has not where everybody is linked to everybody, which with sides is soon the case: one user and its items.
    """
    known = data.is_link & (data.label >= 0) if by_relation else data.is_link
    if not bool(known.any()):
        return False
    # The first link answers for nearly all graphs, and only links that share an end with it say how much room it has.
    near = known & torch.isin(data.links, data.links[:, known][:, 0]).any(dim=0)
    part = replace(data, links=data.links[:, near], label=data.label[near], masks={}, attributes={}, linked=None)
    few = KnownLinks.of(part, by_relation, self_pairs)
    if any(int(few.room(few.links[:, :1], few.relation[:1], end)) > 0 for end in (HEAD, TAIL)):
        return True
    return len(KnownLinks.of(data, by_relation, self_pairs).open) > 0


def complete(name: str, num_nodes: int) -> str:
    """Return what is wrong with a graph that has no negatives, and what would do."""
    return (
        f"the graph {name!r}, of {num_nodes} nodes, is complete: replacing an end of a link gives a known link each "
        "time, so there are no negatives; link prediction needs a graph with gaps"
    )


_NONE = RowSets(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 1)


def _share_of(share: Tensor, limits: Tensor) -> Tensor:
    """Return which of 0, ..., limit - 1 an even draw from [0, 1) is, int64."""
    drawn = share * limits.cpu()
    return torch.minimum(drawn.long().to(limits.device), limits - 1)
