"""A tensor in fewer bytes that say themselves what they are: one uint8 tensor stands in the place of another.

    magic "Ib" (2 bytes) | version (u8) | kind (u8) | dtype (u8) | axes (u8) | lengths of axes (u64 each) | body

Dtype and axes are those of the tensor that is stood for. What the body holds is the kind's own affair. The reader says
what it expects: nothing is allocated before kind, type and shape are found to be that, and a body gives no more bytes
than it has.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from isthmus.core.codec import MAX_DIMS, opened, pack
from isthmus.core.errors import BadMessage
from isthmus.core.record import DTYPES

MAGIC, VERSION = b"Ib", 1
TAG_BYTES = 8
# Numbers that one tensor may have: more fit in no message.
MAX_NUMBERS = 2**31
_DTYPES = tuple(DTYPES.values())  # the codec's order; new ones come at its end
Part = bytes | memoryview


class Kind(IntEnum):
    """What a body holds; the numbers are in messages and stay."""

    SINCE = 1  # another tensor, and which state of the receiver it belongs to
    GRID = 2  # numbers of few bits
    CHOSEN = 3  # some of the numbers, and which
    LOW_RANK = 4  # two factors
    DIFFERENCE = 5  # differences of bits
    PACKED = 6  # bytes of another tensor, packed


@dataclass(frozen=True)
class Form:
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        """Return the form of a tensor."""
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def numbers(self) -> int:
        """How many numbers such a tensor has."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """How many bytes such a tensor takes."""
        return self.numbers * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {self.shape}"


def form_bytes(form: Form) -> bytes:
    """Return a form as it stands in a message."""
    head = struct.pack("<BB", _DTYPES.index(form.dtype), len(form.shape))
    return head + struct.pack(f"<{len(form.shape)}Q", *form.shape)


class Body:
    """Bytes that are read from the front, and give no more than they have."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def take(self, number: int) -> memoryview:
        """Return the next bytes."""
        if not 0 <= number <= len(self.data):
            raise BadMessage(f"coded tensor ends early: {len(self.data)} bytes are left, {number} are needed")
        found, self.data = self.data[:number], self.data[number:]
        return found

    def integer(self, width: int) -> int:
        """Return a whole number of so many bytes that is not negative."""
        return int.from_bytes(self.take(width), "little")

    def array(self, dtype: str, number: int) -> np.ndarray:
        """Return the next numbers of a numpy type, a view that may only be read."""
        return np.frombuffer(self.take(number * np.dtype(dtype).itemsize), dtype)

    def form(self) -> Form:
        """Return a form whose tensor could be in a message."""
        code, axes = self.take(2)
        if code >= len(_DTYPES) or axes > MAX_DIMS:
            raise BadMessage(f"coded tensor has the type {code} and {axes} axes; known are {len(_DTYPES)} types")
        form = Form(_DTYPES[code], struct.unpack(f"<{axes}Q", self.take(8 * axes)))
        if math.prod(max(n, 1) for n in form.shape) > MAX_NUMBERS:
            raise BadMessage(f"coded tensor has the impossible shape {form.shape}")
        return form

    def end(self) -> None:
        """Refuse what is left."""
        if len(self.data):
            raise BadMessage(f"coded tensor has {len(self.data)} bytes too many")


@contextmanager
def standing_at(path: str) -> Iterator[None]:
    """Say of what cannot be read where in its message it stands, and what may help."""
    try:
        yield
    except BadMessage as error:
        raise BadMessage(
            f"{path}: {error}. It is damaged, or another release of isthmus made it: install the same at all parties"
        ) from None


def write_blob(kind: Kind, form: Form, parts: Sequence[Part]) -> Tensor:
    """Return the bytes that stand for a tensor of a form, (bytes,), uint8."""
    head = struct.pack("<2sBB", MAGIC, VERSION, kind) + form_bytes(form)
    return pack(b"".join([head, *parts]))


def read_blob(tensor: Tensor, kind: Kind, expected: Form | None) -> tuple[Form, Body]:
    """Return what a blob stands for, and its body; raise BadMessage unless it is of the kind and the form expected."""
    body = Body(opened(tensor))
    magic, version, found = struct.unpack("<2sBB", body.take(4))
    if (magic, version) != (MAGIC, VERSION):
        raise BadMessage(
            f"coded tensor starts with {magic!r}, version {version}; this package reads {MAGIC!r}, {VERSION}"
        )
    if found != kind:
        raise BadMessage(f"coded tensor is of kind {found}, expected {kind.name.lower()} ({int(kind)})")
    form = body.form()
    if expected is not None and form != expected:
        raise BadMessage(f"coded tensor stands for {form}, expected {expected}")
    return form, body


def is_blob(tensor: Tensor, kind: Kind) -> bool:
    """Whether a tensor begins as a blob of a kind does."""
    head = struct.pack("<2sBB", MAGIC, VERSION, kind)
    return tensor.dtype == torch.uint8 and tensor.dim() == 1 and bytes(opened(tensor[: len(head)])) == head


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, in order."""
    if not tensor.numel():
        return memoryview(b"")
    # A copy with strides of its own: those of a view of one number may be anything.
    content = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().flatten())
    return content.view(torch.uint8).numpy().data


def tensor_from(data: Part, form: Form) -> Tensor:
    """Return the tensor of a form that has these bytes, a copy of its own."""
    if len(data) != form.size:
        raise BadMessage(f"coded tensor has {len(data)} bytes for {form}, which takes {form.size}")
    tensor = torch.empty(form.shape, dtype=form.dtype)
    if form.size:
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8)
    return tensor


def write_since(tag: bytes, wire: Tensor) -> Tensor:
    """Return a tensor that is about the state of this tag."""
    return write_blob(Kind.SINCE, Form.of(wire), [tag, raw_bytes(wire)])


def read_since(tensor: Tensor, largest: int) -> tuple[bytes, Tensor]:
    """Return the tag and the tensor, which may have so many bytes."""
    form, body = read_blob(tensor, Kind.SINCE, None)
    if form.size > largest:
        raise BadMessage(f"coded tensor of {form.size} bytes stands where one of {largest} bytes or fewer belongs")
    tag = bytes(body.take(TAG_BYTES))
    return tag, tensor_from(body.take(len(body)), form)
