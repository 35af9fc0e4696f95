"""What a client handler is given: an id, a memory, a place in the course. The room `learn` adds graph and model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from isthmus.core.federation import Position
from isthmus.core.protocol import Algorithm
from isthmus.core.random import torch_generator
from isthmus.core.record import Params, State


class Cohort(Protocol):
    """Some clients that are simulated together, as a handler for many sees them."""

    def __iter__(self) -> Iterator[Client]:
        """Yield the clients."""

    def __len__(self) -> int:
        """Return the number of clients."""


class Client(ABC):
    """One client as its handlers see it. All that it remembers between two requests is `state`.

    `algorithm` is the algorithm with the client's own settings, where it has some.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.algorithm: Algorithm[Any] | None = None
        self.state: State = {}
        self.position = Position(0, 0, 0)

    def generator(self, purpose: str) -> torch.Generator:
        """Return the random stream of this client for a purpose in this exchange."""
        at = self.position
        return torch_generator(at.seed, at.round, at.exchange, self.id, purpose)

    @abstractmethod
    def evaluate(self, params: Params, splits: tuple[str, ...]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        """Return metrics and example counts per split of a model on the client's own data."""
