"""A graph of few nodes, and how alike two are: the same up to the order of nodes, or in their neighbourhoods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from isthmus.data.graph import Graph

Colours = list[bytes]


@dataclass(frozen=True, eq=False)
class SmallGraph:
    """Nodes with features, and undirected edges.

    Fields:
        x:     (nodes, features)
        edges: pairs of nodes, the smaller one first
    """

    x: Tensor
    edges: frozenset[tuple[int, int]]

    @staticmethod
    def of(graph: Graph) -> SmallGraph:
        """Return a graph as such."""
        pairs = ((min(pair), max(pair)) for pair in graph.edge_index.t().tolist() if pair[0] != pair[1])
        return SmallGraph(graph.x.to_dense().double(), frozenset(pairs))

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.x)

    def neighbors(self) -> list[list[int]]:
        """Return each node's neighbours."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for one, other in sorted(self.edges):
            found[one].append(other)
            found[other].append(one)
        return found

    def adjacency(self) -> Tensor:
        """Return A, (nodes, nodes), in double precision."""
        found = torch.zeros(self.num_nodes, self.num_nodes, dtype=torch.float64)
        for one, other in self.edges:
            found[one, other] = found[other, one] = 1.0
        return found

    def colours(self, hops: int) -> Colours:
        """Return a digest of what each node is with all that lies within some hops."""
        near = self.neighbors()
        rows = self.x.float() + 0.0  # there are two zeros
        found = [_digest(row.numpy().tobytes()) for row in rows]
        for _ in range(hops):
            found = _farther(found, near)
        return found


def _farther(colours: Colours, near: list[list[int]]) -> Colours:
    """Return colours of one hop more."""
    return [_digest(own + b"".join(sorted(colours[j] for j in near[i]))) for i, own in enumerate(colours)]


def _digest(told: bytes) -> bytes:
    return blake2b(told, digest_size=16).digest()


def rings(graph: SmallGraph) -> Counter[int]:
    """Return how many edges are in a ring of each size, the smallest that they are in; 0 for those in none."""
    near = graph.neighbors()
    return Counter(_ring_of(near, *edge) for edge in graph.edges)


def _ring_of(near: list[list[int]], start: int, end: int) -> int:
    """Return the number of nodes of the smallest ring with an edge, 0 without one: breadth first, by another way."""
    reached, front = {start: 1}, [start]
    while front:
        behind = front
        front = []
        for node in behind:
            for other in near[node]:
                if other not in reached and (node, other) != (start, end):
                    reached[other] = reached[node] + 1
                    front.append(other)
        if end in reached:
            return reached[end]
    return 0


def alike(one: SmallGraph, other: SmallGraph, hops: int) -> float:
    """Return F1 of the multisets of nodes with all that lies within some hops: 2 |both| / (|one| + |other|)."""
    first, second = Counter(one.colours(hops)), Counter(other.colours(hops))
    total = one.num_nodes + other.num_nodes
    return 2.0 * sum((first & second).values()) / total if total else 1.0


def same(one: SmallGraph, other: SmallGraph) -> bool:
    """Whether two graphs are the same, features included, but for the order of their nodes."""
    if one.num_nodes != other.num_nodes or len(one.edges) != len(other.edges):
        return False
    near, other_near = one.neighbors(), other.neighbors()
    first, second, number = one.colours(0), other.colours(0), 0
    while len(set(first)) > number:  # what lies farther tells more nodes apart
        number = len(set(first))
        first, second = _farther(first, near), _farther(second, other_near)
    if Counter(first) != Counter(second):
        return False
    return _are_placed(_order(one), first, second, near, list(map(set, other_near)))


def _order(graph: SmallGraph) -> list[int]:
    """Return the nodes so that each but the first of a component comes after one of its neighbours."""
    near, found = graph.neighbors(), []
    seen: set[int] = set()
    for start in range(graph.num_nodes):
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                found.append(node)
                waiting += near[node]
    return found


def _are_placed(
    order: list[int], first: Colours, second: Colours, near: list[list[int]], other_near: list[set[int]]
) -> bool:
    """Whether nodes, in their order, have places in another graph: one after the other, and back where one has none."""
    image: dict[int, int] = {}
    tries: list[Iterator[int]] = []
    while len(image) < len(order):
        node = order[len(image)]
        if len(tries) == len(image):
            tries.append(_places(node, image, first, second, near, other_near))
        place = next(tries[-1], None)
        if place is not None:
            image[node] = place
            continue
        tries.pop()
        if not tries:
            return False
        del image[order[len(image) - 1]]
    return True


def _places(
    node: int,
    image: dict[int, int],
    first: Colours,
    second: Colours,
    near: list[list[int]],
    other_near: list[set[int]],
) -> Iterator[int]:
    """Yield where a node can be, next to the places of its neighbours that have one and of no other node."""
    placed = [image[each] for each in near[node] if each in image]
    taken = set(image.values())
    for place, colour in enumerate(second):
        if place in taken or colour != first[node] or not all(each in other_near[place] for each in placed):
            continue
        if len(other_near[place] & taken) == len(placed):
            yield place
