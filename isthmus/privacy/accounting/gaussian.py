"""The exact privacy of Gaussian noise. Balle and Wang (2018), "Improving the Gaussian mechanism"; Dong et al. (2022).

N(0, s^2) on something that one person changes by at most D (in L2) is as private as telling N(0, 1) from N(mu, 1) with
mu = D / s. Releases that may depend on each other add up as mu = sqrt(sum of mu_i^2), with nothing lost:

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable


def combined_mu(mus: Iterable[float]) -> float:
    """Return mu of several Gaussian releases, each of which may depend on those before."""
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def delta_of(mu: float, epsilon: float) -> float:
    """Return the least delta with which Gaussian noise of this mu keeps an epsilon of at least 0."""
    from scipy.special import log_ndtr

    _require("mu", mu, 0.0)
    _require("epsilon", epsilon, 0.0)
    if mu == 0.0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    upper, lower = float(log_ndtr(mu / 2 - epsilon / mu)), float(log_ndtr(-mu / 2 - epsilon / mu))
    # e^upper - e^(epsilon + lower), of which the second is the smaller; both may be far below what a float holds.
    return math.exp(upper) * -math.expm1(min(0.0, epsilon + lower - upper))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon that Gaussian noise of this mu keeps with a delta."""
    _require_delta(delta)
    _require("mu", mu, 0.0)
    if mu == math.inf:
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(mu, epsilon) <= delta)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu that keeps epsilon with a delta; noise of D / mu on what changes by D does."""
    _require_delta(delta)
    _require("epsilon", epsilon, 0.0)
    if epsilon == math.inf:
        return math.inf
    return 1.0 / _least(lambda noise: delta_of(1.0 / noise, epsilon) <= delta)


def noise_for(epsilon: float, delta: float, releases: int = 1) -> float:
    """Return the least standard deviation, for something that changes by 1, that keeps epsilon over some releases."""
    if releases < 1:
        raise ValueError(f"releases is {releases!r}; it must be at least 1")
    mu = mu_of(epsilon, delta)
    return 0.0 if mu == math.inf else math.sqrt(releases) / mu


def _least(holds: Callable[[float], bool]) -> float:
    """Return the least positive number for which something holds that then holds for all larger ones; rounded up."""
    high = 1.0
    while not holds(high):
        high *= 2.0
    low = high / 2.0
    while low > 1e-12 and holds(low):
        high, low = low, low / 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _require(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ValueError(f"{name} is {value!r}; it must be at least {least:g}")


def _require_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise ValueError(
            f"delta is {delta!r}; it must be between 0 and 1, and well below one over the number of people"
        )
