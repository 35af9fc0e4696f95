"""How far clients are from each other: divergences of their labels and of their graphs' structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]

SMOOTHING = 1.0  # labels added to each class where a divergence would be infinite without


@dataclass(frozen=True, eq=False)
class Divergences:
    """A measure between each two clients and from each client to the whole; NaN where one of them has nothing to count.

    Fields:
        between:  (clients, clients), from the row's client to the column's
        to_whole: (clients,)
    """

    between: Shares
    to_whole: Shares

    @property
    def mean(self) -> float | None:
        """Mean over pairs of different clients, or None without a pair."""
        return _over(np.mean, self._pairs)

    @property
    def max(self) -> float | None:
        """Largest over pairs of different clients, or None without a pair."""
        return _over(np.max, self._pairs)

    @property
    def mean_to_whole(self) -> float | None:
        """Mean over clients of the divergence to the whole."""
        return _over(np.mean, self.to_whole)

    @property
    def max_to_whole(self) -> float | None:
        """Largest divergence of a client to the whole."""
        return _over(np.max, self.to_whole)

    @property
    def _pairs(self) -> Shares:
        pairs: Shares = self.between[~np.eye(len(self.between), dtype=bool)]
        return pairs


def _over(fold: Callable[[Shares], np.float64], values: Shares) -> float | None:
    values = values[~np.isnan(values)]
    return float(fold(values)) if len(values) else None


def label_kl(counts: npt.ArrayLike, whole: npt.ArrayLike, smoothing: float = SMOOTHING) -> Divergences:
    """Return the Kullback-Leibler divergences of label distributions, in bits.

        KL(p || q) = sum over classes of p log2(p / q)

    A class that one client lacks and another has would make it infinite, so every class of the whole dataset is counted
    `smoothing` times more than it is there (Laplace): p = (count + s) / (labels + s * classes), for clients and the
    whole alike. Clients without a label have none.
    """
    return _apart(*_filled(counts, whole, smoothing), kl_divergence)


def label_js(counts: npt.ArrayLike, whole: npt.ArrayLike) -> Divergences:
    """Return the Jensen-Shannon divergences of label distributions, in bits and so from 0 to 1; without smoothing."""
    return _apart(*_filled(counts, whole, 0.0), js_divergence)


def walk_distance(shares: npt.ArrayLike, whole: npt.ArrayLike) -> Divergences:
    """Return the Jensen-Shannon distances of walk embeddings: roots of the divergences in bits, from 0 to 1."""
    return _apart(*_filled(shares, whole, 0.0), lambda p, rows: np.sqrt(js_divergence(p, rows)))


def kl_divergence(p: Shares, q: Shares) -> Shares:
    """Return KL(p || q) in bits along the last axis; infinite where `q` lacks what `p` has."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log2(p / q), 0.0)
    total: Shares = np.maximum(terms.sum(axis=-1), 0.0)
    return total


def js_divergence(p: Shares, q: Shares) -> Shares:
    """Return the Jensen-Shannon divergence in bits along the last axis.

        JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2,  m = (p + q) / 2

    It is the same both ways, 0 for equal distributions and 1 for distributions that have nothing in common.
    """
    middle = (p + q) / 2
    return np.clip((kl_divergence(p, middle) + kl_divergence(q, middle)) / 2, 0.0, 1.0)


def _filled(counts: npt.ArrayLike, whole: npt.ArrayLike, smoothing: float) -> tuple[Shares, Shares]:
    """Return counts as shares of 1, (clients, classes) and (classes,), of the classes that anyone has; NaN for none."""
    total = np.asarray(whole, dtype=np.float64)
    each = np.asarray(counts, dtype=np.float64)
    rows = np.vstack([total, each.reshape(len(each), len(total))])
    empty = rows.sum(axis=1) == 0
    rows = rows[:, (rows > 0).any(axis=0) | empty.all()] + smoothing
    rows[empty] = np.nan
    shares = rows / rows.sum(axis=1, keepdims=True)
    return shares[1:], shares[0]


def _apart(rows: Shares, whole: Shares, measure: Callable[[Shares, Shares], Shares]) -> Divergences:
    """Measure each row against all rows and against the whole; NaN where a row is NaN."""
    blank = np.isnan(rows).any(axis=1)
    between = np.array([measure(row, rows) for row in rows]).reshape(len(rows), len(rows))
    between[blank] = np.nan
    between[:, blank] = np.nan
    to_whole = np.full(len(rows), np.nan) if np.isnan(whole).any() else measure(rows, whole)
    return Divergences(between, np.where(blank, np.nan, to_whole))
