"""What clients of FedGRL do, for many at once: encoders that learn without labels, and models that are fine-tuned.

All clients' parameters are held whole, one below the other: moments and targets of their own leave no rows in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus.core.client import NotTogether
from isthmus.core.record import Params
from isthmus.core.replies import StackedParams
from isthmus.learn.optimizers import ELEMENTWISE, Optimizer, OptimizerState, gradients, steps_before
from isthmus.learn.together.layouts import FullRows, Layout, Plain, Weights, stacked_state, states_apart
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.learn.together.stacked_features import Start, starts_of
from isthmus.models.dropout import Streams

# What an objective has besides the model comes behind it, under names that no model has.
OWN = "objective:"


class Learners:
    """Clients that train together, each from parameters of its own; what a model is fed is in `data`.

    Args:
        clients: who they are
        wholes:  each client's whole model
        parts:   what an objective has besides it
        moved:   whether a parameter of this name is trained
    """

    def __init__(
        self, clients: GraphCohort, wholes: Sequence[Params], moved: Callable[[str], bool], parts: Sequence[Params] = ()
    ) -> None:
        self.clients, self.model = clients, clients.model
        layouts, self.data = clients.held(FullRows)
        starts: dict[str, Start] = {name: [whole[name] for whole in wholes] for name in layouts}
        for name, start in (starts_of(parts) if parts else {}).items():
            starts[OWN + name], layouts[OWN + name] = start, Plain(len(clients))
        still = {name for name, _ in self.model.named_buffers()} | {name for name in starts if not moved(name)}
        self.layouts: dict[str, Layout] = layouts
        self.weights = Weights(starts, layouts, frozenset(still))
        self.live = self.weights.installed()
        self.steps = 0

    def begin(self, optimizer: Optimizer, states: Sequence[OptimizerState | None], lr: float) -> None:
        """Begin to train by an optimiser, from its states, which all clients have or none has."""
        if type(optimizer) not in ELEMENTWISE:
            raise NotTogether(f"{optimizer!r} is not known to treat every number by itself")
        self.optimizer, self.lr = optimizer, lr
        self.before = [state for state in states if state is not None] or None
        self.state = stacked_state(optimizer, self.weights.moved, self.before, self.weights.layouts)

    def step(self, losses: Tensor) -> None:
        """Take one step down each client's own loss, (clients,)."""
        grads = gradients(losses.sum(), self.weights.moved)
        with torch.no_grad():
            self.optimizer.step(self.weights.moved, grads, self.state, self.lr)
        self.steps += 1

    def streams(self, purpose: str) -> Streams:
        """Return the clients' random streams."""
        data = self.data
        return Streams(lambda: [c.generator(purpose) for c in self.clients], data.sizes, data.rows, data.entries)

    def held(self, params: Sequence[Params]) -> dict[str, Tensor]:
        """Return some of the model's parameters, of other values, as they are held here."""
        return {name: self.layouts[name].live(start) for name, start in starts_of(params).items()}

    def of_model(self) -> dict[str, Any]:
        """Return what the model is to find in its parameters' places."""
        return {name: value for name, value in self.live.items() if not name.startswith(OWN)}

    def of_objective(self) -> dict[str, Any]:
        """Return what the objective's parts are to find in theirs."""
        return {name.removeprefix(OWN): value for name, value in self.live.items() if name.startswith(OWN)}

    def copy_member(self, held: Mapping[str, Tensor], position: int) -> None:
        """Copy one client's parameters, as they are now, into some that are held like them."""
        for name, into in held.items():
            layout = self.layouts[name]
            layout.part(into, position).copy_(layout.part(self.live[name].detach(), position))

    def members(self, held: Mapping[str, Tensor], prefix: str = "") -> Sequence[Params]:
        """Return each client's part of what is held here, by names without the prefix."""
        each = {n.removeprefix(prefix): self.layouts[n].finished(live.detach(), live) for n, live in held.items()}
        return StackedParams(each, len(self.clients)).members()

    def states(self) -> tuple[OptimizerState, ...]:
        """Return each client's state of the optimiser."""
        counts = [taken + self.steps for taken in steps_before(self.before, len(self.clients))]
        return states_apart(self.optimizer, self.state, counts, self.weights)
