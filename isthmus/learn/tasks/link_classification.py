"""Link classification: the relation between two entities, the rating that a user gives an item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import Batching
from isthmus.learn.metrics.classification import ADDITIVE, CLASSIFICATION, defined, of_finite_rows
from isthmus.learn.metrics.ranking import RANKINGS, mean_ranks
from isthmus.learn.tasks.known_links import RowSets
from isthmus.learn.tasks.link_task import MAX_SCORES, LinkExamples, LinkTask, PreparedLinks, link_part
from isthmus.learn.tasks.side_by_side import LinkStack
from isthmus.learn.tasks.stacked_batches import BatchStack
from isthmus.learn.tasks.task import Predictions


@dataclass(frozen=True)
class LinkOutcomes:
    """How a model did on each of some links, (links,) each."""

    loss: Tensor
    right: Tensor  # 1 or 0; NaN, as the loss is, where a score is not finite
    rank: Tensor  # of the true class among all classes; arbitrary where no metric asks for it
    logits: Tensor  # (links, classes); (links, 0) where no metric asks for them: all at once could be gigabytes
    label: Tensor  # the true class

    def of(self, chosen: Tensor) -> LinkOutcomes:
        """Return the outcomes of some of the links."""
        return LinkOutcomes(*(getattr(self, name)[chosen] for name in OUTCOMES))


OUTCOMES = tuple(field.name for field in fields(LinkOutcomes))


@dataclass(frozen=True)
class LinkClassification(LinkTask):
    """Every link has one of `num_classes` classes; a link without one (-1) is in no split.

        loss = mean over training links of  - log softmax(decoder(h_head, h_tail))[class]

    Hits@n is the share of links whose true class is among the n best of all classes, MRR the mean of 1 / rank: what
    FS-G reports for knowledge graphs, where it calls the task relation prediction. Its Table 4 cannot mean ranks among
    entities: GraphSAGE with FedAvg has 23, 79 and 94 % for n = 1, 5, 10 on WN18, whose 1, 5 and 10 most frequent
    relations are 25, 80 and 94 % of the test links. Ties count half (`learn/metrics/ranking.py`).

    Fields:
        metrics:          those of node classification ("accuracy", "loss", "f1_micro", "f1_macro", "roc_auc", "ap"),
                          and "hits@1", "hits@5", "hits@10", "mrr"
        filtered:         whether other classes that the same two nodes are known to be linked by are left out of a rank
        disjoint:         whether the links supervised in a step are left out of its message edges
        supervised_share: with `disjoint` and full batches, the share of the training links supervised in a step
    """

    filtered: bool = False

    known_metrics: ClassVar[tuple[str, ...]] = (*CLASSIFICATION, *RANKINGS)

    def output_dim(self, data: LinkGraph) -> int:
        """Return the number of classes."""
        return data.num_classes

    def require_model(self, model: nn.Module, data: LinkGraph) -> None:
        """Raise BadInput also where all links are of one class, so that every model would be right."""
        if data.num_items and data.num_classes == 1:
            raise BadInput(
                f"all {data.num_items} links of the dataset {data.name!r} are of one class, so there is nothing to "
                "tell apart; use task.name=link_prediction, or links with labels of several classes"
            )
        super().require_model(model, data)

    def counts_in(self, data: LinkGraph, split: str) -> Tensor:
        """Return the labelled links of a split."""
        return data.mask(split) & (data.label >= 0)

    def examples(
        self, prepared: PreparedLinks, links: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the links' ends and classes."""
        label = prepared.data.label[links]
        return prepared.data.links[:, links], label, label

    def loss(self, model: nn.Module, batch: LinkExamples, generator: torch.Generator) -> Tensor:
        """Return the mean cross-entropy over the batch's links."""
        h: Tensor = model.embed(batch.graph, generator)  # type: ignore[operator]
        head, tail = batch.pairs
        logits = link_part(model)(h.index_select(0, head), h.index_select(0, tail), generator)
        return F.cross_entropy(logits, batch.target)

    def pair_losses(
        self, model: nn.Module, head: Tensor, tail: Tensor, relation: Tensor, target: Tensor, generator: Any
    ) -> Tensor:
        """Return the cross-entropy of each link, (links,)."""
        return F.cross_entropy(link_part(model)(head, tail, generator), target, reduction="none")

    def stack_batches(self, prepared: Sequence[PreparedLinks], batching: Batching) -> BatchStack:
        """Return what batches of many clients are cut from."""
        return LinkStack(self, prepared, batching)

    def predict(self, model: nn.Module, prepared: PreparedLinks) -> Predictions:
        """Return class probabilities of every link, labelled or not."""
        data = prepared.data
        with torch.no_grad():
            h = self.embed(model, prepared)
            blocks = self._blocks(data, torch.arange(data.num_items, device=data.links.device))
            found = [self._logits(model, data, h, block).softmax(dim=1) for block in blocks]
        return Predictions(data.link_ids, torch.cat(found))

    def _blocks(self, data: LinkGraph, links: Tensor) -> tuple[Tensor, ...]:
        return torch.split(links, max(MAX_SCORES // max(data.num_classes, 1), 1))

    def _logits(self, model: nn.Module, data: LinkGraph, h: Tensor, links: Tensor) -> Tensor:
        head, tail = data.links[:, links]
        return link_part(model)(h[head], h[tail], None)

    def outcomes(self, model: nn.Module, prepared: PreparedLinks, h: Tensor, split: str) -> LinkOutcomes:
        """Return how the model does on each link, block by block: all scores at once could be gigabytes."""
        data = prepared.data
        ranked = any(name in RANKINGS for name in self.metrics)
        kept = any(name not in ADDITIVE and name not in RANKINGS for name in self.metrics)
        parts = []
        for block in self._blocks(data, prepared.index[split]):
            logits, label = self._logits(model, data, h, block), data.label[block]
            rank = self._ranks(prepared, block, logits) if ranked else torch.empty(len(label))
            logits, label = logits.cpu(), label.cpu()
            loss = F.cross_entropy(logits, label, reduction="none").double()
            right = (logits.argmax(dim=1) == label).double()
            each = of_finite_rows(logits, loss), of_finite_rows(logits, right)
            parts.append(LinkOutcomes(*each, rank, logits if kept else logits[:, :0], label))
        return LinkOutcomes(*(torch.cat([getattr(part, name) for part in parts]) for name in OUTCOMES))

    def _ranks(self, prepared: PreparedLinks, links: Tensor, logits: Tensor) -> Tensor:
        left_out = self._left_out(prepared, links) if self.filtered else None
        return mean_ranks(logits, prepared.data.label[links], left_out)

    def _left_out(self, prepared: PreparedLinks, links: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes that the ends of each link are known to be linked by."""
        data = prepared.data
        low, high = data.links.sort(dim=0).values if data.undirected else data.links
        pair = low * data.num_nodes + high
        if "classes" not in prepared.kept:
            known = data.label >= 0
            prepared.kept["classes"] = RowSets.of(pair[known], data.label[known], data.num_classes)
        sets: RowSets = prepared.kept["classes"]
        return sets.entries(pair[links])

    def measured(self, each: LinkOutcomes) -> dict[str, float]:
        """Return the metrics of some links."""
        if len(each.loss) == 0:
            return {}
        means = {"loss": each.loss, "accuracy": each.right, "f1_micro": each.right}
        found = {name: float(means[name].mean()) for name in self.metrics if name in means}
        found |= {name: RANKINGS[name](each.rank) for name in self.metrics if name in RANKINGS}
        more = (name for name in self.metrics if name not in found)
        found |= {name: CLASSIFICATION[name](each.logits, each.label) for name in more}
        return defined({name: found[name] for name in self.metrics})
