"""A runtime whose clients are elsewhere: it knows how to speak to silos, not how the bytes get there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from isthmus.core.codec import DEFAULT_MAX_BYTES, decode, encode, opened, pack, unpack
from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.federation import Outcome
from isthmus.core.protocol import Failure, Holdings, Position, Request, Requests, reply_type
from isthmus.core.record import Record
from isthmus.runtime.envelope import BLANK, LEFT, MEMORY_NAME, Answer, EnclosedAnswer, Enclosure, Envelope
from isthmus.runtime.marked import MarkedMemories, require_clients

# Who, and the bytes of an answer or why there is none.
Answered: TypeAlias = tuple[str, bytes | Failure]


class Transport(Protocol):
    """Brings bytes to silos and back."""

    @property
    def holdings(self) -> Mapping[str, Holdings]:
        """How much data silos agreed to hold, as far as they have said; grows as they come."""

    def send(self, messages: Mapping[str, bytes], timeout_seconds: float | None) -> Iterator[Answered]:
        """Deliver each silo its message; yield each silo's answer or failure once, as they come."""


class RemoteRuntime(MarkedMemories[str]):
    """Carries exchanges over a transport; of the clients' memories it knows only the names.

    A client that has lost its memory starts anew from a blank one, if the algorithm lets it (`starts_anew`); else it
    leaves the course, which goes on while `min_clients` are left. `note` hears of both.
    """

    def __init__(
        self,
        course: str,
        clients: Sequence[str],
        transport: Transport,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        starts_anew: bool = False,
        min_clients: int = 1,
        note: Callable[[str, str], None] = lambda client, text: None,
    ) -> None:
        super().__init__(clients, BLANK)
        self.course, self.transport, self.max_bytes = course, transport, max_bytes
        self.starts_anew, self.min_clients, self.note = starts_anew, min_clients, note
        self.left: frozenset[str] = frozenset()  # who has left the course: nobody asks them any more
        self._durable = dict(self._memories)
        self._enclosure: Enclosure | None = None  # what the next exchange brings along
        self._early: tuple[Enclosure | None, dict[str, EnclosedAnswer]] = (None, {})  # and what came back with it

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all silos that have not left the course, in the order given."""
        return tuple(client for client in self._memories if client not in self.left)

    @property
    def holdings(self) -> Mapping[str, Holdings]:
        """How much data the silos agreed to hold."""
        return getattr(self.transport, "holdings", {})

    def enclose(self, position: Position, request: Request[Any]) -> None:
        """Have the messages of the next exchange bring a second request along, for an exchange right after it.

        When that one is asked for, what came back with the replies is given; whoever said nothing to it is sent it.
        """
        self._enclosure = Enclosure(position, type(request).__name__, pack(encode(request)))

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Iterator[Outcome]:
        """Send every silo its request and yield the outcomes as they come."""
        self._before = {client: self._memories[client] for client in requests}
        early = self._come_already(position, requests)
        yield from early.values()
        others = {client: request for client, request in requests.items() if client not in early}
        if others or not early:
            yield from self._asked(position, others, timeout_seconds)

    def _come_already(self, position: Position, requests: Requests) -> dict[str, Outcome]:
        """Return the outcomes that came with the exchange before, where these requests were enclosed in it."""
        (enclosure, answers), self._early, self._enclosure = self._early, (self._enclosure, {}), None
        if enclosure is None or enclosure.position != position:
            return {}
        distinct = {id(request): request for request in requests.values()}
        same = {key for key, request in distinct.items() if encode(request) == unpack(enclosure.payload)}
        found = {}
        for client, request in requests.items():
            if client in answers and id(request) in same:
                reply = self._read(client, answers[client], reply_type(type(request)))
                found[client] = Outcome(client, reply, 0, 0, 0.0)  # what it took is told of the message it came in
        return found

    def _asked(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Iterator[Outcome]:
        """Send requests; whoever has lost its memory is asked again, or leaves."""
        forgetful: dict[str, Request[Any]] = {}
        for outcome in self._sent(position, requests, timeout_seconds):
            kind = outcome.reply.kind if isinstance(outcome.reply, Failure) else ""
            if kind != "memory" or self._memories[outcome.client] == BLANK:
                yield outcome
            elif self.starts_anew:
                forgetful[outcome.client] = requests[outcome.client]
            else:
                self._leave(outcome.client)
                yield outcome
        for client in forgetful:
            self.note(client, "has lost its memory of the course and starts anew")
            # From a blank memory, whatever the course goes back to.
            for names in (self._memories, self._marked[1], self._durable, self._before):
                names[client] = BLANK
        if forgetful:
            yield from self._sent(position, forgetful, timeout_seconds)

    def _leave(self, client: str) -> None:
        """Let a client go for good; raise CourseFailed when too few are left."""
        self.left |= {client}
        why = "has lost its memory of the course, and with this algorithm a client cannot start anew: it leaves"
        self.note(client, why)
        if len(self.clients) < self.min_clients:
            raise CourseFailed(f"{client} {why}; {len(self.clients)} are left, {self.min_clients} are needed")

    def _sent(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Iterator[Outcome]:
        payloads: dict[int, bytes] = {}
        messages: dict[str, bytes] = {}
        questions = {client: secrets.token_hex(16) for client in requests}
        begun = time.perf_counter()
        for client, request in requests.items():
            if id(request) not in payloads:  # a request to all is one object, encoded once
                payloads[id(request)] = encode(request)
            envelope = Envelope(
                course=self.course,
                position=position,
                kind=type(request).__name__,
                payload=pack(payloads[id(request)]),
                memory=self._memories[client],
                keep=(self._marked[1][client], self._durable[client]),
                question=questions[client],
                enclosed=self._early[0],
            )
            messages[client] = encode(envelope)
        started = time.perf_counter()
        encoding = (started - begun) / max(len(messages), 1)
        for client, answer in self.transport.send(messages, timeout_seconds):
            question = questions.pop(client, None)
            if question is None:
                continue  # it has answered already
            came = time.perf_counter()
            wanted = reply_type(type(requests[client]))
            reply = answer if isinstance(answer, Failure) else self._opened(client, answer, wanted, question)
            up = 0 if isinstance(answer, Failure) else len(answer)
            spent = encoding + time.perf_counter() - came
            yield Outcome(client, reply, len(messages[client]), up, came - started, spent)

    def _opened(self, client: str, message: bytes, expected: type[Record], question: str) -> Record | Failure:
        try:
            answer: Answer = decode(message, Answer, max_bytes=self.max_bytes, share=True)
            if answer.failure is None and answer.question != question:
                raise BadMessage("it answers another message than the one that was sent")
        except BadMessage as error:
            return Failure(client, "malformed", str(error))
        found = self._read(client, answer, expected)
        if answer.enclosed is not None and not isinstance(found, Failure):
            self._early[1][client] = answer.enclosed
        return found

    def _read(self, client: str, answer: Answer | EnclosedAnswer, expected: type[Record]) -> Record | Failure:
        """Return the reply in an answer, and take note of the memory that it left behind."""
        if answer.failure is not None:
            return Failure(client, answer.failure.kind, answer.failure.reason)
        try:
            reply: Record = decode(opened(answer.payload), expected, max_bytes=self.max_bytes)
            if not MEMORY_NAME.fullmatch(answer.memory):
                raise BadMessage(f"{answer.memory[:40]!r} is not the name of a memory")
        except BadMessage as error:
            return Failure(client, "malformed", str(error))
        self._memories[client] = answer.memory
        return reply

    def save_clients(self) -> dict[str, bytes]:
        """Return the names of the marked memories; from now on the silos keep these for a resume."""
        self._durable = dict(self._marked[1])
        return {client: (LEFT if client in self.left else name).encode() for client, name in self._durable.items()}

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Go back to the memories that a checkpoint names."""
        require_clients(memories, self._memories)
        self.left = frozenset(client for client, name in memories.items() if name == LEFT.encode())
        gone = dict.fromkeys(self.left, BLANK)
        self._memories = {client: gone.get(client, memories[client].decode()) for client in self._memories}
        self._durable = dict(self._memories)
