"""The constant matrices by which graph layers aggregate; S[target, source] is the weight of source in target."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.models.products.sparse import Pattern, SparseMatrix


def edge_pattern(edge_index: Tensor, num_nodes: int, loops: bool) -> tuple[Pattern, Tensor]:
    """Return where A (with `loops`, A + I) has entries, and which edge each is, (entries,); loops come after edges."""
    if loops:
        edge_index = torch.cat([edge_index, torch.arange(num_nodes).expand(2, num_nodes)], dim=1)
    return Pattern.from_pairs(edge_index[1], edge_index[0], (num_nodes, num_nodes))


def mean_operator(matrix: SparseMatrix) -> SparseMatrix:
    """Return D^-1 A: the (weighted) mean over in-neighbours; a row of zeros for a node without any."""
    degree = matrix.row_sums()  # (nodes,)
    inverse = torch.where(degree > 0, 1.0 / degree, 0.0)
    return matrix.with_values(matrix.values * inverse[matrix.pattern.row])


def gcn_operator(matrix: SparseMatrix) -> SparseMatrix:
    """Return D^-1/2 (A + I) D^-1/2 of A + I, with D its (weighted) in-degrees (Kipf and Welling, 2017)."""
    scale = matrix.row_sums().pow(-0.5)  # (nodes,)
    scale = torch.where(scale.isfinite(), scale, 0.0)
    return matrix.with_values(scale[matrix.pattern.row] * matrix.values * scale[matrix.pattern.col])


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
    return mean_operator(fused)


def attention_pattern(
    edge_index: Tensor, num_nodes: int, heads: int, complement: SparseMatrix | None = None
) -> tuple[Pattern, Tensor]:
    """Return the pattern of (A + I + C) kron I_heads: row n * heads + h holds what node n attends to with head h.

    Attention with several heads is attention with one head on this larger graph. Beside it, which edge each entry is,
    (entries,): edges first, then loops, then the entries of the complement C.
    """
    pairs = torch.cat([edge_index, torch.arange(num_nodes).expand(2, num_nodes)], dim=1)
    if complement is not None:
        added = complement.pattern
        pairs = torch.cat([pairs, torch.stack([added.col.long(), added.row.long()])], dim=1)
    expanded = (pairs.unsqueeze(2) * heads + torch.arange(heads)).flatten(1)  # (2, entries * heads)
    size = num_nodes * heads
    pattern, order = Pattern.from_pairs(expanded[1], expanded[0], (size, size))
    return pattern, order.div(heads, rounding_mode="floor")


def pooling_operator(batch: Tensor, num_graphs: int, mean: bool) -> SparseMatrix:
    """Return the (graphs, nodes) matrix that adds up, or averages, the nodes of each graph."""
    membership = torch.stack([torch.arange(len(batch)), batch])  # (2, nodes)
    matrix = SparseMatrix.from_edges(membership, None, (num_graphs, len(batch)))
    if not mean:
        return matrix
    sizes = torch.bincount(batch, minlength=num_graphs)  # (graphs,)
    return matrix.with_values(matrix.values / sizes[matrix.pattern.row])


# Whether the matrix has loops, and what is made of it.
OPERATORS: dict[str, tuple[bool, Callable[[SparseMatrix], SparseMatrix]]] = {
    "gcn": (True, gcn_operator),
    "mean": (False, mean_operator),
    "sum": (False, lambda matrix: matrix),
}
