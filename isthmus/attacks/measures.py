"""How good guesses are: of yes or no, and of names."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from torch import Tensor

Numbers = npt.NDArray[np.float64]


def _both(guess: Tensor, truth: Tensor) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    found, right = guess.double().numpy(), truth.bool().numpy()
    if found.shape != right.shape or found.ndim != 1:
        raise ValueError(f"a guess of shape {found.shape} for a truth of shape {right.shape}")
    if np.isnan(found).any():
        raise ValueError(f"{int(np.isnan(found).sum())} of {len(found)} guesses are NaN")
    return found, right


def auc(guess: Tensor, truth: Tensor) -> float:
    """Return how often a yes has a larger number than a no, where equal ones count half; NaN without a yes or a no."""
    found, right = _both(guess, truth)
    yes, no = int(right.sum()), int((~right).sum())
    if not yes or not no:
        return math.nan
    return float((ranked(found)[right].sum() - yes * (yes + 1) / 2) / (yes * no))


def ranked(values: Numbers) -> Numbers:
    """Return the place of each value from 1 on, in the mean over equal ones."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[place], dtype=np.float64)


def true_positives_at(guess: Tensor, truth: Tensor, false_positives: float) -> float:
    """Return the share of yes that is found where such a share of no is taken for one.

    Where several have the number of the threshold, a drawn part of them counts, so that who says the same of all finds
    as many as are taken wrongly.
    """
    found, right = _both(guess, truth)
    yes, no = found[right], np.sort(found[~right])[::-1]
    if not len(yes) or not len(no):
        return math.nan
    allowed = false_positives * len(no)
    if allowed >= len(no):
        return 1.0
    threshold = no[int(allowed)]
    left = (allowed - (no > threshold).sum()) / (no == threshold).sum()
    return float((yes > threshold).mean() + left * (yes == threshold).mean())


def names_found(named: Tensor, truth: Tensor) -> dict[str, float]:
    """Return F1, precision (NaN if nothing is named), recall, and the share of others that were named."""
    named, truth = named.bool(), truth.bool()
    right, wrong = int((named & truth).sum()), int((named & ~truth).sum())
    yes, no = int(truth.sum()), int((~truth).sum())
    return {
        "f1": 2 * right / (2 * right + wrong + yes - right) if wrong + yes else math.nan,
        "precision": right / (right + wrong) if right + wrong else math.nan,
        "recall": right / yes if yes else math.nan,
        "false positives": wrong / no if no else math.nan,
    }


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of those that are numbers; NaN if none is."""
    found = [value for value in values if not math.isnan(value)]
    return math.fsum(found) / len(found) if found else math.nan
