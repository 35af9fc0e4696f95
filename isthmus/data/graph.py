"""What a client holds: one attributed graph with labels and masks, its lists of edges, and how it is cut into parts."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.data.dividing import Holding

Numbers = npt.NDArray[np.int64]


def spans(first: Numbers, length: Numbers) -> Numbers:
    """Return the numbers first[i], first[i] + 1, ... of each span, `length[i]` of them, one span after the other."""
    # Entry e of the result lies in its span i at offset e - before[i].
    before = np.cumsum(length) - length
    numbers = np.repeat(first - before, length)
    numbers += np.arange(len(numbers))
    return numbers


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
        source, target = edge_index.cpu().numpy()
        column = None if bool((source[1:] >= source[:-1]).all()) else np.argsort(source, kind="stable")
        start = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(source, minlength=num_nodes), out=start[1:])
        target = target if column is None else target[column]
        return EdgesByNode(start, target, column, np.full(num_nodes, -1, dtype=np.int64))

    def between(self, nodes: Numbers) -> tuple[Numbers, Numbers]:
        """Return the edges whose both ends are among `nodes` (without repetition), sorted by source then target.

        First both ends, (2, kept), as positions among `nodes`; then where each edge is in the list it was taken from.
        """
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
        return np.stack([source[order], target[order]]), edge if self.column is None else self.column[edge]


@dataclass(frozen=True, eq=False)
class Graph(Holding):
    """An attributed graph; an undirected edge is stored in both directions, once each; no self-loops.

    Fields: those of `Holding`, where nodes are the items, and
        edge_index:  (2, edges), int64, sorted by source then target
        y:           class of each node, (nodes,), int64; -1 where there is no label
        node_ids:    (nodes,), int64; index of each node in the graph this one was cut from
        edge_weight: (edges,), float32, or None for all ones
    """

    item = "node"
    id_field = "node_ids"
    label_field = "y"

    x: Tensor
    edge_index: Tensor
    y: Tensor
    num_classes: int
    node_ids: Tensor
    edge_weight: Tensor | None = None

    @property
    def num_edges(self) -> int:
        """Number of stored (directed) edges: twice the number of undirected ones."""
        return int(self.edge_index.shape[1])

    def subgraph(self, nodes: Tensor) -> Graph:
        """Return the graph induced by `nodes` (int64 indices, without repetition), in their order."""
        return self.divide([nodes])[0]

    def divide(self, parts: Sequence[Tensor]) -> list[Graph]:
        """Return `subgraph(nodes)` for each of many `parts`, which may overlap; each looks at its own nodes' edges."""
        edges = EdgesByNode.of(self.edge_index, self.num_nodes)
        graphs = []
        for nodes in parts:
            ends, column = edges.between(nodes.cpu().numpy())
            edge_index, kept = torch.from_numpy(ends).to(nodes.device), torch.from_numpy(column).to(nodes.device)
            weight = None if self.edge_weight is None else self.edge_weight[kept]
            x, facts = select_rows(self.x, nodes), self._facts_of(nodes)
            graphs.append(replace(self, x=x, edge_index=edge_index, edge_weight=weight, **facts))
        return graphs

    def __repr__(self) -> str:
        size = f"{self.num_nodes} nodes, {self.num_edges} directed edges"
        return self._told(size, f"{self.num_features} features", f"{self.num_classes} classes")


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return the given rows of a dense or sparse CSR matrix, in the same layout."""
    if x.layout != torch.sparse_csr:
        return x.index_select(0, rows)
    # Small torch calls cost more than small numpy ones, and `repeat_interleave` waits for all threads each time.
    start, chosen = x.crow_indices().cpu().numpy(), rows.cpu().numpy()
    first = start[chosen]
    length = start[chosen + 1] - first
    crow = np.zeros(len(length) + 1, dtype=np.int64)
    np.cumsum(length, out=crow[1:])
    entries = torch.from_numpy(spans(first, length)).to(x.device)
    return torch.sparse_csr_tensor(
        torch.from_numpy(crow).to(x.device),
        x.col_indices()[entries],
        x.values()[entries],
        (len(rows), x.shape[1]),
        check_invariants=False,
    )


AnyGraph = TypeVar("AnyGraph", bound=Graph)


# ---- lists of edges as `Graph` stores them: both directions of each undirected edge, sorted, no self-loops


def directed(edge_index: Tensor, num_nodes: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the edges sorted by source then target, each once, no self-loops; the first weight counts."""
    distinct = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, distinct]
    key = edge_index[0] * num_nodes + edge_index[1]
    if weight is None:
        kept = torch.unique(key, sorted=True)
    else:
        kept, order = torch.sort(key, stable=True)
        first = torch.ones_like(kept, dtype=torch.bool)
        first[1:] = kept[1:] != kept[:-1]
        kept, weight = kept[first], weight[distinct][order][first]
    return torch.stack([kept // max(num_nodes, 1), kept % max(num_nodes, 1)]), weight


def undirected_pairs(edge_index: Tensor, num_nodes: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return each undirected edge once, smaller end first, sorted; the first weight of either way counts."""
    low, high = torch.minimum(edge_index[0], edge_index[1]), torch.maximum(edge_index[0], edge_index[1])
    return directed(torch.stack([low, high]), num_nodes, weight)


def undirected(edge_index: Tensor, num_nodes: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the edges in both directions, sorted, each once, no self-loops; the first weight counts."""
    pairs, weight = undirected_pairs(edge_index, num_nodes, weight)
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    return directed(both, num_nodes, None if weight is None else torch.cat([weight, weight]))


def pair_keys(first: Tensor, second: Tensor, num_ids: int) -> Tensor:
    """Return one number for each edge, the same for both directions; ids lie below `num_ids`."""
    return torch.minimum(first, second) * num_ids + torch.maximum(first, second)


def count_pairs(graph: Graph) -> int:
    """Return the number of undirected edges."""
    return len(torch.unique(pair_keys(graph.edge_index[0], graph.edge_index[1], graph.num_nodes)))


def remove_pairs(graph: AnyGraph, fraction: float, rng: np.random.Generator) -> AnyGraph:
    """Return the graph without a random `fraction` of its undirected edges, rounded to whole edges."""
    keys = pair_keys(graph.edge_index[0], graph.edge_index[1], graph.num_nodes)
    pairs, pair_of = torch.unique(keys, return_inverse=True)
    num_removed = round(fraction * len(pairs))
    if num_removed == 0:
        return graph
    kept = torch.ones(len(pairs), dtype=torch.bool)
    kept[torch.from_numpy(rng.choice(len(pairs), num_removed, replace=False))] = False
    edges = kept[pair_of]  # (edges,)
    return replace(
        graph,
        edge_index=graph.edge_index[:, edges],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[edges],
    )


# ---- features


def sparse_rows(start: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a CSR matrix: row i has the entries from start[i] to start[i + 1]."""
    with warnings.catch_warnings():  # torch tells once per process that CSR is beta; no user can act on that
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(start, columns, values, shape, check_invariants=True)


# What stands before the name of a feature of edges in a list of all that a model reads.
EDGE = "edge: "


def input_names(data: Any, edges: bool = False) -> tuple[str, ...]:
    """Return what the columns that a model reads are called, in order; empty where those of nodes have no names.

    With `edges`, the features of edges come after those of nodes, where the data have some (a set of graphs).
    """
    names: tuple[str, ...] = data.feature_names
    if not names or not edges:
        return names
    return (*names, *(EDGE + name for name in getattr(data, "edge_feature_names", ())))


def names_digest(names: Sequence[str]) -> str:
    """Return a short text that differs between lists of names that differ; empty where there are no names."""
    # A letter in front, or YAML would take one in two thousand for a number.
    return "f" + hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:31] if names else ""


def feature_facts(names: Sequence[str], digest: str = "", schema: str = "") -> dict[str, str]:
    """Return what a model file says of the columns its model reads; a digest alone where the names are not known.

    `schema` is the digest of the schema that they follow, where all have one: it has their scale too.
    """
    scale = {"schema": schema} if schema else {}
    if not names:
        return {"features": digest, **scale} if digest else scale
    return {"features": names_digest(names), "feature_names": json.dumps(list(names)), **scale}
