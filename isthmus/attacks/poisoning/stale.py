"""Clients that send again what they sent before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isthmus.attacks.poisoning.wrong_replies import MessagePoisoning
from isthmus.core.guards.guard import AtClient
from isthmus.core.protocol import Request
from isthmus.core.record import Record, leaves, with_leaves


@dataclass(frozen=True)
class StaleReplies(MessagePoisoning):
    """They send again what they sent the first time, whatever they are sent.

    Fields:
        clients:    who does so
        from_round: since when
    """

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return the first reply of this kind."""
        if not self.acts(at):
            return reply
        own = {p: leaf for p, leaf in leaves(reply).items() if isinstance(leaf, Tensor) and leaf.is_floating_point()}
        kept = at.memory.get(type(request).__name__)
        if kept is None:
            at.remember({**at.memory, type(request).__name__: own})
            return reply
        fits = all(path in kept and kept[path].shape == leaf.shape for path, leaf in own.items())
        return with_leaves(reply, {**leaves(reply), **kept}) if fits else reply

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the change: what is sent is decided in `release`."""
        return change
