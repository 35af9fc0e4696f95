"""Metrics of classification from logits and labels, and the rule for scores that are not finite.

A model that gives a score that is not finite for one of the examples it is measured on, as one that diverged does, has
no metrics there: all are undefined, whatever the task. An undefined metric is NaN here, and is left out of an
evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.models.products.chain import Step, stepped

# The label of a row whose loss does not count.
IGNORED = -100


def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of (rows, classes) logits; rows labelled `IGNORED` count nothing.

    The rows are given to torch as positions of one example: its softmax over a few neighbouring numbers takes several
    times as long as over numbers that lie a row apart (480 against 170 us for 2,710 rows of 7 with their gradient).
    """
    found = F.cross_entropy(logits.t().unsqueeze(0), labels.unsqueeze(0), ignore_index=IGNORED, reduction=reduction)
    return found.squeeze(0) if reduction == "none" else found


@dataclass(frozen=True)
class Examples:
    """The labelled rows of many clients whose rows lie one below the other.

    Fields:
        rows:        which rows they are, all different, (examples,)
        labels:      their labels, (examples,)
        weights:     what each counts in its client's loss, (examples,)
        owner:       the number of its client, (examples,)
        num_clients: how many clients there are
    """

    rows: Tensor
    labels: Tensor
    weights: Tensor
    owner: Tensor
    num_clients: int
    _wanted: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _places: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(rows: Tensor, labels: Tensor, counts: Sequence[int]) -> Examples:
        """Return the examples of clients, one client's after the other's, that count for a mean in each."""
        each = torch.tensor(counts, device=rows.device)
        owner = torch.arange(len(each), device=rows.device).repeat_interleave(each)
        return Examples(rows, labels, (1.0 / each).index_select(0, owner), owner, len(each))

    def wanted(self, num_classes: int) -> Tensor:
        """Return the weight of each example at its label, and zeros elsewhere, (classes, examples)."""
        if num_classes not in self._wanted:
            zeros = self.weights.new_zeros(num_classes, len(self.labels))
            self._wanted[num_classes] = zeros.scatter_(0, self.labels.unsqueeze(0), self.weights.unsqueeze(0))
        return self._wanted[num_classes]

    def places(self, num_classes: int, stride: int) -> Tensor:
        """Return where the logits of the examples are in memory in which rows are so far apart, class by class."""
        if (num_classes, stride) not in self._places:
            classes = torch.arange(num_classes, device=self.rows.device).unsqueeze(1)
            self._places[num_classes, stride] = (self.rows * stride + classes).flatten()  # (classes * examples,)
        return self._places[num_classes, stride]


def losses_of_clients(logits: Tensor, examples: Examples) -> Tensor:
    """Return each client's weighted sum of its examples' cross-entropy, (clients,)."""
    return stepped(_ClientsLoss, logits, examples)


class _ClientsLoss(torch.autograd.Function):
    """One step for autograd, whose gradient is made at once: a step of small clients is mostly the calls it makes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, examples: Examples) -> Tensor:
        (rows, classes), stride = logits.shape, logits.stride(0)
        if logits.stride(1) != 1:
            logits, stride = logits.contiguous(), classes
        memory = logits.as_strided(((rows - 1) * stride + classes if rows else 0,), (1,))
        # Classes become rows, as above.
        logs = memory.index_select(0, examples.places(classes, stride)).view(classes, -1).log_softmax(dim=0)
        wanted = examples.wanted(classes)
        each = (logs * wanted).sum(dim=0)
        ctx.examples, ctx.num_rows = examples, rows
        ctx.save_for_backward(logs.exp_().mul_(examples.weights).sub_(wanted))
        return each.new_zeros(examples.num_clients).index_add_(0, examples.owner, each, alpha=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # what the gradient is made of was not kept
            raise RuntimeError("losses_of_clients has no gradient of its gradient (create_graph=True)")
        (slope,), examples = ctx.saved_tensors, ctx.examples
        if not isinstance(ctx, Step):  # of a chain, every loss counts once
            slope = slope * grads[0].index_select(0, examples.owner)  # (classes, examples)
        by_row = slope.new_zeros(ctx.num_rows * len(slope))
        by_row.scatter_(0, examples.places(len(slope), len(slope)), slope.flatten())
        return by_row.view(ctx.num_rows, len(slope)), None


# Every metric of every task, by the one name that it has in all of them; each task takes those that make sense for it.
DEFINITIONS: dict[str, str] = {
    "loss": "what training makes small, on the examples of a split, without what regularises it",
    "accuracy": "share of examples whose answer is right",
    "f1_micro": "F1 over the decisions of all classes pooled; with one class for each example it is the accuracy",
    "f1_macro": "mean of the classes' F1, over the classes that occur among labels or answers",
    "f1": "F1 of the answer yes",
    "roc_auc": "area under the ROC curve; of several classes the mean of one against the rest",
    "ap": "average precision, the area under precision by recall as steps; of several classes as roc_auc",
    "auc": "roc_auc, by the name that link prediction had for it before",
    "hits@1": "share of links whose truth is ranked first",
    "hits@5": "share of links whose truth is among the first five",
    "hits@10": "share of links whose truth is among the first ten",
    "mrr": "mean of one over the rank of the truth",
    "rmse": "root of the mean squared error",
    "mae": "mean absolute error",
}


def of_finite(measure: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    """Return a metric of scores and labels that is undefined, NaN, where a score is not finite."""
    return lambda scores, labels: measure(scores, labels) if bool(scores.isfinite().all()) else math.nan


def of_finite_rows(scores: Tensor, each: Tensor) -> Tensor:
    """Return numbers of examples, (examples,), with NaN for those with a score that is not finite."""
    return each.masked_fill(~scores.isfinite().all(dim=1), math.nan)


def defined(values: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are defined, which includes that they are finite."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy."""
    return float(cross_entropy(logits, labels))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of examples whose largest logit is their label's."""
    return float((logits.argmax(dim=1) == labels).double().mean())


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

    return _one_against_the_rest(roc_auc_score, logits, labels)


def average_precision(logits: Tensor, labels: Tensor) -> float:
    """Area under precision by recall, as steps; for more than two classes the mean of one against the rest."""
    from sklearn.metrics import average_precision_score

    return _one_against_the_rest(average_precision_score, logits, labels)


def _one_against_the_rest(area: Callable[..., float], logits: Tensor, labels: Tensor) -> float:
    present = torch.unique(labels).tolist()
    if len(present) < 2:
        return math.nan
    ranked = [1] if logits.shape[1] == 2 else present
    areas = [area((labels == c).numpy(), _log_odds(logits, c).numpy()) for c in ranked]
    return float(sum(areas) / len(areas))


def _log_odds(logits: Tensor, c: int) -> Tensor:
    """Return log(p / (1 - p)) of a class, (examples,): ranked as p is, but p itself would be 1 for many at once."""
    others = torch.cat([logits[:, :c], logits[:, c + 1 :]], dim=1).double()
    # Rounded far below the precision of the logits, so that equal odds are ties whatever the order of their sum.
    return (logits[:, c].double() - others.logsumexp(dim=1)).round(decimals=9)


def _each_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return of_finite_rows(logits, cross_entropy(logits, labels, reduction="none").double())


def _each_right(logits: Tensor, labels: Tensor) -> Tensor:
    return of_finite_rows(logits, (logits.argmax(dim=1) == labels).double())


# Metrics that are means over examples, as what each example contributes, (examples,), float64.
ADDITIVE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "loss": _each_loss,
    "accuracy": _each_right,
    "f1_micro": _each_right,
}

CLASSIFICATION: dict[str, Callable[[Tensor, Tensor], float]] = {
    "loss": of_finite(loss),
    "accuracy": of_finite(accuracy),
    "f1_micro": of_finite(accuracy),  # of one label for each example they are the same
    "f1_macro": of_finite(f1_macro),
    "roc_auc": of_finite(roc_auc),
    "ap": of_finite(average_precision),
}


def measured_each(
    names: Sequence[str], scores: Tensor, labels: Tensor, counts: Sequence[int]
) -> list[dict[str, float]]:
    """Return the metrics of each client, whose examples lie one after the other; those without any have none."""
    columns: dict[str, list[float]] = {}
    for name in names:
        if name in ADDITIVE:
            each = ADDITIVE[name](scores, labels)
            owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
            sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, owner, each)
            columns[name] = (sums / torch.tensor(counts)).tolist()
        else:
            parts = zip(torch.split(scores, list(counts)), torch.split(labels, list(counts)), strict=True)
            columns[name] = [CLASSIFICATION[name](x, y) if len(y) else math.nan for x, y in parts]
    return [defined({name: column[k] for name, column in columns.items()}) for k in range(len(counts))]
