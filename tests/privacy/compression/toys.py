"""What the tests of guards that code share: the guards, and an exchange with one client by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isthmus.core.guards.guard import AtClient, AtServer, Guard
from isthmus.core.protocol import Client, Known, Position, Request
from isthmus.core.random import Secret
from isthmus.core.record import Params, Record, State
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.low_rank import LowRank
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK

# Toy models are small: all of them is coded.
ALL: dict[str, Any] = {"min_numbers": 1}
NEUTRAL: dict[str, tuple[Guard, ...]] = {
    "quantise": (Quantise(bits=32, **ALL),),
    "top_k": (TopK(fraction=1.0, bits=32, **ALL),),
    "random_k": (RandomK(fraction=1.0, **ALL),),
    "low_rank": (LowRank(rank=1000, **ALL),),
    "delta": (Delta(**ALL),),
    "entropy": (Entropy(),),
    "delta, entropy": (Delta(**ALL), Entropy("lzma")),
    "delta up, quantise down": (Delta(direction="up", **ALL), Quantise(bits=32, direction="down", **ALL)),
}
LOSSY: dict[str, tuple[Guard, ...]] = {
    "quantise": (Quantise(bits=4, bucket=8, **ALL),),
    "quantise with feedback": (Quantise(bits=1, bucket=8, error_feedback=True, **ALL),),
    "top_k": (TopK(fraction=0.2, bits=8, **ALL),),
    "top_k without feedback": (TopK(fraction=0.5, bits=32, error_feedback=False, **ALL),),
    "random_k": (RandomK(fraction=0.2, error_feedback=True, **ALL),),
    "random_k without feedback": (RandomK(fraction=0.5, **ALL),),
    "low_rank": (LowRank(rank=1, bits=8, **ALL),),
    "top_k down, quantise up, entropy": (
        TopK(fraction=0.2, direction="down", **ALL),
        Quantise(bits=8, direction="up", **ALL),
        Entropy(),
    ),
}


@dataclass(frozen=True)
class Answer(Record):
    """What a client answers."""

    params: Params
    """A model."""
    gradients: Params
    """Tensors by the model's names, of which the request has none in this field."""
    weight: float = 1.0
    """Its share."""


@dataclass(frozen=True)
class Question(Request[Answer]):
    """What a client is asked."""

    params: Params
    """A model."""


class Nobody(Client):
    """A client without data."""

    def evaluate(self, params: Params, splits: tuple[str, ...]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        return {}, {}


@dataclass
class Pair:
    """A server and its clients, with one guard, exchange by exchange."""

    guard: Guard
    names: tuple[str, ...] = ("a",)
    server: dict[str, State] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.clients: dict[str, Nobody] = {name: Nobody(name) for name in self.names}

    def at_server(self) -> AtServer:
        position, secret = Position(7, 1, self.count), Secret.of_simulation(7, "server")
        return AtServer(position, "guard.0.G", self.names, False, Known(), secret, lambda text: None, self.server)

    def at_client(self, name: str) -> AtClient:
        self.clients[name].position = Position(7, 1, self.count)
        return AtClient(self.clients[name], "guard.0.G")

    def down(self, requests: Mapping[str, Request[Any]]) -> dict[str, Request[Any]]:
        """Begin an exchange and return what each client gets; what the server believes of that is checked."""
        self.count += 1
        self.leaving = self.guard.send(requests, self.at_server())
        self.believed = self.guard.heard(self.leaving, self.at_server())
        self.found = {name: self.guard.receive(self.leaving[name], self.at_client(name)) for name in requests}
        return self.found

    def up(self, name: str, reply: Record) -> Any:
        """Return what the server gets of a reply."""
        self.wire = self.guard.release(reply, self.found[name], self.at_client(name))
        return self.guard.accept(self.wire, self.believed[name], name, self.at_server())


def model(seed: int, *shape: int, near: Tensor | None = None, by: float = 0.1) -> Params:
    """Return a model of one matrix: at random, or near another."""
    drawn = torch.randn(shape or (20, 30), generator=torch.Generator().manual_seed(seed))
    return {"w": drawn if near is None else near + by * drawn}


def coders() -> list[Coder]:
    """Return every coder that loses something."""
    return [guard for line in LOSSY.values() for guard in line if isinstance(guard, Coder)]
