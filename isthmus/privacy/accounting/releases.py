"""What several releases with Gaussian noise come to, of everybody's data or of a part that was drawn at random.

Who is in a draw with probability q, by itself (Poisson sampling), is hidden by not knowing whether it was in: McMahan
et al. (2018), Abadi et al. (2016). That is computed by dp-accounting's privacy loss distributions (Doroshenko et al.,
2022), rounded so that epsilon is never too small. Where everybody takes part it is exact, and needs no library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from isthmus.core.errors import BadInput, MissingExtra, refuse
from isthmus.privacy.accounting.gaussian import combined_mu, epsilon_of

# Steps of the privacy loss: epsilon is rounded up by less than so much a release, by far less where steps are few.
COARSE, FINE = 1e-3, 1e-4
MANY_STEPS = 500


@dataclass(frozen=True)
class Releases:
    """Gaussian noise on sums, some times.

    Fields:
        noise:       its standard deviation, for a sum that one person changes by at most 1
        times:       how often
        probability: with which each is in such a sum, independently of all others
    """

    noise: float
    times: int = 1
    probability: float = 1.0

    def __post_init__(self) -> None:
        refuse(not self.noise >= 0.0, self, "noise", "it must be at least 0")
        refuse(self.times < 0, self, "times", "it must be at least 0")
        refuse(not 0.0 <= self.probability <= 1.0, self, "probability", "it must be between 0 and 1")

    @property
    def tells(self) -> bool:
        """Whether anything is released of anybody."""
        return self.times > 0 and self.probability > 0.0 and self.noise < math.inf


def spent(releases: Iterable[Releases], delta: float) -> float:
    """Return epsilon of all of them with a delta, each of which may depend on those before; of none it is 0."""
    telling = tuple(each for each in releases if each.tells)
    if any(each.noise == 0.0 for each in telling):
        return math.inf
    if all(each.probability == 1.0 for each in telling):
        return epsilon_of(combined_mu(math.sqrt(each.times) / each.noise for each in telling), delta)
    return _of_draws(_merged(telling), delta)


def noise_within(epsilon: float, delta: float, times: int, probability: float = 1.0) -> float:
    """Return the least noise, within one part in a thousand, with which so many releases keep epsilon."""
    low, high = 0.0, 1.0
    while spent([Releases(high, times, probability)], delta) > epsilon:
        low, high = high, 2.0 * high
        if high > 1e9:
            raise BadInput(f"no noise keeps epsilon {epsilon:g} with delta {delta:g} over {times} releases")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if spent([Releases(middle, times, probability)], delta) <= epsilon else (middle, high)
    return high


def require_accounting(purpose: str) -> None:
    """Raise MissingExtra without dp-accounting; it is not imported, which takes seconds."""
    from importlib.util import find_spec

    if find_spec("dp_accounting") is None:
        raise MissingExtra("dp-accounting", "privacy", purpose)


def _merged(releases: Sequence[Releases]) -> tuple[tuple[float, float, int], ...]:
    """Return (noise, probability, times) of releases, equal ones together, in an order of their own."""
    counts: dict[tuple[float, float], int] = {}
    for each in releases:
        counts[each.noise, each.probability] = counts.get((each.noise, each.probability), 0) + each.times
    return tuple(sorted((noise, probability, times) for (noise, probability), times in counts.items()))


@lru_cache(maxsize=4096)
def _of_draws(counts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    require_accounting("epsilon of clients or examples that are drawn at random")
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    interval = COARSE if sum(times for *_, times in counts) <= MANY_STEPS else FINE
    accountant: Any = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    for noise, probability, times in counts:
        gaussian: Any = dp_accounting.GaussianDpEvent(noise)
        event = gaussian if probability == 1.0 else dp_accounting.PoissonSampledDpEvent(probability, gaussian)
        accountant.compose(event, times)
    return float(accountant.get_epsilon(delta))
