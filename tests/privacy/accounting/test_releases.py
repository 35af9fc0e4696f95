"""What releases come to: exact without draws, with draws against published values and a slow moments accountant."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest

from isthmus.core.errors import BadInput, MissingExtra
from isthmus.privacy.accounting.gaussian import epsilon_of
from isthmus.privacy.accounting.releases import Releases, noise_within, require_accounting, spent


def moments(noise: float, probability: float, times: int, delta: float) -> float:
    """Return epsilon by the moments accountant of Abadi et al. (2016), its integrals added up point by point."""
    x = np.linspace(-60.0 * noise, 60.0 * noise, 400_001)
    null = np.exp(-(x**2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
    mixed = (1 - probability) * null + probability * np.exp(-((x - 1) ** 2) / (2 * noise**2)) / (
        noise * math.sqrt(2 * math.pi)
    )
    found = math.inf
    for order in range(1, 33):
        with np.errstate(all="ignore"):
            there = np.nan_to_num(mixed * (mixed / null) ** order, nan=0.0, posinf=0.0)
            back = np.nan_to_num(null * (null / mixed) ** order, nan=0.0, posinf=0.0)
        moment = max(math.log(np.trapezoid(there, x)), math.log(np.trapezoid(back, x)))
        found = min(found, (times * moment - math.log(delta)) / order)
    return found


def test_the_moments_accountant_gives_the_published_epsilon_and_ours_is_no_larger() -> None:
    # Abadi et al. (2016), section 5.1 and figure 2: q = 0.01, sigma = 4, 10,000 steps, delta = 1e-5: epsilon 1.26.
    slow = moments(4.0, 0.01, 10_000, 1e-5)
    assert slow == pytest.approx(1.26, abs=0.01)
    assert 0.9 < spent([Releases(4.0, 10_000, 0.01)], 1e-5) < slow


@pytest.mark.parametrize(
    ("noise", "probability", "times", "epsilon"),
    # by dp-accounting 0.6's privacy loss distributions in steps of 1e-4, add or remove one, delta = 1e-5
    [
        (1.0, 0.1, 100, 7.0466),
        (4.0, 0.01, 10_000, 0.9470),
        (1.1, 256 / 60_000, 14_100, 2.3852),
        (2.0, 0.3, 100, 7.9248),
    ],
)
def test_draws_come_to_what_dp_accounting_says(noise: float, probability: float, times: int, epsilon: float) -> None:
    assert spent([Releases(noise, times, probability)], 1e-5) == pytest.approx(epsilon, abs=1e-3)


def test_epsilon_of_draws_lies_below_renyi_and_above_what_one_outcome_shows() -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=[1.5, 2, 3, 4, 6, 8, 12, 16, 32])
    accountant.compose(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.5)), 50)
    found = spent([Releases(1.5, 50, 0.2)], 1e-5)
    assert found < accountant.get_epsilon(1e-5)
    assert found > spent([Releases(1.5, 25, 0.2)], 1e-5)


def test_where_all_take_part_it_is_exact_and_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert spent([Releases(6.0, 100)], 1e-5) == epsilon_of(10.0 / 6.0, 1e-5)
    assert spent([Releases(2.0), Releases(3.0, 4)], 1e-5) == epsilon_of(math.sqrt(0.25 + 4 / 9), 1e-5)
    with pytest.raises(MissingExtra, match=r"pip install 'isthmus\[privacy\]'"):
        require_accounting("epsilon")


def test_draws_with_probability_one_agree_with_what_is_exact() -> None:
    mixed = [Releases(6.0, 100), Releases(1e6, 1, 0.5)]  # the second hardly tells anything, and makes it all a draw
    assert spent(mixed, 1e-5) == pytest.approx(epsilon_of(10.0 / 6.0, 1e-5), abs=2e-3)


def test_nothing_released_costs_nothing_and_nothing_hidden_everything() -> None:
    assert spent([], 1e-5) == 0.0
    assert spent([Releases(1.0, 0), Releases(1.0, 5, 0.0), Releases(math.inf, 5), Releases(0.0, 0)], 1e-5) == 0.0
    assert spent([Releases(0.0)], 1e-5) == math.inf


def test_the_order_of_releases_makes_no_difference() -> None:
    one, two, three = Releases(2.0, 3, 0.5), Releases(3.0, 2), Releases(2.0, 1, 0.5)
    assert spent([one, two, three], 1e-5) == spent([three, one, two], 1e-5) == spent([Releases(2.0, 4, 0.5), two], 1e-5)


@pytest.mark.parametrize("probability", [1.0, 0.1])
def test_noise_that_keeps_a_budget_keeps_it_and_hardly_more(probability: float) -> None:
    noise = noise_within(4.0, 1e-5, 100, probability)
    assert spent([Releases(noise, 100, probability)], 1e-5) <= 4.0
    assert spent([Releases(noise * 0.995, 100, probability)], 1e-5) > 4.0


def test_no_noise_is_enough_for_an_epsilon_of_nothing() -> None:
    with pytest.raises(BadInput, match="no noise keeps epsilon 0 with delta 1e-12"):
        noise_within(0.0, 1e-12, 10**6)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"noise": -1.0}, "noise is -1.0"),
        ({"noise": math.nan}, "noise is nan"),
        ({"noise": 1.0, "times": -1}, "times is -1"),
        ({"noise": 1.0, "probability": 1.5}, "probability is 1.5; it must be between 0 and 1"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        Releases(**fields)  # type: ignore[arg-type]
