"""Clients that send the opposite of what they learned."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isthmus.attacks.poisoning.wrong_replies import MessagePoisoning
from isthmus.core.guards.guard import AtClient


@dataclass(frozen=True)
class SignFlip(MessagePoisoning):
    """They send the opposite of what they learned, so many times over.

    Fields:
        clients:    who does so
        from_round: since when
        times:      how many times over
    """

    times: float = 1.0

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the opposite."""
        return -self.times * change
