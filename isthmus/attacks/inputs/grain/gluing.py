"""Puts a graph together from what is known of each node's neighbours, depth first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias


@dataclass(frozen=True)
class Piece:
    """A node with what its neighbours are called.

    Fields:
        label: what it is called itself
        near:  what its neighbours are called, sorted
    """

    label: int
    near: tuple[int, ...]


@dataclass(frozen=True)
class Glued:
    """A graph whose nodes are pieces: which piece each is, and its edges."""

    pieces: tuple[int, ...]
    edges: frozenset[tuple[int, int]]


# What a step of the search comes to: graphs, and steps that come before those that follow it.
Step: TypeAlias = Iterator["Glued | Step"]


@dataclass
class Budget:
    """How many steps a search may still take: steps and no seconds, so that the same messages give the same guess."""

    left: int

    def spend(self) -> bool:
        """Take one; return whether there was one."""
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True)
class Stock:
    """How much there is of each group of pieces, of which it is not known which of them there are.

    Fields:
        group: which group each piece is in
        size:  what a piece takes of its group
        whole: what there is of each group, and all of it is used
        nodes: how many nodes there are
    """

    group: tuple[int, ...]
    size: tuple[float, ...]
    whole: tuple[float, ...]
    nodes: int


# What is left of a group where nothing is left, as a share of a piece.
NOTHING_LEFT = 0.05


class Gluing:
    """Graphs in which each node is one of some pieces, and has just the neighbours that it names.

    Fields:
        budget: of steps
        most:   number of nodes at most
        once:   whether no two nodes have the same label
        stock:  how many there are of which pieces, where it is known
    """

    def __init__(
        self, pieces: Sequence[Piece], budget: Budget, most: int, *, once: bool = False, stock: Stock | None = None
    ) -> None:
        self.pieces, self.budget, self.once, self.stock = list(pieces), budget, once, stock
        self.most = most if stock is None else stock.nodes
        self.left = [] if stock is None else list(stock.whole)
        self.used: Counter[int] = Counter()  # labels
        self.by_label: dict[int, list[int]] = {}
        for place, piece in enumerate(self.pieces):
            self.by_label.setdefault(piece.label, []).append(place)
        self.nodes: list[int] = []  # the piece that each is
        self.open: list[Counter[int]] = []  # the neighbours that each still lacks
        self.edges: set[tuple[int, int]] = set()

    def graphs(self) -> Iterator[Glued]:
        """Yield graphs, until there are no more or the budget is spent.

        Each edge is a step within steps, and a graph may have more of them than Python lets calls be within calls.
        """
        under_way: list[Step] = [self._begun(self._starts())]
        while under_way:
            found = next(under_way[-1], None)
            if found is None:
                under_way.pop()
            elif isinstance(found, Glued):
                yield found
            else:
                under_way.append(found)

    def _starts(self) -> list[int]:
        """Return the pieces that a component can begin with: all of the smallest group of which something is left."""
        if self.stock is None:
            return sorted(range(len(self.pieces)), key=lambda place: -len(self.pieces[place].near))
        groups: dict[int, list[int]] = {}
        for place in range(len(self.pieces)):
            if self._can_be_added(place):
                groups.setdefault(self.stock.group[place], []).append(place)
        return min(groups.values(), key=len, default=[])

    def _begun(self, starts: Sequence[int]) -> Step:
        for start in starts:
            self._add(start)
            yield self._grown()
            self._take_back()

    def _grown(self) -> Step:
        if not self.budget.spend():
            return
        node = next((n for n, lacks in enumerate(self.open) if lacks), None)
        if node is None:
            yield self._whole()
            return
        label = min(self.open[node], key=lambda each: (len(self.by_label.get(each, ())), each))
        own = self.pieces[self.nodes[node]].label
        for other in self._joinable(node, label, own):
            self._join(node, other, label, own)
            yield self._grown()
            self._part(node, other, label, own)
        for place in self.by_label.get(label, ()):
            if self._can_be_added(place) and own in self.pieces[place].near:
                self._add(place)
                self._join(node, len(self.nodes) - 1, label, own)
                yield self._grown()
                self._part(node, len(self.nodes) - 1, label, own)
                self._take_back()

    def _whole(self) -> Step:
        """Yield the graph, or begin another component where something is left."""
        whole = self.stock is None or len(self.nodes) == self.stock.nodes
        if not whole:
            yield self._begun(self._starts())
        elif not any(self._is_left(place) for place in range(len(self.pieces)) if self.stock):
            yield Glued(tuple(self.nodes), frozenset(self.edges))

    def _joinable(self, node: int, label: int, own: int) -> list[int]:
        """Return the nodes that can be the neighbour that a node lacks."""
        found = []
        for other in range(node + 1, len(self.nodes)):
            fits = self.pieces[self.nodes[other]].label == label and self.open[other][own] > 0
            if fits and (node, other) not in self.edges:
                found.append(other)
        return found

    def _can_be_added(self, place: int) -> bool:
        if len(self.nodes) >= self.most or (self.once and self.used[self.pieces[place].label]):
            return False
        return self._is_left(place)

    def _is_left(self, place: int) -> bool:
        """Whether there is enough of a piece's group for one more."""
        if self.stock is None:
            return True
        return self.left[self.stock.group[place]] >= (1.0 - NOTHING_LEFT) * self.stock.size[place] > 0.0

    def _add(self, place: int) -> None:
        self._take(place, 1)
        self.nodes.append(place)
        self.open.append(Counter(self.pieces[place].near))

    def _take_back(self) -> None:
        self._take(self.nodes.pop(), -1)
        self.open.pop()

    def _take(self, place: int, number: int) -> None:
        self.used[self.pieces[place].label] += number
        if self.stock is not None:
            self.left[self.stock.group[place]] -= number * self.stock.size[place]

    def _join(self, one: int, other: int, label: int, own: int) -> None:
        self.edges.add((min(one, other), max(one, other)))
        _less(self.open[one], label)
        _less(self.open[other], own)

    def _part(self, one: int, other: int, label: int, own: int) -> None:
        self.edges.discard((min(one, other), max(one, other)))
        self.open[one][label] += 1
        self.open[other][own] += 1


def _less(lacks: Counter[int], label: int) -> None:
    lacks[label] -= 1
    if not lacks[label]:
        del lacks[label]


def all_right(graphs: Iterator[Glued], right: Callable[[Glued], bool], checks: int) -> Iterator[Glued]:
    """Yield the graphs that are right, of the first so many."""
    for graph in islice(graphs, checks):
        if right(graph):
            yield graph
