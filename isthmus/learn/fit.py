"""Local training: some steps of an optimiser on one client's batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.core.record import Params
from isthmus.learn.batching import Batching
from isthmus.learn.optimizers import Optimizer, OptimizerState
from isthmus.learn.tasks.task import Task

# From the live parameters to a term that is added to the loss.
Penalty: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]

# From the model, a batch and a random stream to the loss of the batch.
Loss: TypeAlias = Callable[[nn.Module, Any, torch.Generator], Tensor]


@dataclass(frozen=True)
class Fitted:
    """What local training gives back."""

    params: Params
    loss: float  # mean over the steps, without the penalty; NaN when nothing was trained
    steps: int
    optimizer_state: OptimizerState


def load_params(model: nn.Module, params: Params) -> None:
    """Copy parameters and buffers into a model; every one must be there, in the right shape, and no other."""
    slots = model.state_dict(keep_vars=True)
    if slots.keys() != params.keys():
        odd = sorted(slots.keys() ^ params.keys())
        raise BadInput(f"the parameters do not belong to this model: {odd[:5]} are on one side only")
    for name, slot in slots.items():
        if slot.shape != params[name].shape:
            raise BadInput(
                f"parameter {name!r} has shape {tuple(params[name].shape)}, this model's has {tuple(slot.shape)}"
            )
    with torch.no_grad():
        for name, slot in slots.items():
            slot.copy_(params[name])


def read_params(model: nn.Module) -> Params:
    """Return copies of a model's parameters and buffers."""
    return {name: slot.detach().clone() for name, slot in model.state_dict().items()}


def fit(
    model: nn.Module,
    params: Params,
    task: Task,
    prepared: Any,
    *,
    steps: int,
    optimizer: Optimizer,
    lr: float,
    batching: Batching,
    generator: torch.Generator,
    penalty: Penalty | None = None,
    optimizer_state: OptimizerState | None = None,
    loss: Loss | None = None,
) -> Fitted:
    """Take `steps` optimiser steps from `params`; a client without training examples gives its parameters back."""
    load_params(model, params)
    named = {name: slot for name, slot in model.named_parameters() if slot.requires_grad}
    live: list[Tensor] = list(named.values())
    state = optimizer.start(live) if optimizer_state is None else copied(optimizer_state)
    losses: list[Tensor] = []
    for _, batch in zip(range(steps), task.batches(prepared, batching, generator), strict=False):
        found = (loss or task.loss)(model, batch, generator)
        losses.append(found.detach())
        if penalty is not None:
            found = found + penalty(named)
        take_step(live, found, optimizer, state, lr)
    mean = float(torch.stack(losses).mean()) if losses else float("nan")
    return Fitted(read_params(model), mean, len(losses), state)


def take_step(live: list[Tensor], loss: Tensor, optimizer: Optimizer, state: OptimizerState, lr: float) -> None:
    """Take one optimiser step down a loss; parameters and state are changed in place."""
    grads = gradients(loss, live)
    with torch.no_grad():
        optimizer.step(live, grads, state, lr)


def gradients(loss: Tensor, live: list[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss by each parameter; zero where the loss does not depend on it."""
    grads = torch.autograd.grad(loss, live, allow_unused=True)
    return [g if g is not None else torch.zeros_like(p) for p, g in zip(live, grads, strict=True)]


def copied(state: OptimizerState) -> OptimizerState:
    """Return a copy of an optimiser's state: it may lie in a client's memory, which is never changed in place."""
    return {
        key: tuple(tensor.clone() for tensor in value) if isinstance(value, tuple) else value
        for key, value in state.items()
    }
