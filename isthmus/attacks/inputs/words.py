"""Which features, or words, a client's nodes have: one update shows it, as others' weights do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Case, Naming, Seen
from isthmus.attacks.inputs.layers import UPDATES, at_the_input, by_feature, first_update
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Params
from isthmus.learn.optimizers import Adam

# A row of weights that gradients did not move is a multiple of what it was, but for rounding of so much.
ROUNDING = 3e-6


@dataclass(frozen=True, eq=False)
class Words:
    """How many features there are, in which share of all nodes each is not zero, and how many nodes a client has."""

    shares: Tensor
    nodes: float


@dataclass(frozen=True)
class Vocabulary(Naming):
    """Takes the features whose weights one update moved by more than weight decay for those that the client has.

    A feature that is zero at all nodes that training looks at has no gradient in the first layer. Decay, momentum and
    Adam move its weights by one factor at most; what is left beside that factor is the client's. Where noise moves all
    of them, they are parted in two by size (Otsu's threshold on the logarithm).
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which features (words) occur among a client's nodes"
    knows: ClassVar[str] = "in which share of all nodes each feature occurs, and how many nodes a client has on average"
    reads: ClassVar[tuple[str, ...]] = UPDATES

    def problem(self, course: Course) -> str:
        """Return why weights of absent features would move by no common factor."""
        optimizer = getattr(course.algorithm, "optimizer", None)
        if type(optimizer) is Adam and optimizer.weight_decay:
            return "Adam's weight decay moves all weights by no common factor; set algorithm.optimizer.weight_decay=0"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first round."""
        return at.round <= 1

    def known(self, case: Case) -> Words:
        """Return the shares of the whole data."""
        counts = present(case.scenario.whole.x).double()
        return Words(counts.mean(dim=0), float(np.mean([part.num_nodes for part in case.scenario.parts.values()])))

    def guess(self, seen: Seen, known: Words) -> dict[str, Tensor]:
        """Return which rows of the first layer moved by more than a factor."""
        number = len(known.shares)
        found = {}
        for client in seen.clients:
            sent, back = self.first_told(seen, client)
            name = at_the_input(back, number)
            found[client] = moved_rows(by_feature(sent[name], number), by_feature(back[name], number))
        return found

    def first_told(self, seen: Seen, client: str) -> tuple[Params, Params]:
        """Return what a client was sent first, and what it told of that: absent features' rows of both are alike."""
        return first_update(seen, client)

    def prior(self, known: Words, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return the features that a client of average size more likely has than not."""
        expected = 1.0 - (1.0 - known.shares) ** known.nodes > 0.5
        return dict.fromkeys(clients, expected)

    def truth(self, case: Case, known: Words) -> dict[str, Tensor]:
        """Return the features that each client has."""
        return {client: present(part.x).any(dim=0) for client, part in case.scenario.parts.items()}


def present(x: Tensor) -> Tensor:
    """Return which features are not zero, (nodes, features)."""
    there: Tensor = (x.to_dense() if x.layout != torch.strided else x) != 0
    return there


def moved_rows(before: Tensor, after: Tensor, error: float = 0.0) -> Tensor:
    """Return which rows are no multiples of what they were but for an error of each number, (rows,)."""
    factor = (before * after).sum(dim=1) / before.square().sum(dim=1).clamp_min(1e-30)
    left = (after - factor.unsqueeze(1) * before).norm(dim=1) / after.norm(dim=1).clamp_min(1e-30)
    rounding = ROUNDING + 2.0 * error * math.sqrt(before.shape[1]) / after.norm(dim=1).clamp_min(1e-30)
    if not bool((left <= rounding).any()):
        return torch.gt(left, float(_parting(left.log()).exp()))
    return torch.gt(left, rounding)


def _parting(values: Tensor) -> Tensor:
    """Return the threshold that leaves least variance on its two sides (Otsu 1979)."""
    found = values.sort().values
    below = torch.arange(1, len(found), dtype=torch.float64)
    above = len(found) - below
    sums = found.cumsum(0)
    gap = sums[:-1] / below - (sums[-1] - sums[:-1]) / above
    return found[int((below * above * gap.square()).argmax())]
