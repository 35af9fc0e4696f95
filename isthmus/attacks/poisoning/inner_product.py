"""Inner product manipulation: the mean of honest changes, the other way. Xie, Koyejo and Gupta, 2020."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from isthmus.attacks.poisoning.colluding import Colluding
from isthmus.core.errors import refuse


@dataclass(frozen=True)
class InnerProduct(Colluding):
    """All send the opposite of the mean of honest changes, so many times over:  -epsilon mu.

    What is folded then may point away from where honest clients go, though no reply is long.

    Fields:
        clients:    who does so
        from_round: since when
        knowing:    whose honest changes: "everybody" else's, or "themselves"
        epsilon:    how many times over; the paper's are 0.1 and 0.5 against robust folds, and more than the honest
                    clients to these against the mean
    """

    epsilon: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 < self.epsilon < math.inf, self, "epsilon", "it must be positive")

    def crafted(self, honest: Tensor, num_clients: int) -> Tensor:
        """Return -epsilon mu."""
        return -self.epsilon * honest.mean(dim=0)
