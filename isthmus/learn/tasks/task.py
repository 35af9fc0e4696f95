"""What a task is: examples, batches, a loss, an evaluation, a prediction. Node, link and graph tasks are each one file.

A task is frozen and stateless. `prepare` turns a client's data into what training needs again and again (operators,
indices); it may be dropped and rebuilt at any time. The type of the prepared data is the task's own: one graph for node
and link tasks, a set of graphs for graph tasks; link tasks keep message edges and supervision edges apart in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput, refuse
from isthmus.data.graph import Graph
from isthmus.learn.batching import BATCHINGS, Batching
from isthmus.learn.metrics.classification import IGNORED, Examples
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated
from isthmus.models.decoders import LinkPart
from isthmus.models.dropout import Streams
from isthmus.models.gnn.gin import GINELayer
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model


@dataclass(frozen=True)
class Predictions:
    """Scores of a model on a client's examples."""

    ids: Tensor  # (examples,), which node, edge or graph
    probabilities: Tensor  # (examples, classes)

    @property
    def labels(self) -> Tensor:
        """The most probable class of each example."""
        return self.probabilities.argmax(dim=1)

    @property
    def num_not_finite(self) -> int:
        """How many examples the model gives no number for: NaN or infinite."""
        return int((~self.probabilities.isfinite()).any(dim=1).sum())

    def columns(self, names: Sequence[str]) -> dict[str, list[str] | Tensor]:
        """Return the columns of a table of predictions; `names` are those of the classes or tasks."""
        probabilities = {f"p_{name}": self.probabilities[:, i] for i, name in enumerate(names)}
        return {"label": [names[i] for i in self.labels.tolist()], **probabilities}


@dataclass(frozen=True, eq=False)
class StackedData:
    """The data of several clients side by side, each padded to the same number of rows.

    Fields:
        graph:   all graphs as one; node j of client k is row k * rows + j
        rows:    rows of each client
        sizes:   number of nodes of each client
        entries: number of stored entries of each client's features; empty when they are dense
        splits:  for each split, the rows of its examples, (examples,), their labels, and each client's number of them
        learned: what the clients learn from, the training rows
    """

    graph: GraphInput
    rows: int
    sizes: tuple[int, ...]
    entries: tuple[int, ...]
    splits: Mapping[str, tuple[Tensor, Tensor, tuple[int, ...]]]
    learned: Examples

    @cached_property
    def target(self) -> Tensor:
        """Label of each row that is learned from, (clients * rows,), and -100 elsewhere."""
        labels = self.learned.labels
        return labels.new_full((self.graph.num_nodes,), IGNORED).index_copy_(0, self.learned.rows, labels)

    def with_features(self, x: Any) -> StackedData:
        """Return the same data with its features in another form; the graph's operators are kept."""
        return self if x is self.graph.x else replace(self, graph=self.graph.replace(x=x))


@dataclass(frozen=True)
class Task(ABC):
    """What is learned from the data; `metrics` is what every evaluation reports."""

    metrics: tuple[str, ...] = ("accuracy", "loss")

    # What kind of data the task learns from.
    data_type: ClassVar[type[Any]] = Graph
    # The metrics that this task can report.
    known_metrics: ClassVar[tuple[str, ...]] = ()
    # The batchings that this task can make batches by; a task of one's own may know any.
    known_batchings: ClassVar[tuple[type[Batching], ...]] = (Batching,)
    # Whether `stack_batches` puts clients of different sizes side by side without padding each to the largest.
    tiles_batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        strange = [metric for metric in self.metrics if metric not in self.known_metrics]
        refuse(bool(strange) or not self.metrics, self, "metrics", f"choose from {', '.join(self.known_metrics)}")

    @abstractmethod
    def input_dim(self, data: Any) -> int:
        """Return the number of input features of a model for this data."""

    @abstractmethod
    def output_dim(self, data: Any) -> int:
        """Return the number of outputs of a model for this data."""

    @property
    def outputs_are_classes(self) -> bool:
        """Whether a model's outputs are the data's classes or tasks, so that clients must have the same ones."""
        return True

    def output_names(self, data: Any) -> tuple[str, ...]:
        """Return the names of a model's outputs; empty where they have none."""
        names: tuple[str, ...] = data.class_names if self.outputs_are_classes else ()
        return names

    def require_model(self, model: nn.Module, data: Any) -> None:
        """Raise BadInput where a model cannot learn this task from this data; asked before a course starts."""
        decoder = getattr(model, "decoder", None)
        if isinstance(decoder, LinkPart):
            raise BadInput(
                f"the model's decoder {type(decoder).__name__} scores pairs of nodes, which only link tasks do; "
                "set model.decoder to another, or to null"
            )

    def batching_problem(self, batching: Batching) -> str:
        """Return why this task cannot make batches so, and what it takes; empty where it can."""
        if isinstance(batching, self.known_batchings):
            return ""
        names = {kind: repr(name) for name, kind in BATCHINGS.items()}
        *others, last = (names.get(kind, kind.__name__) for kind in self.known_batchings)
        known = f"{', '.join(others)} or {last}" if others else last
        found = names.get(type(batching), repr(batching))
        return f"batching.name is {found}; tasks on {self.data_type.item}s take {known}"

    @abstractmethod
    def count(self, data: Any, split: str) -> int:
        """Return the number of examples in a split."""

    @abstractmethod
    def holds(self, data: Any) -> str:
        """Return in a few words what a client holds."""

    def why_idle(self, data: Any) -> str:
        """Return why a client has nothing to train on, where it has not: words that follow its name."""
        return "has no training examples"

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
    def evaluate(self, model: nn.Module, prepared: Any, splits: tuple[str, ...]) -> Evaluated:
        """Return metrics and example counts per split; a split without examples has no metrics."""

    @abstractmethod
    def evaluate_groups(
        self, model: nn.Module, prepared: Any, split: str, groups: Sequence[Tensor]
    ) -> list[dict[str, float]]:
        """Return the metrics of a model on each of several groups of examples, which may overlap, of one split.

        A group is given by the positions of its items (nodes, links or graphs) in the data.
        """

    # A task that can be learned for many clients at once defines the three methods below, in its own class: they are
    # not used for a subclass, whose loss may be another.

    def stack(self, prepared: Sequence[Any]) -> StackedData:
        """Return the data of several clients side by side."""
        raise NotImplementedError

    def stacked_loss(self, model: nn.Module, data: StackedData, streams: Streams) -> Tensor:
        """Return each client's mean loss over its training examples, (clients,)."""
        raise NotImplementedError

    def evaluate_stacked(self, model: nn.Module, data: StackedData, splits: tuple[str, ...]) -> list[Evaluated]:
        """Return for each client what `evaluate` would."""
        raise NotImplementedError

    # One that can be learned for many clients whose steps see other batches defines this, in its own class likewise.

    def stack_batches(self, prepared: Sequence[Any], batching: Batching) -> BatchStack:
        """Return what batches of several clients are cut from side by side."""
        raise NotImplementedError

    def rows_of_step(self, data: Any, batching: Batching) -> int:
        """Return about how many nodes a step sees; clients are put together with others for which it is alike."""
        return int(data.num_nodes)

    def to_predict(self, data: Any) -> Any:
        """Return the data as a finished model should see it when it is asked about all examples."""
        return data

    @abstractmethod
    def predict(self, model: nn.Module, prepared: Any) -> Predictions:
        """Return the model's probabilities for every example, labelled or not."""


def by_split(
    index: Mapping[str, Tensor], splits: Sequence[str], measure: Callable[[str], dict[str, float]]
) -> Evaluated:
    """Return metrics and example counts per split; a split without examples has no metrics, and is not measured."""
    counts = {split: len(index[split]) for split in splits}
    return {split: measure(split) if counts[split] else {} for split in splits}, counts


def require_rows_of_nodes(model: nn.Module, item: str) -> None:
    """Raise BadInput where a model for one graph has a readout, or reads features of edges, which such data has not."""
    readout = model.readout if isinstance(model, Model) else None
    if readout is not None:
        raise BadInput(
            f"the model's readout {type(readout).__name__} makes one row of a whole graph, but the examples are "
            f"{item}s; set model.readout=null, or choose a task on graphs"
        )
    for part in model.modules():
        if isinstance(part, GINELayer):
            raise BadInput(
                f"model.gnn.edge_dim is {part.edge_dim}, but edges have features only where the examples are graphs, "
                f"not {item}s; set model.gnn.edge_dim=0"
            )
