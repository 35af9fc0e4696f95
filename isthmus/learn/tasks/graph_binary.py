"""Yes or no for each graph and each of several tasks, where not every label is known: properties of molecules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isthmus.learn.metrics import several_tasks as task_metrics
from isthmus.learn.tasks.graph_task import GraphTask, Metric
from isthmus.learn.tasks.task import Predictions


@dataclass(frozen=True)
class TaskPredictions(Predictions):
    """The probability of yes for each example and task, (examples, tasks)."""

    @property
    def labels(self) -> Tensor:
        """One where yes is the more probable answer, (examples, tasks)."""
        return (self.probabilities > 0.5).long()

    def columns(self, names: Sequence[str]) -> dict[str, list[str] | Tensor]:
        """Return the answer for each task, 0 or 1, and then the probability of yes for each."""
        answers = {name: self.labels[:, i] for i, name in enumerate(names)}
        return {**answers, **{f"p_{name}": self.probabilities[:, i] for i, name in enumerate(names)}}


@dataclass(frozen=True)
class GraphBinary(GraphTask):
    """Binary cross-entropy, the mean over the known labels of a batch; NaN stands for an unknown one.

    A model has one score for each task, the log-odds of yes. Metrics but the loss are means over tasks
    (`task_metrics.py`).
    """

    metrics: tuple[str, ...] = ("roc_auc", "accuracy", "loss")

    target: ClassVar[str] = "binary"
    table: ClassVar[Mapping[str, Metric]] = task_metrics.BINARY
    known_metrics: ClassVar[tuple[str, ...]] = tuple(task_metrics.BINARY)

    def graph_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of the known labels."""
        return task_metrics.binary_cross_entropy(scores, labels)

    def predictions(self, ids: Tensor, scores: Tensor) -> TaskPredictions:
        """Return the probability of yes for each task."""
        return TaskPredictions(ids, scores.sigmoid())
