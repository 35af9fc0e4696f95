"""Link prediction: whether two nodes are linked, or linked by a certain relation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.core.errors import BadInput, refuse
from isthmus.core.random import torch_generator
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import Batching
from isthmus.learn.metrics import several_tasks as task_metrics
from isthmus.learn.metrics.classification import defined, of_finite
from isthmus.learn.metrics.ranking import RANKINGS, ranks_of_ends
from isthmus.learn.tasks.known_links import KnownLinks, Room, complete, has_negatives
from isthmus.learn.tasks.link_task import MAX_SCORES, LinkExamples, LinkTask, PreparedLinks, link_part
from isthmus.learn.tasks.side_by_side import DrawnPairs, LinkStack
from isthmus.learn.tasks.stacked_batches import BatchStack
from isthmus.learn.tasks.task import Predictions


@dataclass(frozen=True)
class PairOutcomes:
    """What a model says of some examples, and of the negatives drawn for them.

    Fields:
        score:   (examples,): scores of the links, and of the pairs that are told to be none
        is_link: (examples,), bool: which of them are links
        drawn:   (examples, num_negatives): scores of the pairs drawn for each of them; (examples, 0) where negatives
                 are given
        ranks:   (2, examples): of head and tail among all candidates; NaN for pairs that were not ranked, infinite
                 where a candidate's score is not finite
    """

    score: Tensor
    is_link: Tensor
    drawn: Tensor
    ranks: Tensor

    def of(self, chosen: Tensor) -> PairOutcomes:
        """Return the outcomes of some of the examples."""
        return PairOutcomes(self.score[chosen], self.is_link[chosen], self.drawn[chosen], self.ranks[:, chosen])


@dataclass(frozen=True)
class PairPredictions(Predictions):
    """For every pair of nodes, the probabilities that it is no link and that it is one, (pairs, 2).

    Fields: those of `Predictions`, and
        scores:   (pairs,): the log-odds of a link
        relation: (pairs,): the relation that was asked about, -1 for none; None where relations are not told apart
    """

    scores: Tensor
    relation: Tensor | None = None

    @property
    def num_not_finite(self) -> int:
        """How many pairs have a score that is NaN or infinite, of those that were asked about."""
        odd = ~self.scores.isfinite()
        return int((odd if self.relation is None else odd & (self.relation >= 0)).sum())

    def columns(self, names: Sequence[str]) -> dict[str, list[str] | Tensor]:
        """Return the score of each pair and its probability, behind the relation where relations are told apart."""
        found: dict[str, list[str] | Tensor] = {"score": self.scores, "probability": self.probabilities[:, 1]}
        if self.relation is None:
            return found
        return {"relation": [names[r] if r >= 0 else "" for r in self.relation.tolist()], **found}


@dataclass(frozen=True)
class LinkPrediction(LinkTask):
    """Links are told from pairs of nodes that are not linked.

        loss = mean over training links and their negatives of  - log sigmoid(s)  for links,  - log sigmoid(-s)  else

    with s = decoder(h_head, h_tail), of the link's own relation where relations are told apart. A negative is a
    link with its head or its tail replaced; it is never a link of the client's graph, whether for training, validation
    or test. Negatives are drawn anew in every step of training. Those of an evaluation are drawn once for each split,
    from `evaluation_seed` alone, so that all rounds and all models are measured on the same pairs.

    Where the data tells pairs that are no links (`dataset.negatives` of a link folder), these are the negatives: a
    client's split that has any is made of its links and of these pairs, each of them an example, and none are drawn for
    it. For a split, or a client, without any they are drawn as ever. Such a pair is no link to anybody: it carries no
    messages, is never known as a link, and is not ranked. Nor is one of which nothing is known, which is no example.

    accuracy, loss, roc_auc, ap (average precision) and f1 (of the answer "link") are over the links of a split and
    their negatives. hits@n and mrr are over ranks of each link's head and tail among all nodes, filtered: other known
    links are left out. They are measured on validation and test links only; for training links they would cost most
    and say least. Ties count half (`learn/metrics/ranking.py`).

    Nodes with an attribute "side" (users and items) are replaced by nodes of their side, and ranked among those. A
    client all of whose pairs are links, such as one user with its items, has no negatives, and so no examples: it
    trains nothing, has no weight in any mean and no metrics, and a note says so before the course starts.

    Fields:
        metrics:          "accuracy", "loss", "roc_auc" (or "auc", its older name here), "ap", "f1", "hits@1", "hits@5",
                          "hits@10", "mrr"
        by_relation:      whether the relation is part of the question: "is this head linked to this tail by this
                          relation", as in knowledge graphs; the decoder then has a score for each relation
        num_negatives:    negatives for each link
        self_pairs:       whether a node may be paired with itself, in negatives and in ranks (as is usual for knowledge
                          graphs)
        filtered:         whether ranks leave other known links out
        max_ranked:       rank at most so many links of a split, spread evenly over it; null ranks all
        evaluation_seed:  decides the negatives of evaluations
        disjoint:         whether the links supervised in a step are left out of its message edges
        supervised_share: with `disjoint` and full batches, the share of the training links supervised in a step
    """

    metrics: tuple[str, ...] = ("accuracy", "loss", "auc", "ap")
    by_relation: bool = False
    num_negatives: int = 1
    self_pairs: bool = False
    filtered: bool = True
    max_ranked: int | None = None
    evaluation_seed: int = 0

    known_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "loss", "roc_auc", "auc", "ap", "f1", *RANKINGS)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.num_negatives < 1, self, "num_negatives", "it must be at least 1")
        if self.max_ranked is not None and self.max_ranked < 1:
            raise ValueError(f"max_ranked is {self.max_ranked!r}; it must be at least 1, or null for all")

    def output_dim(self, data: LinkGraph) -> int:
        """Return the number of relations that are told apart, or 1."""
        return data.num_classes if self.by_relation else 1

    @property
    def outputs_are_classes(self) -> bool:
        """Whether relations are told apart; else there is one score, and labels of links do not matter."""
        return self.by_relation

    @property
    def tells_relations_apart(self) -> bool:
        """Whether the relation is part of the question; else a link of another relation would give the answer away."""
        return self.by_relation

    def input_dim(self, data: LinkGraph) -> int:
        """Return the number of feature columns; raises BadInput also where it is in doubt which pairs are links."""
        if data.doubtful and not self.by_relation:
            raise BadInput(
                f"the links of the dataset {data.name!r} have two classes, one of them {data.doubtful!r}: if pairs of "
                f"that class are no links, set dataset.negatives={data.doubtful}; if they are, and every row is a link "
                "whatever its label, set dataset.all_links=true (dataset.each.negatives and dataset.each.all_links "
                "of several folders), or leave the column label out"
            )
        if data.negatives and self.by_relation:
            raise BadInput(
                f"dataset.negatives is {data.negatives!r}, but a pair that is no link has no relation, and the task "
                "asks about relations; set task.by_relation=false, or leave such pairs and the setting out"
            )
        return super().input_dim(data)

    def counts_in(self, data: LinkGraph, split: str) -> Tensor:
        """Return the examples of a split: its links, with `by_relation` those that have one, and given negatives.

        There are none where negatives are neither given nor to be found.
        """
        chosen = data.mask(split) & (data.label >= 0) if self.by_relation else data.mask(split)
        if data.linked is not None:
            chosen = chosen & (data.linked >= 0)
            if bool((chosen & data.is_negative).any()):
                return chosen
        return torch.zeros_like(chosen) if bool(chosen.any()) and self._cannot_draw(data) else chosen

    def _lacks_negatives(self, data: LinkGraph) -> bool:
        return not bool(data.is_negative.any()) and self._cannot_draw(data)

    def _cannot_draw(self, data: LinkGraph) -> bool:
        asked = data.num_items and (not self.by_relation or bool((data.label >= 0).any()))
        return bool(asked) and not has_negatives(data, self.by_relation, self.self_pairs)

    def why_idle(self, data: LinkGraph) -> str:
        """Return that there are no training links, or no negatives."""
        if not self._lacks_negatives(data):
            return super().why_idle(data)
        return f"has no negatives (replacing an end of one of its {data.num_items} links always gives a link)"

    def holds(self, data: LinkGraph) -> str:
        """Return the numbers of nodes, links and examples, and that there are no negatives."""
        return super().holds(data) + (" (no negatives)" if self._lacks_negatives(data) else "")

    def require_model(self, model: nn.Module, data: LinkGraph) -> None:
        """Raise BadInput also where the whole data has no negatives."""
        if self._lacks_negatives(data):
            raise BadInput(complete(data.name, data.num_nodes))
        super().require_model(model, data)

    def known(self, prepared: PreparedLinks) -> KnownLinks:
        """Return what is known of the links, sorted at the first call."""
        make = lambda: KnownLinks.of(prepared.data, self.by_relation, self.self_pairs)  # noqa: E731
        found: KnownLinks = prepared.once("known", make)
        return found

    def rooms(self, prepared: PreparedLinks) -> Room:
        """Return what replacing an end of each link can give, looked for once."""
        if "rooms" not in prepared.kept:
            data = prepared.data
            relation = self.relations(data, torch.arange(data.num_items, device=data.links.device))
            prepared.kept["rooms"] = self.known(prepared).rooms(data.links, relation.clamp(min=0))
        found: Room = prepared.kept["rooms"]
        return found

    def relations(self, data: LinkGraph, links: Tensor) -> Tensor:
        """Return which score of the decoder is a link's, (links,)."""
        return data.label[links] if self.by_relation else torch.zeros_like(links)

    def examples(
        self, prepared: PreparedLinks, links: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the links and the given negatives among them, or the links, then negatives drawn for them."""
        ends, relation = prepared.data.links.index_select(1, links), self.relations(prepared.data, links)
        if self.are_given(prepared, "train"):
            return ends, relation, prepared.data.is_link[links].float()
        rooms = self.rooms(prepared).of(links)
        wrong, kind = self.known(prepared).negatives(ends, relation, self.num_negatives, generator, rooms)
        target = torch.cat([torch.ones(len(links)), torch.zeros(len(kind))]).to(links.device)
        return torch.cat([ends, wrong], dim=1), torch.cat([relation, kind]), target

    def loss(self, model: nn.Module, batch: LinkExamples, generator: torch.Generator) -> Tensor:
        """Return the mean binary cross-entropy over links and negatives."""
        h: Tensor = model.embed(batch.graph, generator)  # type: ignore[operator]
        head, tail = batch.pairs
        scores = link_part(model).of(h.index_select(0, head), h.index_select(0, tail), batch.relation, generator)
        return F.binary_cross_entropy_with_logits(scores, batch.target)

    def pair_losses(
        self, model: nn.Module, head: Tensor, tail: Tensor, relation: Tensor, target: Tensor, generator: Any
    ) -> Tensor:
        """Return the binary cross-entropy of each pair, (pairs,)."""
        scores = link_part(model).of(head, tail, relation, generator)
        return F.binary_cross_entropy_with_logits(scores, target, reduction="none")

    def stack_batches(self, prepared: Sequence[PreparedLinks], batching: Batching) -> BatchStack:
        """Return what batches of many clients are cut from."""
        kind = DrawnPairs if DrawnPairs.serves(self, prepared, batching) else LinkStack
        return kind(self, prepared, batching)

    def predict(self, model: nn.Module, prepared: PreparedLinks) -> PairPredictions:
        """Return the score of every link; where relations are told apart, that of its own, or NaN if it has none."""
        data = prepared.data
        relation = self.relations(data, torch.arange(data.num_items, device=data.links.device))
        with torch.no_grad():
            score = self._scores(model, self.embed(model, prepared), data.links, relation.clamp(min=0))
        score = score.masked_fill(relation < 0, math.nan)
        probabilities = torch.stack([-score, score], dim=1).sigmoid()
        return PairPredictions(data.link_ids, probabilities, score, relation if self.by_relation else None)

    def _scores(self, model: nn.Module, h: Tensor, pairs: Tensor, relation: Tensor) -> Tensor:
        """Return the scores of pairs, (pairs,), block by block."""
        part = link_part(model)
        size = max(MAX_SCORES // max(h.shape[1], 1), 1)
        blocks = torch.split(torch.arange(len(relation), device=relation.device), size)
        return torch.cat([part.of(h[pairs[0, b]], h[pairs[1, b]], relation[b], None) for b in blocks])

    def are_given(self, prepared: PreparedLinks, split: str) -> bool:
        """Return whether the examples of a split have pairs among them that are told to be no links."""
        return bool(
            prepared.once(("given", split), lambda: bool(prepared.data.is_negative[prepared.index[split]].any()))
        )

    def _negatives(self, prepared: PreparedLinks, split: str) -> tuple[Tensor, Tensor]:
        """Return the negatives drawn for a split, the same ones every time."""
        key = ("negatives", split)
        if key not in prepared.kept:
            links = prepared.index[split]
            ends, relation = prepared.data.links[:, links], self.relations(prepared.data, links)
            draw = torch_generator(self.evaluation_seed, "negatives", split)
            prepared.kept[key] = self.known(prepared).negatives(ends, relation, self.num_negatives, draw)
        pairs, relation = prepared.kept[key]
        return pairs, relation

    def outcomes(self, model: nn.Module, prepared: PreparedLinks, h: Tensor, split: str) -> PairOutcomes:
        """Return what the model says of the links of a split and of their negatives."""
        links = prepared.index[split]
        ends, relation = prepared.data.links[:, links], self.relations(prepared.data, links)
        is_link = prepared.data.is_link[links]
        drawn = torch.empty(len(links), 0)
        if not self.are_given(prepared, split):
            wrong, kind = self._negatives(prepared, split)
            drawn = self._scores(model, h, wrong, kind).view(len(links), self.num_negatives).cpu()
        ranks = torch.full((2, len(links)), math.nan, dtype=torch.float64)
        if split != "train" and any(name in RANKINGS for name in self.metrics):
            chosen = is_link.nonzero().flatten()
            if self.max_ranked is not None and self.max_ranked < len(chosen):
                chosen = chosen[:: -(-len(chosen) // self.max_ranked)]
            part, known = link_part(model), self.known(prepared)
            found = ranks_of_ends(part, h, known, ends[:, chosen], relation[chosen], self.filtered)
            ranks[:, chosen.cpu()] = found
        return PairOutcomes(self._scores(model, h, ends, relation).cpu(), is_link.cpu(), drawn, ranks)

    def measured(self, each: PairOutcomes) -> dict[str, float]:
        """Return the metrics of some examples."""
        if len(each.score) == 0:
            return {}
        scores = torch.cat([each.score, each.drawn.flatten()])
        is_link = torch.cat([each.is_link.float(), torch.zeros(each.drawn.numel())])
        ranks = each.ranks[~each.ranks.isnan()]
        return defined(
            {
                name: PAIR_METRICS[name](scores, is_link) if name in PAIR_METRICS else RANKINGS[name](ranks)
                for name in self.metrics
            }
        )


# From scores and whether they are of links (1.0) or of negatives (0.0), (examples,) each, to one number.
PAIR_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": of_finite(task_metrics.accuracy),
    "loss": of_finite(
        lambda scores, is_link: float(F.binary_cross_entropy_with_logits(scores.double(), is_link.double()))
    ),
    "roc_auc": of_finite(task_metrics.roc_auc),
    "auc": of_finite(task_metrics.roc_auc),
    "ap": of_finite(task_metrics.average_precision),
    "f1": of_finite(task_metrics.f1_of_yes),
}
