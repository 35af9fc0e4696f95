"""Clients that learn nothing and want the model.

Fraboni, Vidal and Lorenzi (2021), "Free-rider attacks on model aggregation in federated learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.attacks.poisoning.wrong_replies import MessagePoisoning
from isthmus.core.guards.guard import AtClient
from isthmus.core.protocol import Request
from isthmus.core.random import derive_seed
from isthmus.core.record import Record, leaves, with_leaves


@dataclass(frozen=True)
class FreeRider(MessagePoisoning):
    """They send back what they were sent, as it is or with noise that looks like a change.

    The noise of each tensor has the standard deviation of what the server changed of it since the last time, which is
    what honest clients learned, in the mean. The first time there is nothing to go by, and it comes back as it is.

    Fields:
        clients:    who does so
        malicious:  so many, in the place of names
        from_round: since when
        disguised:  whether there is noise
        times:      how many times as large
    """

    disguised: bool = True
    times: float = 1.0

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return what was sent, with noise; what was sent is remembered."""
        if not self.acts(at):
            return reply
        kept, kind, now = at.memory, type(request).__name__, _floats(request)
        found, before = leaves(reply), kept.get(kind, {})
        for path in now.keys() & found.keys():
            if isinstance(found[path], Tensor) and found[path].shape == now[path].shape:
                found[path] = (now[path] + self._noise(now[path], before.get(path), path, at)).to(now[path].dtype)
        at.remember({**kept, kind: now})
        return with_leaves(reply, found)

    def _noise(self, now: Tensor, before: Tensor | None, path: str, at: AtClient) -> Tensor:
        if not self.disguised or before is None or before.shape != now.shape:
            return torch.zeros_like(now, dtype=torch.float64)
        place = at.position
        size = self.times * (now.double() - before.double()).square().mean().sqrt()
        seed = derive_seed(place.seed, place.round, place.exchange, at.client.id, path)
        return size * torch.randn(now.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return no change: what is sent is decided in `release`."""
        return torch.zeros_like(change)


def _floats(request: Request[Any]) -> dict[str, Tensor]:
    return {p: leaf for p, leaf in leaves(request).items() if isinstance(leaf, Tensor) and leaf.is_floating_point()}
