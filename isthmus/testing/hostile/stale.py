"""A client whose replies are out of place: those of an earlier round, to another request, of another course.

A reply that is put into a new message cannot be told from one that was made for it, if it is of the right kind: a
client may train on whatever it likes. `Stale` does that; nobody but the client itself may suffer from it. A message
that is sent again as it was (`StaleSilo`) is told by the name of the question that it answers, and must be a named
failure: the course then is the one in which that client failed there (`FailingSilo`), to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.core.codec import decode, encode, pack
from isthmus.core.errors import BadMessage
from isthmus.core.federation import Position
from isthmus.core.protocol import Failure, Request, reply_type
from isthmus.core.record import Record
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.testing.hostile.lies import Lie, Told

Given = tuple[str, Position, Any]  # kind of request, where, and what was answered
Place = tuple[str, Position]


@dataclass
class Stale:
    """A client that answers with a reply that it has given already, wherever it has one.

    Fields:
        client:     who
        other_kind: whether to take replies to another kind of request, in place of earlier ones to the same
        given:      what there is to choose from; its own replies are added, unless it is somebody else's (`foreign`)
        foreign:    whether `given` is of another course
        told:       what was told, and where
    """

    client: str
    other_kind: bool = False
    given: list[Given] = field(default_factory=list)
    foreign: bool = False
    told: list[Told] = field(default_factory=list)
    request: str = "everything"

    def answer(self, position: Position, request: Request[Any], reply: Record | Failure) -> Record | Failure:
        """Return the latest reply that there is, or the true one."""
        if isinstance(reply, Failure):
            return reply
        kind = type(request).__name__
        old = next((r for k, _, r in reversed(self.given) if (k != kind) == self.other_kind), None)
        if not self.foreign:
            self.given.append((kind, position, reply))
        if old is None:
            return reply
        certain = type(old) is not reply_type(type(request))
        self.told.append(Told(position, Lie("reply", f"one of before, a {type(old).__name__}", old, certain)))
        return old  # type: ignore[no-any-return]


# ---- between sites: whole messages


def _earlier_round(given: Sequence[Given], kind: str, at: Position) -> bytes | None:
    return next((data for k, p, data in reversed(given) if k == kind and p.round < at.round), None)


def _earlier_exchange(given: Sequence[Given], kind: str, at: Position) -> bytes | None:
    return given[-1][2] if given else None


def _another_kind(given: Sequence[Given], kind: str, at: Position) -> bytes | None:
    return next((data for k, _, data in reversed(given) if k != kind), None)


def _same_place(given: Sequence[Given], kind: str, at: Position) -> bytes | None:
    return next((data for k, p, data in given if (k, p) == (kind, at)), None)


# Which message is sent again; of those of another course, the one that was given at the same place.
CHOICES: dict[str, Callable[[Sequence[Given], str, Position], bytes | None]] = {
    "an earlier round": _earlier_round,
    "an earlier exchange": _earlier_exchange,
    "another kind": _another_kind,
    "another course": _same_place,
}


class StaleSilo:
    """A silo that answers an exchange with a message of before, as it was, wherever it has one.

    `given` holds what it may choose from and grows, unless it is another course's.
    """

    def __init__(self, honest: Any, choice: str, given: Sequence[Given] = ()) -> None:
        self.honest, self.choice, self.given = honest, choice, list(given)
        self.told: list[Place] = []

    def handle(self, kind: str, data: bytes) -> bytes:
        """Answer as the honest silo would, or with something old."""
        answer: bytes = self.honest.handle(kind, data)
        place = _place(kind, data)
        if place is None:
            return answer
        old = CHOICES[self.choice](self.given, *place)
        if self.choice != "another course":
            self.given.append((*place, answer))
        if old is None:
            return answer
        self.told.append(place)
        return old


class RecordingSilo:
    """An honest silo that takes note of what it answers."""

    def __init__(self, honest: Any) -> None:
        self.honest = honest
        self.given: list[Given] = []

    def handle(self, kind: str, data: bytes) -> bytes:
        """Answer, and take note."""
        answer: bytes = self.honest.handle(kind, data)
        place = _place(kind, data)
        if place is not None:
            self.given.append((*place, answer))
        return answer


class FailingSilo:
    """A silo that gives no reply at some places, and is honest otherwise."""

    def __init__(self, honest: Any, places: Collection[Place]) -> None:
        self.honest, self.places = honest, list(places)

    def handle(self, kind: str, data: bytes) -> bytes:
        """Answer, or fail."""
        if _place(kind, data) in self.places:
            return encode(Answer(pack(b""), Failure("", "error", "it fails on purpose"), BLANK))
        answer: bytes = self.honest.handle(kind, data)
        return answer


def _place(kind: str, data: bytes) -> Place | None:
    """Return which exchange a message to a silo is about; None for another message."""
    if kind != "exchange":
        return None
    try:
        envelope: Envelope = decode(data, Envelope)
    except BadMessage:
        return None
    return envelope.kind, envelope.position
