"""What travels between a server and a silo: a request with its place in the course, an answer with a memory's name.

A silo's memory never leaves it. The server knows each by a name that the silo made up: it says from which one the silo
shall answer, and learns the name of the one that is left behind. So going back to a checkpoint, leaving out a late
answer, and a silo that comes back are one and the same thing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

from isthmus.core.protocol import Failure, Position
from isthmus.core.record import Record

# The memory of a client that was never asked anything.
BLANK = ""
# In a checkpoint, instead of a memory's name: this client has left the course.
LEFT = "left"
MEMORY_NAME = re.compile(r"(?:[0-9a-f]{32})?")


@dataclass(frozen=True)
class Enclosure(Record):
    """A second request in an envelope: it is answered from the memory that the first leaves, if that has a reply."""

    position: Position
    """Where in the course its exchange stands."""
    kind: str
    """The name of the request type."""
    payload: Tensor
    """The encoded request."""


@dataclass(frozen=True)
class Envelope(Record):
    """A request to one silo."""

    course: str
    """Which course this belongs to: a silo answers only for a course it agreed to."""
    position: Position
    """Where in the course the exchange stands."""
    kind: str
    """The name of the request type."""
    payload: Tensor
    """The encoded request."""
    memory: str
    """The memory to answer from."""
    keep: tuple[str, ...]
    """Memories that the server may yet go back to; the silo can drop all others."""
    question: str = ""
    """Names this very message; no two have the same name."""
    enclosed: Enclosure | None = None
    """What is asked along with it, so that one message does for two exchanges."""


@dataclass(frozen=True)
class EnclosedAnswer(Record):
    """What a silo says to an enclosed request."""

    payload: Tensor
    """The encoded reply; empty when there is a failure."""
    failure: Failure | None
    """Why there is no reply."""
    memory: str
    """The name of the memory that is left behind; beside a failure, the one that the first reply left."""


@dataclass(frozen=True)
class Answer(Record):
    """What a silo sends back."""

    payload: Tensor
    """The encoded reply; empty when there is a failure."""
    failure: Failure | None
    """Why there is no reply."""
    memory: str
    """The name of the memory that this answer left behind."""
    question: str = ""
    """The name of the message that it answers, so that no answer counts for another one; empty beside a failure."""
    enclosed: EnclosedAnswer | None = None
    """What is said to the enclosed request, if there was one and the first has a reply."""
