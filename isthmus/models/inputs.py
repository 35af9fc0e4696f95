"""What a model is fed: features, edges, and the operators that layers make of them, built once and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from isthmus.core.errors import nearest
from isthmus.models.products.affine import Activate, affine, aggregated_affine
from isthmus.models.products.pooled import CommonRows, Part, Piece, trimmed
from isthmus.models.products.sparse import (
    OPERATORS,
    Features,
    Pattern,
    SparseMatrix,
    attention_pattern,
    complemented,
    dense,
    edge_pattern,
    padded_starts,
    pooling_operator,
)

_STRUCTURE = ("edge_index", "edge_weight", "batch", "num_graphs")


@dataclass(frozen=True)
class Reach:
    """Of which nodes a model's output is wanted, where those of each client lie in the order of their distance to them.

    Fields:
        clients: how many clients there are, each with equally many rows
        rows:    rows of each client that are wanted, then those within one hop of them, and so on
    """

    clients: int
    rows: tuple[int, ...]


class DistinctRows(NamedTuple):
    """What an operator makes of features, without repetition within each client.

    Fields:
        rows: the rows, (rows, features)
        back: puts them back to nodes, (nodes, rows)
        kind: rows of the same kind are equal, whosever they are, (rows,); padding is of any kind
    """

    rows: Tensor
    back: SparseMatrix
    kind: Tensor

    def common(self) -> CommonRows:
        """Return the rows of all clients without repetition."""
        kinds, place = torch.unique(self.kind, return_inverse=True)
        rows = self.rows.new_empty(len(kinds), self.rows.shape[1])
        rows[place] = self.rows  # of several of a kind any will do
        return CommonRows(rows, place)


@dataclass(frozen=True, eq=False)
class GraphInput:
    """A graph, or several side by side, as models read it.

    Fields:
        x:           (nodes, features), float32: dense, a `SparseMatrix`, or `torch.sparse_csr` (wrapped once, here)
        edge_index:  (2, edges), int64: sources and targets; both directions of an undirected edge, no self-loops
        edge_weight: (edges,), float32, or None for ones
        batch:       (nodes,), int64: the graph each node belongs to, or None for one graph
        num_graphs:  number of graphs; without it, as many as `batch` names
        edge_attr:   (edges, edge features), in the order of `edge_index`, or None
        complement:  (nodes, nodes), weights of an inferred structure that is added to the edges' (FedGL, eq. 9), or
                     None: to the operators "gcn" and "sum" as it is, to "mean" before the mean is taken, and
                     to attention as a factor on the exponential. Its diagonal counts where a layer has loops
        kept:        (edges,), bool: the edges that count, or None for all. What was sorted once serves again
        reach:       of which nodes the output is wanted, or None for all; a model may leave others out of what it
                     computes and gives
    """

    x: Features
    edge_index: Tensor
    edge_weight: Tensor | None = None
    batch: Tensor | None = None
    num_graphs: int | None = None
    edge_attr: Tensor | None = None
    complement: SparseMatrix | None = None
    kept: Tensor | None = None
    reach: Reach | None = None
    _built: dict[object, Any] = field(default_factory=dict, init=False, repr=False)
    _fused: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        # Only shapes are checked here (augmentations make inputs by the thousand); entries, where operators are built.
        if isinstance(self.x, Tensor) and self.x.layout == torch.sparse_csr:
            object.__setattr__(self, "x", SparseMatrix.from_csr(self.x))
        self._check()
        if self.num_graphs is None:
            found = 1 if self.batch is None else int(self.batch.max()) + 1 if len(self.batch) else 0
            object.__setattr__(self, "num_graphs", found)

    def _check(self) -> None:
        if self.edge_index.ndim != 2 or self.edge_index.shape[0] != 2:
            raise ValueError(f"edge_index has shape {tuple(self.edge_index.shape)}; it must be (2, edges)")
        for name, rows in (
            ("edge_weight", self.num_edges),
            ("edge_attr", self.num_edges),
            ("batch", self.num_nodes),
            ("kept", self.num_edges),
        ):
            value = getattr(self, name)
            if value is not None and len(value) != rows:
                raise ValueError(f"{name} has {len(value)} rows; it must have {rows}")
        if self.complement is not None and self.complement.shape != (self.num_nodes, self.num_nodes):
            raise ValueError(f"complement is {self.complement!r}; it must be {self.num_nodes} x {self.num_nodes}")
        if self.edge_weight is not None and self.edge_weight.requires_grad:
            raise ValueError("edge_weight requires a gradient; operators are constants: pass edge_weight.detach()")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.x.shape[0]

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return self.x.shape[1]

    @property
    def graph_of(self) -> Tensor:
        """The graph each node belongs to, (nodes,), also where there is only one."""
        return self.edge_index.new_zeros(self.num_nodes) if self.batch is None else self.batch

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.edge_index.shape[1]

    def replace(self, **changes: Any) -> GraphInput:
        """Return this input with other fields; what was built of the edges is kept only if no edge or node changed."""
        fields: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("x", *_STRUCTURE, "edge_attr", "complement", "kept", "reach")
            if name not in changes
        }
        if "batch" in changes and "num_graphs" not in changes:
            fields["num_graphs"] = None
        other = GraphInput(**fields, **changes)
        if other.num_nodes == self.num_nodes and not any(name in changes for name in _STRUCTURE):
            object.__setattr__(other, "_built", self._built)
            if "complement" not in changes and "kept" not in changes:
                object.__setattr__(other, "_fused", self._fused)
        return other

    def features_times(self, weight: Tensor) -> Tensor:
        """Return x @ weight, (nodes, out), by the sparse product where x is sparse."""
        return affine(self.x, weight)

    def operator(self, name: str) -> SparseMatrix:
        """Return an aggregation matrix, (nodes, nodes): "gcn", "mean", "sum" or "sum with self" (see `OPERATORS`)."""
        built = self._built if self.complement is None and self.kept is None else self._fused
        if name not in built:
            if name not in OPERATORS:
                raise ValueError(f"operator is {name!r}; {nearest(name, OPERATORS)}")
            if self.complement is None:
                loops, finish = OPERATORS[name]
                built[name] = finish(self._weighted(loops))
            else:
                own = self.replace(complement=None).operator("sum" if name == "mean" else name)
                built[name] = complemented(name, own, self.complement)
        return cast(SparseMatrix, built[name])

    def mixed(
        self, name: str, h: Features, weight: Tensor, bias: Tensor | None = None, activate: Activate | None = None
    ) -> Tensor:
        """Return S H W + b with S an operator, in the cheaper order; narrow features are aggregated once and kept."""
        if h is not self.x or not isinstance(h, Tensor) or h.requires_grad or weight.shape[-2] >= weight.shape[-1]:
            return aggregated_affine(self.operator(name), h, weight, bias, activate)
        return affine(self.aggregated(name), weight, bias, None, activate)

    def aggregated(self, name: str) -> Tensor:
        """Return S X with S an operator, for dense features without a gradient; computed once and kept."""
        built = self._built if self.complement is None and self.kept is None else self._fused
        found = built.get(("times", name))
        if found is None or found[0] is not self.x:
            found = built["times", name] = (self.x, self.operator(name).matmul(dense(self.x)))
        return cast(Tensor, found[1])

    def distinct(self, name: str, h: Features) -> tuple[Tensor, SparseMatrix] | None:
        """Return the rows of S X without repetition, and the (nodes, rows) matrix that puts them back.

        None where `h` is not what was told of by `tell_distinct`, where edges are left out or added, or where too few
        rows are alike.
        """
        if self.kept is not None or self.complement is not None:
            return None
        key = ("distinct", name)
        told, found = self._built.get(key, (None, None))
        if told is None or told is not h:
            return None
        if callable(found):
            found = found()
            self._built[key] = (told, found)
        return None if found is None else cast(DistinctRows, found)[:2]

    def common_rows(self, name: str) -> CommonRows | None:
        """Return what `distinct` has found once more, rows that several clients have once; made once."""
        found = self._built.get(("distinct", name), (None, None))[1]
        if not isinstance(found, DistinctRows):
            return None
        return cast(CommonRows, self.once(f"common {name}", found, found.common))

    def tell_distinct(self, name: str, find: Callable[[], DistinctRows | None]) -> None:
        """Say how the distinct rows of S X are found, with an operator S and these features X; done when asked for."""
        self._built["distinct", name] = (self.x, find)

    def reading(self, back: SparseMatrix) -> GraphInput:
        """Return what a layer sees of this graph where it reads distinct rows, and `back` puts them back to nodes."""
        return cast(GraphInput, self.once("reading", back, lambda: Reading(self, back)))

    def once(self, key: str, of: object, make: Callable[[], object]) -> object:
        """Return what is made of something that goes with these edges; made once."""
        known = self._built.get(key)
        if known is None or known[0] is not of:
            known = self._built[key] = (of, make())
        return known[1]

    def tell_parts(self, parts: Sequence[Part]) -> None:
        """Say which graphs have no edges to others; all nodes with edges are in one of the parts, in their order."""
        self._built["parts"] = parts

    def pieces(self, name: str, mean: bool, rows: int, back: SparseMatrix | None = None) -> list[Piece]:
        """Return an operator on so many rows, and the pooling after it, part by part; one piece where none are told.

        With `back`, which puts the rows to nodes before, the operator is that on nodes.
        """
        built = self._built if self.complement is None and self.kept is None else self._fused
        key = ("pieces", name, mean, back is None)
        if key not in built or built[key][0] is not back:
            operator, pool, found = self.operator(name), self.pooling(mean), []
            for part, read, spare in self._reads(rows) if back is None else trimmed(self._reads(rows), back):
                on = operator.block(part.nodes, read if back is None else part.nodes)
                own = None if back is None else back.block(part.nodes, read)
                found.append(Piece(part, read, spare, on, pool.block(part.graphs, part.nodes), own))
            built[key] = (back, found)
        return cast("list[Piece]", built[key][1])

    def _reads(self, rows: int) -> list[tuple[Part, slice, int]]:
        """Return the parts, which of the rows that a layer reads are theirs, and how many after these are nobody's."""
        parts = cast("Sequence[Part] | None", self._built.get("parts"))
        if parts is None or self.complement is not None:  # which may lie between any two
            every = Part(slice(0, None), slice(0, self.num_nodes), slice(0, self.num_graphs or 0))
            return [(every, slice(0, rows), 0)]
        each = rows // parts[-1].tiles.stop  # rows of a tile
        return [(part, slice(part.tiles.start * each, part.tiles.stop * each), 0) for part in parts]

    def own(self, h: Tensor) -> Tensor:
        """Return the rows of the nodes that a layer gives, of all rows that it reads."""
        return h

    def levels(self, layers: int) -> list[GraphInput]:
        """Return what each of so many layers sees: the next one reads no more than the wanted nodes' neighbourhood."""
        if self.reach is None:
            return [self] * layers
        clients, reach = self.reach.clients, self.reach.rows
        every = self.num_nodes // clients
        rows = [every, *(reach[left] if left < len(reach) else every for left in reversed(range(layers)))]
        return [Level(self, clients, read, given) for read, given in pairwise(rows)]

    @property
    def asked_for(self) -> tuple[object, ...]:
        """What models have asked for of the graph as it is: names of operators, and ("pooling", mean)."""
        known = (*OPERATORS, ("pooling", True), ("pooling", False))
        return tuple(name for name in known if name in self._built)

    def give(self, name: object, operator: SparseMatrix) -> None:
        """Hand over what would be built when it is asked for, by a name of `asked_for`; it must be the same."""
        self._built[name] = operator

    def _weighted(self, loops: bool) -> SparseMatrix:
        """Return A, or A + I with `loops`; edges that do not count have the weight 0."""
        if ("pattern", loops) not in self._built:
            self._check_edges()
            self._built["pattern", loops] = edge_pattern(self.edge_index, self.num_nodes, loops)
        pattern, order = cast("tuple[Pattern, Tensor]", self._built["pattern", loops])
        if self.edge_weight is None and self.kept is None:
            return SparseMatrix(pattern, torch.ones(pattern.nnz, device=order.device))
        weight = torch.ones(self.num_edges + self.num_nodes, device=order.device)  # of the edges, then of the loops
        if self.edge_weight is not None:
            weight[: self.num_edges] = self.edge_weight
        if self.kept is not None:
            weight[: self.num_edges] *= self.kept
        return SparseMatrix(pattern, weight[order])

    def attention(self, heads: int = 1) -> tuple[Pattern, Tensor | None]:
        """Return who attends to whom, itself included, with one row for each (node, head).

        Beside it, the logarithm of the factor on each entry's exponential; None where all are one.
        """
        key = ("attention", heads)
        built = self._built if self.complement is None else self._fused
        if key not in built:
            self._check_edges()
            built[key] = attention_pattern(self.edge_index, self.num_nodes, heads, self.complement)
        pattern, order = cast("tuple[Pattern, Tensor]", built[key])
        if self.complement is None and self.kept is None:
            return pattern, None
        if ("factor", heads) not in self._fused:
            factor = torch.zeros(self.num_edges + self.num_nodes, device=order.device)
            if self.kept is not None:
                factor[: self.num_edges].masked_fill_(~self.kept, -torch.inf)
            if self.complement is not None:
                factor = torch.cat([factor, self.complement.values.log()])
            self._fused["factor", heads] = factor[order]
        return pattern, cast(Tensor, self._fused["factor", heads])

    def incidence(self) -> tuple[SparseMatrix, SparseMatrix]:
        """Return the (edges, nodes) matrix that takes each edge's source, and the (nodes, edges) one that adds up.

        The second adds, at each target, what its in-edges carry, by their weights; edges that do not count carry 0.
        """
        if "incidence" not in self._built:
            self._check_edges()
            number = torch.arange(self.num_edges, device=self.edge_index.device)
            size = (self.num_nodes, self.num_edges)
            source, _ = Pattern.from_pairs(number, self.edge_index[0], (self.num_edges, self.num_nodes))
            target, order = Pattern.from_pairs(self.edge_index[1], number, size)
            self._built["incidence"] = (SparseMatrix(source, self._ones()), target, order)
        source_of, target, order = cast("tuple[SparseMatrix, Pattern, Tensor]", self._built["incidence"])
        weight = self._ones() if self.edge_weight is None else self.edge_weight
        if self.kept is not None:
            weight = weight * self.kept
        return source_of, SparseMatrix(target, weight[order])

    def _ones(self) -> Tensor:
        """Return a one for each edge."""
        return torch.ones(self.num_edges, device=self.edge_index.device)

    def undirected_pairs(self) -> tuple[Tensor, int]:
        """Return which undirected edge each edge is one direction of, (edges,), and how many there are."""
        if "pairs" not in self._built:
            low, high = self.edge_index.min(dim=0).values, self.edge_index.max(dim=0).values
            distinct, pair = torch.unique(low * self.num_nodes + high, return_inverse=True)
            self._built["pairs"] = (pair, len(distinct))
        return cast("tuple[Tensor, int]", self._built["pairs"])

    def pooling(self, mean: bool) -> SparseMatrix:
        """Return the (graphs, nodes) matrix that sums, or averages, the nodes of each graph."""
        if ("pooling", mean) not in self._built:
            self._built["pooling", mean] = pooling_operator(self.graph_of, self.num_graphs or 0, mean)
        return cast(SparseMatrix, self._built["pooling", mean])

    def _check_edges(self) -> None:
        loops = self.edge_index[0] == self.edge_index[1]
        if bool(loops.any()):
            node = int(self.edge_index[0, loops][0])
            raise ValueError(
                f"edge_index holds {int(loops.sum())} self-loops (the first at node {node}); "
                "remove them: layers that need loops add their own"
            )

    def __repr__(self) -> str:
        kind = "sparse" if isinstance(self.x, SparseMatrix) else "dense"
        weighted = "" if self.edge_weight is None else " weighted"
        left = "" if self.kept is None else f", {int(self.kept.sum())} of them kept"
        added = "" if self.complement is None else f", complemented by {self.complement.pattern.nnz} entries"
        graphs = "" if self.batch is None else f", {self.num_graphs} graphs"
        return (
            f"GraphInput({self.num_nodes} nodes, {self.num_features} {kind} features, "
            f"{self.num_edges}{weighted} directed edges{left}{added}{graphs})"
        )


class Level(GraphInput):
    """The first rows of each client, `given` of them, made of its first `read` ones: what one layer sees of a graph."""

    _of: tuple[GraphInput, int, int, int]

    def __init__(self, whole: GraphInput, clients: int, read: int, given: int) -> None:
        super().__init__(torch.empty(clients * given, 0), whole.edge_index[:, :0])
        object.__setattr__(self, "_of", (whole, clients, read, given))

    def operator(self, name: str) -> SparseMatrix:
        """Return the rows of an operator that are given, and the columns that are read."""
        whole, clients, read, given = self._of
        if name not in self._built:
            self._built[name] = whole.operator(name).corners(clients, given, read)
        return cast(SparseMatrix, self._built[name])

    def own(self, h: Tensor) -> Tensor:
        """Return the first rows of each client."""
        _, clients, read, given = self._of
        return h if read == given else h.view(clients, read, -1)[:, :given].flatten(0, 1)


class Reading(GraphInput):
    """A graph as a layer sees it that reads rows of which each is that of several nodes."""

    _of: tuple[GraphInput, SparseMatrix]

    def __init__(self, whole: GraphInput, back: SparseMatrix) -> None:
        super().__init__(torch.empty(whole.num_nodes, 0), whole.edge_index[:, :0], None, whole.batch, whole.num_graphs)
        object.__setattr__(self, "_of", (whole, back))
        if "parts" in whole._built:
            self._built["parts"] = whole._built["parts"]

    def operator(self, name: str) -> SparseMatrix:
        """Return the operator, with a column for each distinct row."""
        if name not in self._built:
            whole, back = self._of
            self._built[name] = whole.operator(name).gathering(back)
        return cast(SparseMatrix, self._built[name])

    def pooling(self, mean: bool) -> SparseMatrix:
        """Return the matrix that sums, or averages, the nodes of each graph."""
        return self._of[0].pooling(mean)

    def _reads(self, rows: int) -> list[tuple[Part, slice, int]]:
        """Return the same, without the padding after a client that is alone in its part."""
        return trimmed(super()._reads(rows), self._of[1])

    def own(self, h: Tensor) -> Tensor:
        """Return a row for each node."""
        return self._of[1].matmul(h)


# ---- graphs of many clients


def stack_graphs(graphs: Sequence[GraphInput]) -> tuple[GraphInput, int]:
    """Return graphs side by side, each padded, without edges or features, to as many nodes as the largest has."""
    if any(graph.kept is not None or graph.complement is not None for graph in graphs):
        raise ValueError("a graph has edges left out or a complement; put the graphs side by side first")
    rows = max(graph.num_nodes for graph in graphs)
    edge_index = torch.cat([graph.edge_index + k * rows for k, graph in enumerate(graphs)], dim=1)
    x = _stack_features([graph.x for graph in graphs], rows)
    return GraphInput(x, edge_index, stack_weights(graphs)), rows


def stack_weights(graphs: Sequence[GraphInput]) -> Tensor | None:
    """Return the weights of all edges, graph after graph; None where all are one."""
    if all(graph.edge_weight is None for graph in graphs):
        return None
    ones = torch.ones(max(graph.num_edges for graph in graphs), device=graphs[0].edge_index.device)
    return torch.cat([ones[: g.num_edges] if g.edge_weight is None else g.edge_weight for g in graphs])


def _stack_features(parts: Sequence[Features], rows: int) -> Features:
    sparse = [part for part in parts if isinstance(part, SparseMatrix)]
    width = parts[0].shape[1]
    device = sparse[0].values.device if sparse else dense(parts[0]).device
    if len(sparse) < len(parts):
        stacked = torch.zeros(len(parts), rows, width, device=device)
        for k, part in enumerate(parts):
            stacked[k, : part.shape[0]] = dense(part)
        return stacked.flatten(0, 1)
    crow = padded_starts(sparse, rows)
    pattern = Pattern(crow, torch.cat([part.pattern.col for part in sparse]), (len(parts) * rows, width))
    return SparseMatrix(pattern, torch.cat([part.values for part in sparse]))
