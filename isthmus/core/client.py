"""Clients that are simulated together: what a handler for many is given, and work that is done for many at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence, Sized
from typing import Any, Protocol

from isthmus.core.protocol import Client

__all__ = ["Client", "Cohort", "NotTogether", "Work"]


class Cohort(Iterable[Client], Sized, Protocol):
    """Some clients that are simulated together, as a handler for many sees them."""

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
