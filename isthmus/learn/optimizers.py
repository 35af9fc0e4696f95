"""Optimisers as tiny functions on lists of tensors, and learning-rate schedules over rounds.

Not `torch.optim`: the state must be a plain value that fits into a client's memory, the same update must serve a stack
of many clients, and the first step of `torch.optim` imports the compiler (over a second). Tests hold them against it.

What steps are taken with besides an optimiser stands below: pulls of parameters towards others, envelopes, and losses
that say how they are taken for one client and for many.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether
from isthmus.core.errors import BadInput, refuse
from isthmus.core.record import Params

# A storable value: the step count and, per slot, one tensor for each parameter.
OptimizerState: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Schedule(ABC):
    """A factor on the learning rate for each round, counted from 1."""

    @abstractmethod
    def factor(self, round: int) -> float:
        """Return the factor of a round."""


@dataclass(frozen=True)
class Constant(Schedule):
    """No change."""

    def factor(self, round: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiplies by `gamma` every `every` rounds."""

    every: int = 100
    gamma: float = 0.5

    def __post_init__(self) -> None:
        if self.every < 1 or self.gamma <= 0:
            raise ValueError(f"every is {self.every!r} and gamma {self.gamma!r}; both must be positive")

    def factor(self, round: int) -> float:
        """Return gamma to the number of completed periods."""
        return float(self.gamma ** ((round - 1) // self.every))


@dataclass(frozen=True)
class Cosine(Schedule):
    """Rises linearly over `warmup_rounds`, then falls as half a cosine to `floor` at round `rounds`."""

    rounds: int = 400
    warmup_rounds: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_rounds < self.rounds:
            raise ValueError(
                f"warmup_rounds is {self.warmup_rounds!r} of {self.rounds!r} rounds; it must be in [0, rounds)"
            )

    def factor(self, round: int) -> float:
        """Return the factor of a round."""
        if round <= self.warmup_rounds:
            return round / self.warmup_rounds
        share = min(1.0, (round - self.warmup_rounds) / (self.rounds - self.warmup_rounds))
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * share))


@dataclass(frozen=True)
class Optimizer(ABC):
    """How a gradient becomes a step; `lr` is multiplied by the schedule's factor of the round."""

    lr: float
    weight_decay: float = 0.0
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        refuse(not self.lr > 0, self, "lr", "it must be positive")
        refuse(self.weight_decay < 0, self, "weight_decay", "it must be at least 0")

    @abstractmethod
    def start(self, params: Sequence[Tensor]) -> OptimizerState:
        """Return the state before the first step."""

    @abstractmethod
    def step(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        """Change the parameters and the state in place; the gradients may be used as scratch."""

    def chosen(self, each: Sequence[Any]) -> list[Any]:
        """Return what belongs to parameters that move: all of it, unless only some do."""
        return list(each)

    @property
    def takes_pulls(self) -> bool:
        """Whether a pull of parameters to zero can be its decay, which joins the gradient: it has none of its own."""
        return type(self) in JOINED and not self.weight_decay

    def pulled_step(
        self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float, pulls: Sequence[float]
    ) -> None:
        """Take one step where so many times each parameter joins its gradient, in no further pass over memory."""
        taken = state["step"]
        for strength in dict.fromkeys(pulls):
            mine = [place for place, pull in enumerate(pulls) if pull == strength]
            part = {key: tuple(v[i] for i in mine) if isinstance(v, tuple) else taken for key, v in state.items()}
            replace(self, weight_decay=strength).step([params[i] for i in mine], [grads[i] for i in mine], part, lr)
        state["step"] = taken + 1


@contextmanager
def lying(params: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield parameters for kernels that go through memory as it lies, whatever the strides say."""
    flat = [param.contiguous() for param in params]
    yield flat
    for param, moved in zip(params, flat, strict=True):
        if moved is not param:
            param.copy_(moved)


@dataclass(frozen=True)
class SGD(Optimizer):
    """g <- g + wd p;  b <- momentum b + g (b = g at first);  p <- p - lr b.

    Most algorithms start from SGD with a weight decay of 5e-4. Where only the optimiser's name is changed, what was set
    is kept, and what was not has the new optimiser's default: Adam has no decay, AdamW 0.01.
    """

    lr: float = 0.25
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 <= self.momentum < 1.0, self, "momentum", "it must be in [0, 1)")

    def start(self, params: Sequence[Tensor]) -> OptimizerState:
        """Return zero momentum: b = momentum * 0 + g is the first step's b = g."""
        slots = {"momentum": tuple(torch.zeros_like(p) for p in params)} if self.momentum else {}
        return {"step": 0, **slots}

    def step(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        """Take one step."""
        state["step"] += 1
        if not self.momentum and not self.weight_decay:
            torch._foreach_add_(params, grads, alpha=-lr)
            return
        with lying(params) as flat:
            torch._fused_sgd_(  # one pass over memory
                flat,
                [grad.contiguous() for grad in grads],
                list(state["momentum"]) if self.momentum else [],
                lr=lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )


def check_pull(name: str, strength: float, optimizer: Optimizer) -> None:
    """Raise ValueError where steps of gradient descent overshoot the minimum of strength/2 |v - w|^2 ever further."""
    if type(optimizer) is SGD and not optimizer.momentum and strength * optimizer.lr >= 2.0:
        raise ValueError(
            f"{name} is {strength!r} and the optimiser's lr {optimizer.lr!r}; their product must be below 2, or every "
            "step overshoots: lower one of them"
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba (2015): p <- p - lr m^ / (sqrt(v^) + eps), moments bias-corrected; decay joins the gradient.

    Its weight decay is 0 unless it is set, while the SGD that most algorithms start from has 5e-4: a course in which
    only the optimiser's name is changed loses the decay, and the run notes it.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0):
            raise ValueError(f"beta1 is {self.beta1!r} and beta2 {self.beta2!r}; both must be in [0, 1)")

    def start(self, params: Sequence[Tensor]) -> OptimizerState:
        """Return zero moments."""
        return {
            "step": 0,
            "first": tuple(torch.zeros_like(p, memory_format=torch.contiguous_format) for p in params),
            "second": tuple(torch.zeros_like(p, memory_format=torch.contiguous_format) for p in params),
        }

    def step(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        """Take one step."""
        state["step"] += 1
        taken = torch.tensor(float(state["step"]), device=params[0].device)
        with lying(params) as flat:
            self._kernel()(
                flat,
                [grad.contiguous() for grad in grads],
                list(state["first"]),
                list(state["second"]),
                [],  # of the variant that keeps the largest second moments
                [taken] * len(params),
                lr=lr,
                beta1=self.beta1,
                beta2=self.beta2,
                weight_decay=self.weight_decay,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )

    def _kernel(self) -> Callable[..., None]:
        """Return what does the whole update in one pass over memory; in several it takes five times as long."""
        return torch._fused_adam_


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p <- (1 - lr wd) p before the step."""

    weight_decay: float = 0.01

    def _kernel(self) -> Callable[..., None]:
        return torch._fused_adamw_


SCHEDULES: dict[str, type[Schedule]] = {"constant": Constant, "step": StepDecay, "cosine": Cosine}
OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


@dataclass(frozen=True, kw_only=True)
class Only(Optimizer):
    """Another optimiser that moves some of the parameters; the others stand still and have no state."""

    inner: Optimizer
    moving: tuple[bool, ...]  # one for each parameter

    def start(self, params: Sequence[Tensor]) -> OptimizerState:
        """Return the inner optimiser's state of what moves."""
        return self.inner.start(self.chosen(params))

    def step(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        """Take the inner optimiser's step with what moves."""
        if any(self.moving):
            self.inner.step(self.chosen(params), self.chosen(grads), state, lr)

    def chosen(self, each: Sequence[Any]) -> list[Any]:
        """Return what belongs to parameters that move."""
        return [one for one, moves in zip(each, self.moving, strict=True) if moves]


def only(inner: Optimizer, moving: Sequence[bool]) -> Only:
    """Return an optimiser that moves the parameters of which `moving` is true."""
    return Only(inner.lr, inner.weight_decay, inner.schedule, inner=inner, moving=tuple(moving))


# Exact classes whose steps treat every number by itself, so that stacked numbers move as they would alone.
ELEMENTWISE: frozenset[type[Optimizer]] = frozenset({SGD, Adam, AdamW})
# Those among them whose weight decay is a part of the gradient.
JOINED: frozenset[type[Optimizer]] = frozenset({SGD, Adam})


def moving(optimizer: Optimizer) -> Optimizer:
    """Return an optimiser without the choice of what it moves."""
    return optimizer.inner if type(optimizer) is Only else optimizer


def counts_steps_only(optimizer: Optimizer) -> bool:
    """Whether an optimiser's state is nothing but a count of steps."""
    inner = moving(optimizer)
    return type(inner) is SGD and not inner.momentum


def steps_before(states: Sequence[OptimizerState] | None, num_clients: int) -> list[int]:
    """Return how many steps each client has taken by the states that it goes on from."""
    return [0] * num_clients if states is None else [int(state.get("step", 0)) for state in states]


def common_step(optimizer: Optimizer, states: Sequence[OptimizerState]) -> int:
    """Return how many steps all clients have taken, the least where the optimiser does not look at it."""
    steps: set[int] = {state["step"] for state in states}
    if len(steps) > 1 and type(moving(optimizer)) is not SGD:
        raise NotTogether("clients have taken different numbers of steps, which this optimiser counts")
    return min(steps)


# From the live parameters to a term that is added to the loss.
Penalty: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]

# From the model, a batch and a random stream to the loss of the batch.
Loss: TypeAlias = Callable[[nn.Module, Any, torch.Generator], Tensor]


# ---- steps


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

    Those of the loss alone are added to `sums`, where there are any.
    """
    if sums is None:
        return gradients(loss if penalty is None else loss.sum() + penalty, live)
    grads = gradients(loss, live)
    with torch.no_grad():
        add_gradients(sums, grads, live, optimizer)
        return grads if penalty is None else list(torch._foreach_add(grads, gradients(penalty, live)))


def add_gradients(sums: list[Tensor], grads: list[Tensor], live: list[Tensor], optimizer: Optimizer) -> None:
    """Add gradients to sums, and the decay of weights, where the optimiser takes it for a part of them."""
    torch._foreach_add_(sums, grads)
    if optimizer.weight_decay and type(optimizer) is not AdamW:
        torch._foreach_add_(sums, live, alpha=optimizer.weight_decay)


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
