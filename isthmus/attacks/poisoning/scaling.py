"""Clients that make more of what they learned. Bagdasaryan et al., "How to backdoor federated learning", 2020."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isthmus.attacks.poisoning.wrong_replies import MessagePoisoning
from isthmus.core.guards.guard import AtClient


@dataclass(frozen=True)
class Scaling(MessagePoisoning):
    """They send what they learned so many times over.

    With as many times as there are clients, and poisoned data, it is model replacement: the mean becomes their model.
    Zero times over, they are free riders.

    Fields:
        clients:    who does so
        from_round: since when
        times:      how many times over
    """

    times: float = 10.0

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return more of it."""
        return self.times * change
