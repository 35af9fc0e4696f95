"""A runtime whose clients are elsewhere: it knows how to speak to silos, not how the bytes get there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from isthmus.core.codec import DEFAULT_MAX_BYTES, decode, encode, pack, unpack
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.federation import Outcome, Position
from isthmus.core.protocol import Failure, Request, reply_type
from isthmus.core.record import Record
from isthmus.runtime.envelope import BLANK, MEMORY_NAME, Answer, Envelope


class Transport(Protocol):
    """Brings bytes to silos and back."""

    def send(
        self, messages: Mapping[str, bytes], timeout_seconds: float | None
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Deliver each silo its message; yield each silo's answer or failure once, as they come."""


class RemoteRuntime:
    """Carries exchanges over a transport; of the clients' memories it knows only the names."""

    def __init__(
        self, course: str, clients: Sequence[str], transport: Transport, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        self.course = course
        self.transport = transport
        self.max_bytes = max_bytes
        self._names = dict.fromkeys(clients, BLANK)
        self._marked: tuple[int, dict[str, str]] = (0, dict(self._names))
        self._durable = dict(self._names)
        self._before: dict[str, str] = {}

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all silos, in the order given."""
        return tuple(self._names)

    def exchange(
        self, position: Position, requests: Mapping[str, Request[Any]], timeout_seconds: float | None
    ) -> Iterator[Outcome]:
        """Send every silo its request and yield the outcomes as they come."""
        payloads: dict[int, bytes] = {}
        messages: dict[str, bytes] = {}
        expected: dict[str, type[Record]] = {}
        begun = time.perf_counter()
        for client, request in requests.items():
            if id(request) not in payloads:  # a request to all is one object, encoded once
                payloads[id(request)] = encode(request)
            expected[client] = reply_type(type(request))
            envelope = Envelope(
                course=self.course,
                position=position,
                kind=type(request).__name__,
                payload=pack(payloads[id(request)]),
                memory=self._names[client],
                keep=(self._marked[1][client], self._durable[client]),
            )
            messages[client] = encode(envelope)
        self._before = {client: self._names[client] for client in requests}
        started = time.perf_counter()
        encoding = (started - begun) / max(len(messages), 1)
        for client, answer in self.transport.send(messages, timeout_seconds):
            came = time.perf_counter()
            reply = answer if isinstance(answer, Failure) else self._opened(client, answer, expected[client])
            up = 0 if isinstance(answer, Failure) else len(answer)
            spent = encoding + time.perf_counter() - came
            yield Outcome(client, reply, len(messages[client]), up, came - started, spent)

    def _opened(self, client: str, message: bytes, expected: type[Record]) -> Record | Failure:
        try:
            answer: Answer = decode(message, Answer, max_bytes=self.max_bytes)
            if answer.failure is not None:
                return Failure(client, answer.failure.kind, answer.failure.reason)
            reply: Record = decode(unpack(answer.payload), expected, max_bytes=self.max_bytes)
            if not MEMORY_NAME.fullmatch(answer.memory):
                raise BadMessage(f"{answer.memory[:40]!r} is not the name of a memory")
        except BadMessage as error:
            return Failure(client, "malformed", str(error))
        self._names[client] = answer.memory
        return reply

    def undo(self, client: str) -> None:
        """Go back to the memory that a silo's last answer came from; silos keep it until they have answered again."""
        self._names[client] = self._before.get(client, self._names[client])

    def mark(self, round: int) -> None:
        """Mark the memories by their names."""
        self._marked = (round, dict(self._names))

    def abandon_round(self) -> int:
        """Go back to the marked memories: the next requests name them."""
        round, names = self._marked
        self._names = dict(names)
        return round

    def save_clients(self) -> dict[str, bytes]:
        """Return the names of the marked memories; from now on the silos keep these for a resume."""
        self._durable = dict(self._marked[1])
        return {client: name.encode() for client, name in self._durable.items()}

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Go back to the memories that a checkpoint names."""
        if set(memories) != set(self._names):
            raise BadInput(
                f"the checkpoint has the clients {sorted(memories)[:5]}, this course has {sorted(self._names)[:5]}"
            )
        self._names = {client: memories[client].decode() for client in self._names}
        self._durable = dict(self._names)
