"""Both halves of a secure sum in one process, with whatever a network or a liar does in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadMessage
from isthmus.core.guards.guard import Review
from isthmus.core.guards.settled import Settled
from isthmus.core.protocol import Known, ModelState, Request, reply_type
from isthmus.core.random import digest
from isthmus.core.record import Record, State
from isthmus.privacy.secure_sum.adding import Adding
from isthmus.privacy.secure_sum.giving import Giver
from isthmus.privacy.secure_sum.rules import SumRules
from isthmus.privacy.secure_sum.stages import (
    ConfirmView,
    MakeKeys,
    RevealShares,
    SendMasked,
    ShareSecrets,
    Sum,
)


@dataclass(frozen=True)
class Update(Record):
    """What is added up in tests."""

    params: dict[str, Tensor]
    loss: float
    weight: float


@dataclass(frozen=True)
class Unweighted(Record):
    """The same without a weight."""

    params: dict[str, Tensor]


# What happens to a message: by stage, client and message; None is lost.
Fate = Callable[[str, str, Any], Any]


def nothing(stage: str, client: str, message: Any) -> Any:
    return message


def stage_of(request: Request[Any]) -> str:
    """Return a name for a stage: MakeKeys, ..., and SendMasked 0 or 1."""
    which = getattr(request, "which", None)
    return type(request).__name__ + ("" if which is None else f" {which}")


@dataclass
class Acting:
    """Clients with replies, and a server."""

    replies: Mapping[str, Record]
    rules: SumRules = field(default_factory=SumRules)
    at: tuple[int, int] = (1, 0)
    attempt: str = "first"
    lose: Fate = nothing  # what becomes of replies
    bend: Fate = nothing  # and of requests
    sent: Record | Mapping[str, Record] = field(default_factory=lambda: ModelState({"w": torch.zeros(3)}))
    settled: Mapping[str, Settled] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.givers = {
            name: Giver(name, self.rules, "course", self.settled.get(name, Settled())) for name in self.replies
        }
        self.memories: dict[str, State] = {}
        self.refusals: dict[str, str] = {}
        self.failures: dict[str, str] = {}  # what the server named
        self.seen: list[tuple[str, str, Record]] = []  # all that reaches the server
        self.notes: list[str] = []
        for name, reply in self.replies.items():
            sent = self.sent if isinstance(self.sent, Record) else self.sent[name]
            self.memories[name], _ = self.givers[name].held(reply, sent, self.at, digest({"sent": sent}))
        kind = type(next(iter(self.replies.values())))
        self.server = Adding(self.rules, Sum(self.attempt, "course", *self.at), kind, note=self.notes.append)

    def handled(self, client: str, request: Request[Any]) -> Record:
        """Return a client's answer, through bytes, with a memory that was in a file."""
        giver, kind = self.givers[client], type(request)
        request = decode(encode(request), kind)
        memory = decode(encode(self.memories[client]), State)
        if isinstance(request, MakeKeys):
            memory, reply = giver.make_keys(memory, request, os.urandom(32))
        else:
            ways: dict[type[Any], Any] = {
                ShareSecrets: giver.share_secrets,
                SendMasked: giver.send_masked,
                ConfirmView: giver.confirm_view,
                RevealShares: giver.reveal_shares,
            }
            memory, reply = ways[kind](memory, request)
        self.memories[client] = memory
        found: Record = decode(encode(reply), reply_type(kind))
        return found

    def ask(self, requests: Mapping[str, Request[Any]], review: Review | None = None) -> dict[str, Any]:
        """Carry one exchange."""
        found: dict[str, Any] = {}
        for client, request in requests.items():
            stage = stage_of(request)
            bent = self.bend(stage, client, request)
            if bent is None:
                continue
            try:
                reply = self.lose(stage, client, self.handled(client, bent))
            except BadMessage as error:
                self.refusals[client] = str(error)
                continue
            if reply is None or request.misfit(reply, Known()):
                continue
            self.seen.append((stage, client, reply))
            found[client] = reply
        for client, why in review(found).items() if review is not None else ():
            self.failures[client] = why
            del found[client]
        return found

    def run(self) -> Record:
        """Return the mean."""
        return self.server.added(tuple(self.replies), self.ask)


def updates(number: int, size: int = 3, seed: int = 0, weights: tuple[float, ...] = ()) -> dict[str, Update]:
    """Return some clients' updates."""
    gen = torch.Generator().manual_seed(seed)
    found = {}
    for place in range(number):
        weight = weights[place] if weights else float(torch.randint(1, 50, (1,), generator=gen))
        params = {"w": torch.randn(size, generator=gen)}
        found[f"c{place}"] = Update(params, float(torch.rand(1, generator=gen)), weight)
    return found
