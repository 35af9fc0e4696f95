"""Puts a graph together from what is known of each node's neighbours, depth first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


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


@dataclass
class Budget:
    """How many steps a search may still take: steps and no seconds, so that the same messages give the same guess."""

    left: int

    def spend(self) -> bool:
        """Take one; return whether there was one."""
        self.left -= 1
        return self.left >= 0


class Gluing:
    """Graphs in which each node is one of some pieces, and has just the neighbours that it names.

    Fields:
        pieces: what nodes can be
        budget: of steps
        counts: how often each piece is there, or None where it is not known
        once:   whether no two nodes have the same label
        most:   number of nodes at most
    """

    def __init__(
        self, pieces: Sequence[Piece], budget: Budget, counts: Sequence[int] | None, once: bool, most: int
    ) -> None:
        self.pieces, self.budget, self.exact, self.once, self.most = list(pieces), budget, bool(counts), once, most
        self.left = list(counts or [most] * len(pieces))
        self.used: Counter[int] = Counter()  # labels
        self.by_label: dict[int, list[int]] = {}
        for place, piece in enumerate(self.pieces):
            self.by_label.setdefault(piece.label, []).append(place)
        self.nodes: list[int] = []  # the piece that each is
        self.open: list[Counter[int]] = []  # the neighbours that each still lacks
        self.edges: set[tuple[int, int]] = set()

    def graphs(self) -> Iterator[Glued]:
        """Yield graphs, until there are no more or the budget is spent."""
        starts = list(range(len(self.pieces)))
        # From the rarest piece with most neighbours: fewest ways to go wrong.
        starts.sort(key=lambda place: (self.left[place], -len(self.pieces[place].near)))
        for start in starts[:1] if self.exact else starts:
            self._add(start)
            yield from self._grown()
            self._take_back()

    def _grown(self) -> Iterator[Glued]:
        if not self.budget.spend():
            return
        node = next((n for n, lacks in enumerate(self.open) if lacks), None)
        if node is None:
            yield from self._whole()
            return
        label = min(self.open[node], key=lambda each: len(self.by_label.get(each, ())))
        own = self.pieces[self.nodes[node]].label
        for other in self._joinable(node, label, own):
            self._join(node, other, label, own)
            yield from self._grown()
            self._part(node, other, label, own)
        for place in self.by_label.get(label, ()):
            if self._can_be_added(place) and own in self.pieces[place].near:
                self._add(place)
                self._join(node, len(self.nodes) - 1, label, own)
                yield from self._grown()
                self._part(node, len(self.nodes) - 1, label, own)
                self._take_back()

    def _whole(self) -> Iterator[Glued]:
        """Yield the graph, or begin another component where pieces are left."""
        rest = [place for place, count in enumerate(self.left) if count] if self.exact else []
        if not rest:
            yield Glued(tuple(self.nodes), frozenset(self.edges))
            return
        self._add(rest[0])
        yield from self._grown()
        self._take_back()

    def _joinable(self, node: int, label: int, own: int) -> list[int]:
        """Return the nodes that can be the neighbour that a node lacks."""
        found = []
        for other in range(node + 1, len(self.nodes)):
            fits = self.pieces[self.nodes[other]].label == label and self.open[other][own] > 0
            if fits and (node, other) not in self.edges:
                found.append(other)
        return found

    def _can_be_added(self, place: int) -> bool:
        taken = self.once and self.used[self.pieces[place].label] > 0
        return self.left[place] > 0 and len(self.nodes) < self.most and not taken

    def _add(self, place: int) -> None:
        self.left[place] -= 1
        self.used[self.pieces[place].label] += 1
        self.nodes.append(place)
        self.open.append(Counter(self.pieces[place].near))

    def _take_back(self) -> None:
        place = self.nodes.pop()
        self.left[place] += 1
        self.used[self.pieces[place].label] -= 1
        self.open.pop()

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


def first_right(graphs: Iterator[Glued], right: Callable[[Glued], bool], checks: int) -> Glued | None:
    """Return the first graph that is right, of so many; None where there is none."""
    for number, graph in enumerate(graphs):
        if number >= checks:
            return None
        if right(graph):
            return graph
    return None
