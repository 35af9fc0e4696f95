"""Graph classification: cross-entropy on the training graphs of a set, each of one class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isthmus.learn.metrics import classification as metrics
from isthmus.learn.metrics.classification import cross_entropy
from isthmus.learn.tasks.graph_task import GraphTask, Metric
from isthmus.learn.tasks.task import Predictions


@dataclass(frozen=True)
class GraphClassification(GraphTask):
    """Every graph has one of `num_classes` classes; graphs without a label (-1) are in no split."""

    target: ClassVar[str] = "class"
    table: ClassVar[Mapping[str, Metric]] = metrics.CLASSIFICATION
    known_metrics: ClassVar[tuple[str, ...]] = tuple(metrics.CLASSIFICATION)

    def graph_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(scores, labels)

    def predictions(self, ids: Tensor, scores: Tensor) -> Predictions:
        """Return class probabilities."""
        return Predictions(ids, scores.softmax(dim=1))
