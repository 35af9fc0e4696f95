"""What guards ask of learning itself, where noise on messages would be too much: steps on examples, sums over edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Where a client counts its private steps: those "taken" in the answer of a "round" and "exchange", and "in_all".
STEPS_TAKEN = "private steps"


@dataclass(frozen=True)
class PrivateSteps:
    """Steps whose gradients hardly depend on one example.

    Fields:
        clip:     the length that each example's gradient is clipped to
        noise:    the noise on the sum of clipped gradients, as a multiple of `clip`
        fraction: the probability with which each example is in a step, whatever the others are
        most:     steps that a client takes at most in one answer
    """

    clip: float
    noise: float
    fraction: float
    most: int

    @property
    def per_epoch(self) -> int:
        """How many steps show every example once, as it is expected: the same for all clients."""
        return math.ceil(1.0 / self.fraction - 1e-9)


@dataclass(frozen=True)
class NoisySums:
    """Sums over neighbours, of rows no longer than one, that hardly depend on one edge, or one node.

    Fields:
        noise:      the noise on the sums of all hops together, as a multiple of what an edge or a node changes of one
        max_degree: null where edges are hidden; else the most sums that a node is in, where nodes are hidden
        cut:        whether nodes with more edges keep so many, drawn at random; else they are refused
    """

    noise: float
    max_degree: int | None = None
    cut: bool = False

    @property
    def sensitivity(self) -> float:
        """The length by which the sums of one hop change at most: two rows by one each, or one for each of a node's."""
        return math.sqrt(2.0 if self.max_degree is None else self.max_degree)

    def spread(self, hops: int) -> float:
        """Return the standard deviation of the noise on each of so many hops."""
        return self.noise * self.sensitivity * math.sqrt(hops)
