"""Membership by likelihood ratios (LiRA): is a model as sure as those that had the item, or as those that had not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import Case, NothingSeen, Seen, Shadow, Shadowed, seed_of_shadow
from isthmus.attacks.membership.candidates import Candidates, Membership, has_edges, the_model, with_members
from isthmus.core.errors import refuse
from isthmus.core.random import derive_seed
from isthmus.core.record import Params
from isthmus.runs.life import Result

LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Lira(Shadowed, Membership):
    """Compares how sure the global model is of an item with how sure federations are that had it, or had it not.

    Carlini et al., "Membership Inference Attacks From First Principles" (2022): each shadow federation trains on a draw
    of its own from the candidates, as many as the course. For each item the logits of those with it, and of those
    without, are taken for normal, with means of the item's own and one spread about them. A model is asked twice: about
    the item where it lies, and about its features alone, which has less of its neighbours in it; the two logits are
    normal together, with one correlation for all items.

    Where nothing that protects is drawn from it, shadows have the course's own seed: every client of a course has it,
    and draws its dropout from it. So they begin with the same model, and what differs is who was trained on.

    Fields:
        shadows:    how many federations; each item is trained on in its share of them
        own_spread: how much of an item's variance is what was found for it, the rest is the mean of all items'
        alone:      whether a model is asked about features alone too
    """

    knows: ClassVar[str] = f"{Membership.knows}; the course's settings and seed, to run federations of its own"

    shadows: int = 24
    own_spread: float = 0.5
    alone: bool = True

    def __post_init__(self) -> None:
        refuse(self.shadows < 4, self, "shadows", "it must be at least 4: two with each item, and two without")
        refuse(not 0.0 <= self.own_spread <= 1.0, self, "own_spread", "it must be from 0 to 1")

    @property
    def num_shadows(self) -> int:
        """How many federations it needs."""
        return self.shadows

    def shadow(self, case: Case, known: Candidates, number: int) -> Shadow:
        """Return a federation on another draw: its members go round, so that each has its turn."""
        members = int(case.scenario.whole.mask("train")[known.items].sum())
        turns = max(1, round(len(known.items) / max(1, members)))
        order = torch.randperm(len(known.items), generator=case.generator("lira", number // turns))
        place = (torch.arange(members) + number % turns * members) % len(order)
        inside = torch.zeros(len(order), dtype=torch.bool)
        inside[order[place]] = True
        other = derive_seed(case.course.seed, "shadow", number) % 2**31
        course = replace(case.course, seed=seed_of_shadow(case.course, other))
        return Shadow(course, with_members(case.scenario, known.items[inside], known.items[~inside]), inside)

    def gist(self, shadow: Shadow, known: Candidates, result: Result) -> dict[str, Tensor]:
        """Return how sure the shadow's model is, and who was in it."""
        if not result.params:
            raise NothingSeen("clients share no whole model: each has its own")
        return {"sure": self._asked(known, result.params), "inside": shadow.drawn}

    def guess(self, seen: Seen, known: Candidates) -> Tensor:
        """Return the logarithm of the ratio of likelihoods."""
        found = self._asked(known, the_model(seen))
        if not seen.shadows:
            raise NothingSeen("there is no federation to compare with")
        sure = torch.stack([gist["sure"] for gist in seen.shadows])
        inside = torch.stack([gist["inside"] for gist in seen.shadows])
        return log_ratio(found, sure, inside, self.own_spread)

    def _asked(self, known: Candidates, params: Params) -> Tensor:
        """Return what a model says of the candidates, (queries, candidates)."""
        twice = self.alone and all(map(has_edges, known.parts.values()))
        return torch.stack([known.confidences(params, edges) for edges in ((True, False) if twice else (True,))])


def log_ratio(found: Tensor, sure: Tensor, inside: Tensor, own_spread: float) -> Tensor:
    """Return log p(found | in) - log p(found | out) of each item, (items,), for normal answers to several queries.

    Args:
        found:      (queries, items); of the model that is attacked
        sure:       (shadows, queries, items); of the shadows'
        inside:     (shadows, items); who was in which
        own_spread: part of an item's variance that is its own
    """
    with_it, without = means_of(sure, inside), means_of(sure, ~inside)  # (queries, items)
    left = sure - torch.where(inside.unsqueeze(1), with_it, without)
    scale = _spread(left, inside, own_spread)
    whitened = _inverse_root(left, scale)
    far = [(whitened @ ((found - mean) / scale)).square().sum(dim=0) for mean in (without, with_it)]
    return (far[0] - far[1]) / 2


def means_of(sure: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of each item over the chosen shadows, (queries, items); that of all items where none has it."""
    number = chosen.sum(dim=0)
    mean: Tensor = (sure * chosen.unsqueeze(1)).sum(dim=0) / number.clamp_min(1)
    if not bool(number.any()):
        return mean
    return torch.where(number > 0, mean, mean[:, number > 0].mean(dim=1, keepdim=True))


def _spread(left: Tensor, inside: Tensor, own: float) -> Tensor:
    """Return the standard deviation of each item about its two means, (queries, items), drawn towards that of all."""
    with_it = inside.sum(dim=0)
    freedom = (with_it - 1).clamp_min(0) + (len(inside) - with_it - 1).clamp_min(0)  # (items,)
    squares = left.square().sum(dim=0)
    every = squares.sum(dim=1, keepdim=True) / freedom.sum().clamp_min(1)
    each = torch.where(freedom > 0, squares / freedom.clamp_min(1), every)
    spread: Tensor = (own * each + (1.0 - own) * every).sqrt().clamp_min(LEAST_SPREAD)
    return spread


def _inverse_root(left: Tensor, scale: Tensor) -> Tensor:
    """Return what makes the answers to several queries independent, (queries, queries)."""
    rows = (left / scale).transpose(0, 1).flatten(1)  # (queries, shadows * items)
    correlation = rows @ rows.t()
    size = correlation.diagonal().clamp_min(LEAST_SPREAD).sqrt()
    correlation = correlation / size.unsqueeze(0) / size.unsqueeze(1)
    correlation = correlation + LEAST_SPREAD * torch.eye(len(size), dtype=correlation.dtype)
    root: Tensor = torch.linalg.inv(torch.linalg.cholesky(correlation))
    return root
