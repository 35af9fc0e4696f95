"""How a client's labels are shared among the classes: the last bias' gradient is what is predicted less what is so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Case, Estimating, Seen
from isthmus.attacks.inputs.layers import (
    UPDATES,
    at_the_output,
    first_update,
    steps_problem,
    weights_of,
    without_decay,
)
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.data.dividing import Holding

TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Moved:
    """A parameter that was sent, what became of it, and the mean of the gradients by it, all in double precision."""

    before: Tensor
    after: Tensor
    gradient: Tensor

    def at(self, part: float) -> Tensor:
        """Return it on its way, with such a part of it behind it."""
        return self.before + part * (self.after - self.before)


@dataclass(frozen=True)
class LabelShares(Estimating):
    """Reads the share of each class among the labels that a client trains on off one update of the last layer.

    The gradient of the mean cross-entropy by the bias b is g = (mean prediction) - (label shares), and plain steps of
    rate lr move the bias by -lr g. The mean prediction is not seen, but the gradient by the layer's weights W is the
    mean over nodes of (input) (prediction - label)^T; of one node it would be its input times g. So the input in the
    mean is taken for G g / |g|^2, with G that gradient (least squares of G = x g^T), and the mean prediction for
    softmax(x W + b), in the mean over the way of W and b from where they began to where they ended.
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which share of a client's training labels each class has"
    knows: ClassVar[str] = "the shares of all training labels together"
    reads: ClassVar[tuple[str, ...]] = UPDATES

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
        """Return what the last layers say, cut to shares."""
        return {client: self._of(seen, client, len(known)) for client in seen.clients}

    def _of(self, seen: Seen, client: str, num_classes: int) -> Tensor:
        moved = self.first_moves(seen, client)
        after = {name: each.after for name, each in moved.items()}
        bias = at_the_output(after, num_classes)
        steps = seen.course.algorithm.local_steps  # type: ignore[attr-defined]
        return shares_told(moved[bias], [moved[name] for name in weights_of(after, bias)], steps)

    def first_moves(self, seen: Seen, client: str) -> dict[str, Moved]:
        """Return how a client first moved each parameter; by plain steps, which tell their gradients."""
        sent, back = first_update(seen, client)
        algorithm: Any = seen.course.algorithm
        rate = algorithm.optimizer.lr * algorithm.local_steps
        return {
            name: Moved(sent[name].double(), after.double(), -without_decay(sent[name], after, seen.course) / rate)
            for name, after in back.items()
            if after.is_floating_point()
        }

    def prior(self, known: Tensor, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return the shares of all."""
        return dict.fromkeys(clients, known)

    def truth(self, case: Case, known: Tensor) -> dict[str, Tensor]:
        """Return the shares among the labels that each client trains on, of those that have some."""
        found = {client: shares_of(part) for client, part in case.scenario.parts.items()}
        return {client: shares for client, shares in found.items() if shares.sum() > 0}


def shares_told(bias: Moved, weights: Sequence[Moved], steps: int) -> Tensor:
    """Return the shares of classes that a last layer's gradients tell, (classes,), cut to shares."""
    direction = bias.gradient / bias.gradient.square().sum().clamp_min(TINY)
    inputs = [each.gradient @ direction for each in weights]  # (inputs,) each: what came in, in the mean
    predicted = torch.zeros_like(bias.gradient)
    for step in range(steps):  # predictions are made before each step: after 0, 1, ... of all of them
        part = step / steps
        logits = bias.at(part) + sum(x @ each.at(part) for x, each in zip(inputs, weights, strict=True))
        predicted += logits.softmax(dim=0) / steps
    found = (predicted - bias.gradient).clamp_min(0.0)
    return found / found.sum().clamp_min(TINY)


def shares_of(data: Holding) -> Tensor:
    """Return the share of each class among training labels, (classes,), in double precision; zeros without any."""
    labels = data.labels[data.mask("train") & (data.labels >= 0)]
    return torch.bincount(labels, minlength=data.num_classes).double() / max(1, len(labels))
