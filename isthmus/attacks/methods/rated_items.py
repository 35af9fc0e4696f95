"""FedGNN's table of embeddings: rows that move in every round are those of what a client's users rated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedgnn import TABLE, FedGNN
from isthmus.algorithms.fedgnn.user_items import interactions, used_columns
from isthmus.attacks.attack import CURIOUS_SERVER, Case, Deciding, NothingSeen, Seen
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request


@dataclass(frozen=True)
class RatedItems(Deciding):
    """Takes the rows of the table that move in most rounds for those of users and items that a client has.

    FedGNN hides the rows of real items among those of pseudo-interacted ones, drawn anew in each round. What is decided
    is, for each client and each row of the table that anybody's ratings are of, whether this client's are.

    Fields:
        rounds: of how many rounds updates are looked at; 1: what a single update says
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which users and items, as rows of the table of embeddings, a client's ratings are of"
    knows: ClassVar[str] = "how many clients' ratings each row is of"
    reads: ClassVar[tuple[str, ...]] = ("params",)

    rounds: int = 20

    def __post_init__(self) -> None:
        refuse(self.rounds < 1, self, "rounds", "it must be at least 1")

    def problem(self, course: Course) -> str:
        """Return that there is no table."""
        if not isinstance(course.algorithm, FedGNN):
            return f"{type(course.algorithm).__name__} hides no rows of a table (fedgnn)"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first rounds."""
        return 1 <= at.round <= self.rounds

    def known(self, case: Case) -> Tensor:
        """Return in which share of clients each row is used, (rows,)."""
        return torch.stack([_used(part) for part in case.scenario.parts.values()]).double().mean(dim=0)

    def guess(self, seen: Seen, known: Tensor) -> Tensor:
        """Return in how many rounds each row moved, by client; popular ones first where it is the same."""
        used = known > 0.0
        return torch.cat([(self._times(seen, client, len(known)) + known / 2)[used] for client in seen.clients])

    def _times(self, seen: Seen, client: str, number: int) -> Tensor:
        """Return in how many rounds each row moved, (rows,)."""
        times, rounds = torch.zeros(number, dtype=torch.float64), 0
        for message in seen.about(client, "params"):
            sent = getattr(message.request, "params", {}).get(TABLE)
            back = getattr(message.reply, "params", {}).get(TABLE)
            if sent is not None and back is not None and len(sent) == number:
                times += (sent != back).any(dim=1)
                rounds += 1
        if not rounds:
            raise NothingSeen(f"no table of embeddings comes back ({TABLE})")
        return times

    def prior(self, known: Tensor, clients: Sequence[str]) -> Tensor:
        """Return how usual each row is."""
        return known[known > 0.0].repeat(len(clients))

    def truth(self, case: Case, known: Tensor) -> Tensor:
        """Return which rows each client's ratings are of."""
        return torch.cat([_used(part)[known > 0.0] for part in case.scenario.parts.values()])


def _used(part: Any) -> Tensor:
    """Return which rows of a table the users and items of a client's training ratings have, (rows,)."""
    user, item = interactions(part)
    found = torch.zeros(part.x.shape[1], dtype=torch.bool)
    found[used_columns(part.x, torch.unique(torch.cat([user, item])))] = True
    return found
