"""The random numbers that coding a tensor takes: those that all parties draw alike, and the sender's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from isthmus.core.protocol import Position
from isthmus.core.random import derive_seed


@dataclass(frozen=True)
class Draws:
    """The random numbers for one tensor of a message: shared ones that both sides draw, and the sender's own."""

    position: Position
    name: str
    own: Callable[[], torch.Generator]
    # Whether what is lost is made up for in a later message: then it need not be right on average.
    made_up: bool

    @property
    def rounding(self) -> torch.Generator | None:
        """What numbers are rounded by: to the nearest where what is lost is made up for, else at random."""
        return None if self.made_up else self.own()

    @property
    def shared(self) -> int:
        """A seed that server and clients know, the same for all clients."""
        at = self.position
        return derive_seed(at.seed, at.round, at.exchange, self.name)
