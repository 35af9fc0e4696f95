"""Clients that act as one: what all of them send is made of what they, or everybody, would have sent."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.config.course import Course
from isthmus.core.errors import BadInput, refuse_unknown
from isthmus.core.federation import Outcomes, Runtime, apart
from isthmus.core.folding.changes import change_of, has_changes, with_change
from isthmus.core.folds import Answer, form_of, weight_of
from isthmus.core.guards.line import GuardLine
from isthmus.core.protocol import Failure, Position, Requests
from isthmus.core.record import Record, leaves, with_leaves

EVERYBODY, THEMSELVES = KNOWN = ("everybody", "themselves")


@dataclass(frozen=True)
class Colluding(Poisoning):
    """Some clients all send one crafted change, made of honest changes that they know.

    Knowing everybody's is the worst case: what clients send to the server, nobody else can read. What they are sent and
    how they train, they know from their own clients, and may guess the others' from that.

    Fields:
        clients:    who does so
        from_round: since when
        knowing:    whose honest changes: "everybody" else's, or "themselves": what these very clients learned
    """

    from_round: int = 1
    knowing: str = EVERYBODY

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unknown(self, "knowing", KNOWN)

    @abstractmethod
    def crafted(self, honest: Tensor, num_clients: int) -> Tensor:
        """Return the change that all of them send, (numbers,), of honest ones, (replies, numbers)."""

    def of_runtime(self, runtime: Runtime, course: Course) -> Runtime:
        """Return a runtime whose replies are theirs, where they are of these clients."""
        line = GuardLine(course.guards)
        if line.reshapes or line.summing:
            raise BadInput(
                f"{type(self).__name__} is made of what clients send, and a guard of the course codes or hides that; "
                "leave out guards that compress or add up"
            )
        return PoisonedRuntime(runtime, self)

    def replaced(self, replies: Mapping[str, Record], requests: Requests) -> dict[str, Record]:
        """Return what is sent in the place of replies, by those of these clients that gave one."""
        given = {c: Answer(reply, requests[c], c) for c, reply in replies.items() if has_changes(reply)}
        given = {client: answer for client, answer in given.items() if weight_of(answer.reply) > 0.0}
        if not given:
            return {}
        common, _ = Counter(form_of(answer.reply) for answer in given.values()).most_common(1)[0]
        alike = {client: answer for client, answer in given.items() if form_of(answer.reply) == common}
        theirs = [client for client in alike if client in self.clients]
        known = theirs if self.knowing == THEMSELVES else [client for client in alike if client not in self.clients]
        if not theirs or not known:
            return {}
        honest = torch.stack([change_of(alike[client].reply, alike[client].sent) for client in known])
        change = self.crafted(honest, len(alike))
        return {client: _changed_by(alike[client], change) for client in theirs}


def _changed_by(answer: Answer, change: Tensor) -> Record:
    old, new = leaves(answer.reply), with_change(answer, change)
    cast = {path: leaf.to(old[path].dtype) if isinstance(leaf, Tensor) else leaf for path, leaf in new.items()}
    return with_leaves(answer.reply, cast)


class PoisonedRuntime:
    """Another runtime, some clients of which say what they agreed upon; clients that answered together are taken apart.

    Whoever knows what all others send has to wait for it, so nothing of an exchange comes before all of it is there.
    """

    def __init__(self, runtime: Runtime, poisoning: Colluding) -> None:
        self.runtime, self.poisoning = runtime, poisoning

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Pass the exchange on, and put what was crafted in the place of replies."""
        outcomes = list(apart(self.runtime.exchange(position, requests, timeout_seconds)))
        found: dict[str, Record] = {}
        if position.round >= self.poisoning.from_round:
            replies = {o.client: o.reply for o in outcomes if not isinstance(o.reply, Failure)}
            found = self.poisoning.replaced(replies, requests)
        for outcome in outcomes:
            yield replace(outcome, reply=found[outcome.client]) if outcome.client in found else outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)
