"""Some numbers of many: the largest, or some that a seed names; and where they stand, in few bits.

Places in rising order are written as the gaps between them, each in Rice's code (1979): its last b bits as they are,
the rest in unary. With b near log2 of the mean gap that takes little more than the gaps' entropy.

    number (u64) | b (u8) | last bits, packed | bytes of unary (u64) | unary: so many 0 and a 1 for each gap, packed
"""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Body, Part


def number_of(fraction: float, numbers: int) -> int:
    """Return how many of some numbers a fraction is: at least 1, at most all."""
    return min(numbers, max(1, math.ceil(fraction * numbers)))


def largest_places(values: Tensor, number: int) -> np.ndarray:
    """Return where the largest magnitudes stand, in rising order, (number,), int64; fewer where others are zero.

    Of equals those that come first.
    """
    if number >= len(values):
        return np.arange(len(values))
    sizes = values.abs().numpy()
    chosen = sizes > 0.0
    found = sizes[chosen]  # many zeros would keep the search for the edge from getting anywhere
    if len(found) > number:
        edge = np.partition(found, len(found) - number)[len(found) - number]
        chosen = sizes > edge
        chosen[np.flatnonzero(sizes == edge)[: number - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def drawn_places(seed: int, number: int, numbers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places that a seed draws, in rising order, and of how many each is one; both (number,), int64.

    All places are divided into `number` runs whose lengths differ by at most one, and one of each run is drawn: each
    place of a run is as likely as any other, and the same on every machine.
    """
    edges = np.arange(number + 1, dtype=np.int64) * numbers // number
    lengths = np.diff(edges)
    words = np.frombuffer(hashlib.shake_128(seed.to_bytes(8, "little")).digest(8 * number), "<u8")
    return edges[:-1] + (words % lengths.astype(np.uint64)).astype(np.int64), lengths


def write_places(places: np.ndarray, numbers: int) -> list[Part]:
    """Return the parts of a body that say which places, in rising order, of so many numbers."""
    gaps = np.diff(places, prepend=-1) - 1
    bits = _bits_for(len(places), numbers)
    last = ((gaps[:, None] >> np.arange(bits)) & 1).astype(np.uint8)  # (places, bits)
    ones = np.cumsum((gaps >> bits) + 1) - 1
    unary = np.zeros(int(ones[-1]) + 1 if len(ones) else 0, np.uint8)
    unary[ones] = 1
    packed = np.packbits(unary, bitorder="little")
    head = struct.pack("<QB", len(places), bits)
    return [head, np.packbits(last.reshape(-1), bitorder="little").data, struct.pack("<Q", len(packed)), packed.data]


def _bits_for(number: int, numbers: int) -> int:
    gap = numbers / max(number, 1)
    return max(0, round(math.log2(max(gap * math.log(2.0), 1.0))))


def read_places(body: Body, numbers: int) -> np.ndarray:
    """Return places in rising order of so many numbers, (number,), int64."""
    number, bits = body.integer(8), body.integer(1)
    if number > numbers or bits > numbers.bit_length():
        raise BadMessage(f"coded tensor names {number} places with {bits} bits, of {numbers} numbers")
    last = np.unpackbits(body.array("u1", -(-number * bits // 8)), count=number * bits, bitorder="little")
    size = body.integer(8)
    if size > ((numbers >> bits) + number) // 8 + 1:
        raise BadMessage(f"coded tensor has {size} bytes of gaps for {number} places of {numbers} numbers")
    ones = np.flatnonzero(np.unpackbits(body.array("u1", size), bitorder="little"))
    if len(ones) != number:
        raise BadMessage(f"coded tensor has {len(ones)} gaps for {number} places")
    gaps = (np.diff(ones, prepend=-1) - 1) << bits
    weights = np.left_shift(1, np.arange(bits), dtype=np.int64)
    gaps += last.reshape(number, bits) @ weights
    places = np.cumsum(gaps + 1) - 1
    if number and int(places[-1]) >= numbers:
        raise BadMessage(f"coded tensor names the place {int(places[-1])} of {numbers} numbers")
    return places


def scattered(places: np.ndarray, values: Tensor, numbers: int) -> Tensor:
    """Return numbers at their places among zeros, (numbers,), float32."""
    found = torch.zeros(numbers)
    found[torch.from_numpy(places)] = values
    return found
