"""Messages that travel in parts, put together again: several at once, in any order, each part as often as it comes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PART_BYTES = 1 << 20  # a message travels in parts of this size, so that no frame is ever larger
MAX_UNFINISHED = 16  # messages of one peer that are under way at the same time
NUM_REMEMBERED = 1024  # messages of one peer that are over; parts of them that come again are ignored


def num_parts(size: int) -> int:
    """Return in how many parts a message travels; an empty one has a part too."""
    return max(-(-size // PART_BYTES), 1)


@dataclass
class _Unfinished:
    ident: str
    size: int
    parts: dict[int, bytes] = field(default_factory=dict)


class Assembly:
    """The messages of one peer that are under way.

    The engine hands frames to many threads, so that parts come in any order. What is held is bounded: beyond
    `max_bytes`, or too many messages at once, the oldest is given up.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._unfinished: OrderedDict[str, _Unfinished] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()
        self._num_bytes = 0

    def add(self, head: Mapping[str, Any], data: bytes) -> tuple[bytes | None, list[str]]:
        """Take a part; return the whole message if this part completes it, and the ids of messages given up for it."""
        name, size, number = head["message"], head["size"], head["number"]
        if name in self._over:
            return None, []
        if num_parts(size) == 1:
            self._forget(name)
            return data, []
        found = self._unfinished.setdefault(name, _Unfinished(head["ident"], size))
        if found.size != size or number in found.parts:
            return None, []
        found.parts[number] = data
        self._num_bytes += len(data)
        if len(found.parts) == num_parts(size):
            self._forget(name)
            return b"".join(found.parts[number] for number in range(num_parts(size))), []
        return None, self._make_room()

    def _make_room(self) -> list[str]:
        given_up = []
        while len(self._unfinished) > 1 and (
            self._num_bytes > self.max_bytes or len(self._unfinished) > MAX_UNFINISHED
        ):
            name = next(iter(self._unfinished))
            given_up.append(self._unfinished[name].ident)
            self._forget(name)
        return given_up

    def _forget(self, name: str) -> None:
        """Let a message go, whole or not; parts of it that still come are ignored."""
        found = self._unfinished.pop(name, None)
        if found is not None:
            self._num_bytes -= sum(len(part) for part in found.parts.values())
        self._over[name] = None
        if len(self._over) > NUM_REMEMBERED:
            self._over.popitem(last=False)
