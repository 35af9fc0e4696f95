"""Feature matrices: the layout they are kept in, and their scale."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from isthmus.data.conventions import SPARSE_DENSITY


def sparse_rows(start: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a CSR matrix: row i has the entries from start[i] to start[i + 1]."""
    with warnings.catch_warnings():  # torch tells once per process that CSR is beta; no user can act on that
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(start, columns, values, shape, check_invariants=True)


def compact(x: Tensor) -> Tensor:
    """Return float32 features as CSR when fewer than `SPARSE_DENSITY` of the entries are set, else dense."""
    if x.layout == torch.sparse_csr:
        num_set = int(torch.count_nonzero(x.values()))
        return x.float() if num_set < SPARSE_DENSITY * x.numel() else x.to_dense().float()
    if int(torch.count_nonzero(x)) >= SPARSE_DENSITY * x.numel():
        return x.float()
    rows, columns = x.nonzero(as_tuple=True)
    start = torch.searchsorted(rows, torch.arange(x.shape[0] + 1))
    return sparse_rows(start, columns, x[rows, columns].float(), (x.shape[0], x.shape[1]))


def normalized_rows(x: Tensor) -> Tensor:
    """Return the features with each row divided by its sum; rows that sum to zero stay."""
    if x.layout != torch.sparse_csr:
        sums = x.sum(dim=1, keepdim=True)
        return x / torch.where(sums == 0, 1.0, sums)
    start, values = x.crow_indices(), x.values()
    row_of = torch.repeat_interleave(torch.arange(x.shape[0]), start[1:] - start[:-1])
    sums = torch.zeros(x.shape[0]).index_add_(0, row_of, values)
    scaled = values / torch.where(sums == 0, 1.0, sums)[row_of]
    return sparse_rows(start, x.col_indices(), scaled, (x.shape[0], x.shape[1]))
