"""Replies that were given before: again, of another client, or of what the server sent long ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.outside import some
from isthmus.core.protocol import Request, Requests
from isthmus.core.random import digest
from isthmus.core.record import Record, State, leaves
from isthmus.privacy.checking.compared import unknown_kind
from isthmus.privacy.checking.looking import looks_at

DIGITS = 32


@dataclass(frozen=True)
class NoRepeats(Guard):
    """A reply that is not new is not counted: an earlier one again, what another client sent, or an old global model.

    Compared are, to the bit, the floating-point tensors that stand in the request too, such as a model's parameters; of
    requests that are named in `requests`, all. A client that sends back what it was sent has nothing to train on, and
    is let be. Who changes a single bit is not noticed: this finds what is stale or lazy, and clumsy copies; clients
    that all go the same way are found by the fold `foolsgold`.

    Fields:
        remembered: how many rounds replies and requests are remembered, by 16 bytes each; 0: only copies within an
                    exchange are noticed
        copies:     whether two clients with the same reply are both suspicious. Simulated clients with the same data
                    and nothing random (dropout 0) do have the same
        requests:   names of the requests whose replies are looked at; empty for all that send a model
    """

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"remembered": "more", "copies": "more"}

    remembered: int = 10
    copies: bool = True
    requests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse(self.remembered < 0, self, "remembered", "it must be at least 0")

    @property
    def compares(self) -> bool:
        """Whether one reply is looked at beside others."""
        return self.copies or self.remembered > 0

    def problem(self, course: Any) -> str:
        """Return what is no request of the course's method."""
        return unknown_kind(self.requests, course.algorithm)

    shown = looks_at

    def review(self, replies: Mapping[str, Record], requests: Requests, at: AtServer) -> Mapping[str, str]:
        """Return whose replies are not new."""
        marks = {client: self._mark(reply, requests[client]) for client, reply in replies.items()}
        given = {client: mark for client, mark in marks.items() if mark}
        holders: dict[str, list[str]] = {}
        for client, mark in given.items():
            holders.setdefault(mark, []).append(client)
        kept: State = at.memory.get("kept", {})
        found = {}
        for client, mark in given.items():
            others = [other for other in holders[mark] if other != client]
            if self.copies and others:
                found[client] = f"it is to the bit the reply of {some(others)}"
            elif mark in kept:
                who, when = kept[mark]
                found[client] = f"it is to the bit what {who or 'the server'} sent in round {when}"
        if self.remembered and given:
            sent = {id(requests[client]): _matched(requests[client], replies[client]) for client in given}
            new = {_digest(tensors): ("", at.position.round) for tensors in sent.values() if tensors}
            new |= {mark: (client, at.position.round) for client, mark in given.items()}
            at.remember({"kept": {**new, **kept}})
        return found

    def round_done(self, round: int, memory: State) -> State:
        """Forget what is too old."""
        kept = {mark: found for mark, found in memory.get("kept", {}).items() if found[1] > round - self.remembered}
        return {"kept": kept} if kept else {}

    def _mark(self, reply: Record, request: Request[Any]) -> str:
        """Return what tells a reply's tensors from others; empty where there is nothing to tell."""
        chosen = type(request).__name__ in self.requests
        if self.requests and not chosen:
            return ""
        found = _floats(reply) if chosen else _matched(reply, request)
        sent = _matched(request, reply)
        if not found or (found.keys() <= sent.keys() and all(_same(found[path], sent[path]) for path in found)):
            return ""
        return _digest(found)


def _floats(record: Record) -> dict[str, Tensor]:
    return {p: leaf for p, leaf in leaves(record).items() if isinstance(leaf, Tensor) and leaf.is_floating_point()}


def _matched(record: Record, other: Record) -> dict[str, Tensor]:
    """Return the floating-point tensors that another record has in the same form."""
    there = _floats(other)
    return {p: leaf for p, leaf in _floats(record).items() if p in there and there[p].shape == leaf.shape}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and bool((a == b).all())


def _digest(found: Mapping[str, Tensor]) -> str:
    return digest({"tensors": dict(found)}).hex()[:DIGITS]
