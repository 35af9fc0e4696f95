"""Numbers of few bits: each bucket has a grid of evenly spaced levels, and a number goes to one of its two neighbours.

With s the scale of a bucket, b bits give the levels -L ... L of s / L, L = 2^(b-1) - 1 (1 bit: -s and s alone). There
are two ways to a level:

    drawn    a number goes up with the probability of its share of the way (Alistarh et al., QSGD, 2017), so that its
             expectation is itself; s is the largest magnitude. No number is off by as much as a step, s / L (1 bit:
             2 s), and its variance is at most a quarter of a step squared.
    nearest  where later messages make up for what this one lacks: no number is off by more than half a step. With 1
             bit s is the mean magnitude, which is nearest for all (Karimireddy et al., 2019).

Zero stays zero, but with 1 bit.

    bits (u8) | bucket (u32) | s of each bucket (f32) | levels from 0 up, 8 / b in a byte, the first in the low bits

32 bits stand for the numbers as they are: bits (u8) | numbers (f32).
"""

from __future__ import annotations

import struct

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Body, Part

BITS = (1, 2, 4, 8)
WHOLE = 32
# Numbers that are worked on at a time, so that they stay in a cache; a whole number of most buckets.
_PIECE = 2**18


def step(largest: float, bits: int) -> float:
    """Return how far two levels are apart in a bucket with this largest magnitude."""
    return 2.0 * largest if bits == 1 else largest / _top(bits)


def _top(bits: int) -> int:
    return int(max(1, 2 ** (bits - 1) - 1))


def write_numbers(values: Tensor, bits: int, bucket: int, stream: torch.Generator | None) -> list[Part]:
    """Return the parts of a body that hold numbers, (n,), float32, of few bits: without a stream the nearest."""
    if bits == WHOLE:
        return [struct.pack("<B", WHOLE), values.contiguous().numpy().data]
    levels = torch.empty(len(values), dtype=torch.uint8)
    scales = torch.empty(-(-len(values) // bucket))
    rows = max(1, _PIECE // bucket)
    for first in range(0, len(scales), rows):
        part = slice(first * bucket, (first + rows) * bucket)
        levels[part], scales[first : first + rows] = _levels(values[part], bits, bucket, stream)
    return [struct.pack("<BI", bits, bucket), scales.numpy().data, _packed(levels.numpy(), bits)]


def _levels(values: Tensor, bits: int, bucket: int, stream: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return the level of each number, and the scale of each bucket."""
    padded = torch.nn.functional.pad(values, (0, -len(values) % bucket)).view(-1, bucket)
    if stream is None and bits == 1:
        counts = torch.full((len(padded),), float(bucket))
        counts[-1] -= padded.numel() - len(values)
        return (padded >= 0.0).to(torch.uint8).view(-1)[: len(values)], padded.abs().sum(dim=1) / counts
    scales = padded.abs().amax(dim=1)
    place = padded / torch.where(scales > 0.0, scales, 1.0)[:, None]  # (buckets, bucket), from -1 to 1
    place = (place + 1.0).mul_(0.5) if bits == 1 else place.mul_(_top(bits))
    place.add_(0.5 if stream is None else torch.rand(place.shape, generator=stream)).floor_()
    # A sum just below the next level is rounded up to it, which the largest number may not be.
    top = _top(bits)
    found = place.clamp_(0, 1) if bits == 1 else place.clamp_(-top, top).add_(top)
    return found.to(torch.uint8).view(-1)[: len(values)], scales


def read_numbers(body: Body, number: int) -> Tensor:
    """Return so many numbers from a body, (n,), float32."""
    bits = body.integer(1)
    if bits == WHOLE:
        return torch.from_numpy(body.array("<f4", number).astype(np.float32))
    if bits not in BITS:
        raise BadMessage(f"coded tensor has numbers of {bits} bits; known are {', '.join(map(str, BITS))} and {WHOLE}")
    bucket = body.integer(4)
    if bucket < 1:
        raise BadMessage("coded tensor has buckets of 0 numbers")
    scales = torch.from_numpy(body.array("<f4", -(-number // bucket)).astype(np.float32))
    if not bool(torch.isfinite(scales).all()) or bool((scales < 0.0).any()):
        raise BadMessage("coded tensor has a scale that is no number, or negative")
    packed = body.array("u1", -(-number * bits // 8))
    levels = _unpacked(packed, bits, number)
    top = 2 * _top(bits) if bits > 1 else 1
    if number and int(levels.max()) > top:
        raise BadMessage(f"coded tensor has the level {int(levels.max())} of a grid that ends at {top}")
    return _values(torch.from_numpy(levels), scales, bits, bucket)


def _values(levels: Tensor, scales: Tensor, bits: int, bucket: int) -> Tensor:
    # First the share of the scale, by which the largest number comes back as it was.
    share = levels.float()
    share = share.mul_(2.0).sub_(1.0) if bits == 1 else share.sub_(_top(bits)).div_(_top(bits))
    whole = len(share) // bucket * bucket
    share[:whole].view(-1, bucket).mul_(scales[: whole // bucket, None])
    if whole < len(share):
        share[whole:].mul_(scales[-1])
    return share


def _packed(levels: np.ndarray, bits: int) -> Part:
    """Return levels, several in a byte."""
    if bits == 8:
        return levels.data
    if bits == 1:
        return np.packbits(levels, bitorder="little").data
    each = 8 // bits
    grouped = np.concatenate([levels, np.zeros(-len(levels) % each, np.uint8)]).reshape(-1, each)
    found = grouped[:, 0].copy()
    for place in range(1, each):
        found |= grouped[:, place] << np.uint8(place * bits)
    return found.data


def _unpacked(packed: np.ndarray, bits: int, number: int) -> np.ndarray:
    if bits == 8:
        return packed.copy()
    if bits == 1:
        return np.unpackbits(packed, count=number, bitorder="little")
    each, mask = 8 // bits, np.uint8(2**bits - 1)
    found = np.empty((len(packed), each), np.uint8)
    for place in range(each):
        found[:, place] = (packed >> np.uint8(place * bits)) & mask
    return found.reshape(-1)[:number]
