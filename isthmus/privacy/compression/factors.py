"""A matrix as the product of two narrow ones: one step of power iteration (Vogels et al., PowerSGD, 2019).

    P = orthonormal(M Q),  Q' = M^T P,  M is about P Q'^T

Q is the factor of the time before, or random at first: what is asked for again and again gets the best factors of its
rank without ever being decomposed. P Q'^T is the part of M in the span of P: no product with these P is nearer to M.
"""

from __future__ import annotations

import torch
from torch import Tensor


def factors_of(matrix: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return P, (rows, rank), with orthonormal columns, and Q', (columns, rank)."""
    left = orthonormal(matrix @ start)
    return left, matrix.t() @ left


def orthonormal(columns: Tensor) -> Tensor:
    """Return columns that span the same, of length 1 and at right angles; the span of fewer is filled up."""
    found: Tensor = torch.linalg.qr(columns.double()).Q
    return found.float().contiguous()


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return P Q'^T, added up column by column: a product of matrices has other last bits on another machine."""
    found = torch.zeros(len(left), len(right))
    for column in range(left.shape[1]):
        found += left[:, column, None] * right[None, :, column]
    return found


def as_matrix(shape: tuple[int, ...], numbers: int) -> tuple[int, int]:
    """Return rows and columns of a tensor that is looked at as a matrix: its first axis, and all others."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows, numbers // max(rows, 1)
