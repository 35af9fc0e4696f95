"""What joins the gradients of clients that train together: pulls to where they began, and drifts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.learn.together.layouts import Plain, Weights

NAMES = ("a", "b")
STRENGTH = 0.5


def weights(drifting: bool = True) -> tuple[Weights, dict[str, Tensor]]:
    starts = {name: torch.randn(3, 2) for name in NAMES}
    found = Weights(dict(starts), dict.fromkeys(NAMES, Plain(4)), frozenset())
    drifts = {name: 2.0 * start for name, start in starts.items()} if drifting else {}
    found.hold(STRENGTH, NAMES, drifts)
    return found, drifts


def expected(held: Weights, begun: list[Tensor], drifts: dict[str, Tensor], grads: list[Tensor]) -> list[Tensor]:
    each = zip(NAMES, held.values, begun, grads, strict=True)
    return [g + STRENGTH * (w - start) + drifts.get(name, torch.zeros(())) for name, w, start, g in each]


def shared(kind: str) -> list[Tensor]:
    """Gradients of two parameters, as autograd may give them."""
    if kind == "one for both":
        return [torch.randn(4, 3, 2)] * 2
    if kind == "expanded":
        return [torch.randn(4, 1, 1).expand(4, 3, 2), torch.randn(1).expand(4, 3, 2)]
    return [torch.randn(4, 2, 3).mT, torch.randn(4, 3, 2)]


@pytest.mark.parametrize("kind", ["apart", "one for both", "expanded"])
@pytest.mark.parametrize("drifting", [False, True], ids=["pull", "pull and drift"])
def test_pull_and_drift_join_each_gradient_once_whatever_memory_it_lies_in(kind: str, drifting: bool) -> None:
    held, drifts = weights(drifting)
    begun = [value.clone() for value in held.values]
    for _ in range(3):
        grads = shared(kind)
        wanted = expected(held, begun, drifts, [grad.clone() for grad in grads])
        held.join(grads)
        for found, want in zip(grads, wanted, strict=True):
            torch.testing.assert_close(found, want)
        for value in held.values:
            value.add_(torch.randn_like(value))


def test_a_part_of_the_clients_goes_on_where_all_of_them_were() -> None:
    held, drifts = weights()
    begun = [value.clone() for value in held.values]
    for stop in (4, 2):
        part = held.some(0, stop)
        for _ in range(2):
            grads = [torch.randn(stop, 3, 2) for _ in NAMES]
            wanted = expected(part, [each[:stop] for each in begun], drifts, [grad.clone() for grad in grads])
            part.join(grads)
            for found, want in zip(grads, wanted, strict=True):
                torch.testing.assert_close(found, want)
            for value in part.values:
                value.add_(torch.randn_like(value))


def test_what_is_put_back_is_pulled_again_from_there() -> None:
    held, drifts = weights(drifting=False)
    begun = [value.clone() for value in held.values]
    for _ in range(2):
        held.begin()
        for _ in range(2):
            grads = [torch.zeros(4, 3, 2) for _ in NAMES]
            wanted = expected(held, begun, drifts, [grad.clone() for grad in grads])
            held.join(grads)
            for found, want in zip(grads, wanted, strict=True):
                torch.testing.assert_close(found, want)
            for value in held.values:
                value.add_(1.0)
