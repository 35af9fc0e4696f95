"""The graphs of many clients as one set, from which some graphs of each are cut as one batch.

Graphs have no edges between them, so a batch's operators are pieces of the operators of all graphs: those are built
once, and a batch takes the rows of its graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.data.graph import spans
from isthmus.learn.tasks.graph_batches import GraphPile
from isthmus.learn.tasks.stacked_batches import Placed, StackedBatch
from isthmus.models.encoders import dense_indicators
from isthmus.models.inputs import DistinctRows, GraphInput
from isthmus.models.products.pooled import Part
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix

Numbers = NDArray[Any]

# Sums of features of nodes and their neighbours are computed once for all nodes that have the same, where features have
# no more columns than this, and where the sums that are left take no more than this share of the rows.
MOST_COLUMNS, MOST_DISTINCT = 64, 0.7

# Nodes of a part, about: what is made of so many stays in the cache (measured: 2,500 rows of 64 numbers).
PART_ROWS = 2_048


class _Merged(NamedTuple):
    """Which sums of features some nodes have, as client * sums + sum.

    Fields:
        key:    of each node
        keys:   those that occur, ascending
        counts: how many of them are each client's
    """

    key: Numbers
    keys: Numbers
    counts: Numbers


class JoinedGraphs:
    """All graphs of some clients, those of one after those of the other."""

    def __init__(self, piles: Sequence[GraphPile]) -> None:
        self.piles = piles
        sets = [pile.data for pile in piles]
        nodes = np.cumsum([0, *(data.num_nodes for data in sets)])
        edges = np.cumsum([0, *(data.edge_index.shape[1] for data in sets)])
        self.first = np.cumsum([0, *(data.num_items for data in sets)])  # graph of each client
        starts = [data.node_start.numpy()[:-1] + shift for data, shift in zip(sets, nodes, strict=False)]
        self.node_start = np.concatenate([*starts, nodes[-1:]])
        starts = [data.edge_start.numpy()[:-1] + shift for data, shift in zip(sets, edges, strict=False)]
        self.edge_start = np.concatenate([*starts, edges[-1:]])
        self.sizes, self.edge_counts = np.diff(self.node_start), np.diff(self.edge_start)
        shifted = [data.edge_index + int(shift) for data, shift in zip(sets, nodes, strict=False)]
        self.edge_index = torch.cat(shifted, dim=1)
        self.num_nodes = int(nodes[-1])
        self._operators: dict[str, tuple[SparseMatrix, bool]] = {}
        self._wanted: set[object] = set()
        self._last: GraphInput | None = None

    # ---- what is the same for all batches

    @cached_property
    def _whole(self) -> GraphInput:
        return GraphInput(x=torch.empty(self.num_nodes, 0), edge_index=self.edge_index)

    def _operator(self, name: str) -> tuple[SparseMatrix, bool]:
        """Return an operator of all graphs, and whether it is symmetric."""
        if name not in self._operators:
            operator = self._whole.operator(name)
            self._operators[name] = (operator, operator.is_symmetric)
        return self._operators[name]

    @cached_property
    def _features(self) -> Tensor | tuple[Numbers, Tensor, Tensor]:
        """All nodes' features and a row of zeros; where they are sparse, where rows begin, columns and values."""
        first = self.piles[0].data
        if first.x_sizes:
            place = torch.cat([pile.node_places for pile in self.piles])  # (nodes, columns)
            start = np.arange(self.num_nodes + 1) * place.shape[1]
            return start, place.flatten(), torch.ones(place.numel())
        parts = [pile.data.x for pile in self.piles]
        if first.x.layout == torch.sparse_csr:
            lengths = np.concatenate([part.crow_indices().diff().numpy() for part in parts])
            columns = torch.cat([part.col_indices() for part in parts])
            return np.cumsum([0, *lengths]), columns, torch.cat([part.values() for part in parts])
        return torch.cat([*parts, torch.zeros(1, first.x.shape[1])])

    @property
    def is_sparse(self) -> bool:
        """Whether features are sparse."""
        return not isinstance(self._features, Tensor)

    @property
    def width(self) -> int:
        """Number of columns of features."""
        data = self.piles[0].data
        return sum(data.x_sizes) or int(data.x.shape[1])

    @cached_property
    def _edge_features(self) -> Tensor | None:
        data = self.piles[0].data
        if data.edge_attr is None:
            return None
        if data.edge_sizes:
            return torch.cat([pile.edge_places for pile in self.piles])
        return torch.cat([pile.data.edge_attr for pile in self.piles if pile.data.edge_attr is not None])

    @cached_property
    def _alike(self) -> tuple[Numbers, Tensor] | None:
        """Which sum of a node's and its neighbours' features each node has, (nodes,), and these sums, (sums, features).

        None where features are sparse or wide.
        """
        if not isinstance(self._features, Tensor) or self.width > MOST_COLUMNS:
            return None
        sums = self._operator("sum with self")[0].matmul(self._features[:-1]).numpy()
        _, first, number = np.unique(
            sums.view(np.dtype((np.void, sums.dtype.itemsize * self.width))), return_index=True, return_inverse=True
        )
        return number.reshape(-1), torch.from_numpy(sums[first])

    def _merged(self, nodes: Numbers, client: Numbers, clients: int) -> _Merged | None:
        """Return which sums of features some nodes have, each of one of so many clients."""
        if self._alike is None:
            return None
        number, sums = self._alike
        key = client * len(sums) + number[nodes]
        seen = np.zeros(clients * len(sums), dtype=bool)
        seen[key] = True
        keys = np.flatnonzero(seen)
        return _Merged(key, keys, np.bincount(keys // len(sums), minlength=clients))

    def _distinct(self, rows: _Rows, placed: Placed, merged: _Merged | None) -> DistinctRows | None:
        """Return each client's sums of features without repetition, and the matrix that puts them back to its nodes."""
        if merged is None:
            client = np.repeat(np.arange(len(placed.sizes)), placed.sizes)  # of each node
            merged = self._merged(rows.source[rows.taken], client, len(placed.sizes))
        if merged is None or self._alike is None:
            return None
        sums = self._alike[1]
        key, keys, counts = merged
        lying = placed.beside(counts.tolist())
        if lying.bounds[-1] > MOST_DISTINCT * placed.bounds[-1]:
            return None
        row = np.zeros(len(placed.sizes) * len(sums), dtype=np.int64)
        row[keys] = into = spans(lying.bounds[:-1], counts)
        x = sums.new_zeros(int(lying.bounds[-1]), self.width)
        x[torch.from_numpy(into)] = sums[torch.from_numpy(keys % len(sums))]
        kind = torch.full((len(x),), len(sums))  # of padding
        kind[torch.from_numpy(into)] = torch.from_numpy(keys % len(sums))
        pattern = Pattern(rows.starts(), torch.from_numpy(row[key]), (len(rows.source), len(x)))
        return DistinctRows(x, SparseMatrix(pattern, torch.ones(len(key))), kind)

    # ---- batches

    def cut(self, owners: Sequence[int], chosen: Sequence[Tensor], tiled: bool, merges: bool = False) -> StackedBatch:
        """Return the graphs at these positions of these clients; of each in one tile, unless they may be in several.

        Rows that are no client's nodes are padding, which belongs to the client's last graph, and that is padding too.
        Where features are sparse, each client has columns of its own: for weights of the clients one below the other.
        With `merges`, weights multiply distinct sums of features rather than nodes, and tiles are chosen for those.
        """
        counts = np.array([len(positions) for positions in chosen])
        graphs = np.concatenate(
            [self.first[owner] + positions.numpy() for owner, positions in zip(owners, chosen, strict=True)]
        )
        slot = np.repeat(np.arange(len(owners)), counts)  # of each graph: whose it is
        sizes, begin = self.sizes[graphs], self.node_start[graphs]
        nodes = np.bincount(slot, weights=sizes, minlength=len(owners)).astype(np.int64)  # of each client
        every = spans(begin, sizes)  # of each node that is taken, its number among all
        merged = self._merged(every, np.repeat(slot, sizes), len(owners)) if merges else None
        placed = _rows_of(nodes.tolist(), tiled, merged)
        items = placed.beside(counts.tolist(), spare=1)
        padding = placed.bounds[:-1] - (np.cumsum(nodes) - nodes)  # before each client's rows
        into = np.cumsum(sizes) - sizes + padding[slot]  # row of each graph's first node
        # The row of each graph.
        number = np.arange(len(graphs)) + (items.bounds[:-1] - (np.cumsum(counts) - counts))[slot]
        taken = spans(into, sizes)  # (nodes,), rows that are no padding
        source = np.full(placed.bounds[-1], self.num_nodes)  # of each row: its node among all, or the one after all
        source[taken] = every
        batch = np.repeat(items.bounds[1:] - 1, np.diff(placed.bounds))
        batch[taken] = np.repeat(number, sizes)
        x, entries = self._cut_features(source, placed.bounds)
        edges, attributes = self._cut_edges(graphs, into - begin)
        number_of_graphs = int(items.bounds[-1])
        graph = GraphInput(
            x=x, edge_index=edges, batch=torch.from_numpy(batch), num_graphs=number_of_graphs, edge_attr=attributes
        )
        lying = _Rows(source, begin, into, sizes, number, taken)
        self._give(graph, lying)
        graph.tell_distinct("sum with self", partial(self._distinct, lying, placed, merged))
        graph.tell_parts(_parts(placed, items))
        return StackedBatch(graph, placed, entries, items, None)

    def _cut_features(self, source: Numbers, bounds: Numbers) -> tuple[Features, tuple[int, ...]]:
        if isinstance(self._features, Tensor):
            return self._features.index_select(0, torch.from_numpy(source)), ()
        start, columns, values = self._features
        length = np.append(np.diff(start), 0)[source]  # of each row
        crow = np.concatenate([[0], np.cumsum(length)])
        entry = torch.from_numpy(spans(np.append(start[:-1], 0)[source], length))
        counts = np.diff(crow[bounds])  # of each client
        column = columns[entry].long() + torch.from_numpy(np.repeat(np.arange(len(counts)) * self.width, counts))
        pattern = Pattern(torch.from_numpy(crow), column, (len(source), self.width * len(counts)))
        return SparseMatrix(pattern, values[entry]), tuple(counts.tolist())

    def _cut_edges(self, graphs: Numbers, shift: Numbers) -> tuple[Tensor, Tensor | None]:
        """Return the edges of graphs whose nodes are so much further on, and their features, where they have any."""
        counts = self.edge_counts[graphs]
        columns = torch.from_numpy(spans(self.edge_start[graphs], counts))
        edges = self.edge_index.index_select(1, columns) + torch.from_numpy(np.repeat(shift, counts))
        if self._edge_features is None:
            return edges, None
        chosen = self._edge_features.index_select(0, columns)
        sizes = self.piles[0].data.edge_sizes
        return edges, dense_indicators(chosen, sum(sizes)) if sizes else chosen

    def _give(self, graph: GraphInput, rows: _Rows) -> None:
        """Give a batch the operators that the model has asked for of the last one."""
        if self._last is not None:
            self._wanted.update(self._last.asked_for)
        self._last = graph
        for name in self._wanted:
            if isinstance(name, str):
                whole, symmetric = self._operator(name)
                operator = rows.piece(whole)
                if symmetric:
                    operator.mark_symmetric()
                else:
                    operator.mark_transposed(rows.piece(whole.t()))
            else:
                assert isinstance(name, tuple)
                operator = rows.pooling(graph.num_graphs or 0, mean=bool(name[1]))
            graph.give(name, operator)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Where the nodes of a batch come from, and where they are.

    Fields:
        source: of each row: its node among all, or the number of all nodes where it is padding
        begin:  of each graph: its first node among all
        into:   of each graph: the row of its first node
        sizes:  of each graph: its number of nodes
        number: of each graph: its row among graphs
        taken:  the rows that are no padding
    """

    source: Numbers
    begin: Numbers
    into: Numbers
    sizes: Numbers
    number: Numbers
    taken: Numbers

    def piece(self, whole: SparseMatrix) -> SparseMatrix:
        """Return the rows of a matrix of all nodes; a graph's entries lie together, and in its own columns."""
        start = whole.pattern.crow.numpy()
        first = start[self.begin]
        length = start[self.begin + self.sizes] - first
        entry = torch.from_numpy(spans(first.astype(np.int64), length))
        degree = np.append(np.diff(start), 0)[self.source]
        crow = np.zeros(len(self.source) + 1, dtype=np.int32)
        np.cumsum(degree, out=crow[1:])
        shift = torch.from_numpy(np.repeat((self.into - self.begin).astype(start.dtype), length))
        column = whole.pattern.col.index_select(0, entry) + shift
        pattern = Pattern(torch.from_numpy(crow), column, (len(self.source), len(self.source)))
        return SparseMatrix(pattern, whole.values.index_select(0, entry))

    def pooling(self, num_graphs: int, mean: bool) -> SparseMatrix:
        """Return the (graphs, nodes) matrix that adds up, or averages, each graph's nodes, and no padding."""
        lengths = np.zeros(num_graphs, dtype=np.int64)
        lengths[self.number] = self.sizes
        crow = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        size = (num_graphs, len(self.source))
        each = np.repeat(1.0 / self.sizes.clip(min=1), self.sizes) if mean else np.ones(len(self.taken))
        values = torch.from_numpy(each.astype(np.float32))
        found = SparseMatrix(Pattern(crow, torch.from_numpy(self.taken), size), values)
        member = torch.from_numpy(np.repeat(self.number, self.sizes))
        found.mark_transposed(SparseMatrix(Pattern(self.starts(), member, size[::-1]), values))
        return found

    def starts(self) -> Tensor:
        """Return where rows begin in a matrix with one entry for each row that is no padding, (rows + 1,)."""
        held = np.zeros(len(self.source) + 1, dtype=np.int64)
        held[self.taken + 1] = 1
        return torch.from_numpy(np.cumsum(held))


def _rows_of(held: list[int], tiled: bool, merged: _Merged | None) -> Placed:
    """Return where the rows of clients with so many nodes lie."""
    if not tiled:
        return Placed(tuple(held), max(*held, 1))
    return Placed.in_tiles(held) if merged is None else Placed.in_tiles(merged.counts.tolist()).beside(held)


def _parts(nodes: Placed, graphs: Placed) -> list[Part]:
    """Return runs of clients whose nodes are few enough, at least one client in each."""
    tiles = np.cumsum([0, *nodes.counts]).tolist()
    rows, items = nodes.bounds.tolist(), graphs.bounds.tolist()
    found, first = [], 0
    for k, size in enumerate(nodes.sizes):
        if rows[k + 1] - rows[first] < PART_ROWS and k + 1 < len(nodes.sizes):
            continue
        alone = first == k  # then the padding need not be computed
        end = rows[first] + size if alone else rows[k + 1]
        graphs_of = slice(items[first], items[k + 1])
        found.append(Part(slice(tiles[first], tiles[k + 1]), slice(rows[first], end), graphs_of, single=alone))
        first = k + 1
    return found
