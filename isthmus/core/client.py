"""What a client handler is given: an id, a memory, a place in the course. The room `learn` adds graph and model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import torch

from isthmus.core.federation import Position
from isthmus.core.protocol import Algorithm, Request
from isthmus.core.random import ProtectingStream, Secret, digest, torch_generator
from isthmus.core.record import Params, State, Value


class Cohort(Protocol):
    """Some clients that are simulated together, as a handler for many sees them."""

    def __iter__(self) -> Iterator[Client]:
        """Yield the clients."""

    def __len__(self) -> int:
        """Return the number of clients."""

    def of(self, clients: Sequence[Any]) -> Cohort:
        """Return some of them, in the same order; itself for all."""


class NotTogether(Exception):
    """Work that cannot be done for many clients at once, and why."""


class Work(ABC):
    """Something heavy that a handler asks its client for; done with that of other clients where they fit together."""

    @abstractmethod
    def kind(self) -> Hashable:
        """Return what must be the same for pieces of work to be done together."""

    @abstractmethod
    def alone(self, client: Any) -> Any:
        """Do it for one client."""

    @staticmethod
    @abstractmethod
    def together(clients: Any, works: Sequence[Any]) -> Sequence[Any]:
        """Do pieces of one kind for a cohort; raises NotTogether where that cannot be."""


class Client(ABC):
    """One client as its handlers see it. All that it remembers between two requests is `state`.

    `algorithm` is the algorithm with the client's own settings, where it has some. `secret` is what its protecting
    streams are drawn from; it is no part of the memory and of no message. `desk` takes heavy work while the client is
    simulated together with others.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.algorithm: Algorithm[Any] | None = None
        self.secret: Secret | None = None
        self.state: State = {}
        self.position = Position(0, 0, 0)
        self._asked: tuple[Request[Any] | None, State] = (None, {})
        self._asked_digest: bytes | None = None
        self.desk: Callable[[Work], Any] | None = None

    def do(self, work: Work) -> Any:
        """Return the result of some work, done here and now, or with that of others where there is a desk for it."""
        return work.alone(self) if self.desk is None else self.desk(work)

    def begin(self, position: Position, request: Request[Any]) -> None:
        """Take note of what is asked, where in the course, and of the memory that it is answered from."""
        self.position = position
        # Handlers put new values into the memory and never change one, so a shallow copy is what was there.
        self._asked, self._asked_digest = (request, dict(self.state)), None

    def generator(self, purpose: str) -> torch.Generator:
        """Return the random stream of this client for a purpose in this exchange, which the server can draw too.

        It repeats an experiment and hides nothing; for noise and the like there is `protecting`.
        """
        at = self.position
        return torch_generator(at.seed, at.round, at.exchange, self.id, purpose)

    def protecting(self, purpose: str, guarded: Value) -> ProtectingStream:
        """Return the stream that protects `guarded`, for a purpose in this exchange; only this client can draw it.

        The same request at the same place, answered from the same memory, gets the same stream, so that a course that
        is resumed repeats its replies. Another request, memory or value gets another one: were it the same, the
        difference of two replies would be without noise.
        """
        if self.secret is None:
            raise RuntimeError(f"{self.id} has no secret to draw {purpose!r} from; set client.secret")
        at = self.position
        place = (self.id, at.seed, at.round, at.exchange, purpose)
        if self.secret.simulated:
            return self.secret.stream(*place)
        if self._asked_digest is None:
            request, memory = self._asked
            kind = type(request).__name__
            self._asked_digest = digest({"kind": kind, "request": request, "memory": memory})
        return self.secret.stream(*place, self._asked_digest, digest({"guarded": guarded}))

    @abstractmethod
    def evaluate(self, params: Params, splits: tuple[str, ...]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        """Return metrics and example counts per split of a model on the client's own data."""
