"""For each vector, the others with the largest inner products: exactly, in blocks, or from candidates of its cell.

No matrix of all products is ever held: memory is `BLOCK_BYTES` for products at a time, and the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Products that are held at a time.
BLOCK_BYTES = 64 * 2**20
# Lloyd's steps, and vectors of each cell that they look at.
_STEPS, _SAMPLE = 5, 64


@dataclass(frozen=True)
class TopProducts:
    """For each row, the columns of its largest positive products, in CSR form, columns ascending within a row.

    Fields:
        start:    (rows + 1,), int64; entries of row r are those from start[r] to start[r + 1]
        column:   (entries,), int64
        products: (entries,), float32, all positive
    """

    start: Tensor
    column: Tensor
    products: Tensor


def exact_top_products(vectors: Tensor, count: int, block_bytes: int = BLOCK_BYTES) -> TopProducts:
    """Return for each row of relu(V V^T) its `count` largest entries; of equal ones at the edge, the first.

    A vector's product with itself is one of them. Products that are not positive are no entries.
    """
    number = len(vectors)
    rows = max(1, block_bytes // (4 * max(number, 1)))
    parts = [_largest((block @ vectors.t()).numpy(), count) for block in torch.split(vectors.detach(), rows)]
    counts, columns, products = (torch.from_numpy(np.concatenate(each)) for each in zip(*parts, strict=True))
    return TopProducts(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns, products)


def _largest(
    products: npt.NDArray[np.float32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return how many entries each row keeps, their columns, and their products."""
    rows, number = products.shape
    least = np.full(rows, np.finfo(np.float32).tiny)
    if count < number:
        # numpy's partition runs on vector instructions; with it this takes half the time of torch's topk.
        least = np.maximum(least, np.partition(products, number - count, axis=1)[:, number - count])
    kept = products >= least[:, None]
    counts = np.count_nonzero(kept, axis=1)
    for row in np.flatnonzero(counts > count):  # several equal the smallest that is kept
        equal = np.flatnonzero(products[row] == least[row])
        kept[row, equal[len(equal) - (counts[row] - count) :]] = False
        counts[row] = count
    entries = np.flatnonzero(kept)
    return counts, entries % number, products.reshape(-1)[entries]


def approximate_top_products(
    vectors: Tensor, count: int, generator: torch.Generator, oversampling: float = 8.0
) -> TopProducts:
    """Return what `exact_top_products` does for most rows, looking at few products for each.

    Vectors of similar direction form a cell, about sqrt(rows) of them; the candidates of a cell are the
    `oversampling * count` vectors that have the largest products with the cell's mean direction, and each vector
    chooses among the candidates of its cell. Every product that is returned is exact.
    """
    number = len(vectors)
    cells = _cells(vectors, max(1, round(number**0.5)), generator)
    wanted = min(number, max(count, round(oversampling * count)))
    directions = torch.nn.functional.normalize(vectors)
    columns = torch.empty(number, min(count, number), dtype=torch.int64)
    products = torch.empty(number, min(count, number))
    order = torch.argsort(cells, stable=True)
    for members in torch.split(order, torch.bincount(cells).tolist()):
        if not len(members):
            continue
        centre = directions.index_select(0, members).mean(dim=0)
        candidates = (vectors @ centre).topk(wanted, sorted=False).indices  # (wanted,)
        chosen = vectors.index_select(0, candidates).t()
        for part in torch.split(members, max(1, BLOCK_BYTES // (4 * wanted))):
            found = (vectors.index_select(0, part) @ chosen).topk(columns.shape[1], dim=1, sorted=False)
            columns[part], products[part] = candidates[found.indices], found.values
    return _positive(columns, products)


def _cells(vectors: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Return a cell for each vector, (rows,): k-means on directions, begun from and fitted to a random sample."""
    drawn = torch.randperm(len(vectors), generator=generator)[: number * _SAMPLE]
    sample = torch.nn.functional.normalize(vectors.index_select(0, drawn))
    centres = sample[:number]
    for _ in range(_STEPS):
        nearest = _nearest(sample, centres)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        # A cell that nobody is in keeps its place.
        centres = torch.where(sums.any(dim=1, keepdim=True), torch.nn.functional.normalize(sums), centres)
    return _nearest(vectors, centres)


def _nearest(vectors: Tensor, centres: Tensor) -> Tensor:
    rows = max(1, BLOCK_BYTES // (4 * len(centres)))
    return torch.cat([(block @ centres.t()).argmax(dim=1) for block in torch.split(vectors, rows)])


def _positive(columns: Tensor, products: Tensor) -> TopProducts:
    """Return the positive products of (rows, count) columns and products, columns ascending."""
    order = columns.argsort(dim=1)
    columns, products = columns.gather(1, order), products.gather(1, order)
    kept = products > 0
    counts = kept.sum(dim=1)
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return TopProducts(start, columns[kept], products[kept])
