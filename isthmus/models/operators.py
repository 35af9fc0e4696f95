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
    degree = matrix.row_sums()  # (nodes,)
    inverse = torch.where(degree > 0, 1.0 / degree, 0.0)
    return matrix.with_values(matrix.values * inverse[matrix.pattern.row])


def gcn_operator(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> SparseMatrix:
    """Return D^-1/2 (A + I) D^-1/2 with D the (weighted) in-degrees of A + I (Kipf and Welling, 2017)."""
    looped, weights = with_loops(edge_index, edge_weight, num_nodes)
    matrix = SparseMatrix.from_edges(looped, weights, (num_nodes, num_nodes))
    scale = matrix.row_sums().pow(-0.5)  # (nodes,)
    scale = torch.where(scale.isfinite(), scale, 0.0)
    return matrix.with_values(scale[matrix.pattern.row] * matrix.values * scale[matrix.pattern.col])


def with_loops(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Return the edges, and one loop of weight one at each node."""
    loops = torch.arange(num_nodes).expand(2, num_nodes)
    looped = torch.cat([edge_index, loops], dim=1)  # (2, edges + nodes)
    if edge_weight is None:
        return looped, None
    return looped, torch.cat([edge_weight, edge_weight.new_ones(num_nodes)])


def complemented(name: str, own: SparseMatrix, complement: SparseMatrix) -> SparseMatrix:
    """Return an operator with an inferred structure added: S + C, A + C, or the mean by the weights A + C.

    Without loops of its own ("sum" and "mean", where a layer treats the node itself apart), C counts without its
    diagonal. `own` is the operator without C; for "mean", that of "sum".
    """
    if name == "gcn":
        return own.plus(complement)
    pattern = complement.pattern
    fused = own.plus(complement.with_values(torch.where(pattern.row == pattern.col, 0.0, complement.values)))
    if name == "sum":
        return fused
    weight = fused.row_sums()  # (nodes,)
    inverse = torch.where(weight > 0, 1.0 / weight, 0.0)
    return fused.with_values(fused.values * inverse[fused.pattern.row])


def attention_pattern(
    edge_index: Tensor, num_nodes: int, heads: int, complement: SparseMatrix | None = None
) -> tuple[Pattern, Tensor | None]:
    """Return the pattern of (A + I + C) kron I_heads: row n * heads + h holds what node n attends to with head h.

    Attention with several heads is attention with one head on this larger graph. Beside it, with a complement C, the
    logarithm of each entry's factor, (entries,): 0 for edges and loops, log C_ij for what is added.
    """
    pairs, _ = with_loops(edge_index, None, num_nodes)
    factor = None
    if complement is not None:
        added = complement.pattern
        factor = torch.cat([torch.zeros(pairs.shape[1]), complement.values.log()])
        pairs = torch.cat([pairs, torch.stack([added.col.long(), added.row.long()])], dim=1)
    expanded = (pairs.unsqueeze(2) * heads + torch.arange(heads)).flatten(1)  # (2, entries * heads)
    size = num_nodes * heads
    pattern, order = Pattern.from_pairs(expanded[1], expanded[0], (size, size))
    return pattern, None if factor is None else factor.repeat_interleave(heads)[order]


def pooling_operator(batch: Tensor, num_graphs: int, mean: bool) -> SparseMatrix:
    """Return the (graphs, nodes) matrix that adds up, or averages, the nodes of each graph."""
    membership = torch.stack([torch.arange(len(batch)), batch])  # (2, nodes)
    matrix = SparseMatrix.from_edges(membership, None, (num_graphs, len(batch)))
    if not mean:
        return matrix
    sizes = torch.bincount(batch, minlength=num_graphs)  # (graphs,)
    return matrix.with_values(matrix.values / sizes[matrix.pattern.row])


OPERATORS: dict[str, Callable[[Tensor, Tensor | None, int], SparseMatrix]] = {
    "gcn": gcn_operator,
    "mean": mean_operator,
    "sum": sum_operator,
}
