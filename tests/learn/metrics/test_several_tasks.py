from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from isthmus.learn.metrics.several_tasks import BINARY, REGRESSION, Metric, binary_cross_entropy, squared_error

NAN = float("nan")


def toys(seed: int = 0, examples: int = 40, tasks: int = 4, missing: float = 0.3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(examples, tasks, generator=draw)
    labels = (torch.randn(examples, tasks, generator=draw) + scores > 0).float()
    labels[torch.rand(examples, tasks, generator=draw) < missing] = NAN
    return scores, labels


REFERENCES = {
    "accuracy": lambda y, s: sk.accuracy_score(y, s > 0),
    "roc_auc": sk.roc_auc_score,
    "ap": sk.average_precision_score,
    "f1": lambda y, s: sk.f1_score(y, s > 0),
    "rmse": lambda y, s: sk.root_mean_squared_error(y, s),
    "mae": sk.mean_absolute_error,
}


def by_loop(name: str, scores: Tensor, labels: Tensor) -> float:
    """scikit-learn's, task by task over the labels that are known."""
    found = []
    for task in range(labels.shape[1]):
        known = ~np.isnan(labels[:, task].numpy())
        found.append(REFERENCES[name](labels[known, task].numpy(), scores[known, task].numpy()))
    return float(np.mean(found))


@pytest.mark.parametrize("name", ["accuracy", "roc_auc", "ap", "f1"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_answers_of_yes_or_no_are_measured_as_scikit_learn_does(name: str, missing: float) -> None:
    scores, labels = toys(missing=missing)
    assert BINARY[name](scores, labels) == pytest.approx(by_loop(name, scores, labels), abs=1e-9)


@pytest.mark.parametrize("name", ["rmse", "mae"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_numbers_are_measured_as_scikit_learn_does(name: str, missing: float) -> None:
    scores, _ = toys(0, missing=missing)
    _, labels = toys(1, missing=missing)
    labels = labels * 3.7
    assert REGRESSION[name](scores, labels) == pytest.approx(by_loop(name, scores, labels), abs=1e-6)


def test_losses_are_means_over_the_known_labels_not_over_tasks() -> None:
    scores, labels = toys(missing=0.6)
    cross = square = 0.0
    count = 0
    for score, label in zip(scores.flatten().tolist(), labels.flatten().tolist(), strict=True):
        if math.isnan(label):
            continue
        p = 1.0 / (1.0 + math.exp(-score))
        cross -= math.log(p) if label == 1.0 else math.log(1.0 - p)
        square += (score - label) ** 2
        count += 1
    assert float(binary_cross_entropy(scores, labels)) == pytest.approx(cross / count, rel=1e-5)
    assert BINARY["loss"](scores, labels) == pytest.approx(cross / count, rel=1e-9)
    assert float(squared_error(scores, labels)) == pytest.approx(square / count, rel=1e-5)
    assert REGRESSION["loss"](scores, labels) == pytest.approx(square / count, rel=1e-6)


def test_a_missing_label_has_no_gradient() -> None:
    scores, labels = toys()
    scores.requires_grad_()
    for loss in (binary_cross_entropy, squared_error):
        grad = torch.autograd.grad(loss(scores, labels), scores)[0]
        assert bool(grad.isfinite().all()) and torch.equal(grad != 0, ~labels.isnan())


def test_a_task_without_both_answers_counts_in_no_area() -> None:
    scores, labels = toys(missing=0.0)
    one_sided = labels.clone()
    one_sided[:, 1], one_sided[:, 2], one_sided[:, 3] = 1.0, 0.0, NAN
    for name in ("roc_auc", "ap"):
        assert BINARY[name](scores, one_sided) == pytest.approx(BINARY[name](scores[:, :1], labels[:, :1]))
    assert math.isnan(BINARY["roc_auc"](scores[:, 1:], one_sided[:, 1:]))
    assert BINARY["accuracy"](scores[:, 3:], labels[:, 3:]) > 0.5
    assert math.isnan(BINARY["accuracy"](scores[:, 3:], one_sided[:, 3:]))


def test_f1_is_undefined_only_where_nobody_says_yes() -> None:
    no = torch.zeros(3, 1)
    assert math.isnan(BINARY["f1"](no - 1.0, no))
    assert BINARY["f1"](no + 1.0, no) == 0.0


def test_nothing_known_is_undefined() -> None:
    scores, labels = torch.zeros(3, 2), torch.full((3, 2), NAN)
    assert all(math.isnan(measure(scores, labels)) for table in (BINARY, REGRESSION) for measure in table.values())


def test_a_score_of_zero_is_no() -> None:
    assert BINARY["accuracy"](torch.zeros(4, 1), torch.tensor([[0.0], [0.0], [0.0], [1.0]])) == 0.75


@pytest.mark.parametrize("odd", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("table", [BINARY, REGRESSION], ids=["binary", "regression"])
def test_where_a_score_is_not_finite_every_metric_is_undefined(table: dict[str, Metric], odd: float) -> None:
    labels = torch.tensor([[0.0, 1.0], [1.0, NAN], [0.0, 0.0], [1.0, 1.0]])
    scores = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    diverged, unasked = scores.clone(), scores.clone()
    diverged[2, 1] = odd  # the other task's are finite
    unasked[1, 1] = odd  # its label is not known
    for name, measure in table.items():
        assert math.isnan(measure(diverged, labels)), name
        assert measure(unasked, labels) == measure(scores, labels), name
