"""Dropout that draws from a generator it is given, never from torch's global one.

Srivastava et al. (2014), in the inverted form: y_i = x_i m_i / (1 - p), where m_i is 0 with probability p and else 1.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from isthmus.models.products.sparse import SparseMatrix
from isthmus.models.together.streams import Streams

F = TypeVar("F", Tensor, SparseMatrix, Tensor | SparseMatrix)

_TOLERANCE = 1e-6


def dropout(x: F, p: float, generator: torch.Generator | Streams | None) -> F:
    """Return `x` with entries zeroed with probability `p` and the others scaled by 1 / (1 - p).

    Without a generator (evaluation), and for p = 0, it returns `x` itself. Of a sparse matrix it drops stored entries.
    """
    if generator is None or p == 0.0:
        return x
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * _scaled_mask(x.values, p, generator))
    return x * _scaled_mask(x, p, generator)


def _scaled_mask(like: Tensor, p: float, generator: torch.Generator | Streams) -> Tensor:
    """Return 0 with probability `p` and 1 / (1 - p) otherwise, in the shape and type of `like`.

    Random integers are compared with a threshold, with as few bits for each entry as give p within 1e-6:
    the generator's time is most of the cost, and p = 0.5 needs one byte. The in-place comparison keeps the
    integer type, which torch vectorises; a boolean mask would be several times slower to make and to apply.
    """
    if not 0.0 < p < 1.0:
        raise ValueError(f"dropout probability is {p!r}; it must be at least 0 and below 1")
    kind, bits = _kind(p)
    entries = _random_entries(like, kind, bits, generator)  # uniform over [-2^(bits-1), 2^(bits-1))
    threshold = min(round(p * 2**bits), 2**bits - 1) - 2 ** (bits - 1)
    kept = entries.ge_(threshold)
    return kept.to(like.dtype).mul_(1.0 / (1.0 - p)).view(like.shape)


def _random_entries(like: Tensor, kind: torch.dtype, bits: int, generator: torch.Generator | Streams) -> Tensor:
    """Return a random integer for each entry of `like`, in some shape with as many entries."""
    if not isinstance(generator, Streams):
        count = like.numel()
        words = torch.empty(-(-count * bits // 64), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        return words.view(kind)[:count]
    if like.ndim == 1:
        drawn = zip(generator.entry_words(bits), generator.entries, strict=True)
        return torch.cat([words.view(kind)[:count] for words, count in drawn])
    width = like.shape[1]
    return generator.words(width, bits).view(kind)[:, : generator.rows * width].reshape(like.shape)


def _kind(p: float) -> tuple[torch.dtype, int]:
    for kind, bits in ((torch.int8, 8), (torch.int16, 16)):
        if abs(round(p * 2**bits) / 2**bits - p) < _TOLERANCE and 0 < round(p * 2**bits) < 2**bits:
            return kind, bits
    return torch.int32, 32
