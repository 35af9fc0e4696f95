"""Tasks on sets of graphs: a graph is an example, its label a class, or yes or no or a number for several tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.data.conventions import SPLITS
from isthmus.data.graph_set import GraphSet
from isthmus.learn.batching import Batching, FullBatch, MiniBatch
from isthmus.learn.metrics import classification as metrics
from isthmus.learn.metrics import several_tasks as task_metrics
from isthmus.learn.metrics.classification import Examples, cross_entropy, defined
from isthmus.learn.tasks.graph_batches import GraphPile
from isthmus.learn.tasks.graph_stack import GraphStack, scores_of
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated
from isthmus.learn.tasks.task import Predictions, Task, by_split
from isthmus.models.inputs import GraphInput

# From scores (graphs, outputs) and labels to a number; NaN where it is undefined.
Metric = Callable[[Tensor, Tensor], float]

# The task for each kind of label.
TASK_OF = {"class": "graph_classification", "binary": "graph_binary", "value": "graph_regression"}


@dataclass(frozen=True)
class GraphBatch:
    """Some graphs side by side, and the label of each."""

    graph: GraphInput
    labels: Tensor  # (graphs,) or (graphs, tasks)


@dataclass
class PreparedGraphs:
    """A client's graphs, ready to be cut into batches.

    Fields:
        data:   the graphs
        pile:   what batches are cut from
        index:  for each split, the positions of its labelled graphs
        blocks: for each split that was evaluated, its graphs in blocks, with the operators that models keep on them
        full:   all training graphs as one batch, once it was asked for
    """

    data: GraphSet
    pile: GraphPile
    index: dict[str, Tensor]
    blocks: dict[str, tuple[GraphInput, ...]] = field(default_factory=dict, repr=False)
    full: GraphBatch | None = field(default=None, repr=False)

    def split_blocks(self, split: str) -> tuple[GraphInput, ...]:
        """Return the graphs of a split in blocks, cut once and kept."""
        if split not in self.blocks:
            self.blocks[split] = tuple(self.pile.blocks(self.index[split]))
        return self.blocks[split]


@dataclass(frozen=True)
class GraphTask(Task):
    """A task whose examples are graphs; one without a label is in no split."""

    data_type: ClassVar[type[Any]] = GraphSet
    known_batchings: ClassVar[tuple[type[Batching], ...]] = (FullBatch, MiniBatch)
    tiles_batches: ClassVar[bool] = True
    target: ClassVar[str]  # the kind of labels in `GraphSet.target`
    table: ClassVar[Mapping[str, Metric]]

    @abstractmethod
    def graph_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of graphs, from (graphs, outputs) scores."""

    @abstractmethod
    def predictions(self, ids: Tensor, scores: Tensor) -> Predictions:
        """Return what scores say of the graphs."""

    # ---- data

    def input_dim(self, data: GraphSet) -> int:
        """Return the number of feature columns; of categories, where columns are numbers of categories."""
        self._require_target(data)
        return sum(data.x_sizes) or data.num_features

    def output_dim(self, data: GraphSet) -> int:
        """Return the number of classes, or of tasks."""
        self._require_target(data)
        return data.num_classes

    def require_model(self, model: nn.Module, data: GraphSet) -> None:
        """Raise BadInput unless the model gives one row of scores for each graph; the first two are tried."""
        super().require_model(model, data)
        tried = torch.arange(min(2, data.num_items))
        if not len(tried):
            return
        try:
            with torch.no_grad():
                scores = model(GraphPile(data).batch(tried), None)
        except ValueError as error:
            raise BadInput(f"the model cannot read the graphs of {data.name!r}: {error}") from None
        if len(scores) != len(tried):
            raise BadInput(
                f"the model gives {len(scores)} rows of scores for {len(tried)} graphs, one for each node; set "
                "model.readout to mean, sum, max or set2set, and model.decoder to linear or mlp"
            )

    def count(self, data: GraphSet, split: str) -> int:
        """Return the number of labelled graphs in a split."""
        return int((data.mask(split) & labelled(data)).sum())

    def holds(self, data: GraphSet) -> str:
        """Return the numbers of graphs, of their nodes, and of examples."""
        examples = "/".join(str(self.count(data, split)) for split in SPLITS)
        mean = data.num_nodes / max(data.num_items, 1)
        return f"{data.num_items} graphs of {mean:.1f} nodes, {examples} train/val/test"

    def to_predict(self, data: GraphSet) -> GraphSet:
        """Return the graphs without their labels, which may answer another question than the model does."""
        if data.target == self.target:
            return data
        if self.target == "class":
            unknown = data.graph_ids.new_full((data.num_items,), -1)
        else:
            unknown = torch.full((data.num_items, 1), torch.nan, device=data.x.device)
        return replace(data, y=unknown, num_classes=1, target=self.target, class_names=(), masks={})

    def prepare(self, data: GraphSet) -> PreparedGraphs:
        """Return the graphs ready for batches, and which of them are in each split."""
        self._require_target(data)
        known = labelled(data)
        return PreparedGraphs(
            data, GraphPile(data), {split: (data.mask(split) & known).nonzero().flatten() for split in SPLITS}
        )

    def _require_target(self, data: GraphSet) -> None:
        if data.target != self.target:
            words = {"class": "one class", "binary": "tasks of yes or no", "value": "numbers"}
            raise BadInput(
                f"the labels of {data.name!r} are {words[data.target]} for each graph, the task "
                f"{TASK_OF[self.target]!r} learns {words[self.target]}; set task.name={TASK_OF[data.target]}"
            )

    # ---- training

    def batches_per_epoch(self, prepared: PreparedGraphs, batching: Batching) -> int:
        """Return how many batches show every training graph once."""
        count = len(prepared.index["train"])
        return -(-count // batching.batch_size) if isinstance(batching, MiniBatch) else min(count, 1)

    def batches(self, prepared: PreparedGraphs, batching: Batching, generator: torch.Generator) -> Iterator[GraphBatch]:
        """Yield all training graphs again and again, or batches of them in an order drawn for each epoch."""
        for graphs in self.draws(prepared, batching, generator):
            if graphs is not prepared.index["train"]:
                yield GraphBatch(prepared.pile.batch(graphs), prepared.data.y[graphs])
                continue
            if prepared.full is None:
                prepared.full = GraphBatch(prepared.pile.batch(graphs), prepared.data.y[graphs])
            yield prepared.full

    def draws(self, prepared: PreparedGraphs, batching: Batching, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the positions of the graphs of each batch; of all training graphs in their order, those themselves."""
        train = prepared.index["train"]
        if not isinstance(batching, FullBatch | MiniBatch):
            raise BadInput(self.batching_problem(batching))
        if len(train) == 0:
            return
        while isinstance(batching, FullBatch):
            yield train
        while True:
            order = train[torch.randperm(len(train), generator=generator).to(train.device)]
            yield from torch.split(order, batching.batch_size)

    def loss(self, model: nn.Module, batch: GraphBatch, generator: torch.Generator) -> Tensor:
        """Return the mean loss over the batch's labels."""
        return self.graph_loss(model(batch.graph, generator), batch.labels)

    # ---- evaluation

    def evaluate(self, model: nn.Module, prepared: PreparedGraphs, splits: tuple[str, ...]) -> Evaluated:
        """Run the model over the graphs of every split, block by block, and measure it."""

        def measure(split: str) -> dict[str, float]:
            labels = prepared.data.y[prepared.index[split]]
            return self._measure(scores_of(model, prepared.split_blocks(split)), labels)

        return by_split(prepared.index, splits, measure)

    def evaluate_groups(
        self, model: nn.Module, prepared: PreparedGraphs, split: str, groups: Sequence[Tensor]
    ) -> list[dict[str, float]]:
        """Run the model over the graphs of a split and measure each group's."""
        index = prepared.index[split]
        if len(index) == 0:
            return [{} for _ in groups]
        scores, labels = scores_of(model, prepared.split_blocks(split)), prepared.data.y[index]
        chosen = [torch.isin(index, group) for group in groups]
        return [self._measure(scores[rows], labels[rows]) if bool(rows.any()) else {} for rows in chosen]

    def predict(self, model: nn.Module, prepared: PreparedGraphs) -> Predictions:
        """Return what the model says of every graph, labelled or not."""
        blocks = prepared.pile.blocks(torch.arange(prepared.data.num_items))
        return self.predictions(prepared.data.graph_ids, scores_of(model, blocks))

    def _measure(self, scores: Tensor, labels: Tensor) -> dict[str, float]:
        scores, labels = scores.cpu(), labels.cpu()
        return defined({name: self.table[name](scores, labels) for name in self.metrics})

    def rows_of_step(self, data: GraphSet, batching: Batching) -> int:
        """Return the number of nodes of a batch, about."""
        count = self.count(data, "train")
        graphs = min(batching.batch_size, count) if isinstance(batching, MiniBatch) else count
        return round(graphs * data.num_nodes / max(data.num_items, 1))

    # ---- many clients at once: a task of one's own that can be learned so names `stack_batches` in its own class

    def stack_batches(self, prepared: Sequence[PreparedGraphs], batching: Batching) -> BatchStack:
        """Return what batches of many clients are cut from."""
        return GraphStack(self, prepared, batching)

    def each_loss(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of each graph's known labels, (graphs,), and their number, (graphs,)."""
        raise NotImplementedError

    def no_labels(self, like: Tensor, rows: int) -> Tensor:
        """Return labels of graphs of which none is known, of the kind of others."""
        return like.new_full((rows, *like.shape[1:]), torch.nan)

    def stacked_target(self, labels: Tensor, rows: Tensor, counts: Sequence[int], size: int) -> Tensor | Examples:
        """Return what scores of so many rows are compared with, of which some have labels, so many of each client."""
        target = self.no_labels(labels, size)
        target[rows] = labels
        return target

    def measure_each(self, scores: Tensor, labels: Tensor, counts: Sequence[int]) -> list[dict[str, float]]:
        """Return the metrics of each client, whose graphs lie one after the other; those without any have none."""
        parts = zip(torch.split(scores, list(counts)), torch.split(labels, list(counts)), strict=True)
        return [self._measure(score, label) if len(label) else {} for score, label in parts]


def labelled(data: GraphSet) -> Tensor:
    """Return which graphs have a class, or a label for some task, (graphs,)."""
    return data.y >= 0 if data.y.dim() == 1 else ~data.y.isnan().all(dim=1)


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

    def each_loss(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return each graph's cross-entropy, and one where its class is known."""
        return cross_entropy(scores, labels, reduction="none"), labels != metrics.IGNORED

    def no_labels(self, like: Tensor, rows: int) -> Tensor:
        """Return classes that do not count."""
        return like.new_full((rows,), metrics.IGNORED)

    def stacked_target(self, labels: Tensor, rows: Tensor, counts: Sequence[int], size: int) -> Tensor | Examples:
        """Return which rows have which classes, where the loss is this class's own."""
        if type(self).each_loss is not GraphClassification.each_loss:
            return super().stacked_target(labels, rows, counts, size)
        return Examples.of(rows, labels, counts)

    def measure_each(self, scores: Tensor, labels: Tensor, counts: Sequence[int]) -> list[dict[str, float]]:
        """Return the metrics of each client."""
        return metrics.measured_each(self.metrics, scores, labels, counts)

    stack_batches = GraphTask.stack_batches


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

    def each_loss(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of each graph's binary cross-entropies, and how many of its labels are known."""
        return task_metrics.each_known(scores, labels, F.binary_cross_entropy_with_logits)

    stack_batches = GraphTask.stack_batches


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

    def each_loss(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of each graph's squared errors, and how many of its values are known."""
        return task_metrics.each_known(scores, labels, F.mse_loss)

    stack_batches = GraphTask.stack_batches
