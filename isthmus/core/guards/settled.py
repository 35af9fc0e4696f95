"""What a client did with the keys of a sum, kept where nobody can roll it back.

A client's memory goes back to an earlier one whenever the server says so: after a round that was lost, in a resume. A
server could use that to have one set of keys answer twice, for two cohorts, or to hear both shares of one client. So
what was settled once for a set of keys stays settled: the same again gives the same answer, anything else is refused.

Keys, and what is added up under them, are in the process alone: with it they are gone, and its client is left out of
the sum that was under way. Over whom a reply was added up outlives the process: nor may the same reply be in two sums
over different clients, as their difference would be somebody's own.
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


class Settled:
    """What was settled, in this process."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, str]] = {}  # by a name of theirs: what about them -> how
        self.under_way: State = {}  # what the sum that is made now needs, of a client that does not remember it itself
        self._replies: dict[str, list[str]] = {}  # by their digest: over whom they were added up

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
            self._keep_replies()

    def added(self, reply: str) -> tuple[str, ...]:
        """Return over whom a reply was added up; nobody if it never was."""
        return tuple(self._replies.get(reply, ()))

    def _keep_replies(self) -> None: ...


def _latest(entries: dict[str, Any], most: int) -> dict[str, Any]:
    return dict(list(entries.items())[-most:])


class SettledFile(Settled):
    """The same, and over whom replies were added up is in a file that the next process finds; one has it at a time."""

    def __init__(self, path: Path, say: Callable[[str], None] = print) -> None:
        super().__init__()
        self.path = path
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or not all(map(_is_list, found.values())):
            say(f"{path} is damaged: it is not known any more over whom the replies of earlier rounds were added up")
            return
        self._replies = found

    def _keep_replies(self) -> None:
        """Write the file whole or not at all, before anything is answered."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps(self._replies).encode(), 0o600)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
