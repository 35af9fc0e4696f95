"""What is asked of clients that are trained together, and what comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from isthmus.core.record import Params
from isthmus.core.replies import Stacked, StackedParams, own_tensor
from isthmus.learn.heavy_work import Fitted
from isthmus.learn.optimizers import (
    Optimizer,
    OptimizerState,
)
from isthmus.learn.steps import Envelope, Penalty
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.live_weights import Weights
from isthmus.learn.together.starts import Start
from isthmus.models.streams import Streams

# What the model began with, in the form in which it takes its parameters; made when it is asked for.
Frozen: TypeAlias = Callable[[], Mapping[str, Any]]

# From the model, the data, the clients' random streams and what the model began with to each client's loss, (clients,).
StackedLoss: TypeAlias = Callable[[nn.Module, StackedData, Streams, Frozen], Tensor]


class Beside(ABC):
    """A second value of every parameter of each client, its own, that learns beside the first, step by step.

    Attributes:
        starts: what the own values begin with
    """

    starts: Mapping[str, Start]

    @abstractmethod
    def begin(self, order: Sequence[int]) -> None:
        """Be told which client is at each place of the stack."""

    @abstractmethod
    def losses(self, weights: Weights, run: Callable[[Mapping[str, Tensor]], Tensor]) -> Tensor:
        """Return losses whose slopes the own values follow, (clients,).

        `weights` are those of the clients that take the step. `run` gives each one's loss with other parameters, on
        the same batch and with the same draws.
        """

    @property
    def further(self) -> list[Tensor]:
        """What else the slope of this step's losses is wanted by."""
        return []

    def learn(self, slopes: Sequence[Tensor]) -> None:  # noqa: B027
        """Be told these slopes."""


@dataclass(frozen=True)
class StackedFit:
    """What training together gives back.

    Fields:
        params:      each parameter of each client
        losses:      each client's mean over the steps, (clients,)
        steps:       steps that were taken
        make_states: gives each client's optimiser state
        gradients:   the sums of each client's gradients, where they were asked for
        observed:    what `observe` returned; None for clients that had nothing to train on
        centre:      where the centre of an envelope went, of the parameters that it is over
        steps_each:  steps of each client, where they are not the same for all
        beside:      the own values of parameters, where there were any
    """

    params: dict[str, Stacked]
    losses: Tensor
    steps: int
    make_states: Callable[[], tuple[OptimizerState, ...]]
    gradients: dict[str, Stacked] | None = None
    observed: Any = None
    centre: dict[str, Stacked] | None = None
    steps_each: tuple[int, ...] | None = None
    beside: dict[str, Stacked] | None = None

    @cached_property
    def optimizer_states(self) -> tuple[OptimizerState, ...]:
        """Each client's optimiser state at the end."""
        return self.make_states()

    def member(self, position: int) -> Params:
        """Return one client's parameters, in memory of their own: a view would keep all clients' alive."""
        return {name: own_tensor(stacked.member(position)) for name, stacked in self.params.items()}

    def members(self) -> list[Fitted]:
        """Return what each client has of it; parameters and optimiser states are made when they are looked at."""
        number = len(self.losses)
        centre = None if self.centre is None else {**self.params, **self.centre}
        params, sums, centres = (
            [None] * number if held is None else StackedParams(held, number).members()
            for held in (self.params, self.gradients, centre)
        )
        steps = self.steps_each or (self.steps,) * number
        states = [partial(lambda position: self.optimizer_states[position], position) for position in range(number)]
        each = zip(params, self.losses.tolist(), steps, states, sums, centres, strict=True)
        return [Fitted(*mine) for mine in each]


@dataclass(frozen=True, eq=False, kw_only=True)
class Together:
    """How many clients are trained.

    Fields:
        steps:            optimiser steps; on full batches a batch is an epoch
        optimizer:        how a gradient becomes a step
        step_unit:        "batch" or "epoch"
        proximal:         mu of a term mu/2 |w - start|^2 that joins each client's loss
        pulled:           the parameters that it is over
        optimizer_states: each client's state to go on from; None to begin from nothing
        loss:             each client's loss, (clients,); by default the task's
        drifts:           what is added to the gradients of these parameters at every step, for all or for each
        penalties:        each client's own term, which may be any function of its parameters
        sum_gradients:    whether gradients are added up, without drifts and pulls
        purpose:          names the clients' random streams
        data:             takes the place of the clients' own
        observe:          called after the last step with the trained model and the data; what it returns is kept
        alters_features:  whether the loss runs the model on other features than the clients' own
        envelope:         its centre is what is trained, over the given parameters, in the place of a pull
        beside:           further values of all parameters that learn too; their moments come after those of the first
    """

    steps: int
    optimizer: Optimizer
    step_unit: str = "batch"
    proximal: float = 0.0
    pulled: Container[str] = ()
    optimizer_states: Sequence[OptimizerState | None] | None = None
    loss: Any = None
    drifts: Mapping[str, Start] | None = None
    penalties: Sequence[Penalty] = ()
    sum_gradients: bool = False
    purpose: str = "fit"
    data: Any = None
    observe: Callable[[nn.Module, Any], Any] | None = None
    alters_features: bool = False
    envelope: Envelope | None = None
    beside: Beside | None = None
