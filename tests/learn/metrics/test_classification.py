from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isthmus.learn.metrics import classification as metrics
from isthmus.learn.metrics.classification import DEFINITIONS
from isthmus.learn.tasks import TASKS


@st.composite
def examples(draw: st.DrawFn, min_classes: int = 2) -> tuple[Tensor, Tensor]:
    """Logits (examples, classes) and labels; coarse logits, so that ties and missing classes happen."""
    num_classes = draw(st.integers(min_classes, 5))
    size = draw(st.integers(1, 12))
    value = st.integers(-6, 6).map(lambda n: n / 2)
    logits = draw(st.lists(st.lists(value, min_size=num_classes, max_size=num_classes), min_size=size, max_size=size))
    labels = draw(st.lists(st.integers(0, num_classes - 1), min_size=size, max_size=size))
    return torch.tensor(logits), torch.tensor(labels)


@given(examples())
@settings(deadline=None, max_examples=25)
def test_accuracy_and_f1_are_those_of_sklearn(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    truth, found = labels.numpy(), logits.argmax(dim=1).numpy()
    assert metrics.accuracy(logits, labels) == pytest.approx(sk.accuracy_score(truth, found))
    f1_micro = metrics.CLASSIFICATION["f1_micro"](logits, labels)
    assert f1_micro == pytest.approx(sk.f1_score(truth, found, average="micro"))
    assert metrics.f1_macro(logits, labels) == pytest.approx(sk.f1_score(truth, found, average="macro"))


@given(examples())
@settings(deadline=None, max_examples=25)
def test_loss_is_that_of_sklearn(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    chances = logits.double().softmax(dim=1).numpy()
    expected = sk.log_loss(labels.numpy(), chances, labels=np.arange(logits.shape[1]))
    assert metrics.loss(logits, labels) == pytest.approx(expected, abs=1e-5)


@given(examples())
@settings(deadline=None, max_examples=25)
def test_roc_auc_is_that_of_sklearn(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    # Rounded, so that equal chances are equal to the last bit in both.
    chances = logits.double().softmax(dim=1).numpy().round(9)
    present = sorted(set(labels.tolist()))
    found = metrics.roc_auc(logits, labels)
    if len(present) < 2:
        assert math.isnan(found)
    elif logits.shape[1] == 2:
        assert found == pytest.approx(sk.roc_auc_score(labels.numpy(), chances[:, 1]))
    else:
        areas = [sk.roc_auc_score(labels.numpy() == c, chances[:, c]) for c in present]
        assert found == pytest.approx(np.mean(areas))


def test_roc_auc_tells_confident_examples_apart() -> None:
    # All chances are 1 in single precision; the logits still rank the two examples of class 1 above the other.
    logits = torch.tensor([[0.0, 20.0], [0.0, 40.0], [0.0, 60.0]])
    assert metrics.roc_auc(logits, torch.tensor([0, 1, 1])) == 1.0
    three = torch.cat([logits, torch.full((3, 1), -5.0)], dim=1)
    assert metrics.roc_auc(three, torch.tensor([0, 1, 1])) == 1.0


def test_table_names_every_metric() -> None:
    assert set(metrics.CLASSIFICATION) == {"loss", "accuracy", "f1_micro", "f1_macro", "roc_auc", "ap"}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_where_a_score_is_not_finite_every_metric_is_undefined(odd: float) -> None:
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    diverged = logits.clone()
    diverged[5, 1] = odd
    for name, measure in metrics.CLASSIFICATION.items():
        assert math.isfinite(measure(logits, labels)), name
        assert math.isnan(measure(diverged, labels)), name
    for name, contribution in metrics.ADDITIVE.items():
        each = contribution(diverged, labels)
        assert each.isnan().nonzero().flatten().tolist() == [5], name
        assert float(contribution(logits, labels).mean()) == pytest.approx(metrics.CLASSIFICATION[name](logits, labels))


def test_what_is_not_defined_is_left_out() -> None:
    assert metrics.defined({"a": math.nan, "b": 0.5, "c": math.inf, "d": -math.inf}) == {"b": 0.5}


def test_every_metric_of_every_task_is_defined_once_and_listed_on_the_page() -> None:
    known = {metric for task in TASKS.values() for metric in task.known_metrics}
    assert known == set(DEFINITIONS)
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    for name, text in DEFINITIONS.items():
        tasks = ", ".join(f"`{task}`" for task, kind in sorted(TASKS.items()) if name in kind.known_metrics)
        assert f"| `{name}` | {text} | {tasks} |\n" in page
