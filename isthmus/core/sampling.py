"""Which clients take part in a round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from isthmus.core.errors import refuse


@dataclass(frozen=True)
class Sampling(ABC):
    """Draws the cohort of a round: `fraction` is the share of the clients that takes part, or is expected to."""

    # Whether who takes part is hidden from all but the server, where that has a secret; else the seed tells it.
    hides: ClassVar[bool] = False

    fraction: float = 1.0

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.fraction <= 1.0, self, "fraction", "it must be in (0, 1]")

    @abstractmethod
    def cohort(self, clients: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
        """Return the clients of one round, in client order."""

    @abstractmethod
    def least(self, num_clients: int) -> int:
        """Return how many of so many clients take part in any round; 0 where a round may be of nobody."""

    def expected(self, num_clients: int) -> float:
        """Return how many of so many clients take part in the mean."""
        return self.fraction * num_clients


@dataclass(frozen=True)
class UniformSampling(Sampling):
    """A cohort of `fraction` of the clients, at least `num_min`, uniform without replacement, in client order."""

    num_min: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.num_min < 1, self, "num_min", "it must be at least 1")

    def size(self, num_clients: int) -> int:
        """Return how many of so many clients take part in a round."""
        # ceil with a grain of tolerance: 0.3 of 10 clients is 3, not 4.
        return min(num_clients, max(self.num_min, math.ceil(self.fraction * num_clients - 1e-9)))

    def least(self, num_clients: int) -> int:
        """Return the size of every cohort."""
        return self.size(num_clients)

    def expected(self, num_clients: int) -> float:
        """Return the size of every cohort."""
        return float(self.size(num_clients))

    def cohort(self, clients: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
        """Return the clients of one round."""
        size = self.size(len(clients))
        if size == len(clients):
            return tuple(clients)
        chosen = rng.choice(len(clients), size=size, replace=False)
        return tuple(clients[i] for i in sorted(chosen.tolist()))


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Each client takes part with the probability `fraction`, whatever the others do; a round may be of nobody.

    What is known of differential privacy by drawing is about such draws: whether a client is in says nothing of others.
    It hides nothing from whoever knows the draw, so between sites that is made of the server's own secret.
    """

    hides: ClassVar[bool] = True

    def least(self, num_clients: int) -> int:
        """Return 0, unless all take part in every round."""
        return num_clients if self.fraction == 1.0 else 0

    def cohort(self, clients: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
        """Return the clients of one round."""
        drawn = rng.random(len(clients)) < self.fraction
        return tuple(client for client, chosen in zip(clients, drawn.tolist(), strict=True) if chosen)


SAMPLINGS: dict[str, type[Sampling]] = {"uniform": UniformSampling, "poisson": PoissonSampling}
