"""A runtime that tells no lies: all through bytes, every client forgetful but for its memory. For tests and for doubt.

Before each answer the client is built anew, as after a restart, and gets its memory from bytes; the request and the
reply are decoded from bytes; so nothing can pass by reference, stay in an attribute, or depend on a cache.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from isthmus.core.client import Client
from isthmus.core.codec import DEFAULT_MAX_BYTES, decode, encode
from isthmus.core.errors import BadMessage
from isthmus.core.federation import Outcome
from isthmus.core.protocol import Algorithm, Failure, Holdings, Position, Request, Requests, reply_type
from isthmus.core.record import State
from isthmus.runtime.loop import Site, holdings_of, timed
from isthmus.runtime.marked import MarkedMemories, require_clients


class StrictRuntime(MarkedMemories[bytes]):
    """Answers each request in turn, in a client that was just started."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        factories: Mapping[str, Callable[[], Client]],
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        super().__init__(factories, encode({}))
        self.algorithm, self.factories, self.max_bytes = algorithm, dict(factories), max_bytes
        self.clients = tuple(self.factories)

    @cached_property
    def holdings(self) -> dict[str, Holdings]:
        """How much data the clients have that can tell."""
        return holdings_of({client: make() for client, make in self.factories.items()})

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Iterator[Outcome]:
        """Answer the requests one after the other, each through bytes."""
        self._before = {}
        for client, request in requests.items():
            started = time.perf_counter()
            outcome = self.answer_bytes(client, position, encode(request), type(request), timeout_seconds)
            # All that is not the handler's own time is bytes: this runtime does nothing else.
            yield dataclasses.replace(outcome, codec_seconds=time.perf_counter() - started - outcome.seconds)

    def answer_bytes(
        self,
        client: str,
        position: Position,
        message: bytes,
        request_type: type[Request[Any]],
        timeout_seconds: float | None = None,
    ) -> Outcome:
        """Hand a client the bytes of a request, whatever they are, and decode what it answers."""
        try:
            request: Request[Any] = decode(message, request_type, max_bytes=self.max_bytes)
        except BadMessage as error:
            return Outcome(client, Failure(client, "malformed", str(error)), len(message), 0, 0.0)
        site = Site(self.algorithm, self.factories[client]())
        self._before[client] = self._memories[client]
        site.client.state = decode(self._memories[client], State)
        outcome = timed(site, position, request, timeout_seconds)
        reply, answer = outcome.reply, b""
        try:
            self._memories[client] = encode(site.client.state)
            if not isinstance(reply, Failure):
                answer = encode(reply)
                reply = decode(answer, reply_type(request_type), max_bytes=self.max_bytes)
        except BadMessage as error:
            reply = Failure(client, "malformed", str(error))
        return Outcome(client, reply, len(message), len(answer), outcome.seconds)

    def save_clients(self) -> dict[str, bytes]:
        """Return the marked memories."""
        return dict(self._marked[1])

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Replace every client's memory."""
        require_clients(memories, self.factories)
        self._memories = dict(memories)
