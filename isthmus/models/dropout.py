"""Dropout from a generator that is given, of one client's rows or of many clients'."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from isthmus.models.products.affine import Activate
from isthmus.models.products.pooled import ActivateSome
from isthmus.models.products.sparse import SparseMatrix
from isthmus.models.streams import Streams, num_words

F = TypeVar("F", Tensor, SparseMatrix, Tensor | SparseMatrix)

_TOLERANCE = 1e-6


def dropout(x: F, p: float, generator: torch.Generator | Streams | None) -> F:
    """Return `x` with entries zeroed with probability `p` and the others scaled by 1 / (1 - p).

    Srivastava et al. (2014), in the inverted form, and drawn from a generator that is given, never from torch's own.
    Without a generator (evaluation), and for p = 0, it returns `x` itself. Of a sparse matrix it drops stored entries.
    """
    if generator is None or p == 0.0:
        return x
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * _scaled_mask(x.values, p, generator))
    return x * _scaled_mask(x, p, generator)


def activation(p: float, generator: torch.Generator | Streams | None) -> Activate:
    """Return what makes relu(dropout(.)) of rows in place, where they are nobody else's."""
    dropping = generator is not None and p > 0.0

    def activate(rows: Tensor) -> float:
        if dropping:
            rows.mul_(_scaled_mask(rows, p, generator))  # type: ignore[arg-type]
        rows.relu_()
        return 1.0 / (1.0 - p) if dropping else 1.0

    return activate


def activation_of_some(p: float, streams: Streams, shape: tuple[int, int]) -> ActivateSome:
    """Return what makes relu(dropout(.)) of some rows in place, of rows of this shape in all; they are drawn here."""
    kind, bits = _kind(p)
    entries = _stacked_entries(shape, kind, bits, streams)
    order = None if streams.order is None else streams.order()

    def activate(rows: Tensor, at: slice) -> float:
        mine = entries[at].clone() if order is None else entries.index_select(0, order[at])
        rows.mul_(_scaled(mine, p, bits, rows)).relu_()
        return 1.0 / (1.0 - p)

    return activate


def _scaled_mask(like: Tensor, p: float, generator: torch.Generator | Streams) -> Tensor:
    """Return 0 with probability `p` and 1 / (1 - p) otherwise, in the shape and type of `like`.

    Random integers are compared with a threshold, with as few bits for each entry as give p within 1e-6:
    the generator's time is most of the cost, and p = 0.5 needs one byte. The in-place comparison keeps the
    integer type, which torch vectorises; a boolean mask would be several times slower to make and to apply.
    """
    if not 0.0 < p < 1.0:
        raise ValueError(f"dropout probability is {p!r}; it must be at least 0 and below 1")
    kind, bits = _kind(p)
    # Uniform over [-2^(bits-1), 2^(bits-1)); drawn by the CPU, so that it is the same wherever `like` lies.
    return _scaled(_random_entries(like, kind, bits, generator).to(like.device), p, bits, like)


def _scaled(entries: Tensor, p: float, bits: int, like: Tensor) -> Tensor:
    """Return the mask that random integers of so many bits make, which are changed."""
    threshold = min(round(p * 2**bits), 2**bits - 1) - 2 ** (bits - 1)
    kept = entries.ge_(threshold)
    return kept.to(like.dtype).mul_(1.0 / (1.0 - p)).view(like.shape)


def _random_entries(like: Tensor, kind: torch.dtype, bits: int, generator: torch.Generator | Streams) -> Tensor:
    """Return a random integer for each entry of `like`, in some shape with as many entries."""
    if not isinstance(generator, Streams):
        count = like.numel()
        words = torch.empty(num_words(count, bits), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        return words.view(kind)[:count]
    if like.ndim == 1:
        drawn = zip(generator.entry_words(bits), generator.entries, strict=True)
        return torch.cat([words.view(kind)[:count] for words, count in drawn])
    entries = _stacked_entries((like.shape[0], like.shape[1]), kind, bits, generator)
    return entries if generator.order is None else entries.index_select(0, generator.order())


def _stacked_entries(shape: tuple[int, int], kind: torch.dtype, bits: int, streams: Streams) -> Tensor:
    """Return a random integer for each entry of the rows of all clients, in the order in which each drew them."""
    entries = streams.words(shape[1], bits).view(kind)[:, : streams.rows * shape[1]]
    given = shape[0] * shape[1] // len(entries)  # of each client: its first rows, where others are not wanted
    return entries[:, :given].reshape(shape)


def _kind(p: float) -> tuple[torch.dtype, int]:
    for kind, bits in ((torch.int8, 8), (torch.int16, 16)):
        if abs(round(p * 2**bits) / 2**bits - p) < _TOLERANCE and 0 < round(p * 2**bits) < 2**bits:
            return kind, bits
    return torch.int32, 32
