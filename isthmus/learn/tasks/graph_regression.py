"""A number for each graph and each of several tasks, where not every one is known: energies, solubilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isthmus.learn.metrics import several_tasks as task_metrics
from isthmus.learn.tasks.graph_task import GraphTask, Metric
from isthmus.learn.tasks.task import Predictions


@dataclass(frozen=True)
class ValuePredictions(Predictions):
    """A number for each example and task, (examples, tasks), in the place of probabilities."""

    @property
    def labels(self) -> Tensor:
        """The numbers."""
        return self.probabilities

    def columns(self, names: Sequence[str]) -> dict[str, list[str] | Tensor]:
        """Return the number for each task."""
        return {name: self.probabilities[:, i] for i, name in enumerate(names)}


@dataclass(frozen=True)
class GraphRegression(GraphTask):
    """Squared error, the mean over the known values of a batch; NaN stands for an unknown one.

    A model has one score for each task, the value itself, in the units of the data. The loss is the squared error;
    RMSE and MAE are means over tasks (`task_metrics.py`).
    """

    metrics: tuple[str, ...] = ("rmse", "mae", "loss")

    target: ClassVar[str] = "value"
    table: ClassVar[Mapping[str, Metric]] = task_metrics.REGRESSION
    known_metrics: ClassVar[tuple[str, ...]] = tuple(task_metrics.REGRESSION)

    def graph_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error of the known values."""
        return task_metrics.squared_error(scores, labels)

    def predictions(self, ids: Tensor, scores: Tensor) -> ValuePredictions:
        """Return the values."""
        return ValuePredictions(ids, scores)
