"""The parameters and optimiser states of many clients while they train together."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from isthmus.core.client import NotTogether
from isthmus.core.record import Params
from isthmus.core.replies import Stacked
from isthmus.core.stacked_params import common_stack, own_tensor
from isthmus.learn.optimizers import SGD, Only, Optimizer, OptimizerState
from isthmus.learn.together.layouts import Layout, Rows, Start


class Weights:
    """The parameters of all clients while they train: where they began, how they are held, what is moved."""

    def __init__(self, starts: dict[str, Start], layouts: dict[str, Layout], buffers: frozenset[str]) -> None:
        self._starts, self._layouts = starts, layouts
        self._live = {name: layouts[name].live(start) for name, start in starts.items()}
        self._trained = [name for name in starts if name not in buffers]
        self.moved = [self._live[name].requires_grad_() for name in self._trained]
        self.layouts = [layouts[name] for name in self._trained]

    def terms(self, proximal: float, pulled: Container[str], drifts: Mapping[str, Start]) -> Terms:
        """Return what joins the gradients: a pull to where some parameters are now, and each client's drift."""
        near: Container[str] = pulled if proximal else ()
        anchors = {i: self.moved[i].detach().clone() for i, name in enumerate(self._trained) if name in near}
        drifting = {i: drifts[name] for i, name in enumerate(self._trained) if name in drifts}
        constant = {i: self.layouts[i].constant(drift) for i, drift in drifting.items()}
        return Terms(proximal, anchors, constant)

    def of(self, position: int) -> dict[str, Tensor]:
        """Return one client's parameters that are trained, as parts of what the optimiser moves."""
        return {n: self._layouts[n].part(self._live[n], position) for n in self._trained}

    def some(self, start: int, stop: int) -> Weights:
        """Return the parameters of some clients in a row, in the same memory."""
        part = copy(self)
        part._live = {n: self._layouts[n].some(live.detach(), start, stop) for n, live in self._live.items()}
        part.moved = [part._live[name].requires_grad_() for name in self._trained]
        return part

    def with_layouts(self, tensors: Sequence[Tensor]) -> list[tuple[Layout, Tensor]]:
        """Return tensors that are held like the trained parameters, each with how it is held."""
        return list(zip(self.layouts, tensors, strict=True))

    def named(self, tensors: Sequence[Tensor], names: Sequence[str] | None = None) -> dict[str, Stacked]:
        """Return gradients or moments of the trained parameters, or of some of them, by name and client."""
        pairs = zip(self._trained if names is None else names, tensors, strict=True)
        return {name: self._layouts[name].beside(tensor, self._starts[name]) for name, tensor in pairs}

    def placed(self, tensors: Mapping[int, Tensor]) -> dict[str, Stacked]:
        """Return other values of parameters, which are told by the place among those that are trained."""
        named = {self._trained[i]: tensor for i, tensor in tensors.items()}
        return {name: self._layouts[name].finished(tensor, self._starts[name]) for name, tensor in named.items()}

    def chosen(self, optimizer: Optimizer) -> list[str]:
        """Return the parameters that have a place in an optimiser's state."""
        return optimizer.chosen(self._trained) if isinstance(optimizer, Only) else self._trained

    def installed(self) -> dict[str, Any]:
        """Return what the model finds in the parameters' places."""
        return {n: self._layouts[n].installed(self._live[n], start) for n, start in self._starts.items()}

    def frozen(self) -> Mapping[str, Any]:
        """Return what the model began with, the same whenever it is asked for."""
        return self._frozen

    @cached_property
    def _frozen(self) -> Mapping[str, Any]:
        layouts = self._layouts
        return {n: layouts[n].installed(layouts[n].live(start), start) for n, start in self._starts.items()}

    def finished(self) -> dict[str, Stacked]:
        """Return what became of each parameter of each client."""
        return {n: self._layouts[n].finished(live.detach(), self._starts[n]) for n, live in self._live.items()}


@dataclass(frozen=True)
class Terms:
    """What joins the gradients, by the place of the parameter: g + mu (w - anchor) + drift."""

    proximal: float
    anchors: dict[int, Tensor]
    drifts: dict[int, Tensor]

    def some(self, layouts: Sequence[Layout], count: int) -> Terms:
        """Return what joins the gradients of the first clients."""
        anchors = {i: layouts[i].some(anchor, 0, count) for i, anchor in self.anchors.items()}
        return Terms(self.proximal, anchors, {i: layouts[i].some(drift, 0, count) for i, drift in self.drifts.items()})

    def begin(self, moved: list[Tensor]) -> None:
        """Put the parameters to where they are pulled."""
        for i, anchor in self.anchors.items():
            moved[i].copy_(anchor)

    def follow(self, moved: list[Tensor], rate: float) -> None:
        """Let what pulls the parameters go some of the way to them."""
        for i, anchor in self.anchors.items():
            anchor.lerp_(moved[i], rate)

    def join(self, grads: list[Tensor], moved: list[Tensor]) -> None:
        """Add the terms to the gradients."""
        for i, anchor in self.anchors.items():
            grads[i] = grads[i].add(moved[i] - anchor, alpha=self.proximal)
        for i, drift in self.drifts.items():
            grads[i] = grads[i] + drift


def starts_of(params: Sequence[Params]) -> dict[str, Start]:
    """Return each parameter of clients as it is for all, as rows of a stack, or one by one."""
    first = params[0]
    if all(each is first for each in params):
        return dict(first)
    stack = common_stack(params)
    if stack is not None:
        return {name: Rows(each) for name, each in stack.each.items()}
    return {name: [each[name] for each in params] for name in first}


def moving(optimizer: Optimizer) -> Optimizer:
    """Return an optimiser without the choice of what it moves."""
    return optimizer.inner if type(optimizer) is Only else optimizer


def counts_steps_only(optimizer: Optimizer) -> bool:
    """Whether an optimiser's state is nothing but a count of steps."""
    inner = moving(optimizer)
    return type(inner) is SGD and not inner.momentum


def stacked_state(
    optimizer: Optimizer, moved: list[Tensor], states: list[OptimizerState] | None, layouts: Sequence[Layout]
) -> OptimizerState:
    """Return the state of the stacked parameters."""
    if not states or not states[0]:
        return optimizer.start(moved)
    slots = [key for key, value in states[0].items() if isinstance(value, tuple)]
    stacked: OptimizerState = {"step": _steps_taken(states, counted=bool(slots) and type(moving(optimizer)) is not SGD)}
    layouts = optimizer.chosen(layouts) if isinstance(optimizer, Only) else layouts
    for key in slots:
        stacked[key] = tuple(layout.live([state[key][i] for state in states]) for i, layout in enumerate(layouts))
    return stacked


def _steps_taken(states: list[OptimizerState], counted: bool) -> int:
    """Return how many steps clients have taken, which must be the same for all where the optimiser counts them."""
    steps: set[int] = {state["step"] for state in states}
    if counted and len(steps) > 1:
        raise NotTogether("clients have taken different numbers of steps, which this optimiser counts")
    return min(steps)


def states_apart(
    optimizer: Optimizer,
    state: OptimizerState,
    before: list[OptimizerState] | None,
    num_clients: int,
    weights: Weights,
    steps: int,
) -> tuple[OptimizerState, ...]:
    """Return each client's state after training."""
    names = weights.chosen(optimizer)
    slots = {
        key: list(weights.named(value, names).values()) for key, value in state.items() if isinstance(value, tuple)
    }
    begun = [{}] * num_clients if before is None else before
    return tuple(
        {
            "step": begun[k].get("step", 0) + steps,
            **{key: tuple(own_tensor(slot.member(k)) for slot in value) for key, value in slots.items()},
        }
        for k in range(num_clients)
    )
