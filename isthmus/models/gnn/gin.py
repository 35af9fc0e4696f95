"""Graph isomorphism network. Xu et al. (2019), "How powerful are graph neural networks?".

With features of edges it is GINE: Hu et al. (2020), "Strategies for pre-training graph neural networks".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import BatchNorm, Linear, Part, StackSpec, glorot, require_count, shape_of
from isthmus.models.products.affine import affine, per_row, pooled_affine
from isthmus.models.products.pooled import ActivateSome, CommonRows, pooled_relu
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix, dense


@dataclass(frozen=True)
class GIN(StackSpec):
    """H' = relu(MLP((1 + eps) H + A H)) with an MLP of two layers.

    With features of edges, a neighbour's message is relu(h_j + e_ij W_e + b_e) in the place of h_j, with a W_e of each
    layer's own (GINE). Where those features are indicators of categories, e_ij W_e is a sum of embeddings.

    Fields: those of `StackSpec`, and
        train_eps: whether eps is learnt (from 0), or stays 0
        edge_dim:  columns of the edges' features that messages take in, indicators counted one by one (30 for the
                   bonds of MoleculeNet); 0 leaves features of edges out, as all other graph networks do
        mlp_norm:  whether each MLP normalises its hidden layer and its output over the nodes (batch normalisation)
    """

    train_eps: bool = False
    edge_dim: int = 0
    mlp_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("edge_dim", self.edge_dim, least=0)

    def layer(self, in_dim: int, out_dim: int) -> Part:
        """Return one layer."""
        if self.edge_dim:
            return GINELayer(in_dim, self.hidden, out_dim, self.edge_dim, self.train_eps, self.mlp_norm)
        return GINLayer(in_dim, self.hidden, out_dim, self.train_eps, self.mlp_norm)


class _GINPart(Part):
    """What GIN and GINE have in common: eps, and the second half of the MLP."""

    eps: Tensor | None

    def _add_second(self, hidden: int, out_dim: int, train_eps: bool, mlp_norm: bool) -> None:
        self.second = Linear(hidden, out_dim)
        self.norms = nn.ModuleList([BatchNorm(hidden), BatchNorm(out_dim)] if mlp_norm else [])
        self.register_parameter("eps", nn.Parameter(torch.zeros(())) if train_eps else None)

    def _second(self, graph: GraphInput, mixed: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return relu(M) W_2 + b_2, or norm(relu(norm(M)) W_2 + b_2), (nodes, out)."""
        if not self.norms:
            return self.second(graph, mixed.relu(), generator)
        inner, outer = self.norms
        out: Tensor = outer(self.second(graph, inner(mixed, generator).relu(), generator), generator)
        return out

    def _eps(self, rows: int) -> Tensor:
        assert self.eps is not None
        return self.eps if self.eps.ndim == 0 else per_row(self.eps.unsqueeze(1), 1, rows)  # (), or (rows, 1)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"train_eps={self.eps is not None}, mlp_norm={len(self.norms) > 0}"


class GINLayer(_GINPart):
    """relu(((1 + eps) H + A H) W_1 + b_1) W_2 + b_2 (Xu et al., 2019).

    The sum runs over H W_1, which is the same and takes sparse features as they are. With `mlp_norm`, what the relu
    takes and what the layer gives are normalised.
    """

    # What `pooled` does of pieces; a subclass may do otherwise.
    pools_in_one_step: ClassVar[bool] = True

    def __init__(self, in_dim: int, hidden: int, out_dim: int, train_eps: bool = False, mlp_norm: bool = False) -> None:
        super().__init__()
        self.weight = glorot(in_dim, hidden)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self._add_second(hidden, out_dim, train_eps, mlp_norm)

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (nodes, out)."""
        return self._second(graph, self._mixed(graph, h), generator)

    @property
    def sums(self) -> str:
        """The operator whose product with the features is all that the layer reads of a graph; empty without one."""
        return "sum with self" if self.gives_rows else ""

    @property
    def row_maps(self) -> tuple[Tensor, ...]:
        """W_1, b_1, W_2, b_2: what the layer does with these sums, with a relu between."""
        return self.weight, self.bias, self.second.weight, self.second.bias

    def pooled(
        self,
        graph: GraphInput,
        h: Features,
        generator: torch.Generator | None,
        mean: bool,
        *maps: Tensor,
        back: SparseMatrix | None = None,
        activate: ActivateSome | None = None,
        common: CommonRows | None = None,
    ) -> Tensor:
        """Return the sums, or means, of each graph's rows, (graphs, out); without norms the second map comes last.

        Maps of rows may come before, and what puts their rows to nodes and makes them hidden, and rows that clients
        have in common (see `pooled_relu`), where the layer gives rows.
        """
        pool = graph.pooling(mean)
        if self.norms:
            return pool.matmul(self(graph, h, generator))
        second = self.second.weight, self.second.bias
        if self.eps is not None or not isinstance(h, Tensor) or h is graph.x:
            return pooled_affine(pool, pool.matmul(self._mixed(graph, h).relu()), *second)
        pieces = graph.pieces("sum with self", mean, len(h), back)
        maps = (*maps, self.weight, self.bias)
        return pooled_affine(pool, pooled_relu(pieces, h, *maps, activate=activate, common=common), *second)

    @property
    def gives_rows(self) -> bool:
        """Whether each row is given by itself, as without norms."""
        return self.eps is None and not self.norms

    def _mixed(self, graph: GraphInput, h: Features) -> Tensor:
        """Return ((1 + eps) H + A H) W_1 + b_1, (nodes, hidden)."""
        if self.eps is None:
            return graph.mixed("sum with self", h, self.weight, self.bias)
        h = affine(h, self.weight)
        own = torch.addcmul(per_row(self.bias, 1, len(h)), h, 1.0 + self._eps(len(h)))
        return own + graph.operator("sum").matmul(h)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{shape_of(self.weight)}, {super().extra_repr()}"


class GINELayer(_GINPart):
    """relu(M W_1 + b_1) W_2 + b_2 with m_i = (1 + eps) h_i + sum_j a_ij relu(h_j + e_ij W_e + b_e) (Hu et al., 2020).

    a_ij is the weight of the edge from j to i. What a complement adds has no features: its messages are relu(h_j).
    """

    def __init__(
        self, in_dim: int, hidden: int, out_dim: int, edge_dim: int, train_eps: bool = False, mlp_norm: bool = False
    ) -> None:
        super().__init__()
        self.edge_dim = edge_dim
        self.edge = Linear(edge_dim, in_dim)
        self.first = Linear(in_dim, hidden)
        self._add_second(hidden, out_dim, train_eps, mlp_norm)

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (nodes, out)."""
        found = 0 if graph.edge_attr is None else graph.edge_attr.shape[1]
        if graph.edge_attr is None or found != self.edge_dim:
            raise ValueError(
                f"edges have {found} columns of features, the model's edge_dim is {self.edge_dim}; set "
                f"model.gnn.edge_dim={found}{'' if found else ', which leaves features of edges out'}"
            )
        h = dense(h)
        source, target = graph.incidence()
        edge = self._of_edges(graph, graph.edge_attr.to(h.dtype), generator)  # (edges, in)
        mixed = target.matmul((source.matmul(h) + edge).relu())  # (nodes, in)
        if graph.complement is not None:
            pattern = graph.complement.pattern
            added = torch.where(pattern.row == pattern.col, 0.0, graph.complement.values)
            mixed = mixed + graph.complement.with_values(added).matmul(h.relu())
        own = h if self.eps is None else (1.0 + self._eps(len(h))) * h
        return self._second(graph, self.first(graph, own + mixed, generator), generator)

    def _of_edges(self, graph: GraphInput, attr: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return e_ij W_e + b_e; of many clients, each with the weights of the client whose nodes it joins."""
        weight, bias = self.edge.weight, self.edge.bias
        if weight.ndim == 2:
            return self.edge(graph, attr, generator)
        rows = graph.num_nodes // len(weight)  # of each client; edges have no equal numbers

        def spread() -> SparseMatrix:
            return _spread(attr, graph.edge_index[1].div(rows, rounding_mode="floor"), len(weight))

        features = cast(SparseMatrix, graph.once(f"edge features of {len(weight)}", graph.edge_attr, spread))
        return features.matmul(torch.cat([weight, bias.unsqueeze(1)], dim=1).flatten(0, 1))


def _spread(attr: Tensor, owner: Tensor, owners: int) -> SparseMatrix:
    """Return features of edges, and a one, in columns of the edge's owner, (edges, owners * (edge features + 1))."""
    rows = torch.cat([attr, attr.new_ones(len(attr), 1)], dim=1)
    there = rows != 0
    row, column = there.nonzero().unbind(1)
    crow = torch.cat([row.new_zeros(1), there.sum(dim=1).cumsum(0)])
    size = (len(rows), owners * rows.shape[1])
    return SparseMatrix(Pattern(crow, column + owner.index_select(0, row) * rows.shape[1], size), rows[there])
