"""Links from the model that all have: what it says of two nodes' features, as connected nodes look alike in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.asking import probabilities
from isthmus.attacks.attack import CURIOUS_CLIENT, Case, Deciding, Seen
from isthmus.attacks.links.from_rows import by_features, connected, correlation, pairs_of, ranks, require_links
from isthmus.attacks.membership.candidates import the_model, without_edges
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.data.graph import Graph


@dataclass(frozen=True, eq=False)
class Nodes:
    """Each client's nodes without an edge, and pairs of them of which half are connected, as places among them."""

    course: Course
    parts: dict[str, Graph]
    ends: dict[str, Tensor]

    @property
    def features(self) -> dict[str, Tensor]:
        """Of each client's nodes, (nodes, features)."""
        return {client: part.x.to_dense().double() for client, part in self.parts.items()}


@dataclass(frozen=True)
class LinksFromModel(Deciding):
    """Takes pairs of nodes for connected where the global model says the same of their features, and these agree.

    He et al., "Stealing Links from Graph Neural Networks" (2021), attacks 0 and 2 without training, by somebody who has
    no answers of the model on the graph itself: a client asks the model that everybody has about features alone. What
    is compared are the probabilities of the classes and the features, by their correlations; their ranks are added up.
    """

    position: ClassVar[str] = CURIOUS_CLIENT
    learns: ClassVar[str] = "which nodes of other clients are connected"
    knows: ClassVar[str] = "the features of each client's nodes"

    def problem(self, course: Course) -> str:
        """Return why there are no edges between items to be guessed, or no classes."""
        if not issubclass(course.task.data_type, Graph) or not course.task.outputs_are_classes:
            return f"it compares classes of nodes, and the task is {type(course.task).__name__}"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that no message is needed but the last model."""
        return False

    def known(self, case: Case) -> Nodes:
        """Return the nodes, and the pairs: all edges, and as many pairs without one."""
        parts, ends = {}, {}
        for client, part in case.scenario.parts.items():
            if part.num_edges:
                ends[client] = torch.cat(pairs_of(part, case.generator("pairs", client)), dim=1)
                unknown = torch.full_like(part.y, -1)
                parts[client] = replace(without_edges(part.with_masks({})), y=unknown)
        return Nodes(case.course, parts, ends)

    def guess(self, seen: Seen, known: Nodes) -> Tensor:
        """Return how much what is said of each pair, and their features, agree."""
        require_links(known.ends)
        params, features, found = the_model(seen), known.features, []
        for client, ends in known.ends.items():
            told = probabilities(known.course, known.parts[client], params)
            alike = [ranks(correlation(rows, ends)) for rows in (told, features[client])]
            found.append(torch.stack(alike).mean(dim=0))
        return torch.cat(found)

    def prior(self, known: Nodes, clients: Sequence[str]) -> Tensor:
        """Return how much the features agree."""
        return by_features(known.features, known.ends)

    def truth(self, case: Case, known: Nodes) -> Tensor:
        """Return which pairs are connected: the first half of each client's."""
        return connected(known.ends)
