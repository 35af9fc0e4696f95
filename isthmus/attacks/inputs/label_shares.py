"""How a client's labels are shared among the classes: the last bias' gradient is what is expected less what is so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Case, Estimating, Seen
from isthmus.attacks.inputs.layers import at_the_output, first_update, steps_problem, without_decay
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.data.dividing import Holding


@dataclass(frozen=True)
class LabelShares(Estimating):
    """Reads the share of each class among the labels that a client trains on off one update of the last bias.

    The gradient of the mean cross-entropy by the bias is (mean prediction) - (label shares), and plain steps of rate
    lr move the bias by -lr times it. What is predicted in the mean is not seen: it is taken for the softmax of the bias
    alone, in the mean over its way from where it began to where it ended.
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which share of a client's training labels each class has"
    knows: ClassVar[str] = "the shares of all training labels together"

    def problem(self, course: Course) -> str:
        """Return why there is no such gradient to be seen."""
        if not course.task.outputs_are_classes:
            return f"it is about shares of classes, and the task {type(course.task).__name__} has none"
        return steps_problem(course)

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first round."""
        return at.round <= 1

    def known(self, case: Case) -> Tensor:
        """Return the shares of the whole data."""
        return shares_of(case.scenario.whole)

    def guess(self, seen: Seen, known: Tensor) -> dict[str, Tensor]:
        """Return what the biases say, cut to shares."""
        return {client: self._of(seen, client, len(known)) for client in seen.clients}

    def _of(self, seen: Seen, client: str, num_classes: int) -> Tensor:
        sent, back = first_update(seen, client)
        name = at_the_output(back, num_classes)
        before, after = sent[name].double(), back[name].double()
        algorithm: Any = seen.course.algorithm
        steps = without_decay(before, after, seen.course) / (algorithm.optimizer.lr * algorithm.local_steps)
        # Predictions are made before each step: after 0, 1, ... of all of them.
        way = torch.arange(algorithm.local_steps, dtype=torch.float64).unsqueeze(1) / algorithm.local_steps
        predicted = (before + way * (after - before)).softmax(dim=1).mean(dim=0)
        found: Tensor = (predicted + steps).clamp_min(0.0)
        return found / found.sum().clamp_min(1e-12)

    def prior(self, known: Tensor, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return the shares of all."""
        return dict.fromkeys(clients, known)

    def truth(self, case: Case, known: Tensor) -> dict[str, Tensor]:
        """Return the shares among the labels that each client trains on, of those that have some."""
        found = {client: shares_of(part) for client, part in case.scenario.parts.items()}
        return {client: shares for client, shares in found.items() if shares.sum() > 0}


def shares_of(data: Holding) -> Tensor:
    """Return the share of each class among training labels, (classes,), in double precision; zeros without any."""
    labels = data.labels[data.mask("train") & (data.labels >= 0)]
    return torch.bincount(labels, minlength=data.num_classes).double() / max(1, len(labels))
