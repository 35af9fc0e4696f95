"""The parameters and optimiser states of many clients while they train."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.core.replies import Stacked, own_tensor
from isthmus.learn.optimizers import (
    Optimizer,
    OptimizerState,
    common_step,
)
from isthmus.learn.together.layouts import Layout, Plain
from isthmus.learn.together.starts import Start

# A second value of a parameter, each client's own, lies under its name behind this.
OWN = "own:"


class Weights:
    """The parameters of all clients while they train: where they began, how they are held, what is moved.

    Args:
        starts:  where they begin, by name
        layouts: how they are held
        buffers: those that no step moves
        own:     where second values begin, each client's own (`Beside`)
    """

    def __init__(
        self,
        starts: dict[str, Start],
        layouts: dict[str, Layout],
        buffers: frozenset[str],
        own: Mapping[str, Start] | None = None,
    ) -> None:
        self.names, self.buffers = tuple(starts), buffers
        second = {OWN + name: start for name, start in (own or {}).items()}
        self._starts = {**starts, **second}
        self.number: int | None = None  # of clients that take a step; None for all
        self._layouts = {**layouts, **{name: layouts[name.removeprefix(OWN)] for name in second}}
        self._live = {name: self._layouts[name].live(start) for name, start in self._starts.items()}
        self._trained = [name for name in self._starts if name.removeprefix(OWN) not in buffers]
        self.layouts = [self._layouts[name] for name in self._trained]
        self._steps: list[int] = []  # since the parameters were where they are pulled, for all parts of these
        self._track()

    def _track(self) -> None:
        self.moved = [self._live[name].requires_grad_() for name in self._trained]
        self.values = [each.detach() for each in self.moved]  # the same memory

    def hold(self, strength: float, pulled: Container[str], drifts: Mapping[str, Start]) -> None:
        """Let g + mu (w - anchor) + drift take the place of g: a pull to where some parameters are now, and a drift."""
        near: Container[str] = pulled if strength else ()
        drifting = {i: drifts[name] for i, name in enumerate(self._trained) if name in drifts}
        self._strength = strength
        self._anchors = {i: self.values[i].clone() for i, name in enumerate(self._trained) if name in near}
        self._drifts = {i: self.layouts[i].constant(drift) for i, drift in drifting.items()}
        self._apart = {i: torch.empty_like(anchor) for i, anchor in self._anchors.items()}
        self._steps.clear()

    def begin(self) -> None:
        """Put the parameters to where they are pulled."""
        for i, anchor in self._anchors.items():
            self.values[i].copy_(anchor)
        self._steps.clear()

    def follow(self, rate: float) -> None:
        """Let what pulls the parameters go some of the way to them."""
        for i, anchor in self._anchors.items():
            anchor.lerp_(self.values[i], rate)

    def join(self, grads: list[Tensor]) -> None:
        """Add the pull and the drift to the gradients, which are nobody else's; where it began nothing is pulled."""
        places = [grad.data_ptr() for grad in grads]
        for i, anchor in self._anchors.items() if self._steps else ():
            apart = torch.sub(self.values[i], anchor, out=self._apart[i])
            grads[i] = _own(grads[i], places).add_(apart, alpha=self._strength)
        for i, drift in self._drifts.items():
            grads[i] = _own(grads[i], places).add_(drift)
        self._steps.append(len(grads))

    def centre(self) -> dict[str, Stacked]:
        """Return where the parameters are pulled."""
        named = {self._trained[i]: anchor for i, anchor in self._anchors.items()}
        return {name: self._layouts[name].finished(anchor, self._starts[name]) for name, anchor in named.items()}

    def of(self, position: int) -> dict[str, Tensor]:
        """Return one client's parameters that are trained, as parts of what the optimiser moves."""
        return {n: self._layouts[n].part(self._live[n], position) for n in self._trained}

    def some(self, start: int, stop: int) -> Weights:
        """Return the parameters of some clients in a row, in the same memory."""
        part = copy(self)
        part.number = stop - start
        part._live = {n: self._layouts[n].some(live.detach(), start, stop) for n, live in self._live.items()}
        part._track()
        part._anchors = {i: self.layouts[i].some(anchor, start, stop) for i, anchor in self._anchors.items()}
        part._drifts = {i: self.layouts[i].some(drift, start, stop) for i, drift in self._drifts.items()}
        part._apart = {i: self.layouts[i].some(room, start, stop) for i, room in self._apart.items()}
        return part

    def cut(self, tensors: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
        """Return some clients' part of tensors that are held like the trained parameters, in the same memory."""
        return [layout.some(each, start, stop) for layout, each in zip(self.layouts, tensors, strict=True)]

    def named(self, tensors: Sequence[Tensor], optimizer: Optimizer | None = None) -> dict[str, Stacked]:
        """Return gradients of the trained parameters by name and client, or moments of those an optimiser moves."""
        pairs = zip(self._trained if optimizer is None else optimizer.chosen(self._trained), tensors, strict=True)
        return {name: self._layouts[name].beside(tensor, self._starts[name]) for name, tensor in pairs}

    def is_plain(self, name: str) -> bool:
        """Whether there is a row for each client of a parameter that is trained."""
        return type(self._layouts[name]) is Plain and name not in self.buffers

    def installed(self, others: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """Return what the model finds in the parameters' places: these, or others that are held like them."""
        live = self._live if others is None else others
        return {n: self._layouts[n].installed(live[n], self._starts[n]) for n in self.names}

    def mixed(self, shares: Tensor) -> dict[str, Tensor]:
        """Return (1 - share) w + share v of each client, (clients,), with v its own value of a parameter w.

        Slopes go to v and to the share. Buffers are v's.
        """
        found = {}
        for name in self.names:
            own = self._live[OWN + name]
            if name not in self.buffers:
                own = torch.lerp(self._live[name].detach(), own, self._layouts[name].spread(shares, own))
            found[name] = own
        return found

    @cached_property
    def frozen(self) -> Mapping[str, Any]:
        """What the model began with."""
        layouts, starts = self._layouts, self._starts
        return {n: layouts[n].installed(layouts[n].live(starts[n]), starts[n]) for n in self.names}

    def finished(self, prefix: str = "") -> dict[str, Stacked]:
        """Return what became of each parameter of each client; with `OWN`, of its own value."""
        places = {name: prefix + name for name in self.names}
        return {
            name: self._layouts[place].finished(self._live[place].detach(), self._starts[place])
            for name, place in places.items()
        }


def _own(grad: Tensor, places: list[int]) -> Tensor:
    """Return a gradient that can be added to: a copy where it is the same memory as another, or as itself."""
    alone = grad.is_contiguous() and places.count(grad.data_ptr()) == 1
    return grad if alone else grad.clone(memory_format=torch.contiguous_format)


def stacked_state(
    optimizer: Optimizer, moved: list[Tensor], states: list[OptimizerState] | None, layouts: Sequence[Layout]
) -> OptimizerState:
    """Return the state of the stacked parameters."""
    if not states or not states[0]:
        return optimizer.start(moved)
    slots = [key for key, value in states[0].items() if isinstance(value, tuple)]
    stacked: OptimizerState = {"step": common_step(optimizer, states)}
    for key in slots:
        held = enumerate(optimizer.chosen(layouts))
        stacked[key] = tuple(layout.live([state[key][i] for state in states]) for i, layout in held)
    return stacked


def states_apart(
    optimizer: Optimizer,
    state: OptimizerState,
    counts: Sequence[int],
    weights: Weights,
    placed: Callable[[Stacked], Stacked] = lambda each: each,
) -> tuple[OptimizerState, ...]:
    """Return each client's state after so many steps in all; `placed` puts clients into their order."""
    slots = {
        key: [placed(each) for each in weights.named(value, optimizer).values()]
        for key, value in state.items()
        if isinstance(value, tuple)
    }
    return tuple(
        {"step": count, **{key: tuple(own_tensor(slot.member(k)) for slot in value) for key, value in slots.items()}}
        for k, count in enumerate(counts)
    )
