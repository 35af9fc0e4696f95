"""Numbers as words that can be added up under masks: whole multiples of a unit, modulo 2^32 or 2^64.

A number x becomes round(x / unit), to the nearest, halves to even; unit is 2^-f with the largest f for which no sum can
leave the words: bound / unit + num / 2 < 2^(bits - 1), where bound is the largest magnitude of the sum of all `num`
numbers. So a sum of `num` words is off by num * unit / 2 at most, and by nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.core.record import largest

# What the words of a number must at least be able to tell apart, as a part of the bound.
LEAST_BITS = 8
# Numbers that are made words at a time: parts that fit in a cache.
_PART = 1 << 15
_KINDS: dict[int, tuple[Any, Any, torch.dtype]] = {
    32: (np.uint32, np.int32, torch.int32),
    64: (np.uint64, np.int64, torch.int64),
}


@dataclass(frozen=True)
class FixedPoint:
    """How `num` numbers, whose sum is no larger than `bound`, are held in words of so many bits."""

    bits: int
    bound: float
    num: int

    def __post_init__(self) -> None:
        if self.bits not in _KINDS:
            raise ValueError(f"bits is {self.bits!r}; choose from {', '.join(map(str, _KINDS))}")
        if not (math.isfinite(self.bound) and self.bound > 0.0):
            raise ValueError(f"bound is {self.bound!r}; it must be a positive number")
        if self.num < 1:
            raise ValueError(f"num is {self.num!r}; it must be at least 1")
        if self._room < 1 or 2.0**self.fraction_bits * self.bound < 2**LEAST_BITS:
            raise ValueError(
                f"words of {self.bits} bits cannot hold sums of {self.num} numbers up to {self.bound:g} to a part of "
                f"2^{LEAST_BITS}: take words of 64 bits, or a smaller bound"
            )

    @property
    def _room(self) -> int:
        return (1 << (self.bits - 1)) - 1 - (self.num + 1) // 2

    @property
    def fraction_bits(self) -> int:
        """How many binary places there are after the point; negative where the unit is larger than 1."""
        return _places(self._room, self.bound)

    @property
    def unit(self) -> float:
        """What one word stands for."""
        return 2.0**-self.fraction_bits

    @property
    def error(self) -> float:
        """How far a sum can be off."""
        return self.num * self.unit / 2

    def words(self, numbers: Tensor, factor: float = 1.0) -> np.ndarray:
        """Return factor times each number as a word, (numbers,)."""
        unsigned, _, _ = _KINDS[self.bits]
        flat = numbers.detach().reshape(-1)
        found = np.empty(len(flat), dtype=unsigned)
        scale = factor * 2.0**self.fraction_bits
        for start in range(0, len(flat), _PART):
            part = flat[start : start + _PART].double()
            rounded = (part * scale).round_().to(torch.int64)
            found[start : start + _PART] = rounded.numpy().astype(unsigned)  # modulo 2^bits
        return found

    def numbers(self, words: np.ndarray) -> Tensor:
        """Return what a sum of words stands for, (numbers,), in double precision."""
        signed = words.view(_KINDS[self.bits][1]).astype(np.float64)
        return torch.from_numpy(signed * self.unit)


@lru_cache(maxsize=256)
def _places(room: int, bound: float) -> int:
    """Return the most binary places with which a bound is no more than the room; exact, as one more would leave it."""
    places = math.floor(math.log2(room) - math.log2(bound)) + 1
    while Fraction(bound) * Fraction(2) ** places > room:
        places -= 1
    return places


def beyond(numbers: Tensor, bound: float) -> float | None:
    """Return the largest magnitude if it is above a bound, or no number; None if all is well."""
    found = largest(numbers)
    return None if found <= bound else found  # never true of NaN


def crossing(words: np.ndarray) -> Tensor:
    """Return words as a tensor that a message can hold: the same bits, signed."""
    bits = words.dtype.itemsize * 8
    return torch.from_numpy(words.view(_KINDS[bits][1]))


def arrived(tensor: Tensor) -> np.ndarray:
    """Return the words in a tensor of a message, as a copy that may be changed."""
    bits = tensor.element_size() * 8
    found: np.ndarray = tensor.numpy().astype(_KINDS[bits][1]).view(_KINDS[bits][0])
    return found
