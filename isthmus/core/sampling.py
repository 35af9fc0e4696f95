"""Which clients take part in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class UniformSampling:
    """A cohort of `fraction` of the clients, at least `num_min`, uniform without replacement, in client order."""

    fraction: float = 1.0
    num_min: int = 1

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"fraction is {self.fraction!r}; it must be in (0, 1]")
        if self.num_min < 1:
            raise ValueError(f"num_min is {self.num_min!r}; it must be at least 1")

    def size(self, num_clients: int) -> int:
        """Return how many of so many clients take part in a round."""
        # ceil with a grain of tolerance: 0.3 of 10 clients is 3, not 4.
        return min(num_clients, max(self.num_min, math.ceil(self.fraction * num_clients - 1e-9)))

    def cohort(self, clients: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
        """Return the clients of one round."""
        size = self.size(len(clients))
        if size == len(clients):
            return tuple(clients)
        chosen = rng.choice(len(clients), size=size, replace=False)
        return tuple(clients[i] for i in sorted(chosen.tolist()))
