"""Metrics of classification from logits and labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.learn.losses import cross_entropy


def loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy."""
    return float(cross_entropy(logits, labels))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of examples whose largest logit is their label's."""
    return float((logits.argmax(dim=1) == labels).double().mean())


def f1_micro(logits: Tensor, labels: Tensor) -> float:
    """F1 over all decisions pooled; with one label per example it equals accuracy."""
    return accuracy(logits, labels)


def f1_macro(logits: Tensor, labels: Tensor) -> float:
    """Mean of the per-class F1 over the classes that occur among labels or predictions, as scikit-learn does."""
    num_classes = logits.shape[1]
    predicted = logits.argmax(dim=1)
    hits = torch.bincount(labels[predicted == labels], minlength=num_classes).double()
    occurring = torch.bincount(labels, minlength=num_classes) + torch.bincount(predicted, minlength=num_classes)
    present = occurring > 0
    return float((2 * hits[present] / occurring[present]).mean())


def roc_auc(logits: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve; for more than two classes the mean of one against the rest; NaN if undefined."""
    from sklearn.metrics import roc_auc_score

    present = torch.unique(labels).tolist()
    if len(present) < 2:
        return math.nan
    ranked = [1] if logits.shape[1] == 2 else present
    areas = [roc_auc_score((labels == c).numpy(), _log_odds(logits, c).numpy()) for c in ranked]
    return float(sum(areas) / len(areas))


def average_precision(logits: Tensor, labels: Tensor) -> float:
    """Area under precision by recall, as steps; for more than two classes the mean of one against the rest."""
    from sklearn.metrics import average_precision_score

    present = torch.unique(labels).tolist()
    if len(present) < 2:
        return math.nan
    ranked = [1] if logits.shape[1] == 2 else present
    areas = [average_precision_score((labels == c).numpy(), _log_odds(logits, c).numpy()) for c in ranked]
    return float(sum(areas) / len(areas))


def _log_odds(logits: Tensor, c: int) -> Tensor:
    """Return log(p / (1 - p)) of a class, (examples,): ranked as p is, but p itself would be 1 for many at once."""
    others = torch.cat([logits[:, :c], logits[:, c + 1 :]], dim=1).double()
    # Rounded far below the precision of the logits, so that equal odds are ties whatever the order of their sum.
    return (logits[:, c].double() - others.logsumexp(dim=1)).round(decimals=9)


# Metrics that are means over examples, as what each example contributes, (examples,).
ADDITIVE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "loss": lambda logits, labels: cross_entropy(logits, labels, reduction="none"),
    "accuracy": lambda logits, labels: logits.argmax(dim=1) == labels,
    "f1_micro": lambda logits, labels: logits.argmax(dim=1) == labels,
}

CLASSIFICATION: dict[str, Callable[[Tensor, Tensor], float]] = {
    "loss": loss,
    "accuracy": accuracy,
    "f1_micro": f1_micro,
    "f1_macro": f1_macro,
    "roc_auc": roc_auc,
    "ap": average_precision,
}
