"""Folds that choose replies by how near others are: Krum (Blanchard et al., 2017), Bulyan (Mhamdi et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.errors import CourseFailed, refuse
from isthmus.core.folding.changes import changes_of
from isthmus.core.folds import Answer, Gathered, by_coordinate, middle
from isthmus.core.record import Record


@dataclass(frozen=True)
class Krum(Gathered):
    """The reply closest to its neighbours (Blanchard et al., 2017): least squared distance to the n - f - 2 nearest.

    Distances are between what replies change of what was sent: of models, between updates. `num_malicious` is f;
    `num_selected` > 1 is Multi-Krum, the unweighted mean of the best ones. It can be computed from f + 3 replies on;
    the paper's guarantee needs 2 f + 3.
    """

    num_malicious: int = 0
    num_selected: int = 1

    def __post_init__(self) -> None:
        if self.num_malicious < 0 or self.num_selected < 1:
            raise ValueError(
                f"num_malicious is {self.num_malicious!r} and num_selected {self.num_selected!r}; "
                "they must be at least 0 and 1"
            )

    @property
    def least_replies(self) -> int:
        """2 f + 3."""
        return 2 * self.num_malicious + 3

    def combine(self, given: list[Answer]) -> Record:
        """Return the chosen reply, or the mean of the chosen ones."""
        num_near = len(given) - self.num_malicious - 2
        if num_near < 1:
            raise CourseFailed(
                f"Krum with num_malicious={self.num_malicious} needs at least {self.num_malicious + 3} replies; "
                f"there are {len(given)}"
            )
        scores = crowding(square_distances(changes_of(given)), num_near)
        chosen = torch.argsort(scores, stable=True)[: self.num_selected].tolist()
        best: list[Record] = [given[i].reply for i in sorted(chosen)]
        if len(best) == 1:
            return best[0]
        return by_coordinate(best, lambda stack: stack.mean(dim=0))


@dataclass(frozen=True)
class Bulyan(Gathered):
    """The mean of what is nearest to the median, among replies that Krum chose (Mhamdi et al., 2018), unweighted.

    Krum's choice is taken out n - 2 f times; of these, each coordinate's n - 4 f numbers that are nearest to their
    median are averaged. `num_malicious` is f. It takes 4 f + 3 replies; with f = 0 it is the plain mean. Towards the
    end, when fewer than f + 3 replies are left to choose from, a reply's nearest neighbour alone is its score.
    """

    num_malicious: int = 0

    def __post_init__(self) -> None:
        refuse(self.num_malicious < 0, self, "num_malicious", "it must be at least 0")

    @property
    def least_replies(self) -> int:
        """4 f + 3; without anybody to fear, one is enough."""
        return 4 * self.num_malicious + 3 if self.num_malicious else 1

    def combine(self, given: list[Answer]) -> Record:
        """Return the mean of the numbers nearest to the median."""
        if len(given) < self.least_replies:
            raise CourseFailed(
                f"Bulyan with num_malicious={self.num_malicious} needs at least {self.least_replies} replies; there "
                f"are {len(given)}"
            )
        chosen = self._chosen(square_distances(changes_of(given)))
        return by_coordinate([given[i].reply for i in chosen], self._near_the_median)

    def _chosen(self, squares: Tensor) -> list[int]:
        left = list(range(len(squares)))
        taken: list[int] = []
        for _ in range(len(squares) - 2 * self.num_malicious):
            num_near = min(max(1, len(left) - self.num_malicious - 2), len(left) - 1)
            scores = crowding(squares[left][:, left], num_near)
            taken.append(left.pop(int(scores.argmin())))
        return sorted(taken)

    def _near_the_median(self, stack: Tensor) -> Tensor:
        kept = len(stack) - 2 * self.num_malicious
        nearest = (stack - middle(stack)).abs().argsort(dim=0, stable=True)[:kept]
        return stack.gather(0, nearest).mean(dim=0)


def square_distances(changes: Tensor) -> Tensor:
    """Return the squared distances between rows, (rows, rows); a row is infinitely far from itself, no neighbour."""
    squares = torch.cdist(changes, changes, compute_mode="donot_use_mm_for_euclid_dist").square()
    return squares.fill_diagonal_(torch.inf)


def crowding(squares: Tensor, num_near: int) -> Tensor:
    """Return for each row the sum of the distances to its nearest neighbours: Krum's score, (rows,)."""
    return squares.sort(dim=1).values[:, :num_near].sum(dim=1)
