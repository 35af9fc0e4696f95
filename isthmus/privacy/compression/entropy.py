"""Entropy coding: what is left of a message is packed without loss, by the standard library."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isthmus.core.codec import DEFAULT_MAX_BYTES
from isthmus.core.errors import BadMessage, refuse, refuse_unknown
from isthmus.core.exposure import Exchange
from isthmus.core.guards.guard import AtClient, AtServer, Guard, each_once
from isthmus.core.protocol import Request, Requests
from isthmus.core.record import Record, leaves, with_leaves
from isthmus.privacy.compression.blob import (
    Body,
    Form,
    Kind,
    Part,
    form_bytes,
    raw_bytes,
    read_blob,
    standing_at,
    tensor_from,
    write_blob,
)
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.planes import (
    METHODS,
    in_order,
    side_by_side,
    spread_as,
    squeezed,
    unsqueezed,
    worth_packing,
)

# Tensors of fewer bytes are not worth a head.
SMALL = 64
# How many times the bytes that came a tensor may take that the receiver knows nothing of.
MAX_EXPANSION = 64
# Bytes that are packed by themselves: some are worth it and others are not, as the high and the low bytes of numbers.
PIECE = 2**17
_EACH, _STORED = 9, METHODS.index("stored")


@dataclass(frozen=True)
class Entropy(Guard):
    """Tensors cross packed, where that takes fewer bytes: bytes of equal rank side by side, each rank by zlib or lzma.

    Nothing is lost. It stands after guards that code numbers, whose bytes it packs further.

    Fields:
        method: "zlib", or "lzma", which takes about ten times as long
        level:  of zlib: 1 packs runs and frequent bytes, which is what numbers have; 2 to 9 look for what repeats, too,
                and take several times as long
    """

    linear: ClassVar[bool] = False
    keeps_form: ClassVar[bool] = False

    method: str = "zlib"
    level: int = 1

    def __post_init__(self) -> None:
        refuse_unknown(self, "method", METHODS[1:])
        refuse(not 1 <= self.level <= 9, self, "level", "it must be from 1 to 9")

    @property
    def keeps_models(self) -> bool:
        """Nothing is lost."""
        return True

    def problem(self, course: Any) -> str:
        """Return why it does not stand where it should: last of those that code."""
        place = course.guards.index(self)
        after = next(
            (type(guard).__name__ for guard in course.guards[place + 1 :] if isinstance(guard, Coder | Entropy)), ""
        )
        if after == type(self).__name__:
            return "messages are packed twice, and the second time saves nothing; leave one out"
        if after:
            return (
                f"{after} is after it, and finds bytes where it codes numbers; put {after} before {type(self).__name__}"
            )
        return ""

    def shown(self, exchange: Exchange) -> Exchange:
        """Say that all is packed; anybody can undo that."""
        down, up = f"{exchange.wire_down}, packed", f"{exchange.wire_up}, packed"
        return replace(exchange, wire_down=down, wire_up=up)

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Pack each distinct request once."""
        return each_once(requests, self._packed)

    def heard(self, requests: Requests, at: AtServer) -> Requests:
        """Return the requests as they were."""
        return each_once(requests, self._unpacked)

    def receive(self, request: Request[Any], at: AtClient) -> Request[Any]:
        """Unpack a request."""
        found: Request[Any] = self._unpacked(request)
        return found

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Pack a reply."""
        found: Record = self._packed(reply)
        return found

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        """Unpack a reply."""
        found: Record = self._unpacked(reply)
        return found

    def _packed(self, record: Any) -> Any:
        found = {path: leaf for path, leaf in leaves(record).items() if isinstance(leaf, Tensor)}
        changed = {path: wire for path, leaf in found.items() if (wire := self._wire(leaf)) is not None}
        return with_leaves(record, {**leaves(record), **changed}) if changed else record

    def _wire(self, tensor: Tensor) -> Tensor | None:
        # Bytes look like what is packed, so that they always are.
        return packed(tensor, self.method, self.level, always=is_packed(tensor))

    def _unpacked(self, record: Any) -> Any:
        found = {path: leaf for path, leaf in leaves(record).items() if isinstance(leaf, Tensor) and is_packed(leaf)}
        changed: dict[str, Tensor] = {}
        for path, wire in found.items():
            with standing_at(path):
                changed[path] = unpacked(wire)
        return with_leaves(record, {**leaves(record), **changed}) if changed else record


def is_packed(tensor: Tensor) -> bool:
    """Whether a tensor looks like one that is packed; one that is not, and looks so, is packed before it crosses."""
    return tensor.dtype == torch.uint8 and tensor.dim() == 1


def packed(tensor: Tensor, method: str, level: int, always: bool) -> Tensor | None:
    """Return a tensor packed; None where that saves nothing, unless it is to be packed always.

    The body: for each piece the method (u8), how many bytes follow (u64), and these.
    """
    form = Form.of(tensor)
    ordered = memoryview(side_by_side(raw_bytes(tensor), spread_as(form)))
    pieces, starts = [], np.cumsum([0, *_pieces(form)])
    if form.size >= SMALL:
        pieces = [_squeezed(ordered[at:end], method, level) for at, end in itertools.pairwise(starts)]
        size = sum(len(piece) + _EACH for _, piece in pieces)
        least = -(-form.size // MAX_EXPANSION)  # filled up to what the receiver is ready to believe
        if max(size, least) + len(form_bytes(form)) < form.size:
            return write_blob(Kind.PACKED, form, [*_written(pieces), b"\0" * (least - size)])
    if not always:
        return None
    return write_blob(Kind.PACKED, form, _written([(_STORED, ordered[a:b]) for a, b in itertools.pairwise(starts)]))


def _pieces(form: Form) -> list[int]:
    """Return how many bytes each piece has: those of one rank, cut where they are many."""
    width = spread_as(form)
    whole, rest = divmod(form.size // width, PIECE)
    return ([PIECE] * whole + [rest] * (rest > 0)) * width


def _written(pieces: list[tuple[int, Part]]) -> list[Part]:
    return [part for method, piece in pieces for part in (struct.pack("<BQ", method, len(piece)), piece)]


def _squeezed(piece: Part, method: str, level: int) -> tuple[int, Part]:
    """Return a piece packed, with the place of the method; as it is where that is as short."""
    if method == "lzma" or level > 1 or worth_packing(piece):
        found = squeezed(piece, method, level)
        if len(found) < len(piece):
            return METHODS.index(method), found
    return _STORED, piece


def unpacked(wire: Tensor) -> Tensor:
    """Return what was packed: at most so many times as large as what came."""
    form, body = read_blob(wire, Kind.PACKED, None)
    largest = min(MAX_EXPANSION * len(wire), DEFAULT_MAX_BYTES)
    if form.size > largest:
        raise BadMessage(f"packed tensor of {form.size} bytes is above the limit of {largest} for {len(wire)} bytes")
    data = b"".join([_unsqueezed(body, size) for size in _pieces(form)])
    return tensor_from(in_order(data, spread_as(form)), form)


def _unsqueezed(body: Body, size: int) -> Part:
    """Return the next piece, which must have so many bytes."""
    method, length = body.integer(1), body.integer(8)
    if method >= len(METHODS):
        raise BadMessage(f"packed tensor has the method {method}; known are {', '.join(METHODS)}")
    data = body.take(length)
    if METHODS[method] != "stored":
        return unsqueezed(data, METHODS[method], size)
    if len(data) != size:
        raise BadMessage(f"packed tensor has {len(data)} bytes of a piece, expected {size}")
    return data
