"""The loop runtime, but clients answer together where their algorithm can; the results agree within rounding."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from isthmus.core.client import Client, Cohort
from isthmus.core.codec import encoded_size
from isthmus.core.federation import Outcome, Position, StackOutcome
from isthmus.core.protocol import Algorithm, Request
from isthmus.core.record import Record, State, check_value
from isthmus.core.replies import Stack
from isthmus.runtime.loop import LoopRuntime, measured

# Puts clients together: the blocks that can answer as one, and the clients that are better off alone.
Gather = Callable[[Sequence[Client]], tuple[Sequence[Cohort], Sequence[Client]]]


class StackedRuntime(LoopRuntime):
    """Answers a request for whole blocks of clients where the algorithm has a handler for that, else one by one.

    A handler for many that fails is no client's failure: its clients answer one by one instead, and whoever fails then
    is named. A time limit is a client's own, so with one every client answers by itself.

    Fields:
        together: how many replies to each kind of request were given together so far
        alone:    how many were given one by one
        notes:    why replies were given alone though there is a handler for many, by its name
    """

    def __init__(self, algorithm: Algorithm[Any], clients: Sequence[Client], gather: Gather) -> None:
        super().__init__(algorithm, clients)
        self.algorithm, self.gather = algorithm, gather
        self.together: Counter[str] = Counter()
        self.alone: Counter[str] = Counter()
        self.notes: dict[str, str] = {}
        self._cohort_handlers = type(algorithm).cohort_handlers()

    def exchange(
        self, position: Position, requests: Mapping[str, Request[Any]], timeout_seconds: float | None
    ) -> Iterator[Outcome | StackOutcome]:
        """Answer the requests block by block, then the clients that are left."""
        self._before = {}
        name = self._handler_for_many(requests) if timeout_seconds is None else None
        left = list(requests)
        if name is not None:
            blocks, alone = self.gather([self.sites[client].client for client in requests])
            left = [client.id for client in alone]
            for block in blocks:
                mine = {client.id: requests[client.id] for client in block}
                answers = self._together(name, position, mine, block)
                if answers is None:
                    left.extend(mine)
                else:
                    self.together[_kind(mine)] += len(mine)
                    yield from answers
        self.alone[_kind(requests)] += len(left)
        yield from self.answer_each(position, {client: requests[client] for client in left}, timeout_seconds)

    def _handler_for_many(self, requests: Mapping[str, Request[Any]]) -> str | None:
        kinds = {type(request) for request in requests.values()}
        return self._cohort_handlers.get(kinds.pop()) if len(kinds) == 1 else None

    def _together(
        self, name: str, position: Position, requests: Mapping[str, Request[Any]], block: Cohort
    ) -> list[Outcome | StackOutcome] | None:
        """Return the answers of a block, or None when its clients have to answer one by one."""
        before: dict[str, State] = {client.id: dict(client.state) for client in block}
        self._before.update(before)
        started = time.perf_counter()
        try:
            for client in block:
                client.begin(position, requests[client.id])
            found: Stack | Sequence[Record] = getattr(self.algorithm, name)(tuple(requests.values()), block)
            for client in block:
                if client.state.keys() != before[client.id].keys() or any(
                    client.state[key] is not before[client.id][key] for key in client.state
                ):
                    check_value(client.state, State, f"state of client {client.id}")
            seconds = time.perf_counter() - started
            return _outcomes(requests, found, seconds)
        except Exception as error:  # the clients answer one by one, and who fails then is named
            self.notes[name] = f"{type(error).__name__}: {error}"
            for client in block:
                client.state = before[client.id]
            return None


def _kind(requests: Mapping[str, Request[Any]]) -> str:
    return type(next(iter(requests.values()))).__name__ if requests else ""


def _outcomes(
    requests: Mapping[str, Request[Any]], found: Stack | Sequence[Record], seconds: float
) -> list[Outcome | StackOutcome]:
    started = time.perf_counter()
    distinct = {id(request): request for request in requests.values()}
    sizes = {key: encoded_size(request) for key, request in distinct.items()}
    if isinstance(found, Stack):
        if found.clients != tuple(requests):
            raise ValueError("the handler for many answered for other clients than it was asked for")
        down = sum(sizes[id(request)] for request in requests.values())
        up = sum(found.sizes())
        return [StackOutcome(found, down, up, seconds, time.perf_counter() - started)]
    share = seconds / len(requests)
    return [
        measured(Outcome(client, reply, sizes[id(request)], 0, share))
        for (client, request), reply in zip(requests.items(), found, strict=True)
    ]
