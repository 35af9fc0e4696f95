"""Categories as features: one column for each value a category can have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.data.features import sparse_rows

# Up to so many entries (128 MiB) one-hot features are dense, which small batches are faster with.
DENSE_ENTRIES = 2**25


def one_hot(codes: npt.NDArray[np.int64], sizes: Sequence[int]) -> Tensor:
    """Return a row of zeros and ones for each row of `codes`, (rows, categories): 1 at its value in each category.

    `sizes` are the numbers of values, and the columns of the categories follow each other; a code of -1 sets none.
    """
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    known = codes >= 0
    start = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
    columns = (codes + first[:-1])[known]
    shape = (len(codes), int(first[-1]))
    x = sparse_rows(torch.from_numpy(start), torch.from_numpy(columns), torch.ones(len(columns)), shape)
    return x if shape[0] * shape[1] > DENSE_ENTRIES else x.to_dense()
