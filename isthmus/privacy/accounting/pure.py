"""Releases that keep an epsilon without any delta, as Laplace noise and randomised response do, and what many keep.

Warner (1965); Dwork et al. (2006); Kairouz, Oh and Viswanath (2015), "The composition theorem".
"""

from __future__ import annotations

import math


def laplace_epsilon(change: float, scale: float) -> float:
    """Return epsilon of Laplace(0, scale) noise on numbers that one person changes by so much in all (L1)."""
    if not change >= 0.0 or not scale >= 0.0:
        raise ValueError(f"change is {change!r} and scale {scale!r}; neither can be negative")
    if change == 0.0:
        return 0.0
    return math.inf if scale == 0.0 else change / scale


def flip_probability(epsilon: float) -> float:
    """Return how often a bit must be told wrongly to keep epsilon: 1 / (1 + e^epsilon)."""
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon is {epsilon!r}; it must be at least 0")
    return math.exp(-epsilon) / (1.0 + math.exp(-epsilon))


def composed(epsilon: float, times: int, delta: float = 0.0) -> float:
    """Return the least epsilon that some releases keep together, each of `epsilon`, that may depend on those before.

    Without a delta they add up. With one, (k - 2 i) epsilon is kept with

        delta_i = sum over l < i of C(k, l) (e^((k - l) epsilon) - e^((k - 2 i + l) epsilon)) / (1 + e^epsilon)^k

    and no less can be promised of k releases of which only epsilon is known (theorem 3.3).
    """
    if times < 0 or not epsilon >= 0.0 or not 0.0 <= delta < 1.0:
        raise ValueError(f"epsilon is {epsilon!r}, times {times!r}, delta {delta!r}; delta is from 0 to below 1")
    if math.isinf(epsilon):
        return math.inf if times else 0.0
    best, beyond = 0, times // 2 + 1  # delta_i grows with i
    while delta and beyond - best > 1:
        middle = (best + beyond) // 2
        best, beyond = (middle, beyond) if _delta(epsilon, times, middle) <= delta else (best, middle)
    return (times - 2 * best) * epsilon


def _delta(epsilon: float, times: int, i: int) -> float:
    total = times * (epsilon + math.log1p(math.exp(-epsilon)))  # log of (1 + e^epsilon)^k
    terms = []
    for chosen in range(i):
        ways = math.lgamma(times + 1) - math.lgamma(chosen + 1) - math.lgamma(times - chosen + 1)
        large = ways + (times - chosen) * epsilon - total
        terms.append(math.exp(large) * -math.expm1((2 * chosen - 2 * i) * epsilon))
    return math.fsum(terms)
