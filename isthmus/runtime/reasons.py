"""Why a silo does not do what it was asked: all of it on its own screen, to the server nothing but the kind.

The reason in full can hold a path, a row, a value or the place in a handler, and a server that asks often enough could
put the data together from such reasons. So only one of these sentences crosses, unless the silo's policy says else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from isthmus.core.errors import IsthmusError

# Kind -> what the server is told; nothing in it depends on the silo's data but the kind itself.
KINDS: dict[str, str] = {
    "message": "it could not read a message, or nobody agreed to what the message is about",
    "version": "it runs another version of isthmus than the server; install the same",
    "course": "it cannot carry out the course as it is written",
    "policy": "its policy does not allow this",
    "trials": "it takes part in no more courses of this study by its policy (max_trials)",
    "data": "its data cannot be read as the course asks",
    "schema": "its data does not follow the course's schema",
    "classes": "its labels do not go with the course's classes",
    "task": "its data is of another kind than the course's task works on",
    "model": "the course's model does not go with its data",
    "memory": "its memory of this course is lost or damaged",
    "request": "it does not believe what it was sent",
    "error": "it failed while it worked on this",
}
ASK = "its own screen says more: ask them"


class Refusal(IsthmusError):
    """Why a silo does not do something: a kind that may be told, and the reason in full, which stays at the silo."""

    def __init__(self, kind: str, reason: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of refusal; known: {', '.join(KINDS)}")
        super().__init__(reason)
        self.kind = kind


@contextmanager
def refused_as(kind: str) -> Iterator[None]:
    """Make errors of ours refusals of a kind; what is a refusal already stays as it is."""
    try:
        yield
    except Refusal:
        raise
    except IsthmusError as error:
        raise Refusal(kind, str(error)) from None


@dataclass(frozen=True)
class Reasons:
    """Tells reasons: to the silo's own people in full, to the server by their kind."""

    say: Callable[[str], None] = print  # a line on the silo's own screen
    tell: bool = False  # whether the server is told in full as well: for federations that only try things out

    def crossing(self, kind: str, reason: str) -> str:
        """Return what may cross of a reason; whoever calls this says the whole of it here."""
        return f"{kind}: {reason if self.tell else f'{KINDS[kind]}; {ASK}'}"
