"""A little is enough: a change within the spread of honest ones. Baruch, Baruch and Goldberg, 2019."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.attacks.poisoning.colluding import Colluding
from isthmus.core.errors import refuse


@dataclass(frozen=True)
class LittleIsEnough(Colluding):
    """All send the mean of honest changes, moved in every number by some standard deviations:  mu - z sigma.

    No single number is out of the ordinary, and yet all go the same way. The paper's z is the largest with which, of n
    clients and m of these, so many honest ones are as far out that with them they are most:

        s = floor(n/2 + 1) - m,   z = Phi^-1((n - m - s) / (n - m))

    Fields:
        clients:    who does so
        from_round: since when
        knowing:    whose honest changes: "everybody" else's, or "themselves"
        deviations: z; null for the paper's, which is 0 where these clients are few
    """

    deviations: float | None = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        bad = self.deviations is not None and not 0.0 <= self.deviations < math.inf
        refuse(bad, self, "deviations", "it must be at least 0, or null")

    def crafted(self, honest: Tensor, num_clients: int) -> Tensor:
        """Return mu - z sigma."""
        z = self.deviations if self.deviations is not None else largest_z(num_clients, len(self.clients))
        return honest.mean(dim=0) - z * honest.std(dim=0, correction=0)


def largest_z(num_clients: int, num_malicious: int) -> float:
    """Return the paper's z, at least 0."""
    honest = num_clients - num_malicious
    needed = num_clients // 2 + 1 - num_malicious
    share = (honest - needed) / honest
    return max(0.0, float(torch.special.ndtri(torch.tensor(min(share, 1.0 - 1e-9), dtype=torch.float64))))
