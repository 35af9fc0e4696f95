"""What link tasks have in common: message edges apart from supervision links, batches of links, decoders of pairs.

Message edges are what the graph network reads: the training links, and no other link, each as an edge in both
directions. Supervision links are those whose loss is taken or that are measured. A validation or test link is never a
message edge, neither in training nor in evaluation.

A table may have a link several times, or both directions of an undirected one, and some of them may be held out while
others are not. A training link that is the same as a held-out one carries no messages either; it is supervised like
any other. A pair that is told to be no link, or of which that is not known, is never a message edge. Which links are
the same:

    undirected data        those that join the same two nodes, in either direction, whatever their labels
    directed, by relation  those with the same head, tail and label
    directed, otherwise    those with the same head and tail

Other relations between two nodes, and links back, are facts of their own in a directed graph: they carry messages, as
the published splits of knowledge graphs have it. `link_classification` goes by relation; `link_prediction` does if the
relation is part of its question.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput, refuse
from isthmus.data.conventions import SPLITS
from isthmus.data.graph import select_rows
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import Batching, FullBatch, LinkBatch, NeighborBatch
from isthmus.learn.neighbors import Adjacency, sample_neighborhood
from isthmus.learn.tasks.stacked_batches import Evaluated
from isthmus.learn.tasks.task import Task, by_split, require_rows_of_nodes
from isthmus.models.decoders import LinkPart
from isthmus.models.inputs import GraphInput

# About how many scores are held at a time while links are measured.
MAX_SCORES = 4_000_000


@dataclass(frozen=True)
class LinkExamples:
    """A graph to run the model on, and pairs of its nodes whose loss counts.

    Fields:
        graph:    message edges
        pairs:    (2, examples): heads and tails
        relation: (examples,): which score of the decoder counts, where one does
        target:   (examples,): the class, or whether there is a link (0.0 or 1.0)
    """

    graph: GraphInput
    pairs: Tensor
    relation: Tensor
    target: Tensor


@dataclass
class PreparedLinks:
    """A client's links, ready to be trained on and measured.

    Fields:
        data:    the client's links
        graph:   message edges: distinct pairs of the training links' ends, in both directions, no loops
        edge_of: (2, links): the two message edges (columns of `graph`) of each link; -1 for a link without any
        index:   for each split, its links
        kept:    what the task has made of the data and can make again
    """

    data: LinkGraph
    graph: GraphInput
    edge_of: Tensor
    index: dict[str, Tensor]
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what is made of the data at the first call."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]


@dataclass(frozen=True)
class LinkTask(Task):
    """A task whose examples are links.

    Fields:
        metrics:          what every evaluation reports
        disjoint:         whether the training links that are supervised in a step are left out of its message edges,
                          with all edges between the same two nodes; else all training links carry messages always
        supervised_share: with `disjoint` and full batches: the share of the training links that is supervised in a
                          step, drawn anew for each
    """

    disjoint: bool = False
    supervised_share: float = 0.3

    data_type: ClassVar[type[Any]] = LinkGraph
    known_batchings: ClassVar[tuple[type[Batching], ...]] = (FullBatch, LinkBatch, NeighborBatch)

    @property
    def tells_relations_apart(self) -> bool:
        """Whether links of different labels are different links in a directed graph."""
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 < self.supervised_share < 1.0, self, "supervised_share", "it must lie between 0 and 1")

    @abstractmethod
    def counts_in(self, data: LinkGraph, split: str) -> Tensor:
        """Return which links are examples of a split, (links,), bool."""

    @abstractmethod
    def examples(
        self, prepared: PreparedLinks, links: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pairs, relations and targets that some training links give a step to learn from."""

    def input_dim(self, data: LinkGraph) -> int:
        """Return the number of feature columns; raises BadInput where there are none."""
        if data.num_features == 0:
            raise BadInput(
                f"the nodes of the dataset {data.name!r} have no features, and models read features; "
                "choose some (dataset.features=constant)"
            )
        return data.num_features

    def count(self, data: LinkGraph, split: str) -> int:
        """Return the number of links in a split."""
        return int(self.counts_in(data, split).sum())

    def holds(self, data: LinkGraph) -> str:
        """Return the numbers of nodes, links and examples."""
        examples = "/".join(str(self.count(data, split)) for split in SPLITS)
        wrong = f", {int(data.is_negative.sum())} negatives" if bool(data.is_negative.any()) else ""
        links = int(data.is_link.sum())
        return f"{data.num_nodes} nodes, {links} links{wrong}, {examples} train/val/test"

    def require_model(self, model: nn.Module, data: LinkGraph) -> None:
        """Raise BadInput unless there are links to train on, and the model scores pairs of nodes."""
        if data.num_items == 0:
            raise BadInput(
                f"the dataset {data.name!r} has no links; a link task learns from links: use another dataset"
            )
        if self.count(data, "train") == 0:
            raise BadInput(
                f"none of the {data.num_items} links of the dataset {data.name!r} is a training example; "
                "choose masks with a training share (masks.name=ratio masks.train=0.8)"
            )
        link_part(model)
        require_rows_of_nodes(model, data.item)

    def to_predict(self, data: LinkGraph) -> LinkGraph:
        """Return the data with all links as message edges, unless a split says which ones the network may read."""
        if any(bool(mask.any()) for mask in data.masks.values()):
            return data
        return data.with_masks({"train": data.links.new_ones(data.num_items, dtype=torch.bool)})

    def prepare(self, data: LinkGraph) -> PreparedLinks:
        """Return the message edges of the training links, and the links of each split."""
        index = {split: self.counts_in(data, split).nonzero().flatten() for split in SPLITS}
        edge_index, edge_of = message_edges(data, self.tells_relations_apart)
        return PreparedLinks(data, GraphInput(x=data.x, edge_index=edge_index), edge_of, index)

    def batches_per_epoch(self, prepared: PreparedLinks, batching: Batching) -> int:
        """Return how many batches show every training link once; about, where shares of them are drawn."""
        count = len(prepared.index["train"])
        if isinstance(batching, LinkBatch | NeighborBatch):
            return -(-count // batching.batch_size)
        return round(1 / self.supervised_share) if self.disjoint and count else min(count, 1)

    def batches(
        self, prepared: PreparedLinks, batching: Batching, generator: torch.Generator
    ) -> Iterator[LinkExamples]:
        """Yield all training links again and again, a share of them, or shuffled batches of them."""
        if len(prepared.index["train"]) == 0:
            return
        while True:
            for links in self.supervised(prepared.index["train"], batching, generator):
                pairs, relation, target = self.examples(prepared, links, generator)
                graph = self.messages(prepared, links) if self.disjoint else prepared.graph
                if isinstance(batching, NeighborBatch):
                    graph, pairs = _sampled(prepared, graph, pairs, batching, generator)
                yield LinkExamples(graph, pairs, relation, target)

    def supervised(self, train: Tensor, batching: Batching, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the training links that are supervised in each step of an epoch."""
        if isinstance(batching, FullBatch) and not self.disjoint:
            yield train
            return
        order = train[torch.randperm(len(train), generator=generator).to(train.device)]
        if isinstance(batching, FullBatch):
            yield order[: max(round(len(train) * self.supervised_share), 1)]
        elif isinstance(batching, LinkBatch | NeighborBatch):
            yield from torch.split(order, batching.batch_size)
        else:
            raise BadInput(self.batching_problem(batching))

    def messages(self, prepared: PreparedLinks, supervised: Tensor) -> GraphInput:
        """Return the graph without the edges of the supervised links."""
        kept = torch.ones(prepared.graph.num_edges, dtype=torch.bool, device=supervised.device)
        edges = prepared.edge_of[:, supervised].flatten()
        kept[edges[edges >= 0]] = False
        return prepared.graph.replace(kept=kept)

    @abstractmethod
    def outcomes(self, model: nn.Module, prepared: PreparedLinks, h: Tensor, split: str) -> Any:
        """Return how a model does on each link of a split, from its nodes' representations; `of` takes some of them.

        It lies on the CPU.
        """

    @abstractmethod
    def measured(self, each: Any) -> dict[str, float]:
        """Return the metrics of outcomes; none where there are no links."""

    def evaluate(self, model: nn.Module, prepared: PreparedLinks, splits: tuple[str, ...]) -> Evaluated:
        """Run the model once over the message edges and measure every split."""
        if not any(len(prepared.index[split]) for split in splits):
            return {split: {} for split in splits}, dict.fromkeys(splits, 0)
        # Not inference_mode: what the model caches on the graph here must serve training later.
        with torch.no_grad():
            return self.evaluated(model, prepared, self.embed(model, prepared), splits)

    def evaluated(self, model: nn.Module, prepared: PreparedLinks, h: Tensor, splits: tuple[str, ...]) -> Evaluated:
        """Return the metrics and counts of every split, from the nodes' representations."""
        measure = lambda split: self.measured(self.outcomes(model, prepared, h, split))  # noqa: E731
        return by_split(prepared.index, splits, measure)

    # ---- many clients at once: a task of one's own that can be learned so defines `stack_batches` in its own class

    def pair_losses(
        self, model: nn.Module, head: Tensor, tail: Tensor, relation: Tensor, target: Tensor, generator: Any
    ) -> Tensor:
        """Return the loss of each pair, (pairs,), of representations of its ends."""
        raise NotImplementedError

    def rows_of_step(self, data: LinkGraph, batching: Batching) -> int:
        """Return the number of nodes of a step, about."""
        most = 2 * batching.most_nodes if isinstance(batching, NeighborBatch) else data.num_nodes
        return min(most, data.num_nodes)

    def evaluate_groups(
        self, model: nn.Module, prepared: PreparedLinks, split: str, groups: Sequence[Tensor]
    ) -> list[dict[str, float]]:
        """Run the model once over the message edges and measure each group's links of the split."""
        with torch.no_grad():
            each = self.outcomes(model, prepared, self.embed(model, prepared), split)
        return [self.measured(each.of(mine.cpu())) for mine in positions(prepared, split, groups)]

    def embed(self, model: nn.Module, prepared: PreparedLinks) -> Tensor:
        """Return the nodes' representations for evaluation, (nodes, width)."""
        h: Tensor = model.embed(prepared.graph, None)  # type: ignore[operator]
        return h


def link_part(model: nn.Module) -> LinkPart:
    """Return the decoder of links of a model; raises BadInput when it has none."""
    part = getattr(model, "decoder", None)
    if isinstance(part, LinkPart) and callable(getattr(model, "embed", None)):
        return part
    found = "has no decoder" if part is None else f"has the decoder {type(part).__name__}, which scores nodes"
    raise BadInput(
        f"the task scores pairs of nodes, but the model {found}; "
        "set model.decoder.name to hadamard_mlp, distmult, bilinear or dot"
    )


def message_edges(data: LinkGraph, by_relation: bool = True) -> tuple[Tensor, Tensor]:
    """Return the message edges, (2, edges), sorted, and both edges of each link, (2, links), or -1.

    They are the distinct pairs of nodes that a training link joins, in both directions; pairs that are no links do not
    count. A link of a node with itself
    gives none, nor does one that is the same as a held-out link. A link of another split has an edge only where a
    training link of another relation, or in the other direction, joins the same two nodes.
    """
    count = max(data.num_nodes, 1)
    head, tail = data.links
    there, back = head * count + tail, tail * count + head
    used = data.mask("train") & data.is_link & (head != tail) & ~same_as_held_out(data, by_relation)
    key = torch.unique(torch.cat([there[used], back[used]]))
    if len(key) == 0:
        return data.links[:, :0], torch.full_like(data.links, -1)
    wanted = torch.stack([there, back])  # (2, links)
    column = torch.searchsorted(key, wanted).clamp(max=len(key) - 1)
    return torch.stack([key // count, key % count]), torch.where(key[column] == wanted, column, -1)


def same_as_held_out(data: LinkGraph, by_relation: bool) -> Tensor:
    """Return which links are the same as a validation or test link, by the rule at the top of this file, (links,)."""
    head, tail = data.links.sort(dim=0).values if data.undirected else data.links
    key = head * max(data.num_nodes, 1) + tail
    if by_relation and not data.undirected:
        key = key * (data.num_classes + 1) + data.label + 1  # a label may be -1
    return torch.isin(key, key[data.mask("val") | data.mask("test")])


def positions(prepared: PreparedLinks, split: str, groups: Sequence[Tensor]) -> list[Tensor]:
    """Return where each group's links lie among those of the split; others are left out."""
    links = prepared.index[split]
    numbers = torch.arange(len(links), device=links.device)
    position = links.new_full((prepared.data.num_items,), -1).index_copy_(0, links, numbers)
    return [position[group][position[group] >= 0] for group in groups]


def _sampled(
    prepared: PreparedLinks, graph: GraphInput, pairs: Tensor, batching: NeighborBatch, generator: torch.Generator
) -> tuple[GraphInput, Tensor]:
    """Return a sampled neighbourhood of the pairs' nodes, and the pairs in its numbers."""
    make = lambda: Adjacency.of(prepared.graph.edge_index, prepared.graph.num_nodes)  # noqa: E731
    seeds, position = torch.unique(pairs, return_inverse=True)
    hood = sample_neighborhood(prepared.once("adjacency", make), seeds, batching.fanouts, generator)
    edge_index = hood.edge_index if graph.kept is None else hood.edge_index[:, graph.kept[hood.edges]]
    return GraphInput(x=select_rows(prepared.data.x, hood.nodes), edge_index=edge_index), position
