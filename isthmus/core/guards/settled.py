"""What a client did with the keys of a sum, kept where nobody can roll it back.

A client's memory goes back to an earlier one whenever the server says so: after a round that was lost, in a resume. A
server could use that to have one set of keys answer twice, for two cohorts, or to hear both shares of one client. So
what was settled once for a set of keys stays settled: the same again gives the same answer, anything else is refused.
Keys of which nothing is known are refused as well, so that a book that is lost protects like one that is whole.

Nor is the same reply in two sums over different clients: their difference would be somebody's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from isthmus.core.errors import BadMessage
from isthmus.core.outside import replace_file

# Sets of keys that are remembered; those of older sums are refused.
MOST_KEYS = 64
# Replies of which it is remembered over whom they were added up.
MOST_REPLIES = 4_096

# By what it is about, what was settled: "keys" by their name, and "replies" by their digest.
Book: TypeAlias = dict[str, dict[str, dict[str, str]]]


class Settled:
    """What was settled, in this process."""

    def __init__(self) -> None:
        self._book: Book = {"keys": {}, "replies": {}}

    def open(self, keys: str) -> None:
        """Begin with a new set of keys, by its name; the oldest of many are forgotten."""
        book = self._read()
        if keys in book["keys"]:
            raise BadMessage("these keys were made before: keys of a sum are made once")
        book["keys"] = _latest({**book["keys"], keys: {}}, MOST_KEYS)
        self._write(book)

    def settle(self, keys: str, what: str, value: bytes) -> None:
        """Settle something for a set of keys; raises BadMessage if something else was settled before."""
        book = self._read()
        if keys not in book["keys"]:
            raise BadMessage("nothing is known of these keys any more: the sum has to begin anew")
        known = book["keys"][keys]
        if known.get(what, value.hex()) != value.hex():
            raise BadMessage(f"{what} was settled in another way for these keys: they answer once")
        if what not in known:
            book["keys"][keys] = {**known, what: value.hex()}
            self._write(book)

    def add_up(self, reply: str, clients: bytes) -> None:
        """Take note over whom a reply is added up; raises BadMessage if it was over others before."""
        book = self._read()
        known = book["replies"].get(reply, {}).get("clients", clients.hex())
        if known != clients.hex():
            raise BadMessage(
                "the same reply was added up over other clients before, and the difference of two sums would show what "
                "single clients sent: let the same clients take part, or start a new course from the last model"
            )
        book["replies"] = _latest({**book["replies"], reply: {"clients": known}}, MOST_REPLIES)
        self._write(book)

    def _read(self) -> Book:
        return self._book

    def _write(self, book: Book) -> None:
        self._book = book


def _latest(entries: dict[str, dict[str, str]], most: int) -> dict[str, dict[str, str]]:
    return dict(list(entries.items())[-most:])


class SettledFile(Settled):
    """The same in a file, which a process that was killed finds again; written whole or not at all."""

    def __init__(self, path: Path, say: Callable[[str], None] = print) -> None:
        self.path, self._say = path, say

    def _read(self) -> Book:
        empty: Book = {"keys": {}, "replies": {}}
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return empty
        except (OSError, ValueError):
            found = None
        if not _is_book(found):
            self._say(f"{self.path} is damaged: secure sums under way are given up, and it is begun anew")
            return empty
        return found  # type: ignore[no-any-return]

    def _write(self, book: Book) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps(book).encode(), 0o600)


def _is_book(found: object) -> bool:
    def table(value: object, depth: int) -> bool:
        if depth == 0:
            return isinstance(value, str)
        return isinstance(value, dict) and all(table(entry, depth - 1) for entry in value.values())

    return table(found, 3) and isinstance(found, dict) and found.keys() == {"keys", "replies"}
