"""Pure epsilon: Laplace, randomised response, and many of them, against all outcomes one by one."""

from __future__ import annotations

import itertools
import math

import pytest

from isthmus.privacy.accounting.pure import composed, flip_probability, laplace_epsilon


def every_outcome(epsilon: float, times: int, total: float) -> float:
    """Return delta of telling a bit some times by randomised response, at an epsilon in all, outcome by outcome."""
    wrong = 1 / (1 + math.exp(epsilon))
    delta = 0.0
    for outcome in itertools.product((0, 1), repeat=times):
        ones = sum(outcome)
        told, other = (wrong ** (times - k) * (1 - wrong) ** k for k in (ones, times - ones))
        delta += max(0.0, told - math.exp(total) * other)
    return delta


@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 8), (0.5, 5), (1.0, 7), (2.0, 4)])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
def test_many_are_as_private_as_all_their_outcomes_say(epsilon: float, times: int, delta: float) -> None:
    found = composed(epsilon, times, delta)
    assert every_outcome(epsilon, times, found) <= delta * (1 + 1e-9)
    if found > epsilon:
        assert every_outcome(epsilon, times, found - 2 * epsilon) > delta


def test_without_a_delta_they_add_up() -> None:
    assert composed(0.3, 10) == pytest.approx(3.0)
    assert composed(0.3, 0) == 0.0
    assert composed(math.inf, 1) == math.inf
    assert composed(0.01, 10_000, 1e-5) < 10.0  # which sums would make 100


def test_a_flipped_bit_keeps_its_epsilon() -> None:
    for epsilon in (0.0, 0.5, 3.0, 40.0):
        wrong = flip_probability(epsilon)
        assert math.log((1 - wrong) / wrong) == pytest.approx(epsilon, rel=1e-6)
    assert flip_probability(2000.0) == 0.0


def test_laplace_noise_keeps_change_over_scale() -> None:
    assert laplace_epsilon(2.0, 0.5) == 4.0
    assert laplace_epsilon(2.0, 0.0) == math.inf
    assert laplace_epsilon(0.0, 0.0) == 0.0


@pytest.mark.parametrize(
    "call", [lambda: laplace_epsilon(-1, 1), lambda: flip_probability(-1), lambda: composed(1, -1)]
)
def test_negative_numbers_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match="-1"):
        call()  # type: ignore[operator]
