"""What a task is: examples, batches, a loss, an evaluation, a prediction. Node, link and graph tasks are each one file.

A task is frozen and stateless. `prepare` turns a client's data into what training needs again and again (operators,
indices); it may be dropped and rebuilt at any time. The type of the prepared data is the task's own: one graph for node
and link tasks, a set of graphs for graph tasks; link tasks keep message edges and supervision edges apart in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.learn.batching import Batching


@dataclass(frozen=True)
class Predictions:
    """Scores of a model on a client's examples."""

    ids: Tensor  # (examples,), which node, edge or graph
    probabilities: Tensor  # (examples, classes)

    @property
    def labels(self) -> Tensor:
        """The most probable class of each example."""
        return self.probabilities.argmax(dim=1)


@dataclass(frozen=True)
class Task(ABC):
    """What is learned from the data; `metrics` is what every evaluation reports."""

    metrics: tuple[str, ...] = ("accuracy", "loss")

    # The metrics that this task can report.
    known_metrics: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        strange = [metric for metric in self.metrics if metric not in self.known_metrics]
        if strange or not self.metrics:
            raise ValueError(f"metrics is {self.metrics!r}; choose from {', '.join(self.known_metrics)}")

    @abstractmethod
    def input_dim(self, data: Any) -> int:
        """Return the number of input features of a model for this data."""

    @abstractmethod
    def output_dim(self, data: Any) -> int:
        """Return the number of outputs of a model for this data."""

    @abstractmethod
    def count(self, data: Any, split: str) -> int:
        """Return the number of examples in a split."""

    @abstractmethod
    def holds(self, data: Any) -> str:
        """Return in a few words what a client holds."""

    @abstractmethod
    def prepare(self, data: Any) -> Any:
        """Return what the methods below work on."""

    @abstractmethod
    def batches(self, prepared: Any, batching: Batching, generator: torch.Generator) -> Iterator[Any]:
        """Yield training batches without end, epoch after epoch; nothing when there are no training examples."""

    @abstractmethod
    def batches_per_epoch(self, prepared: Any, batching: Batching) -> int:
        """Return how many batches show every training example once."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        """Return the mean loss of a batch, as a scalar with a gradient."""

    @abstractmethod
    def evaluate(
        self, model: nn.Module, prepared: Any, splits: tuple[str, ...]
    ) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        """Return metrics and example counts per split; a split without examples has no metrics."""

    @abstractmethod
    def predict(self, model: nn.Module, prepared: Any) -> Predictions:
        """Return the model's probabilities for every example, labelled or not."""
