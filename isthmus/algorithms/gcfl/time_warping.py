"""Dynamic time warping: how far sequences are apart when one may linger where the other hurries.

Sakoe and Chiba (1978), "Dynamic programming algorithm optimization for spoken word recognition".
"""

from __future__ import annotations

import torch
from torch import Tensor


def warping_distances(sequences: Tensor) -> Tensor:
    """Return the distance of every two of some sequences, (sequences, length) -> (sequences, sequences).

    An alignment goes from both starts to both ends, and from (i, j) to (i + 1, j), (i, j + 1) or (i + 1, j + 1). The
    distance is the least sqrt(sum of (a_i - b_j)^2 along an alignment):

        D(i, j) = (a_i - b_j)^2 + min(D(i - 1, j), D(i, j - 1), D(i - 1, j - 1))
    """
    number, length = sequences.shape
    if length == 0:
        raise ValueError("sequences have no entries; there is nothing to align")
    values = sequences.double()
    # The row above, with a column before the first that no alignment comes from.
    above = [torch.full((number, number), torch.inf, dtype=torch.float64) for _ in range(length + 1)]
    above[0] = torch.zeros(number, number, dtype=torch.float64)
    for i in range(length):
        row = [torch.full_like(above[0], torch.inf)]
        for j in range(length):
            gap = (values[:, None, i] - values[None, :, j]).square()  # all pairs at once
            row.append(gap + torch.minimum(torch.minimum(above[j + 1], row[j]), above[j]))
        above = row
    return above[length].sqrt()
