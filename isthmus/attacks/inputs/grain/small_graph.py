"""A graph of few nodes, and how alike two are: the same up to the order of nodes, or in their neighbourhoods."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.data.graph import Graph

Colours = list[Any]


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
        """Return what each node is with all that lies within some hops, as a value that can be compared."""
        near = self.neighbors()
        found: Colours = [tuple(row) for row in self.x.float().tolist()]
        for _ in range(hops):
            # A digest of what is nearer keeps values short; equal ones have equal digests in one process.
            found = [hash((found[i], tuple(sorted(hash(found[j]) for j in near[i])))) for i in range(self.num_nodes)]
        return found


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
    hops = one.num_nodes
    first, second = one.colours(hops), other.colours(hops)
    if Counter(first) != Counter(second):
        return False
    return _placed({}, _order(one), first, second, one.neighbors(), [set(near) for near in other.neighbors()])


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


def _placed(
    image: dict[int, int],
    order: list[int],
    first: Colours,
    second: Colours,
    near: list[list[int]],
    other_near: list[set[int]],
) -> bool:
    """Whether the nodes that are left, in their order, have places in the other graph."""
    if len(image) == len(order):
        return True
    node = order[len(image)]
    placed = [image[each] for each in near[node] if each in image]
    taken = set(image.values())
    for place, colour in enumerate(second):
        if place in taken or colour != first[node] or not all(each in other_near[place] for each in placed):
            continue
        if len(other_near[place] & taken) != len(placed):
            continue
        if _placed({**image, node: place}, order, first, second, near, other_near):
            return True
    return False
