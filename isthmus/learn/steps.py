"""One step of training: gradients, what joins a loss, and models whose parameters are put in and taken out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.core.record import Params
from isthmus.learn.optimizers import AdamW, Optimizer, OptimizerState

# From the live parameters to a term that is added to the loss.
Penalty: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]

# From the model, a batch and a random stream to the loss of the batch.
Loss: TypeAlias = Callable[[nn.Module, Any, torch.Generator], Tensor]


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


def step_gradients(
    loss: Tensor, penalty: Tensor | None, live: list[Tensor], sums: list[Tensor] | None, optimizer: Optimizer
) -> list[Tensor]:
    """Return the gradients of a loss, or of the sum of many clients', and of a penalty.

    Those of the loss alone are added to `sums`, where there are any. The decay of weights is added too, where the
    optimiser takes it for a part of the gradients.
    """
    if sums is None:
        return gradients(loss if penalty is None else loss.sum() + penalty, live)
    grads = gradients(loss, live)
    with torch.no_grad():
        torch._foreach_add_(sums, grads)
        if optimizer.weight_decay and type(optimizer) is not AdamW:
            torch._foreach_add_(sums, live, alpha=optimizer.weight_decay)
        return grads if penalty is None else list(torch._foreach_add(grads, gradients(penalty, live)))


def take_step(live: list[Tensor], loss: Tensor, optimizer: Optimizer, state: OptimizerState, lr: float) -> None:
    """Take one optimiser step down a loss; parameters and state are changed in place."""
    grads = gradients(loss, live)
    with torch.no_grad():
        optimizer.step(live, grads, state, lr)


def gradients(loss: Tensor, live: list[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss, or of a sum of losses, by each parameter; zero where it does not depend on it."""
    grads = torch.autograd.grad(loss, live, torch.ones_like(loss), allow_unused=True)
    return [g if g is not None else torch.zeros_like(p) for p, g in zip(live, grads, strict=True)]


def copied(state: OptimizerState) -> OptimizerState:
    """Return a copy of an optimiser's state: it may lie in a client's memory, which is never changed in place."""
    return {
        key: tuple(tensor.clone() for tensor in value) if isinstance(value, tuple) else value
        for key, value in state.items()
    }


@dataclass(frozen=True, eq=False)
class BothWays:
    """A loss for one client that is also known for many at once.

    Fields:
        alone:           the loss for one
        many:            makes the loss for many (`StackedLoss`) of the clients and of what is known `about` each
        about:           what `many` is told of this client
        alters_features: whether the loss runs the model on other features than the client's own
    """

    alone: Loss
    many: Callable[[Any, Sequence[Any]], Any]
    about: Any = None
    alters_features: bool = False

    def __call__(self, model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        """Return the loss for one."""
        return self.alone(model, batch, generator)


@dataclass(frozen=True, eq=False)
class Pull:
    """strength/2 |w - anchor|^2 + <linear, w> over the trained parameters that are in `anchor`: a penalty.

    Clients whose penalties are pulls can be trained together.
    """

    strength: float
    anchor: Params
    linear: Params | None = None

    def __call__(self, live: Mapping[str, Tensor]) -> Tensor:
        """Return the term."""
        near = {name: (w - self.anchor[name]).square().sum() for name, w in live.items() if name in self.anchor}
        if self.linear is None:
            return 0.5 * self.strength * torch.stack(list(near.values())).sum()
        terms = []
        for name, square in near.items():
            slope = (self.linear[name] * live[name]).sum() if name in self.linear else 0.0
            terms.append(0.5 * self.strength * square + slope)
        return torch.stack(terms).sum()


def proximal(strength: float, anchor: Params) -> Pull | None:
    """Return strength/2 |w - anchor|^2 over the trained parameters that are in `anchor`; None without strength."""
    return None if strength == 0 else Pull(strength, anchor)


@dataclass(frozen=True)
class Envelope:
    """Descent on the Moreau envelope  G(w) = min over theta of F(theta) + strength/2 |theta - w|^2  of a loss F.

    A step of w, the centre, is `steps` of the optimiser on one batch, begun anew at w and drawn to it, and then
    w <- w + rate (theta - w)  with theta where they led; G'(w) = strength (w - theta) at the minimum's place.
    """

    strength: float
    steps: int
    rate: float
