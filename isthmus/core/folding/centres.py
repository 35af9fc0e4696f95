"""Folds around a centre: the geometric median, and means of changes that are cut short."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.core.folding.changes import (
    changes_of,
    mean_by,
    shortening,
    unmatched,
    weights_of,
    with_change,
    with_middle_numbers,
)
from isthmus.core.folds import Answer, Gathered, middle
from isthmus.core.record import Record, leaves


@dataclass(frozen=True)
class GeometricMedian(Gathered):
    """The point with the least weighted sum of distances to all replies: RFA (Pillutla et al., 2022).

    argmin_v sum_k n_k |w_k - v| by the smoothed Weiszfeld algorithm, on what replies change of what was sent:

        v <- sum_k b_k w_k / sum_k b_k,   b_k = n_k / max(smoothing, |w_k - v|)

    It begins at the mean of replies that are drawn in to the coordinate-wise median as far as half of them are, where a
    few cannot have taken it, and ends when v moves by less than `smoothing`. The result stays near the others' replies
    as long as these weigh more than half. Numbers that are no floating-point tensors become their median.

    Fields:
        num_iterations: steps at most
        smoothing:      distances below it count as that far
        weighted:       n_k is the reply's own weight; if not, all count the same
    """

    num_iterations: int = 100
    smoothing: float = 1e-6
    weighted: bool = True

    def __post_init__(self) -> None:
        refuse(self.num_iterations < 1, self, "num_iterations", "it must be at least 1")
        refuse(not 0.0 < self.smoothing < math.inf, self, "smoothing", "it must be positive")

    @property
    def least_replies(self) -> int:
        """Three: of two, neither is nearer to the others."""
        return 3

    def combine(self, given: list[Answer]) -> Record:
        """Return the mean by Weiszfeld's last weights."""
        changes = changes_of(given)
        weights = self._pulls(changes, torch.tensor(weights_of(given, self.weighted), dtype=torch.float64))
        mean = mean_by(given[0].reply, [leaves(answer.reply) for answer in given], weights.tolist())
        return with_middle_numbers(mean, given)

    def _pulls(self, changes: Tensor, weights: Tensor) -> Tensor:
        """Return the weights b_k at the last centre, (replies,)."""
        centre, pulls = self._beginning(changes, weights), weights
        for _ in range(self.num_iterations):
            pulls = weights / (changes - centre).norm(dim=1).clamp_min(self.smoothing)
            before, centre = centre, pulls @ changes / pulls.sum()
            if float((centre - before).norm()) <= self.smoothing:
                break
        return pulls

    @staticmethod
    def _beginning(changes: Tensor, weights: Tensor) -> Tensor:
        """Return a point that is near more than half of the weight; at a reply itself, steps would not leave it."""
        centre = weighted_middle(changes, weights)
        apart = changes - centre
        radius = float(weighted_middle(apart.norm(dim=1, keepdim=True), weights))
        return centre + (weights * shortening(apart, radius)) @ apart / weights.sum()


@dataclass(frozen=True)
class CentredClipping(Gathered):
    """The mean of replies that are drawn to a centre as far as they are beyond a radius (Karimireddy et al., 2021).

        v <- v + sum_k n_k/N (w_k - v) min(1, radius / |w_k - v|)

    It begins at what was sent; of what has no counterpart there, at the coordinate-wise median of the replies. The
    paper begins at the last round's result, with clients that send momentum. With an infinite radius this is the
    weighted mean to the bit. With any other, numbers that are no floating-point tensors become their median.

    Fields:
        radius:         how far from the centre a reply counts as it is
        num_iterations: steps; the more, the less the beginning matters
        weighted:       n_k is the reply's own weight; if not, all count the same
    """

    radius: float = 1.0
    num_iterations: int = 1
    weighted: bool = True

    def __post_init__(self) -> None:
        refuse(not self.radius > 0.0, self, "radius", "it must be positive; .inf cuts nothing short")
        refuse(self.num_iterations < 1, self, "num_iterations", "it must be at least 1")

    def combine(self, given: list[Answer]) -> Record:
        """Return the mean of the replies as they are drawn in."""
        weights = weights_of(given, self.weighted)
        changes = changes_of(given)
        if math.isinf(self.radius):
            return mean_by(given[0].reply, [leaves(answer.reply) for answer in given], weights)
        centre = torch.where(unmatched(given[0]), middle(changes), 0.0)
        for _ in range(self.num_iterations - 1):
            apart = changes - centre
            mean = (torch.tensor(weights, dtype=torch.float64) * shortening(apart, self.radius)) @ apart
            centre = centre + mean / sum(weights)
        return drawn_in(given, changes, centre, self.radius, weights)


@dataclass(frozen=True)
class BoundedMean(Gathered):
    """The mean of changes whose norm is bounded: longer ones are shortened to `largest` (Sun et al., 2019).

    With `largest` null this is the weighted mean to the bit. With any other, numbers that are no floating-point tensors
    become their median.

    Fields:
        largest:  the largest norm of what a reply changes of what was sent
        weighted: replies count by their own weights; if not, all count the same
    """

    largest: float | None = None
    weighted: bool = True

    def __post_init__(self) -> None:
        bad = self.largest is not None and not self.largest > 0.0
        refuse(bad, self, "largest", "it must be positive, or null for no bound")

    def combine(self, given: list[Answer]) -> Record:
        """Return the mean of the shortened changes."""
        weights = weights_of(given, self.weighted)
        if self.largest is None:
            return mean_by(given[0].reply, [leaves(answer.reply) for answer in given], weights)
        changes = changes_of(given)
        return drawn_in(given, changes, torch.zeros(changes.shape[1]), self.largest, weights)


def weighted_middle(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the coordinate-wise weighted median: the least number that at least half of the weight does not exceed."""
    ordered, order = rows.sort(dim=0)
    reached = weights[order].cumsum(dim=0)  # (rows, numbers)
    return ordered.gather(0, (reached < weights.sum() / 2).sum(dim=0, keepdim=True)).squeeze(0)


def drawn_in(given: list[Answer], changes: Tensor, centre: Tensor, radius: float, weights: list[float]) -> Record:
    """Return the mean of replies, those farther than `radius` from a centre of changes drawn in to that distance.

    A reply within it counts as it is, to the bit.
    """
    apart = changes - centre
    factors = shortening(apart, radius)
    rows = [
        leaves(answer.reply) if factor == 1.0 else with_change(answer, centre + factor * apart[k])
        for k, (answer, factor) in enumerate(zip(given, factors.tolist(), strict=True))
    ]
    return with_middle_numbers(mean_by(given[0].reply, rows, weights), given)
