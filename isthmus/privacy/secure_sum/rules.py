"""What both halves of a secure sum go by, with the numbers that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.privacy.secure_sum.fixed_point import FixedPoint

# What is added up under masks that survive the loss of clients: who holds what, where that is counted, and what bounds
# the weights; then the numbers, and the weights.
HOLDERS, NUMBERS = 0, 1
# Weights are whole multiples of 2^-20; single numbers in a reply may be as large as 2^36.
WEIGHT_BITS = 20
WIDE_BOUND = 2.0**36
# What a place in the sum must be for places to fit into messages.
MAX_CLIENTS = 4_096


@dataclass(frozen=True)
class SumRules:
    """How many clients a sum needs, and how its numbers are held."""

    threshold: float = 2 / 3
    bits: int = 32
    clip: float = 100.0
    min_cohort: int = 3
    min_holders: int = 1

    @property
    def sums(self) -> tuple[int, ...]:
        """Which sums there are under such masks."""
        return (HOLDERS, NUMBERS) if self.counts_holders else (NUMBERS,)

    @property
    def counts_holders(self) -> bool:
        """Whether it is counted how many clients hold something of their own at each place."""
        return self.min_holders > 1

    def needed(self, num_clients: int) -> int:
        """Return how many of so many clients must stay to the end: more than half of them, in any case."""
        return max(num_clients // 2 + 1, math.ceil(self.threshold * num_clients - 1e-9))

    def least(self, num_clients: int) -> int:
        """Return how many clients a sum must be over."""
        return max(self.needed(num_clients), self.min_cohort)

    def narrow(self, num_clients: int) -> FixedPoint:
        """Return how the numbers of tensors are held: each counts by its share, and shares add up to 1."""
        return FixedPoint(self.bits, self.clip, num_clients)

    def wide(self, num_clients: int) -> FixedPoint:
        """Return how single numbers are held."""
        return FixedPoint(64, WIDE_BOUND, num_clients)

    def weights(self, num_clients: int) -> FixedPoint:
        """Return how weights are held: in units of 2^-20 whatever their number, up to 2^42 in all."""
        return FixedPoint(64, 2.0 ** (62 - WEIGHT_BITS), num_clients)

    def holders(self, num_clients: int) -> FixedPoint:
        """Return how it is counted who has something at a place."""
        return FixedPoint(32, 2.0**30, num_clients)
