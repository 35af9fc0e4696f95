"""Strengths of proximal terms that gradient descent cannot follow are refused."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.algorithms import Ditto, FedDyn, FedProx, PFedMe
from isthmus.learn.optimizers import SGD, Adam

PULLED: list[tuple[Any, str]] = [(Ditto, "strength"), (PFedMe, "strength"), (FedDyn, "alpha"), (FedProx, "mu")]


@pytest.mark.parametrize(("kind", "field"), PULLED, ids=lambda value: getattr(value, "__name__", value))
def test_a_pull_that_every_step_overshoots_is_refused_with_what_would_do(kind: Any, field: str) -> None:
    message = f"{field} is 8.0 and the optimiser's lr 0.25; their product must be below 2.*lower one of them"
    with pytest.raises(ValueError, match=message):
        kind(**{field: 8.0})
    assert getattr(kind(**{field: 7.9}), field) == 7.9
    assert getattr(kind(**{field: 8.0}, optimizer=SGD(lr=0.2)), field) == 8.0


@pytest.mark.parametrize("optimizer", [SGD(lr=0.25, momentum=0.5), Adam(lr=0.25)], ids=["momentum", "adam"])
@pytest.mark.parametrize(("kind", "field"), PULLED, ids=lambda value: getattr(value, "__name__", value))
def test_other_optimisers_have_other_bounds(kind: Any, field: str, optimizer: Any) -> None:
    assert getattr(kind(**{field: 10.0}, optimizer=optimizer), field) == 10.0
