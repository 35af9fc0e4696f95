"""The constant matrices by which graph layers aggregate; S[target, source] is the weight of source in target."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.models.sparse import Pattern, SparseMatrix


def sum_operator(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> SparseMatrix:
    """Return A: the (weighted) sum over in-neighbours."""
    return SparseMatrix.from_edges(edge_index, edge_weight, (num_nodes, num_nodes))


def mean_operator(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> SparseMatrix:
    """Return D^-1 A: the (weighted) mean over in-neighbours; a row of zeros for a node without any."""
    matrix = sum_operator(edge_index, edge_weight, num_nodes)
    degree = _row_sums(matrix)  # (nodes,)
    inverse = torch.where(degree > 0, 1.0 / degree, 0.0)
    return matrix.with_values(matrix.values * inverse[matrix.pattern.row])


def gcn_operator(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> SparseMatrix:
    """Return D^-1/2 (A + I) D^-1/2 with D the (weighted) in-degrees of A + I (Kipf and Welling, 2017)."""
    looped, weights = with_loops(edge_index, edge_weight, num_nodes)
    matrix = SparseMatrix.from_edges(looped, weights, (num_nodes, num_nodes))
    scale = _row_sums(matrix).pow(-0.5)  # (nodes,)
    scale = torch.where(scale.isfinite(), scale, 0.0)
    return matrix.with_values(scale[matrix.pattern.row] * matrix.values * scale[matrix.pattern.col])


def with_loops(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Return the edges, and one loop of weight one at each node."""
    loops = torch.arange(num_nodes).expand(2, num_nodes)
    looped = torch.cat([edge_index, loops], dim=1)  # (2, edges + nodes)
    if edge_weight is None:
        return looped, None
    return looped, torch.cat([edge_weight, edge_weight.new_ones(num_nodes)])


def heads_pattern(edge_index: Tensor, num_nodes: int, heads: int) -> Pattern:
    """Return the pattern of (A + I) kron I_heads: row n * heads + h holds what node n attends to with head h.

    Attention with several heads is attention with one head on this larger graph.
    """
    looped, _ = with_loops(edge_index, None, num_nodes)
    expanded = (looped.unsqueeze(2) * heads + torch.arange(heads)).flatten(1)  # (2, (edges + nodes) * heads)
    size = num_nodes * heads
    pattern, _ = Pattern.from_pairs(expanded[1], expanded[0], (size, size))
    return pattern


def pooling_operator(batch: Tensor, num_graphs: int, mean: bool) -> SparseMatrix:
    """Return the (graphs, nodes) matrix that adds up, or averages, the nodes of each graph."""
    membership = torch.stack([torch.arange(len(batch)), batch])  # (2, nodes)
    matrix = SparseMatrix.from_edges(membership, None, (num_graphs, len(batch)))
    if not mean:
        return matrix
    sizes = torch.bincount(batch, minlength=num_graphs)  # (graphs,)
    return matrix.with_values(matrix.values / sizes[matrix.pattern.row])


def _row_sums(matrix: SparseMatrix) -> Tensor:
    sums = torch.zeros(matrix.shape[0], dtype=matrix.dtype)
    return sums.index_add_(0, matrix.pattern.row, matrix.values)


OPERATORS: dict[str, Callable[[Tensor, Tensor | None, int], SparseMatrix]] = {
    "gcn": gcn_operator,
    "mean": mean_operator,
    "sum": sum_operator,
}
