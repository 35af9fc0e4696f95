"""Which of a client's nodes are joined: the edges whose gradient is the one that was seen.

In the manner of Zhang, Liu, Huang, Wang, Lu, Xie and Wu, "GraphMI: Extracting private graph data from graph neural
networks" (IJCAI 2021), with a client's gradient in the place of a model that was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Case, Deciding, Seen
from isthmus.attacks.inputs.dense import DenseGCN, adjacency_of, in_double, mixing, model_problem
from isthmus.attacks.inputs.layers import UPDATES, steps_problem
from isthmus.attacks.inputs.matching import Framed, apart, descended, gradient_of
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request
from isthmus.learn.tasks import NodeClassification


@dataclass(frozen=True, eq=False)
class Unlinked:
    """What is known of a client beside its edges.

    Fields:
        framed:  labels of the nodes that it trains on; its edges are not used
        x:       (nodes, features)
    """

    framed: Framed
    x: Tensor

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """All pairs of nodes, each once."""
        first, second = torch.triu_indices(len(self.x), len(self.x), offset=1)
        return first, second

    def alike(self) -> Tensor:
        """Return the cosine of the features of each pair, (pairs,)."""
        unit = F.normalize(self.x)
        first, second = self.pairs
        return (unit[first] * unit[second]).sum(dim=1)


@dataclass(frozen=True)
class EdgesByMatching(Deciding):
    """Guesses the edges of a client as those whose gradient has the direction of the one that was seen.

        minimise over Z:   1 - <g(A), g> / (|g(A)| |g|),   A = sigmoid(Z), symmetric

    by Adam, from A = `start` for each pair on, more where features are more alike.

    Fields:
        steps:   of Adam
        rate:    its learning rate, which falls to nothing
        start:   how much each pair is joined at first
        clients: how many clients are looked at, the first ones: it takes seconds for each
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which of a client's nodes are joined"
    knows: ClassVar[str] = "the features of the client's nodes, and which ones it trains on with their labels"
    reads: ClassVar[tuple[str, ...]] = UPDATES

    steps: int = 200
    rate: float = 0.3
    start: float = 0.05
    clients: int = 2

    def __post_init__(self) -> None:
        refuse(self.steps < 1, self, "steps", "it must be at least 1")
        refuse(self.clients < 1, self, "clients", "it must be at least 1")
        refuse(not self.rate > 0.0, self, "rate", "it must be positive")
        refuse(not 0.0 < self.start < 1.0, self, "start", "it must be in (0, 1)")

    def problem(self, course: Course) -> str:
        """Return why there is no gradient that could be written out."""
        if type(course.task) is not NodeClassification:
            return f"it is about edges of nodes with classes, and the task is {type(course.task).__name__}"
        return model_problem(course) or steps_problem(course, (1,))

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first round."""
        return at.round <= 1

    def known(self, case: Case) -> dict[str, Unlinked]:
        """Return features and labels of the clients that are looked at."""
        found: dict[str, Unlinked] = {}
        for client, part in case.scenario.parts.items():
            if len(found) < self.clients and bool((part.mask("train") & (part.y >= 0)).any()) and part.num_edges:
                found[client] = Unlinked(Framed.of(part), part.x.to_dense().double())
        return found

    def guess(self, seen: Seen, known: Mapping[str, Unlinked]) -> Tensor:
        """Return how much each pair is joined, the clients' pairs one after the other."""
        return torch.cat([self._of(seen, client, each) for client, each in known.items()])

    def _of(self, seen: Seen, client: str, known: Unlinked) -> Tensor:
        sent, gradient = gradient_of(seen, client)
        model, params = DenseGCN.of(seen.course), in_double(sent)
        first, second = known.pairs

        def off(place: Tensor) -> Tensor:
            joined = torch.zeros(len(known.x), len(known.x), dtype=torch.float64)
            joined = joined.index_put((first, second), place.sigmoid())
            mix = mixing(joined + joined.t())
            return apart(model.gradient(params, mix, known.x, known.framed.loss, again=True), gradient)

        begin = torch.logit(torch.tensor(self.start, dtype=torch.float64)) + known.alike()
        return descended(begin, off, self.steps, self.rate)

    def prior(self, known: Mapping[str, Unlinked], clients: Sequence[str]) -> Tensor:
        """Return how alike the features of each pair are."""
        return torch.cat([each.alike() for each in known.values()])

    def truth(self, case: Case, known: Mapping[str, Unlinked]) -> Tensor:
        """Return which pairs are joined."""
        found = []
        for client, each in known.items():
            part = case.scenario.parts[client]
            found.append(adjacency_of(part.edge_index, part.num_nodes)[each.pairs] > 0)
        return torch.cat(found)
