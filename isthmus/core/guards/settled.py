"""What a client did with the keys of a sum, kept where nobody can roll it back.

A client's memory goes back to an earlier one whenever the server says so: after a round that was lost, in a resume. A
server could use that to have one set of keys answer twice, for two cohorts, or to hear both shares of one client. So
what was settled once for a set of keys stays settled: the same again gives the same answer, anything else is refused.

Keys, and what is added up under them, are in the process alone: with it they are gone, and its client is left out of
the sum that was under way. What is settled for good outlives the process, as what noise was drawn for. So does over
whom a reply was added up: nor may the same reply be in two sums over different clients, as their difference would be
somebody's own. Each of the three has room of its own, so that much of one does not push another out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadMessage
from isthmus.core.outside import replace_file
from isthmus.core.record import State

# Sets of keys that are remembered; those of older sums are refused.
MOST_KEYS = 64
# Replies of which it is remembered over whom they were added up.
MOST_REPLIES = 4_096
# What is settled for good, some entries in a course.
MOST_FOR_GOOD = 4_096


class Settled:
    """What was settled, in this process."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, str]] = {}  # by a name of theirs: what about them -> how
        self.under_way: State = {}  # what the sum that is made now needs, of a client that does not remember it itself
        self._replies: dict[str, list[str]] = {}  # by their digest: over whom they were added up
        self._for_good: dict[str, str] = {}  # what -> how

    def open(self, keys: str) -> None:
        """Begin with a new set of keys, by its name; the oldest of many are forgotten."""
        if keys in self._keys:
            raise BadMessage("these keys were made before: keys of a sum are made once")
        self._keys = _latest({**self._keys, keys: {}}, MOST_KEYS)

    def settle(self, keys: str, what: str, value: bytes) -> None:
        """Settle something for a set of keys; raises BadMessage if something else was settled before."""
        if keys not in self._keys:
            raise BadMessage("nothing is known of these keys any more: the sum has to begin anew")
        known = self._keys[keys]
        if known.get(what, value.hex()) != value.hex():
            raise BadMessage(f"{what} was settled in another way for these keys: they answer once")
        if what not in known:
            self._keys[keys] = {**known, what: value.hex()}

    def settle_for_good(self, what: str, value: bytes) -> None:
        """Settle something for this process and those after it; raises BadMessage if it was something else before."""
        if self._for_good.get(what, value.hex()) != value.hex():
            raise BadMessage(f"{what} was settled in another way, and for good")
        if what not in self._for_good:
            self._for_good = _latest({**self._for_good, what: value.hex()}, MOST_FOR_GOOD)
            self._keep()

    def add_up(self, reply: str, clients: tuple[str, ...]) -> None:
        """Take note over whom a reply is added up; raises BadMessage if it was over others before."""
        before = self.added(reply)
        if before and before != tuple(sorted(clients)):
            raise BadMessage(
                "the same reply was added up over other clients before, and the difference of two sums would show what "
                "single clients sent: let the same clients take part, or start a new course with another seed"
            )
        if not before:
            self._replies = _latest({**self._replies, reply: sorted(clients)}, MOST_REPLIES)
            self._keep()

    def added(self, reply: str) -> tuple[str, ...]:
        """Return over whom a reply was added up; nobody if it never was."""
        return tuple(self._replies.get(reply, ()))

    def _keep(self) -> None: ...


def _latest(entries: dict[str, Any], most: int) -> dict[str, Any]:
    return dict(list(entries.items())[-most:])


class SettledFile(Settled):
    """The same with a file, where the next process finds what outlives one; one process has it at a time."""

    def __init__(self, path: Path, say: Callable[[str], None] = print) -> None:
        super().__init__()
        self.path = path
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            found = None
        try:
            self._replies, self._for_good = _read(found)
        except ValueError:
            say(
                f"{path} is damaged: it is not known any more over whom the replies of earlier rounds were added up, "
                "nor for what noise was drawn"
            )

    def _keep(self) -> None:
        """Write the file whole or not at all, before anything is answered."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps({"added": self._replies, "for good": self._for_good}).encode(), 0o600)


def _read(found: Any) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return what a file holds; raises ValueError for one that is none."""
    if not isinstance(found, dict) or found.keys() != {"added", "for good"}:
        raise ValueError("it has other entries")
    replies, for_good = found["added"], found["for good"]
    if not isinstance(replies, dict) or not all(map(_is_list, replies.values())):
        raise ValueError("over whom replies were added up are lists")
    if not isinstance(for_good, dict) or not all(isinstance(value, str) for value in for_good.values()):
        raise ValueError("what is settled for good are texts")
    return replies, for_good


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
