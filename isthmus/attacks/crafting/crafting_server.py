"""A server that sends clients other models than it should, to read more of their replies."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import torch

from isthmus.attacks.attack import Message, NothingSeen, Seen, Tampering
from isthmus.config.course import Course
from isthmus.core.errors import BadInput, nearest, refuse
from isthmus.core.guards.guard import AtServer, Guard, each_once
from isthmus.core.protocol import Position, Request, Requests, reply_type
from isthmus.core.record import Params, Record, State, field_types
from isthmus.runs.simulation import Scenario

ReplyT = TypeVar("ReplyT", bound=Record)


@dataclass(frozen=True)
class CraftingServer(Guard, Tampering):
    """A server that asks some clients to train a crafted model for some rounds, and goes on as if it had not.

    It is a guard that has nothing but a server half: first in a course's list, it changes requests before all others
    send them. What such a round's replies are folded to is put aside: the model stays what it was, so that the next
    rounds are those of a course in which nothing happened. Where a method does not fold, what is crafted stays in it.

    Fields:
        from_round: the first round in which it does so
        rounds:     in so many
        clients:    whom it asks so; empty for all
    """

    mark: ClassVar[str] = "models crafted by the server"

    from_round: int = 1
    rounds: int = 1
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse(self.from_round < 1, self, "from_round", "rounds are counted from 1")
        refuse(self.rounds < 1, self, "rounds", "it must be at least 1")

    @abstractmethod
    def crafted(self, params: Params, at: Position) -> Params:
        """Return the parameters that are sent in the place of others."""

    def of_course(self, course: Course) -> Course:
        """Return the course with this before all of its guards."""
        return replace(course, guards=(self, *course.guards))

    def among(self, scenario: Scenario, seed: int) -> Self:
        """Return it; raises BadInput where a client is none of the course."""
        for client in self.clients:
            if client not in scenario.parts:
                raise BadInput(f"{type(self).__name__}.clients has {client!r}; {nearest(client, scenario.parts)}")
        return self

    def acts(self, at: Position) -> bool:
        """Whether a round is one of those."""
        return self.from_round <= at.round < self.from_round + self.rounds

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Return the requests, those for its clients with crafted parameters."""
        asked = next(iter(requests.values()), None)
        if asked is None or not self.acts(at.position) or not trains(type(asked)):
            return requests
        at.remember({"meant": asked.params})  # type: ignore[attr-defined]
        wrong = each_once(requests, lambda request: self._crafted(request, at.position))
        return {c: wrong[c] if c in self.clients or not self.clients else request for c, request in requests.items()}

    def _crafted(self, request: Request[Any], at: Position) -> Request[Any]:
        params: Params = request.params  # type: ignore[attr-defined]
        made = self.crafted(params, at)
        cast = {name: made[name].to(tensor.dtype).reshape(tensor.shape) for name, tensor in params.items()}
        return replace(request, params=cast)  # type: ignore[call-arg]

    def folded(self, reply: ReplyT, requests: Requests, num_replies: int, at: AtServer) -> ReplyT:
        """Return the model as it was before a crafted one was sent."""
        meant = at.memory.get("meant")
        asked = next(iter(requests.values()), None)
        if meant is None or asked is None or not self.acts(at.position) or not trains(type(asked)):
            return reply
        return replace(reply, params=meant)  # type: ignore[call-arg]

    def round_done(self, round: int, memory: State) -> State:
        """Forget the model."""
        return {}


def trains(kind: type[Request[Any]]) -> bool:
    """Whether a request brings parameters and is answered with some."""
    return "params" in field_types(kind) and "params" in field_types(reply_type(kind))


def crafted_messages(seen: Seen, client: str, server: CraftingServer) -> list[Message]:
    """Return the messages in which a client, or a sum that it is in, answered crafted models."""
    found = [m for m in seen.about(client, "params") if server.acts(m.at) and trains(type(m.request))]
    if not found:
        raise NothingSeen("no reply to what was crafted came back: they are held back, or clients refused it")
    return found


def constant_rows(shape: torch.Size, draw: torch.Generator) -> torch.Tensor:
    """Return a matrix, (in, out), whose rows are all the same: every unit before it counts alike."""
    row = torch.randn(shape[1], generator=draw, dtype=torch.float64)
    return row.expand(shape).clone()
