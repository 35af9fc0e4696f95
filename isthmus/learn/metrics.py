"""Metrics of classification from logits and labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy."""
    return float(F.cross_entropy(logits, labels))


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

    scores = logits.softmax(dim=1)
    present = torch.unique(labels).tolist()
    if len(present) < 2:
        return math.nan
    if logits.shape[1] == 2:
        return float(roc_auc_score(labels.numpy(), scores[:, 1].numpy()))
    areas = [roc_auc_score((labels == c).numpy(), scores[:, c].numpy()) for c in present]
    return float(sum(areas) / len(areas))


CLASSIFICATION: dict[str, Callable[[Tensor, Tensor], float]] = {
    "loss": loss,
    "accuracy": accuracy,
    "f1_micro": f1_micro,
    "f1_macro": f1_macro,
    "roc_auc": roc_auc,
}
