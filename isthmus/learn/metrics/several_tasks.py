"""Losses and metrics of several tasks at once, where labels may be missing (NaN).

Scores and labels are (examples, tasks). A loss is the mean over all known labels. Every other metric is computed for
each task over the examples whose label is known, and the mean is taken over the tasks for which it is defined, as
MoleculeNet (Wu et al., 2018) and the Open Graph Benchmark (Hu et al., 2020) do; NaN when there is none. Where the score
of a known label is not finite, for whichever task, every metric is undefined (`metrics.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def binary_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of -y log p - (1 - y) log(1 - p) over the known labels, with p = sigmoid(score)."""
    known = ~labels.isnan()
    return F.binary_cross_entropy_with_logits(scores[known], labels[known].to(scores.dtype))


def squared_error(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of (score - y)^2 over the known labels."""
    known = ~labels.isnan()
    return F.mse_loss(scores[known], labels[known].to(scores.dtype))


def each_known(scores: Tensor, labels: Tensor, loss: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Return each example's sum of a loss over its known labels, (examples,), and their number, (examples,)."""
    known = ~labels.isnan()
    each = loss(scores, labels.to(scores.dtype).masked_fill(~known, 0.0), reduction="none")
    return each.masked_fill(~known, 0.0).sum(dim=1), known.sum(dim=1)


def mean_over_tasks(scores: Tensor, labels: Tensor, measure: Callable[[Tensor, Tensor], float]) -> float:
    """Return the mean of a task's metric over the tasks where it is defined; it sees known labels only."""
    found = []
    for score, label in zip(scores.double().unbind(dim=1), labels.double().unbind(dim=1), strict=True):
        known = ~label.isnan()
        if bool(known.any()):
            found.append(measure(score[known], label[known]))
    defined = [value for value in found if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


# ---- one task: scores and labels are (examples,), all known, at least one


def accuracy(score: Tensor, label: Tensor) -> float:
    """Share of examples whose score is on their label's side of zero; yes needs more than zero."""
    return float(((score > 0) == (label > 0.5)).double().mean())


def roc_auc(score: Tensor, label: Tensor) -> float:
    """Area under the ROC curve; undefined unless both answers occur."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(label.numpy(), score.numpy())) if _both(label) else math.nan


def average_precision(score: Tensor, label: Tensor) -> float:
    """Mean over the recalls of the precision there; undefined unless both answers occur."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(label.numpy(), score.numpy())) if _both(label) else math.nan


def f1_of_yes(score: Tensor, label: Tensor) -> float:
    """F1 of the answer yes; undefined where no example is yes, nor called so."""
    said, true = score > 0, label > 0.5
    total = int(said.sum() + true.sum())
    return 2.0 * int((said & true).sum()) / total if total else math.nan


def _both(label: Tensor) -> bool:
    return bool((label > 0.5).any()) and bool((label < 0.5).any())


def _rmse(score: Tensor, label: Tensor) -> float:
    """Root of the mean squared error."""
    return float((score - label).square().mean().sqrt())


def _mae(score: Tensor, label: Tensor) -> float:
    """Mean absolute error."""
    return float((score - label).abs().mean())


Metric = Callable[[Tensor, Tensor], float]


def _over_tasks(measure: Callable[[Tensor, Tensor], float]) -> Metric:
    return _of_known(lambda scores, labels: mean_over_tasks(scores, labels, measure))


def _as_number(loss: Callable[[Tensor, Tensor], Tensor]) -> Metric:
    return _of_known(lambda scores, labels: float(loss(scores.double(), labels)))


def _of_known(measure: Metric) -> Metric:
    """Return a metric that is undefined without known labels, and where the score of a known one is not finite."""

    def measured(scores: Tensor, labels: Tensor) -> float:
        known = ~labels.isnan()
        if not bool(known.any()) or not bool(scores[known].isfinite().all()):
            return math.nan
        return measure(scores, labels)

    return measured


BINARY: dict[str, Metric] = {
    "loss": _as_number(binary_cross_entropy),
    "accuracy": _over_tasks(accuracy),
    "roc_auc": _over_tasks(roc_auc),
    "ap": _over_tasks(average_precision),
    "f1": _over_tasks(f1_of_yes),
}

REGRESSION: dict[str, Metric] = {
    "loss": _as_number(squared_error),
    "rmse": _over_tasks(_rmse),
    "mae": _over_tasks(_mae),
}
