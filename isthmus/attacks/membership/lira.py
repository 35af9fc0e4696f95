"""Membership by likelihood ratios (LiRA): is a model as sure as those that had the item, or as those that had not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import Case, NothingSeen, Seen, Shadow, Shadowed
from isthmus.attacks.membership.candidates import Candidates, Membership, the_model, with_members
from isthmus.core.errors import refuse
from isthmus.core.random import derive_seed
from isthmus.runs.life import Result

LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Lira(Shadowed, Membership):
    """Compares how sure the global model is of an item with how sure federations are that had it, or had it not.

    Carlini et al., "Membership Inference Attacks From First Principles" (2022): each shadow federation trains on a draw
    of its own from the candidates, as many as the course; for each item the logits of those with it, and of those
    without, are taken for normal, with a mean of the item's own and one spread for all.

    Fields:
        shadows: how many federations; each item is trained on in its share of them
    """

    knows: ClassVar[str] = f"{Membership.knows}; the course's settings, to run federations of its own"

    shadows: int = 24

    def __post_init__(self) -> None:
        refuse(self.shadows < 4, self, "shadows", "it must be at least 4: two with each item, and two without")

    @property
    def num_shadows(self) -> int:
        """How many federations it needs."""
        return self.shadows

    def shadow(self, case: Case, known: Candidates, number: int) -> Shadow:
        """Return a federation on another draw, from another start: its members go round, so that each has its turn."""
        members = int(case.scenario.whole.mask("train")[known.items].sum())
        turns = max(1, round(len(known.items) / max(1, members)))
        order = torch.randperm(len(known.items), generator=case.generator("lira", number // turns))
        place = (torch.arange(members) + number % turns * members) % len(order)
        inside = torch.zeros(len(order), dtype=torch.bool)
        inside[order[place]] = True
        course = replace(case.course, seed=derive_seed(case.course.seed, "shadow", number) % 2**31)
        return Shadow(course, with_members(case.scenario, known.items[inside], known.items[~inside]), inside)

    def gist(self, shadow: Shadow, known: Candidates, result: Result) -> dict[str, Tensor]:
        """Return how sure the shadow's model is, and who was in it."""
        if not result.params:
            raise NothingSeen("clients share no whole model: each has its own")
        return {"sure": known.confidences(result.params), "inside": shadow.drawn}

    def guess(self, seen: Seen, known: Candidates) -> Tensor:
        """Return the logarithm of the ratio of likelihoods."""
        found = known.confidences(the_model(seen))
        sure = torch.stack([gist["sure"] for gist in seen.shadows])
        inside = torch.stack([gist["inside"] for gist in seen.shadows])
        with_it, without = _fitted(sure, inside), _fitted(sure, ~inside)
        return _log_likelihood(found, *with_it) - _log_likelihood(found, *without)


def _fitted(sure: Tensor, chosen: Tensor) -> tuple[Tensor, float]:
    """Return the mean of each item over the chosen federations, (items,), and one standard deviation of all."""
    number = chosen.sum(dim=0)
    mean = (sure * chosen).sum(dim=0) / number.clamp_min(1)
    mean = torch.where(number > 0, mean, mean[number > 0].mean())
    squares = ((sure - mean) ** 2 * chosen).sum() / (number - 1).clamp_min(0).sum().clamp_min(1)
    return mean, max(math.sqrt(float(squares)), LEAST_SPREAD)


def _log_likelihood(found: Tensor, mean: Tensor, spread: float) -> Tensor:
    return -(((found - mean) / spread) ** 2) / 2 - math.log(spread)
