"""The exact Gaussian mechanism: against integrals, against dp-accounting, and against published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.privacy.accounting.gaussian import combined_mu, delta_of, epsilon_of, mu_of, noise_for


def integrated(mu: float, epsilon: float) -> float:
    """Return the integral of max(0, N(mu, 1) - e^epsilon N(0, 1)), which is delta by definition."""
    x = np.linspace(-40.0, 40.0 + mu, 2_000_001)
    density = np.exp(-((x - mu) ** 2) / 2) - np.exp(epsilon - x**2 / 2)
    return float(np.trapezoid(np.maximum(density, 0.0), x) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.0), (0.5, 0.3), (1.0, 1.0), (1.0, 4.0), (3.0, 2.0), (6.0, 20.0)])
def test_delta_is_the_integral_that_defines_it(mu: float, epsilon: float) -> None:
    assert delta_of(mu, epsilon) == pytest.approx(integrated(mu, epsilon), rel=1e-6, abs=1e-13)


def test_noise_for_one_release_is_that_of_balle_and_wang() -> None:
    # Their published implementation gives 3.730632 for epsilon 1, delta 1e-5, and a change of 1.
    assert noise_for(1.0, 1e-5) == pytest.approx(3.730632, abs=1e-6)
    # The classical calibration, sqrt(2 ln(1.25 / delta)) / epsilon, is what it improves on.
    assert noise_for(1.0, 1e-5) < math.sqrt(2 * math.log(1.25e5))


@pytest.mark.parametrize(("epsilon", "noise"), [(1, 37.3), (4, 10.8), (8, 6.0), (16, 3.4)])
def test_noise_over_a_hundred_rounds_in_which_everybody_takes_part(epsilon: float, noise: float) -> None:
    assert noise_for(epsilon, 1e-5, releases=100) == pytest.approx(noise, abs=0.05)


@pytest.mark.parametrize(("mu", "delta"), [(0.05, 1e-5), (0.5, 1e-6), (1.0, 1e-5), (2.5, 1e-3), (10.0, 1e-5)])
def test_epsilon_is_that_of_dp_accounting(mu: float, delta: float) -> None:
    dp = pytest.importorskip("dp_accounting")
    assert epsilon_of(mu, delta) == pytest.approx(dp.get_epsilon_gaussian(1.0 / mu, delta), abs=1e-6)


@given(st.floats(0.01, 30.0), st.floats(1e-12, 0.5))
def test_there_and_back(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert delta_of(mu, epsilon) <= delta
    if epsilon > 0.0:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        assert delta_of(mu, epsilon * (1 - 1e-6)) > delta


def test_far_tails_are_neither_zero_nor_negative() -> None:
    assert 0.0 < delta_of(1.0, 30.0) < 1e-150
    assert delta_of(0.0, 1.0) == 0.0
    assert delta_of(math.inf, 1.0) == 1.0
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert noise_for(math.inf, 1e-5) == 0.0


def test_releases_add_up_as_one_with_less_noise() -> None:
    assert combined_mu([0.3] * 100) == pytest.approx(3.0)
    assert combined_mu([]) == 0.0
    assert noise_for(2.0, 1e-5, 9) == pytest.approx(3 * noise_for(2.0, 1e-5))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: delta_of(-1.0, 1.0), "mu is -1.0; it must be at least 0"),
        (lambda: delta_of(1.0, math.nan), "epsilon is nan"),
        (lambda: epsilon_of(1.0, 0.0), "delta is 0.0; it must be between 0 and 1"),
        (lambda: mu_of(1.0, 1.0), "delta is 1.0"),
        (lambda: noise_for(1.0, 1e-5, 0), "releases is 0"),
    ],
)
def test_what_is_no_number_of_the_kind_is_refused(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        call()  # type: ignore[operator]
