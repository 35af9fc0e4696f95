"""A chain of recorded steps, forward and then backward, in the place of autograd.

A step of small clients is mostly the calls that it makes, and autograd's own took up to a sixth of a round. Where every
step takes what the last one gave and parameters, their backwards can be called one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Step:
    """One step of a chain: what its `torch.autograd.Function` has in the place of autograd's context."""

    def __init__(self, function: Any, values: tuple[Any, ...], before: Tensor | None) -> None:
        self.function, self.values, self.before = function, values, before
        # What the last step gave, and parameters, which are leaves.
        self.needs_input_grad = [isinstance(v, Tensor) and (v is before or v.requires_grad) for v in values]
        self.saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for the way back."""
        self.saved_tensors = tensors


class Chain:
    """Steps of which each takes what the last one gave."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._last: Tensor | None = None

    def take(self, function: Any, values: tuple[Any, ...]) -> Tensor:
        """Take one step forward."""
        step = Step(function, values, self._last)
        if self._last is not None and not any(value is self._last for value in values):
            raise RuntimeError(f"{function.__name__} does not take what the step before it in the chain gave")
        out: Tensor = function.forward(step, *values)
        self._steps.append(step)
        self._last = out
        return out

    @torch.no_grad()
    def slopes(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the sum of what the last step gave by each parameter; every one has its part."""
        found: dict[int, Tensor] = {}
        slope = None if self._last is None else torch.ones_like(self._last)
        for step in reversed(self._steps):
            grads = step.function.backward(step, slope)
            slope = None
            for value, grad in zip(step.values, grads, strict=True):
                if grad is None:
                    continue
                if value is step.before:
                    slope = grad
                else:
                    key = id(value)
                    found[key] = found[key] + grad if key in found else grad
        self._steps.clear()
        return [found[id(param)] for param in params]


class _Open(threading.local):
    chain: Chain | None = None


_open = _Open()


def stepped(function: Any, *values: Any) -> Tensor:
    """Return what a function gives: as a step of the chain that is open, or else recorded by autograd."""
    chain = _open.chain
    found: Tensor = function.apply(*values) if chain is None else chain.take(function, values)
    return found


def is_open() -> bool:
    """Whether what is recorded in this thread are steps of a chain."""
    return _open.chain is not None


@contextmanager
def chained() -> Iterator[Chain]:
    """Let all that is recorded in this thread be steps of one chain; autograd records nothing."""
    _open.chain = chain = Chain()
    try:
        with torch.no_grad():
            yield chain
    finally:
        _open.chain = None
