"""Distillation of a graph's structure: whom a node resembles among its neighbours. Huang et al. (2023), eq. 9 to 11.

    S_ij = softmax over i's neighbours j of <z_i, z_j> / omega,   L_i = sum_j S^g_ij log(S^g_ij / S_ij)

All sums run over edges; no matrix of node pairs is made.
"""

from __future__ import annotations

from torch import Tensor

from isthmus.models.products.sparse import Pattern, SparseMatrix


def structure_divergence(z: Tensor, teacher: Tensor, neighbors: SparseMatrix, omega: float) -> Tensor:
    """Return L_i for each node, (nodes,); 0 for nodes with one neighbour or none. No gradient flows into `teacher`.

    Args:
        z:         scores that are trained, (nodes, classes)
        teacher:   scores of the model to learn from, (nodes, classes)
        neighbors: who neighbours whom, (nodes, nodes); its values play no part
        omega:     temperature
    """
    pattern = neighbors.pattern
    teacher = teacher.detach()
    theirs = row_log_softmax(pattern, neighbors.sample(teacher, teacher) / omega)
    mine = row_log_softmax(pattern, neighbors.sample(z, z) / omega)
    return z.new_zeros(len(z)).index_add(0, pattern.row, theirs.exp() * (theirs - mine))


def row_log_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Return the logarithm of the softmax of the scores within each row of the pattern, (entries,)."""
    rows = pattern.row.long()
    largest = scores.new_zeros(pattern.shape[0]).scatter_reduce_(0, rows, scores.detach(), "amax", include_self=False)
    centred = scores - largest.index_select(0, rows)
    sums = scores.new_zeros(pattern.shape[0]).index_add(0, rows, centred.exp())
    return centred - sums.log().index_select(0, rows)
