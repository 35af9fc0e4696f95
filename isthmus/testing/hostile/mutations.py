"""Mutations that know the structure of what they change: for tests of whatever reads files and messages of others.

A reader that only ever sees random bytes refuses them at the first check. These change a valid piece a little: fields
are swapped, repeated, left out, nested, given numbers at the edges or pieces of their neighbours, so that most of what
comes out is refused late, or not at all.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from isthmus.core.codec import ALIGN, PREFIX

NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63), 10**18, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"))
TEXTS = ("", "x", "\x00\x1b[31m", "é\u2028😀", "x" * 5000, "../../etc/passwd", "2026-13-45", "!!int ''")
EDGES: tuple[Any, ...] = (*NUMBERS, True, False, None, *TEXTS, [], {}, [[]], {"name": {}})


class Mutator:
    """A seeded source of mutations; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def tree(self, value: Any) -> Any:
        """Return plain values (dicts, lists, scalars) with a few places changed; the given ones stay as they are."""
        changed = json.loads(json.dumps(value))
        for _ in range(self.random.choice((1, 1, 1, 2, 3, 5))):
            places: list[tuple[Any, Any]] = []
            _collect(changed, places)
            if not places:
                return self._edge_value()
            box, key = self.random.choice(places)
            self.random.choice(self._operations())(box, key, places)
        return changed

    def text(self, text: str) -> str:
        """Return a text with lines or characters left out, repeated, swapped, or strange ones put in."""
        lines = text.split("\n")
        at, other = self.random.randrange(len(lines)), self.random.randrange(len(lines))
        what = self.random.randrange(6)
        if what == 0:
            del lines[at]
        elif what == 1:
            lines.insert(other, lines[at])
        elif what == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif what == 3:
            lines[at] = " " * self.random.randrange(9) + lines[at].strip()
        else:
            line, place = lines[at], self.random.randrange(len(lines[at]) + 1)
            strange = self.random.choice(
                ("[", "{", "]", "}", ": ", "- ", "&a ", "*a", "!!int ", "<<: ", "'", '"', "\t", "|", "? ", "#", "\x07")
            )
            repeated = strange * self.random.choice((1, 1, 1, 40, 2000))
            lines[at] = line[:place] + repeated + line[place + self.random.randrange(2) :]
        return "\n".join(lines)

    def data(self, data: bytes) -> bytes:
        """Return bytes with some flipped, cut off, put in or repeated."""
        changed = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            at = self.random.randrange(len(changed) + 1)
            what = self.random.randrange(4)
            if what == 0 and at < len(changed):
                changed[at] ^= 1 << self.random.randrange(8)
            elif what == 1:
                del changed[at : at + self.random.choice((1, 8, 100))]
            elif what == 2:
                changed[at:at] = self.random.randbytes(self.random.choice((1, 8, 64)))
            else:
                changed[at:at] = changed[: self.random.randrange(65)]
        return bytes(changed)

    def message(self, message: bytes) -> bytes:
        """Return an encoded record with its skeleton, its lengths or its tensors changed, and the rest fitting."""
        if self.random.random() < 0.2:
            return self.data(message)
        magic, version, flags, length = PREFIX.unpack_from(message)
        skeleton = json.loads(message[PREFIX.size : PREFIX.size + length])
        tensors = message[PREFIX.size + length :]
        if self.random.random() < 0.9:
            skeleton = self.tree(skeleton)
        if self.random.random() < 0.2:
            tensors = tensors[: self.random.randrange(len(tensors) + 1) // ALIGN * ALIGN] * self.random.randrange(3)
        text = json.dumps(skeleton).encode()
        return PREFIX.pack(magic, version, flags, len(text)) + text + tensors

    def _operations(self) -> list[Callable[[Any, Any, list[tuple[Any, Any]]], None]]:
        more = (self._number, self._splice, self._nest, self._repeat, self._rename)
        return [self._delete, self._edge, self._edge, *more]

    def _delete(self, box: Any, key: Any, places: Any) -> None:
        del box[key]

    def _edge(self, box: Any, key: Any, places: Any) -> None:
        box[key] = self._edge_value()

    def _edge_value(self) -> Any:
        return copy.deepcopy(self.random.choice(EDGES))  # a list must not stand in itself

    def _number(self, box: Any, key: Any, places: Any) -> None:
        value = box[key]
        if isinstance(value, int | float) and abs(value) < 2**64 and not isinstance(value, bool):
            box[key] = self.random.choice((-value, value + 1, value - 1, value * 1000, value / 3, str(value)))
        else:
            self._edge(box, key, places)

    def _splice(self, box: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
        other, name = self.random.choice(places)
        box[key] = json.loads(json.dumps(other[name]))

    def _nest(self, box: Any, key: Any, places: Any) -> None:
        value = box[key]
        for _ in range(self.random.choice((1, 2, 70))):
            value = [value] if self.random.random() < 0.5 else {"name": value}
        box[key] = value

    def _repeat(self, box: Any, key: Any, places: Any) -> None:
        if isinstance(box, list):
            box[key:key] = [copy.deepcopy(box[key]) for _ in range(self.random.choice((1, 2, 50)))]
        else:
            box[f"{key}{self.random.choice(('', '_', '2', '.x'))}"] = copy.deepcopy(box[key])

    def _rename(self, box: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
        if isinstance(box, dict):
            names = [name for _, name in places if isinstance(name, str)]
            box[self.random.choice([*names, "", "name", "<<"])] = box.pop(key)
        else:
            self.random.shuffle(box)


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        places.append((value, key))
        _collect(value[key], places)
