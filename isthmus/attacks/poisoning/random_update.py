"""Clients that send noise in the place of what they learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.attacks.poisoning.wrong_replies import MessagePoisoning
from isthmus.core.guards.guard import AtClient
from isthmus.core.random import derive_seed


@dataclass(frozen=True)
class RandomUpdate(MessagePoisoning):
    """They send Gaussian noise in the place of what they learned.

    Fields:
        clients:    who does so
        from_round: since when
        scale:      its standard deviation, number by number
    """

    scale: float = 1.0

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return noise."""
        place = at.position
        seed = derive_seed(place.seed, place.round, place.exchange, at.client.id, path)
        draw = torch.Generator().manual_seed(seed)
        return self.scale * torch.randn(change.shape, generator=draw, dtype=torch.float64)
