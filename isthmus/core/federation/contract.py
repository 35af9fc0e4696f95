"""The contract of an exchange: what a runtime carries and gives back, what is told of it, and its rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from isthmus.core.protocol import Failure, Holdings, Position, Request, Requests
from isthmus.core.record import Params, Record
from isthmus.core.replies import Stack


@dataclass(frozen=True)
class Outcome:
    """What became of one request to one client, with the sizes of the encoded messages."""

    client: str
    reply: Record | Failure
    bytes_down: int
    bytes_up: int
    seconds: float  # until the client's answer was there
    codec_seconds: float = 0.0  # of encoding, decoding and measuring, at the server


@dataclass(frozen=True)
class StackOutcome:
    """What became of one request to several clients that answered together."""

    stack: Stack
    bytes_down: int
    bytes_up: int
    seconds: float
    codec_seconds: float = 0.0

    def apart(self) -> Iterator[Outcome]:
        """Yield the outcome of each client, with its share of bytes and seconds."""
        number = len(self.stack)
        down, up = self.bytes_down // number, self.bytes_up // number
        for client, reply in zip(self.stack.clients, self.stack, strict=True):
            yield Outcome(client, reply, down, up, self.seconds / number, self.codec_seconds / number)


Outcomes: TypeAlias = Iterator[Outcome | StackOutcome]


def apart(outcomes: Outcomes) -> Iterator[Outcome]:
    """Yield the outcome of each client, whether clients answered together or not."""
    for outcome in outcomes:
        yield from outcome.apart() if isinstance(outcome, StackOutcome) else (outcome,)


class Runtime(Protocol):
    """Carries exchanges. What the loop, the vectorised runtime and the deployment between sites all implement."""

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all clients, in a fixed order."""

    @property
    def holdings(self) -> Mapping[str, Holdings]:
        """How much data clients have; those of whom nobody knows are missing."""

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Deliver each client its request and yield exactly one outcome per client, in any order."""

    def undo(self, client: str) -> None:
        """Put a client's memory back to what it was before its answer in the last exchange, if it gave one."""

    def mark(self, round: int) -> None:
        """Mark the clients' memories as those after `round`, in one step that an interruption cannot halve."""

    def abandon_round(self) -> int:
        """Put the clients' memories back to the last mark and return its round."""

    def save_clients(self) -> dict[str, bytes]:
        """Return every client's encoded memory as of the last mark, for a checkpoint."""

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Replace every client's memory."""


@dataclass(frozen=True)
class ExchangeReport:
    """One exchange in numbers, for the journal."""

    position: Position
    request: str
    num_clients: int
    bytes_down: int
    bytes_up: int
    seconds: float  # wall time of the whole exchange
    client_seconds: float  # sum over clients of the time to answer
    failures: tuple[Failure, ...]
    codec_seconds: float = 0.0  # encoding, decoding and measuring messages, at the server
    check_seconds: float = 0.0  # looking whether replies can be used
    fold_seconds: float = 0.0  # taking replies in: aggregation


@dataclass(frozen=True)
class ExchangeRules:
    """What every exchange of a course must keep to."""

    min_replies: int = 1
    timeout_seconds: float | None = None


@dataclass(frozen=True)
class InitialModel:
    """The shared parameters that a course starts from."""

    params: Params
    buffers: frozenset[str] = frozenset()  # names of those that no gradient moves
    personal: frozenset[str] = frozenset()  # names of the model's other parameters, which never leave a client


class Listener(Protocol):
    """Hears what the server's process has of the messages of a course, and changes nothing of it.

    Requests are as clients make of them what guards let arrive. Replies are as the server half of all guards leaves
    them, if they could be used; those that clients hold back, for a guard to add up, are never there.
    """

    def replied(self, position: Position, request: Request[Any], client: str, reply: Record) -> None:
        """Hear a client's reply."""

    def replied_together(self, position: Position, requests: Requests, stack: Stack, sound: Tensor) -> None:
        """Hear replies of several clients, of which those count that are sound."""

    def added_up(self, position: Position, requests: Requests, found: Record) -> None:
        """Hear the fold of the replies, before noise is put on it that the server adds itself."""
