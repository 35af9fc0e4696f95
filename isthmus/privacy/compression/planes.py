"""Bytes without loss: differences of bits, bytes of equal rank side by side, and what the standard library packs.

Two floats that are close are close as whole numbers too: the difference of their bit patterns has few bits, and with
bytes of equal rank side by side its high bytes are runs of zeros.
"""

from __future__ import annotations

import lzma
import zlib

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Form, Part, raw_bytes, tensor_from

METHODS = ("stored", "zlib", "lzma")
# What the decoder of lzma may take for itself beside what it returns; our own encoder's preset needs 9 MB.
_LZMA_MEMORY = 2**26
_LZMA_PRESET = 6
# How many bytes are looked at to see whether packing is worth its time, and the entropy in bits from which it is not.
_SAMPLE, _RANDOM_BITS = 4096, 7.8


def side_by_side(data: Part, width: int) -> bytes:
    """Return bytes with the first of each item of a width first, then the second of each, ..."""
    return np.frombuffer(data, np.uint8).reshape(-1, width).T.tobytes() if width > 1 else bytes(data)


def in_order(data: Part, width: int) -> bytes:
    """Return what `side_by_side` was given."""
    return np.frombuffer(data, np.uint8).reshape(width, -1).T.tobytes() if width > 1 else bytes(data)


def difference(value: Tensor, base: Tensor) -> bytes:
    """Return how bits differ from those of another of the same form: small differences of either sign are small."""
    words, width = _words(value) - _words(base), value.dtype.itemsize
    sign = words >> np.array(8 * width - 1, words.dtype)
    return side_by_side(((words << np.array(1, words.dtype)) ^ (0 - sign)).tobytes(), width)


def undifferenced(data: Part, base: Tensor) -> Tensor:
    """Return the tensor whose difference to another this is."""
    form, below = Form.of(base), _words(base)
    if len(data) != form.size:
        raise BadMessage(f"coded tensor has differences of {len(data)} bytes for {form}, which takes {form.size}")
    words = np.frombuffer(in_order(data, form.dtype.itemsize), below.dtype)
    one = np.array(1, below.dtype)
    return tensor_from(raw_bytes_of(below + ((words >> one) ^ (0 - (words & one)))), form)


def _words(tensor: Tensor) -> np.ndarray:
    """Return the bits of numbers as whole numbers without sign."""
    return np.frombuffer(raw_bytes(tensor), f"<u{tensor.dtype.itemsize}")


def raw_bytes_of(words: np.ndarray) -> memoryview:
    """Return the bytes of an array."""
    return words.view(np.uint8).data if len(words) else memoryview(b"")


def worth_packing(data: Part) -> bool:
    """Whether some of the bytes are much more frequent than others, by a sample: else packing saves next to nothing."""
    found = np.frombuffer(data, np.uint8)
    if len(found) < 2 * _SAMPLE:
        return True
    shares = np.bincount(found[:: len(found) // _SAMPLE], minlength=256) / len(found[:: len(found) // _SAMPLE])
    shares = shares[shares > 0.0]
    return float(-(shares * np.log2(shares)).sum()) < _RANDOM_BITS


def squeezed(data: Part, method: str, level: int) -> Part:
    """Return bytes packed by a method of the standard library."""
    if method == "lzma":
        return lzma.compress(data, preset=_LZMA_PRESET)
    # Numbers hardly repeat one another; looking for what does takes most of the time, and finds less than runs give.
    strategy = zlib.Z_RLE if level == 1 else zlib.Z_DEFAULT_STRATEGY
    packer = zlib.compressobj(level, strategy=strategy)
    return packer.compress(data) + packer.flush()


def unsqueezed(data: Part, method: str, size: int) -> bytes:
    """Return what was packed, which must be of this size: no byte beyond it is made."""
    try:
        found = _unlzma(data, size) if method == "lzma" else _unzlib(data, size)
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise BadMessage(f"coded tensor cannot be unpacked: {error}") from None
    if len(found) != size:
        raise BadMessage(f"coded tensor unpacks to {len(found)} bytes or more, expected {size}")
    return found


def _unzlib(data: Part, size: int) -> bytes:
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(data, size + 1)
    return found if unpacker.eof and not unpacker.unused_data else _too_long(found, size)


def _unlzma(data: Part, size: int) -> bytes:
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)
    found = unpacker.decompress(bytes(data), size + 1)
    return found if unpacker.eof and not unpacker.unused_data else _too_long(found, size)


def _too_long(found: bytes, size: int) -> bytes:
    raise BadMessage(f"coded tensor is damaged: it does not end where its {size} bytes do")


def spread_as(form: Form) -> int:
    """Return how many bytes of a tensor belong together: those of one number, but of bytes each stands alone."""
    return 1 if form.dtype in (torch.uint8, torch.int8, torch.bool) else form.dtype.itemsize
