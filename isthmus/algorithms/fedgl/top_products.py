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
    """For each row, the columns of its largest positive products, in CSR form; within a row in no order.

    Fields:
        start:    (rows + 1,), int64; entries of row r are those from start[r] to start[r + 1]
        column:   (entries,), int64
        products: (entries,), float32, all positive
    """

    start: Tensor
    column: Tensor
    products: Tensor


def exact_top_products(vectors: Tensor, count: int, block_bytes: int = BLOCK_BYTES) -> TopProducts:
    """Return for each row of relu(V V^T) its `count` largest entries; of equal ones at the edge, any.

    A vector's product with itself is one of them. Products that are not positive are no entries.

    As <v, w> <= |v| |w|, the longest vectors are tried first: a row whose `count`-th product with them is larger than
    any shorter vector could give is done, which for outputs of a classifier most rows are.
    """
    vectors = vectors.detach()
    number = len(vectors)
    lengths, order = vectors.norm(dim=1).sort(descending=True, stable=True)
    ranked = vectors.index_select(0, order)
    left = torch.arange(number)  # rows of `ranked` that are not done
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # rows, and for each its number of entries; the entries
    for width in sorted({min(number, max(number // part, 2 * count)) for part in (8, 4, 2, 1)}):
        longest = 0.0 if width == number else float(lengths[width])  # of the vectors that are not tried
        undone = []
        for rows in torch.split(left, max(1, block_bytes // (4 * max(width, 1)))):
            products = (ranked.index_select(0, rows) @ ranked[:width].t()).numpy()
            least = _least(products, count)
            # Rounding may make a product a little larger than it can be.
            done = torch.from_numpy(least) >= lengths[rows] * longest * (1 + 1e-5)
            if width < number:
                undone.append(rows[~done])
                rows, products, least = rows[done], products[done.numpy()], least[done.numpy()]
            counts, column, kept = _largest(products, least, count)
            found.append((order[rows], counts, order.index_select(0, column), kept))
        left = torch.cat(undone) if undone else left[:0]
    rows, counts, column, kept = (torch.cat(each) for each in zip(*found, strict=True))
    return _in_order(rows, counts, column, kept)


def _least(products: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """Return the `count`-th largest of each row, or the smallest positive number there is."""
    rows, number = products.shape
    tiny = np.full(rows, np.finfo(np.float32).tiny)
    if count >= number or rows == 0:
        return tiny
    # numpy's partition runs on vector instructions; with it this takes half the time of torch's topk.
    return np.maximum(tiny, np.partition(products, number - count, axis=1)[:, number - count])


def _largest(
    products: npt.NDArray[np.float32], least: npt.NDArray[np.float32], count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many entries each row keeps, at most `count`, their columns, and their products."""
    kept = products >= least[:, None]
    counts = np.count_nonzero(kept, axis=1)
    for row in np.flatnonzero(counts > count):  # several equal the smallest that is kept
        equal = np.flatnonzero(products[row] == least[row])
        kept[row, equal[len(equal) - (counts[row] - count) :]] = False
        counts[row] = count
    entries = np.flatnonzero(kept)
    # Not by a remainder: divisions of whole numbers take longer than everything else here.
    column = entries - np.repeat(np.arange(len(products)) * products.shape[1], counts)
    return torch.from_numpy(counts), torch.from_numpy(column), torch.from_numpy(products.reshape(-1).take(entries))


def _in_order(rows: Tensor, counts: Tensor, column: Tensor, products: Tensor) -> TopProducts:
    """Return rows that were found in any order one after the other."""
    from scipy.sparse import csr_matrix  # it copies whole rows; imported here: algorithms must load quickly

    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    parts = (products.numpy(), column.numpy(), start.numpy())
    found = csr_matrix(parts, (len(rows), len(rows)), copy=False)[torch.argsort(rows).numpy()]
    place, column = (torch.from_numpy(part).long() for part in (found.indptr, found.indices))
    return TopProducts(place, column, torch.from_numpy(found.data))


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
    """Return the positive ones of (rows, count) products."""
    kept = products > 0
    counts = kept.sum(dim=1)
    return TopProducts(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns[kept], products[kept])
