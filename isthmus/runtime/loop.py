"""The default runtime: every client in this process, one after the other, records passed by reference."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from isthmus.core.client import Client
from isthmus.core.codec import decode, encode, encoded_size
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.federation import Outcome, Position, StackOutcome
from isthmus.core.protocol import Algorithm, Failure, Holdings, Request
from isthmus.core.record import State
from isthmus.runtime.handling import Site, timed


class LoopRuntime:
    """Answers each request in turn; sizes are those that the encoded messages would have."""

    def __init__(self, algorithm: Algorithm[Any], clients: Sequence[Client]) -> None:
        self.sites = {client.id: Site(algorithm, client) for client in clients}
        self._marked: tuple[int, dict[str, State]] = (0, {client: {} for client in self.sites})
        self._before: dict[str, State] = {}

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all clients, in the order given."""
        return tuple(self.sites)

    @cached_property
    def holdings(self) -> dict[str, Holdings]:
        """How much data the clients have that can tell."""
        found = {client: getattr(site.client, "holdings", None) for client, site in self.sites.items()}
        return {client: held for client, held in found.items() if held is not None}

    def exchange(
        self, position: Position, requests: Mapping[str, Request[Any]], timeout_seconds: float | None
    ) -> Iterator[Outcome | StackOutcome]:
        """Answer the requests one after the other."""
        self._before = {}
        return self.answer_each(position, requests, timeout_seconds)

    def answer_each(
        self, position: Position, requests: Mapping[str, Request[Any]], timeout_seconds: float | None
    ) -> Iterator[Outcome]:
        """Yield each client's own answer."""
        sizes: dict[int, int] = {}
        for client, request in requests.items():
            started = time.perf_counter()
            if id(request) not in sizes:  # a request to all is one object, measured once
                sizes[id(request)] = encoded_size(request)
            spent = time.perf_counter() - started
            self._before[client] = dict(self.sites[client].client.state)
            outcome = timed(self.sites[client], position, request, timeout_seconds)
            yield measured(dataclasses.replace(outcome, bytes_down=sizes[id(request)], codec_seconds=spent))

    def undo(self, client: str) -> None:
        """Give a client the memory back that it had before its answer in the last exchange, if it gave one."""
        if client in self._before:
            self.sites[client].client.state = dict(self._before[client])

    def mark(self, round: int) -> None:
        """Mark the memories; handlers replace entries and never change them in place, so a shallow copy is enough."""
        self._marked = (round, {client: dict(site.client.state) for client, site in self.sites.items()})

    def abandon_round(self) -> int:
        """Put the memories back to the mark."""
        round, states = self._marked
        for client, site in self.sites.items():
            site.client.state = dict(states[client])
        return round

    def save_clients(self) -> dict[str, bytes]:
        """Return the marked memories, encoded."""
        return {client: encode(state) for client, state in self._marked[1].items()}

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Replace every client's memory."""
        if set(memories) != set(self.sites):
            raise BadInput(
                f"the checkpoint has the clients {sorted(memories)[:5]}, this course has {sorted(self.sites)[:5]}"
            )
        states: dict[str, State] = {client: decode(memories[client], State) for client in self.sites}
        for client, site in self.sites.items():
            site.client.state = states[client]


def measured(outcome: Outcome) -> Outcome:
    """Return an outcome with the size of its reply; one that cannot be encoded is malformed."""
    if isinstance(outcome.reply, Failure):
        return outcome
    started = time.perf_counter()
    try:
        size = encoded_size(outcome.reply)
        spent = outcome.codec_seconds + time.perf_counter() - started
        return dataclasses.replace(outcome, bytes_up=size, codec_seconds=spent)
    except BadMessage as error:
        return dataclasses.replace(outcome, reply=Failure(outcome.client, "malformed", str(error)))
