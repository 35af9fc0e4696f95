"""Who may have been trained on, and what a model says of them: what attacks on membership have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.asking import probabilities
from isthmus.attacks.attack import CURIOUS_CLIENT, Case, Deciding, NothingSeen, Seen
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.learn.tasks import Task
from isthmus.runs.simulation import Scenario

# What a probability is taken for at least, so that its logarithm is a number.
LEAST = 1e-30


@dataclass(frozen=True, eq=False)
class Candidates:
    """Items of which some were trained on, and the parts of the data that they lie in, without their masks.

    Fields:
        items: (candidates,); places in the whole data
        parts: each client's data, without masks
    """

    course: Course
    items: Tensor
    labels: Tensor
    size: int
    parts: dict[str, Any]

    @staticmethod
    def of(case: Case) -> Candidates:
        """Return what is known of a case: items that somebody holds, with a label, to train on or to test with."""
        whole = case.scenario.whole
        held = torch.zeros(whole.num_items, dtype=torch.bool)
        for part in case.scenario.parts.values():
            held[part.item_ids] = True
        chosen = (held & (whole.mask("train") | whole.mask("test")) & (whole.labels >= 0)).nonzero().flatten()
        parts = {client: part.with_masks({}) for client, part in case.scenario.parts.items()}
        return Candidates(case.course, chosen, whole.labels[chosen], whole.num_items, parts)

    def confidences(self, params: Params, edges: bool = True) -> Tensor:
        """Return how sure a model is of each candidate's label, log p / (1 - p), (candidates,).

        It is asked about each client's data by themselves, as it was trained, or about the features alone (`edges`);
        where several hold an item, the mean.
        """
        total, count = torch.zeros(self.size, dtype=torch.float64), torch.zeros(self.size, dtype=torch.float64)
        for part in self.parts.values():
            known = part.labels >= 0
            told = probabilities(self.course, part if edges else without_edges(part), params)[known]
            right = torch.zeros_like(told, dtype=torch.bool)
            right[torch.arange(len(told)), part.labels[known]] = True
            others = told.masked_fill(right, 0.0).sum(dim=1)  # 1 - p would be 0 where p is nearly one
            sure = told[right].clamp_min(LEAST).log() - others.clamp_min(LEAST).log()
            total.index_add_(0, part.item_ids[known], sure)
            count.index_add_(0, part.item_ids[known], torch.ones_like(sure))
        return (total / count.clamp_min(1.0))[self.items]


@dataclass(frozen=True)
class Membership(Deciding):
    """Decides of candidates whether they were trained on, by the global model that every client has at the end."""

    position: ClassVar[str] = CURIOUS_CLIENT
    learns: ClassVar[str] = "which of the items that others hold were trained on"
    knows: ClassVar[str] = "the candidates, their features, labels and edges, and how they are divided"

    def problem(self, course: Course) -> str:
        """Return why there are no classes to be sure of, or no model that everybody has."""
        if not _has_classes(course.task):
            return f"it asks how sure a model is of a class, and the task {type(course.task).__name__} has none"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that no message is needed but the last model."""
        return False

    def known(self, case: Case) -> Candidates:
        """Return the candidates."""
        return Candidates.of(case)

    def prior(self, known: Candidates, clients: Sequence[str]) -> Tensor:
        """Return the same for all: nothing of an item says whether it was drawn to be trained on."""
        return torch.zeros(len(known.items))

    def truth(self, case: Case, known: Candidates) -> Tensor:
        """Return who was trained on."""
        return case.scenario.whole.mask("train")[known.items]


def the_model(seen: Seen) -> Params:
    """Return the model that everybody has at the end."""
    if not seen.final:
        raise NothingSeen("clients share no whole model: each has its own")
    return seen.final


def with_members(scenario: Scenario, members: Tensor, others: Tensor) -> Scenario:
    """Return who holds what where some items, by their places in the whole data, are trained on, and others not."""
    whole = scenario.whole
    train, test = whole.mask("train").clone(), whole.mask("test").clone()
    train[others], test[others], train[members], test[members] = False, True, True, False
    masks = {**whole.masks, "train": train, "test": test}
    parts = {
        client: part.with_masks({split: mask[part.item_ids] for split, mask in masks.items()})
        for client, part in scenario.parts.items()
    }
    return Scenario(whole.with_masks(masks), parts, notes=scenario.notes, server=scenario.server)


def has_edges(part: Any) -> bool:
    """Whether a part's items are nodes or graphs, which a model can be asked about without edges too."""
    return isinstance(part, Graph | GraphSet)


def without_edges(part: Any) -> Any:
    """Return a graph, or graphs, without their edges."""
    fields: dict[str, Any] = {"edge_index": part.edge_index[:, :0]}
    for name in ("edge_weight", "edge_attr"):
        found = getattr(part, name, None)
        if found is not None:
            fields[name] = found[:0]
    return replace(part, **fields)


def _has_classes(task: Task) -> bool:
    return task.outputs_are_classes
