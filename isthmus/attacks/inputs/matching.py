"""Inputs whose gradient is the one that was seen: guessed ones are moved until their gradient points the same way.

Zhu, Liu and Han, "Deep leakage from gradients" (NeurIPS 2019); the distance is that of Geiping, Bauermeister, Droege
and Moeller, "Inverting gradients" (NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Attack, Case, NothingSeen, Seen
from isthmus.attacks.inputs.dense import DenseGCN, adjacency_of, in_double, mixing, model_problem
from isthmus.attacks.inputs.layers import UPDATES, first_update, steps_problem, without_decay
from isthmus.attacks.inputs.words import present
from isthmus.attacks.measures import auc, mean_of
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.tasks import NodeClassification

# How near to the ends of their range guessed features begin.
LEAST = 1e-4


@dataclass(frozen=True, eq=False)
class Framed:
    """What is known of a client beside its features.

    Fields:
        mix:    S of its edges, (nodes, nodes)
        labels: of the nodes that it trains on, (trained,)
        index:  which these are, (trained,)
    """

    mix: Tensor
    labels: Tensor
    index: Tensor

    @staticmethod
    def of(part: Graph) -> Framed:
        """Return what is known of a client's graph."""
        index = (part.mask("train") & (part.y >= 0)).nonzero().flatten()
        return Framed(mixing(adjacency_of(part.edge_index, part.num_nodes)), part.y[index], index)

    def loss(self, scores: Tensor) -> Tensor:
        """Return the mean cross-entropy of its training nodes."""
        return F.cross_entropy(scores[self.index], self.labels)


@dataclass(frozen=True, eq=False)
class Frames:
    """What is known of the clients that are looked at, and of the features of all nodes.

    Fields:
        of:        what is known of a client
        mean:      mean features, (features,)
        low, high: between which all features are
    """

    of: Mapping[str, Framed]
    mean: Tensor
    low: float
    high: float


@dataclass(frozen=True)
class FeaturesByMatching(Attack):
    """Guesses the features of a client's nodes as those whose gradient has the direction of the one that was seen.

        minimise over Z:   1 - <g(X), g> / (|g(X)| |g|),   X = low + (high - low) sigmoid(Z)

    by Adam, with g(X) the gradient of all weights, from the mean features of all nodes on. Features of which the first
    layer's gradient is zero are taken for absent.

    Fields:
        steps:   of Adam
        rate:    its learning rate, which falls to nothing
        clients: how many clients are looked at, the first ones: it takes seconds for each
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "the features of each of a client's nodes"
    knows: ClassVar[str] = (
        "the client's edges, which nodes it trains on with their labels, and the mean and range of features"
    )
    reads: ClassVar[tuple[str, ...]] = UPDATES
    measures: ClassVar[tuple[str, ...]] = ("auc", "correlation")

    steps: int = 200
    rate: float = 0.03
    clients: int = 2

    def __post_init__(self) -> None:
        refuse(self.steps < 1, self, "steps", "it must be at least 1")
        refuse(self.clients < 1, self, "clients", "it must be at least 1")
        refuse(not self.rate > 0.0, self, "rate", "it must be positive")

    def problem(self, course: Course) -> str:
        """Return why there is no gradient that could be written out."""
        if type(course.task) is not NodeClassification:
            return f"it is about features of nodes with classes, and the task is {type(course.task).__name__}"
        return model_problem(course) or steps_problem(course, (1,))

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first round."""
        return at.round <= 1

    def known(self, case: Case) -> Frames:
        """Return edges and labels of the clients that are looked at."""
        able = [c for c, part in case.scenario.parts.items() if bool((part.mask("train") & (part.y >= 0)).any())]
        framed = {client: Framed.of(case.scenario.parts[client]) for client in able[: self.clients]}
        x = case.scenario.whole.x.to_dense().double()
        return Frames(framed, x.mean(dim=0), float(x.min()), float(x.max()))

    def guess(self, seen: Seen, known: Frames) -> dict[str, Tensor]:
        """Return the features of each client's nodes, by client (nodes, features)."""
        return {client: self._of(seen, client, framed, known) for client, framed in known.of.items()}

    def _of(self, seen: Seen, client: str, framed: Framed, known: Frames) -> Tensor:
        sent, gradient = gradient_of(seen, client)
        model, params = DenseGCN.of(seen.course), in_double(sent)
        moved = gradient[model.first()].norm(dim=1)
        there = moved > 1e-6 * moved.max()
        width = max(known.high - known.low, 1e-12)

        def features(place: Tensor) -> Tensor:
            found: Tensor = (known.low + width * place.sigmoid()) * there
            return found

        def off(place: Tensor) -> Tensor:
            return apart(model.gradient(params, framed.mix, features(place), framed.loss, again=True), gradient)

        start = torch.logit(((known.mean - known.low) / width).clamp(LEAST, 1.0 - LEAST))
        return features(descended(start.expand(len(framed.mix), -1).clone(), off, self.steps, self.rate))

    def prior(self, known: Frames, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return the mean features of all for each node."""
        return {client: known.mean.expand(len(framed.mix), -1) for client, framed in known.of.items()}

    def truth(self, case: Case, known: Frames) -> dict[str, Tensor]:
        """Return the features."""
        return {client: case.scenario.parts[client].x.to_dense().double() for client in known.of}

    def scores(self, guess: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> dict[str, float]:
        """Return how well each node's features that are not zero are ranked before the others, and the correlation."""
        rows = [(guess[client][node], x[node]) for client, x in truth.items() for node in range(len(x))]
        aucs = [auc(found, present(right.unsqueeze(0))[0]) for found, right in rows]
        return {"auc": mean_of(aucs), "correlation": mean_of([correlation(*row) for row in rows])}


def gradient_of(seen: Seen, client: str) -> tuple[Params, Params]:
    """Return what a client was sent first, and the gradient that moved it."""
    sent, back = first_update(seen, client)
    algorithm: Any = seen.course.algorithm
    moved = {name: without_decay(each, back[name], seen.course) for name, each in sent.items()}
    gradient = {name: -each / algorithm.optimizer.lr for name, each in moved.items()}
    if not any(bool(each.any()) for each in gradient.values()):
        raise NothingSeen(f"the update of {client} moved nothing")
    return sent, gradient


def apart(found: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> Tensor:
    """Return one less the cosine between two gradients, each as one long vector."""
    both = sum(((found[name] * each).sum() for name, each in gradient.items()), start=torch.zeros(()).double())
    own = sum((found[name].square().sum() for name in gradient), start=torch.zeros(()).double())
    other = sum(float(each.square().sum()) for each in gradient.values())
    return 1.0 - both / (own * other).clamp_min(1e-60).sqrt()


def descended(start: Tensor, off: Callable[[Tensor], Tensor], steps: int, rate: float) -> Tensor:
    """Return what Adam makes of a start, with a rate that falls to nothing."""
    found = start.detach().requires_grad_()
    mean, square = torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, steps + 1):
        (slope,) = torch.autograd.grad(off(found), found)
        mean.lerp_(slope, 0.1)
        square.lerp_(slope.square(), 0.001)
        move = (mean / (1.0 - 0.9**step)) / ((square / (1.0 - 0.999**step)).sqrt() + 1e-30)
        found = (found.detach() - rate * (1.0 - (step - 1) / steps) * move).requires_grad_()
    return found.detach()


def correlation(one: Tensor, other: Tensor) -> float:
    """Return Pearson's correlation of two vectors; 0 where one of them is constant."""
    first, second = one - one.mean(), other - other.mean()
    length = float(first.norm() * second.norm())
    return float(first @ second) / length if length > 0.0 else 0.0
