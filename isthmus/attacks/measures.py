"""How good guesses are: of yes or no, and of names."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata
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
    return float((rankdata(found)[right].sum() - yes * (yes + 1) / 2) / (yes * no))


def true_positives_at(guess: Tensor, truth: Tensor, false_positives: float) -> float:
    """Return the share of yes above the lowest threshold that at most such a share of no is above."""
    found, right = _both(guess, truth)
    yes, no = found[right], np.sort(found[~right])[::-1]
    if not len(yes) or not len(no):
        return math.nan
    allowed = math.floor(false_positives * len(no) + 1e-9)
    threshold = no[allowed] if allowed < len(no) else -math.inf
    return float((yes > threshold).mean())


def names_found(named: Tensor, truth: Tensor) -> dict[str, float]:
    """Return precision (NaN if nothing is named), recall, and the share of others that were named."""
    named, truth = named.bool(), truth.bool()
    right, wrong = int((named & truth).sum()), int((named & ~truth).sum())
    yes, no = int(truth.sum()), int((~truth).sum())
    return {
        "precision": right / (right + wrong) if right + wrong else math.nan,
        "recall": right / yes if yes else math.nan,
        "false positives": wrong / no if no else math.nan,
    }
