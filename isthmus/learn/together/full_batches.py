"""Steps of many clients of which each sees all of its data in every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.learn.optimizers import OptimizerState
from isthmus.learn.steps import step_gradients
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.asked import StackedLoss, Together
from isthmus.learn.together.live_weights import Weights
from isthmus.learn.together.stackable import replaced
from isthmus.models.streams import Streams


class FullSteps:
    """Training on full batches.

    Attributes:
        weights: the parameters, which move
        state:   the optimiser's
        losses:  each client's in every step, (clients,)
        sums:    the gradients added up, where they are asked for
        seen:    what is observed of the trained model, where somebody wants to
    """

    def __init__(
        self,
        model: nn.Module,
        asked: Together,
        weights: Weights,
        state: OptimizerState,
        lr: float,
        data: StackedData,
        loss: StackedLoss,
        streams: Callable[[], Streams],
    ) -> None:
        self.model, self.asked, self.weights, self.state, self.lr = model, asked, weights, state, lr
        self.losses: list[Tensor] = []
        self.sums = [torch.zeros_like(each) for each in weights.values] if asked.sum_gradients else None
        self.seen: Any = None
        self._data, self._loss, self._first = data, loss, streams()
        # The same draws once more, for own values beside the first ones.
        self._again = None if asked.beside is None else streams()

    def run(self) -> None:
        """Take all steps."""
        asked, weights, envelope = self.asked, self.weights, self.asked.envelope
        with replaced(self.model, weights.installed()):
            for _ in range(asked.steps):
                if envelope is None:
                    self._step()
                    continue
                weights.begin()
                self.state = asked.optimizer.start(weights.values)
                for _ in range(envelope.steps):
                    self._step()
                weights.follow(envelope.rate)
            with torch.no_grad():
                self.seen = None if asked.observe is None else asked.observe(self.model, self._data)

    def _step(self) -> None:
        asked, weights, beside = self.asked, self.weights, self.asked.beside
        each = self._losses(self._first)  # (clients,)
        self.losses.append(each.detach())
        extra = [penalty(weights.of(k)) for k, penalty in enumerate(asked.penalties)]
        total = torch.stack(extra).sum() if extra else None
        further: list[Tensor] = []
        if beside is not None:
            each = each + beside.losses(weights, self._of_others)
            further = beside.further
        grads = step_gradients(each, total, [*weights.moved, *further], self.sums, asked.optimizer)
        if beside is not None:
            grads, slopes = grads[: len(weights.moved)], grads[len(weights.moved) :]
            beside.learn(slopes)
        weights.join(grads)
        asked.optimizer.step(weights.values, grads, self.state, self.lr)

    def _losses(self, streams: Streams | None) -> Tensor:
        assert streams is not None
        return self._loss(self.model, self._data, streams, lambda: self.weights.frozen)

    def _of_others(self, others: Mapping[str, Tensor]) -> Tensor:
        with replaced(self.model, self.weights.installed(others)):
            return self._losses(self._again)
