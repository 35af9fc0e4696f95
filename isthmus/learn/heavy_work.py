"""What handlers ask their clients for that is done for many at once: training, evaluation, sums of parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isthmus.core.client import Work
from isthmus.core.record import Params
from isthmus.core.replies import Combination, Stacked, StackedParams, combined
from isthmus.learn.batching import Batching
from isthmus.learn.optimizers import Optimizer, OptimizerState
from isthmus.learn.steps import (
    BothWays,
    Envelope,
    Loss,
    Penalty,
    Pull,
    copied,
    load_params,
    read_params,
    step_gradients,
)
from isthmus.learn.tasks.stacked_batches import Evaluated
from isthmus.learn.tasks.task import Task

if TYPE_CHECKING:  # which imports this file
    from isthmus.learn.graph_client import GraphClient


@dataclass(frozen=True)
class Fitted:
    """What local training gives back.

    Fields:
        params:     the trained parameters
        loss:       mean over the steps, without the penalty; NaN when nothing was trained
        steps:      steps that were taken
        make_state: gives the optimiser's state at the end; of many clients' it is made only for those that want it
        gradients:  the sum over the steps of the loss's gradients, decay that is part of them included, where asked for
        centre:     where the centre of an envelope went, with buffers as in `params`, where there is one
    """

    params: Params
    loss: float
    steps: int
    make_state: Callable[[], OptimizerState]
    gradients: Params | None = None
    centre: Params | None = None

    @cached_property
    def optimizer_state(self) -> OptimizerState:
        """The optimiser's state at the end."""
        return self.make_state()


@dataclass(frozen=True, eq=False)
class Fit(Work):
    """Training; fields as in `GraphClient.fit`."""

    params: Params
    steps: int
    optimizer: Optimizer
    step_unit: str = "batch"
    penalty: Penalty | None = None
    optimizer_state: OptimizerState | None = None
    loss: Loss | None = None
    prepared: Any = None
    drift: Params | None = None
    sum_gradients: bool = False
    purpose: str = "fit"
    envelope: Envelope | None = None

    def kind(self) -> Hashable:
        """Return what is the same for all clients that are trained together."""
        pull = self.penalty.strength if isinstance(self.penalty, Pull) else None
        loss = self.loss.many if isinstance(self.loss, BothWays) else type(self.loss)
        each_has = (type(self.penalty), pull, loss, self.optimizer_state is None, self.drift is None)
        same = (self.steps, self.step_unit, self.optimizer, self.sum_gradients, self.purpose, self.envelope)
        return (type(self), tuple(self.params), _features_kind(self.prepared), each_has, same)

    def on(
        self,
        model: nn.Module,
        params: Params,
        task: Task,
        prepared: Any,
        lr: float,
        batching: Batching,
        generator: torch.Generator,
    ) -> Fitted:
        """Train from all parameters of a model, which a client without training examples gives back."""
        per_epoch = task.batches_per_epoch(prepared, batching) if self.step_unit == "epoch" else 1
        load_params(model, params)
        optimizer, envelope, shared = self.optimizer, self.envelope, self.params
        named = {name: slot for name, slot in model.named_parameters() if slot.requires_grad}
        live: list[Tensor] = list(named.values())
        state = optimizer.start(live) if self.optimizer_state is None else copied(self.optimizer_state)
        sums = [torch.zeros_like(slot) for slot in live] if self.sum_gradients else None
        losses: list[Tensor] = []
        centre = {} if envelope is None else {n: slot.detach().clone() for n, slot in named.items() if n in shared}
        penalty = self.penalty if envelope is None else Pull(envelope.strength, centre)
        for _, batch in zip(range(self.steps * per_epoch), task.batches(prepared, batching, generator), strict=False):
            if envelope is not None:
                with torch.no_grad():
                    for name, w in centre.items():
                        named[name].copy_(w)
                state = optimizer.start(live)
            for _ in range(1 if envelope is None else envelope.steps):
                found = (self.loss or task.loss)(model, batch, generator)
                losses.append(found.detach())
                grads = step_gradients(found, None if penalty is None else penalty(named), live, sums, optimizer)
                with torch.no_grad():
                    optimizer.step(live, self._drifted(grads, named), state, lr)
            if envelope is not None:
                for name, w in centre.items():
                    w.lerp_(named[name].detach(), envelope.rate)
        summed = None if sums is None else dict(zip(named, sums, strict=True))
        mean = float(torch.stack(losses).mean()) if losses else float("nan")
        return Fitted(read_params(model), mean, len(losses), lambda: state, summed, centre if envelope else None)

    def _drifted(self, grads: list[Tensor], named: Mapping[str, Tensor]) -> list[Tensor]:
        """Return gradients with the drift added to those that have one."""
        drift = self.drift
        if drift is None:
            return grads
        return [g + drift[name] if name in drift else g for name, g in zip(named, grads, strict=True)]

    def alone(self, client: GraphClient) -> Fitted:
        """Train one client."""
        fitted = self.on(
            client.model,
            client.complete(self.params),
            client.task,
            client.prepared if self.prepared is None else self.prepared,
            self.optimizer.lr * self.optimizer.schedule.factor(max(client.position.round, 1)),
            client.batching,
            client.generator(self.purpose),
        )
        params = client.keep_personal(fitted.params, self.params)
        return replace(fitted, params=params, centre=None if fitted.centre is None else {**params, **fitted.centre})

    @staticmethod
    def together(clients: Any, works: Sequence[Fit]) -> Sequence[Fitted]:
        """Train many clients as one."""
        found: Sequence[Fitted] = clients.fit_all(works)
        return found


@dataclass(frozen=True, eq=False)
class Evaluate(Work):
    """Evaluation of a model on a client's own graph; fields as in `GraphClient.evaluate`."""

    params: Params
    splits: tuple[str, ...]
    prepared: Any = None

    def kind(self) -> Hashable:
        """Return what is the same for all clients that are evaluated together."""
        return (type(self), self.splits, frozenset(self.params), _features_kind(self.prepared))

    def alone(self, client: GraphClient) -> Evaluated:
        """Evaluate one client's model."""
        load_params(client.model, client.complete(self.params))
        prepared = client.prepared if self.prepared is None else self.prepared
        return client.task.evaluate(client.model, prepared, self.splits)

    @staticmethod
    def together(clients: Any, works: Sequence[Evaluate]) -> Sequence[Any]:
        """Evaluate many clients' models as one."""
        first = works[0]
        prepared = None if first.prepared is None else [work.prepared for work in works]
        found: Sequence[Any] = clients.evaluate([work.params for work in works], first.splits, prepared)
        return found


@dataclass(frozen=True, eq=False)
class Combine(Work):
    """A linear combination of parameters."""

    terms: tuple[tuple[float, Params], ...]
    names: tuple[str, ...]

    def kind(self) -> Hashable:
        """Return what is the same for all clients whose parameters are combined together."""
        return (type(self), self.names, tuple(factor for factor, _ in self.terms))

    def alone(self, client: GraphClient | None) -> Params:
        """Combine one client's parameters."""
        return {name: combined([(factor, params[name]) for factor, params in self.terms]) for name in self.names}

    @staticmethod
    def together(clients: Any, works: Sequence[Combine]) -> Sequence[Params]:
        """Combine many clients' parameters without taking them apart."""
        factors = [factor for factor, _ in works[0].terms]
        each = [clients.terms_of([work.terms[place][1] for work in works]) for place in range(len(factors))]
        terms: list[tuple[float, Mapping[str, Any]]] = list(zip(factors, each, strict=True))
        if not any(isinstance(params[name], Stacked) for _, params in terms for name in works[0].names):
            return [works[0].alone(None)] * len(works)  # the same for all
        found = {name: Combination([(factor, params[name]) for factor, params in terms]) for name in works[0].names}
        return StackedParams(found, len(works)).members()


def _features_kind(prepared: Any) -> type | None:
    """Return whether the features of other data than the client's own are sparse or dense; sets of graphs say it."""
    return None if prepared is None else type(prepared.graph.x if hasattr(prepared, "graph") else prepared)
