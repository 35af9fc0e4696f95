"""Induced edges: those of one graph whose both ends are among given nodes, found for many sets of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

Numbers = npt.NDArray[np.int64]


def spans(first: Numbers, length: Numbers) -> Numbers:
    """Return the numbers first[i], first[i] + 1, ... of each span, `length[i]` of them, one span after the other."""
    # Entry e of the result lies in its span i at offset e - before[i].
    before = np.cumsum(length) - length
    numbers = np.repeat(first - before, length)
    numbers += np.arange(len(numbers))
    return numbers


class InducedEdges(NamedTuple):
    """Edges between chosen nodes, sorted by source then target.

    Fields:
        ends:   (2, kept); source and target, as positions among the chosen nodes
        column: (kept,); where each edge is in the list it was taken from
    """

    ends: Numbers
    column: Numbers


@dataclass(frozen=True, eq=False)
class EdgesByNode:
    """The edges of a graph in CSR form; a cut costs time in proportion to the edges at the cut's own nodes.

    Fields:
        start:    (nodes + 1,); the edges that leave node i are those from start[i] to start[i + 1]
        target:   (edges,)
        column:   (edges,); where each edge is in the list that this was made from
        position: (nodes,); scratch memory, -1 everywhere between two cuts, so that none has to clear it all
    """

    start: Numbers
    target: Numbers
    column: Numbers | None  # None: each edge is in its own place
    position: Numbers

    @staticmethod
    def of(edge_index: Tensor, num_nodes: int) -> EdgesByNode:
        """Group the edges by source; those of a `Graph` are in that order already."""
        source, target = edge_index.numpy()
        column = None if bool((source[1:] >= source[:-1]).all()) else np.argsort(source, kind="stable")
        start = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(source, minlength=num_nodes), out=start[1:])
        target = target if column is None else target[column]
        return EdgesByNode(start, target, column, np.full(num_nodes, -1, dtype=np.int64))

    def between(self, nodes: Numbers) -> InducedEdges:
        """Return the edges whose both ends are among `nodes` (without repetition)."""
        first = self.start[nodes]
        degree = self.start[nodes + 1] - first
        edge = spans(first, degree)  # (candidates,)
        self.position[nodes] = np.arange(len(nodes))
        target = self.position[self.target[edge]]
        self.position[nodes] = -1
        kept = target >= 0
        source, target, edge = np.repeat(np.arange(len(nodes)), degree)[kept], target[kept], edge[kept]
        # A stable sort, being by runs, takes one look at what is in order already: nodes that ascend, as most do.
        order = np.argsort(source * len(nodes) + target, kind="stable")
        edge = edge[order]
        return InducedEdges(
            np.stack([source[order], target[order]]), edge if self.column is None else self.column[edge]
        )
