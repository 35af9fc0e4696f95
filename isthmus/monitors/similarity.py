"""How alike models are in what they say of the same nodes: linear centred kernel alignment. Kornblith et al., 2019.

Similarity of Neural Network Representations Revisited (ICML 2019). FGSSL (Huang et al., 2023, section 3.2) compares the
models of clients by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pairwise_cka(representations: Sequence[Tensor]) -> Tensor:
    """Return the linear CKA of each two representations of the same nodes, (models, models), in double precision.

        CKA(X, Y) = |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F),  X and Y of (nodes, width) with columns of mean 0

    It is 1 where one is a rotation, a multiple or a shift of the other, and 0 where no column of one goes with any of
    the other. A representation that is the same for all nodes (or is of one node, or of none) is independent of
    everything, of itself as well, so its CKA is 0 throughout, not NaN.
    """
    _check(representations)
    units = [_unit(each) for each in representations]
    found = torch.zeros(len(units), len(units), dtype=torch.float64)
    for i, x in enumerate(units):
        found[i, i] = float(bool(x.any()))
        for j in range(i):
            found[i, j] = found[j, i] = (units[j].T @ x).square().sum()
    return found.clamp_(max=1.0)  # rounding may lead beyond


def _check(representations: Sequence[Tensor]) -> None:
    for each in representations:
        if each.dim() != 2:
            raise ValueError(f"a representation has shape {tuple(each.shape)}; expected (nodes, width)")
        if len(each) != len(representations[0]):
            raise ValueError(
                f"representations are of {len(each)} and {len(representations[0])} nodes; expected the same"
            )
        if not bool(torch.isfinite(each).all()):
            raise ValueError("a representation has numbers that are not finite")


def _unit(representation: Tensor) -> Tensor:
    """Return the representation with columns of mean 0, scaled to |X^T X|_F = 1; zeros when all rows are the same."""
    x = _scaled(representation.detach().double())
    x = x - x[:1]  # rows that are the same become zeros to the bit, which their mean would not make them
    x = _scaled(x - x.mean(dim=0))
    return x / torch.linalg.matrix_norm(x.T @ x).sqrt() if bool(x.any()) else x


def _scaled(x: Tensor) -> Tensor:
    """Return numbers of at most 1, so that no square is too large or too small."""
    largest = x.abs().max() if x.numel() else x.new_zeros(())
    return x / largest if bool(largest) else x
