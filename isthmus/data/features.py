"""Feature matrices: the layout they are kept in, their scale, and what their columns mean by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.data.conventions import SPARSE_DENSITY, misplaced
from isthmus.data.graph import EDGE, sparse_rows
from isthmus.data.on_demand import sparse


def scipy_rows(x: Tensor) -> Any:
    """Return dense or sparse features as a CSR matrix of scipy."""
    if x.layout != torch.sparse_csr:
        return sparse.csr_matrix(x.numpy())
    parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return sparse.csr_matrix(parts, shape=tuple(x.shape))


def from_scipy(matrix: Any) -> Tensor:
    """Return a CSR matrix of scipy as one of torch, each row in the order of its columns."""
    matrix.sum_duplicates()
    start, columns = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    return sparse_rows(start, columns, torch.from_numpy(matrix.data), matrix.shape)


def on_the_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """Return features of which each block has rows and columns of its own, in the layout that suits."""
    return compact(from_scipy(sparse.block_diag([scipy_rows(block) for block in blocks], format="csr")))


def compact(x: Tensor) -> Tensor:
    """Return float32 features as CSR when fewer than `SPARSE_DENSITY` of the entries are set, else dense."""
    if x.layout == torch.sparse_csr:
        num_set = int(torch.count_nonzero(x.values()))
        return x.float() if num_set < SPARSE_DENSITY * x.numel() else x.to_dense().float()
    if int(torch.count_nonzero(x)) >= SPARSE_DENSITY * x.numel():
        return x.float()
    return from_scipy(scipy_rows(x.float()))


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


# Differences told of each kind; the first ones show what happened.
MOST_TOLD = 3


# ---- names of columns


def name_differences(own: Sequence[str], wanted: Sequence[str], theirs: str) -> list[str]:
    """Return in words where columns are not those wanted, the first of each kind; `theirs` is whose those are."""
    missing, extra, moved = misplaced(own, wanted)
    place = {name: number + 1 for number, name in enumerate(own)}
    return [
        *_first([f"column {wanted[i]!r} is missing, number {i + 1} of {theirs}" for i in missing]),
        *_first([f"column {own[i]!r} (number {i + 1}) is not among {theirs}" for i in extra]),
        *_first([f"column {(n := wanted[i])!r} is number {place[n]} here, number {i + 1} of {theirs}" for i in moved]),
    ]


def _first(lines: list[str]) -> list[str]:
    rest = len(lines) - MOST_TOLD
    return lines if rest <= 0 else [*lines[:MOST_TOLD], f"{rest} more like this"]


def in_order(data: Any, wanted: Sequence[str]) -> Any:
    """Return data whose columns have the wanted names, as `input_names` tells them, in the wanted order."""
    nodes = [name for name in wanted if not name.startswith(EDGE)]
    edges = [name.removeprefix(EDGE) for name in wanted if name.startswith(EDGE)]
    if tuple(nodes) != data.feature_names:
        data = replace(data, x=_columns(data.x, data.feature_names, nodes), feature_names=tuple(nodes))
    if edges and tuple(edges) != data.edge_feature_names:
        attr = _columns(data.edge_attr, data.edge_feature_names, edges)
        data = replace(data, edge_attr=attr, edge_feature_names=tuple(edges))
    return data


def _columns(x: Tensor, names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return the columns of a matrix in another order."""
    place = {name: number for number, name in enumerate(names)}
    order = torch.tensor([place[name] for name in wanted])
    return x[:, order] if x.layout != torch.sparse_csr else from_scipy(scipy_rows(x)[:, order.numpy()])


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
