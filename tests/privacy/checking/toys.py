"""One exchange as a guard's server half sees it, without clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from isthmus.core.folds import Fold
from isthmus.core.guards.guard import Guard
from isthmus.core.guards.line import GuardLine, ServerSide
from isthmus.core.protocol import Failure, Known, Position, Request
from isthmus.core.random import Secret
from isthmus.core.record import Params, Record, State
from tests.core.toys import Update, update


@dataclass(frozen=True)
class Ask(Request[Update]):
    params: Params


@dataclass(frozen=True)
class AskElse(Request[Update]):
    other: Params


def ask(values: Any) -> Ask:
    return Ask({"w": torch.tensor(values, dtype=torch.float32)})


@dataclass
class Desk:
    """The server half of a course's guards, over rounds; what it notes is in `said`."""

    guards: tuple[Guard, ...]
    memories: dict[str, State] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    round: int = 1
    exchange: int = 0

    def at(self, clients: Any, fold: Fold | None = None) -> Any:
        server = ServerSide(self.memories, Secret.of_simulation(0, "server"), Known(), self.said.append)
        position = Position(0, self.round, self.exchange)
        return GuardLine(self.guards).at_server(server, position, tuple(clients), fold)

    def reviewed(self, replies: Mapping[str, Record], request: Any = None) -> dict[str, Failure]:
        """Return failures by client; `request` is one for all, or by client."""
        requests = request if isinstance(request, dict) else dict.fromkeys(replies, request or ask([0.0, 0.0]))
        found: dict[str, Failure] = self.at(replies).reviewed(replies, requests)
        return found

    def next_round(self) -> None:
        self.memories = GuardLine(self.guards).round_done(self.memories, self.round)
        self.round += 1


def named(rows: Any, weight: float = 1.0) -> dict[str, Update]:
    """Return replies by letter."""
    return {letter: update(row, weight) for letter, row in zip("abcdefghij", rows, strict=False)}
