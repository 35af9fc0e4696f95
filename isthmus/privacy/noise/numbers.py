"""The numbers of a message as one vector: what a reply changes of what was sent, clipped, and with noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.protocol import Known, Request, reply_type
from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params, Record, Value, field_types, leaves, with_leaves

WEIGHT = ".weight"
# By so much less than the bound a change is made shorter: more than the norm in double precision can be off.
MARGIN = 1e-12
# A clipped change has at least this part of the bound left, or floats are too coarse for the bound.
LEAST_LEFT = 0.5


def numbers_of(reply: Record) -> dict[str, Value]:
    """Return what is averaged of a reply but its weight: tensors and floats by their path.

    Whatever else a reply holds would cross without noise, as that of the first client does: it is refused.
    """
    found = {path: leaf for path, leaf in leaves(reply).items() if path != WEIGHT}
    for path, leaf in found.items():
        if not (leaf.is_floating_point() if isinstance(leaf, Tensor) else isinstance(leaf, float)):
            kind = str(leaf.dtype).removeprefix("torch.") if isinstance(leaf, Tensor) else type(leaf).__name__
            raise BadInput(
                f"{type(reply).__name__}{path} is of type {kind}, and noise is put on floating-point numbers only: "
                "leave it out of the reply, or put the guard that makes it so after the one that adds noise"
            )
    return found


def base_of(path: str, leaf: Value, sent: Mapping[str, Value]) -> Tensor | float:
    """Return what was sent in the place of a number, in double precision; 0 where nothing was."""
    start = sent.get(path)
    if isinstance(leaf, Tensor):
        fits = isinstance(start, Tensor) and start.shape == leaf.shape
        return start.double() if fits else torch.zeros(leaf.shape, dtype=torch.float64)  # type: ignore[union-attr]
    return start if isinstance(start, float) else 0.0


@dataclass(frozen=True)
class Change:
    """What a reply changes of what was sent, number by number, in double precision."""

    reply: Record
    moved: dict[str, Tensor | float]
    base: dict[str, Tensor | float]

    @staticmethod
    def of(reply: Record, request: Record) -> Change:
        """Return the change of a reply to a request."""
        found, sent = numbers_of(reply), leaves(request)
        base = {path: base_of(path, leaf, sent) for path, leaf in found.items()}
        moved = {
            path: (leaf.double() if isinstance(leaf, Tensor) else leaf) - base[path] for path, leaf in found.items()
        }
        return Change(reply, moved, base)

    @property
    def norm(self) -> float:
        """The L2 norm of all numbers together."""
        squares = [float(part.square().sum()) if isinstance(part, Tensor) else part**2 for part in self.moved.values()]
        return math.sqrt(math.fsum(squares))

    def scaled(self, factor: float) -> Change:
        """Return the change times a factor."""
        return Change(self.reply, {path: part * factor for path, part in self.moved.items()}, self.base)

    def noisy(self, spread: float, stream: ProtectingStream) -> Change:
        """Return the change with N(0, spread^2) on each number."""
        found: dict[str, Tensor | float] = {}
        for path, part in self.moved.items():
            if isinstance(part, Tensor):
                found[path] = part + spread * stream.normal(tuple(part.shape)).double()
            else:
                found[path] = part + spread * float(stream.normal((1,)))
        return Change(self.reply, found, self.base)

    def made(self, towards_the_base: bool = False, /, **fields: Any) -> Any:
        """Return a reply that changes so much, of the types that the reply had; further fields take others' place.

        Numbers are rounded to the nearest that the type has, or so that none changes by more than it is to.
        """
        whole: dict[str, Value] = {}
        for path, leaf in leaves(self.reply).items():
            if path not in self.moved:
                whole[path] = leaf
                continue
            base, moved = torch.as_tensor(self.base[path]).double(), torch.as_tensor(self.moved[path]).double()
            dtype = leaf.dtype if isinstance(leaf, Tensor) else torch.float64
            number = (base + moved).to(dtype)
            if towards_the_base:
                too_far = (number.double() - base).abs() > moved.abs()
                number = torch.where(too_far, torch.nextafter(number, base.to(dtype)), number)
            whole[path] = number if isinstance(leaf, Tensor) else float(number)
        whole.update({f".{name}": value for name, value in fields.items()})
        return with_leaves(self.reply, whole)


def clipped(reply: Record, request: Record, clip: float) -> Record:
    """Return a reply whose change is no longer than `clip`, as the floats that it is made of; itself if it is so."""
    change = Change.of(reply, request)
    norm = change.norm
    if not math.isfinite(norm):
        raise BadInput(
            f"{type(reply).__name__} changes what was sent by {norm:g}: it has diverged; a smaller "
            "algorithm.optimizer.lr may help"
        )
    if norm <= clip:
        return reply
    found: Record = change.scaled(clip / norm * (1.0 - MARGIN)).made(True)
    left = Change.of(found, request).norm
    if not clip * LEAST_LEFT <= left <= clip:  # steps between floats are longer than the bound
        raise BadInput(f"clip is {clip:g}, which is less than the numbers of {type(reply).__name__} can be changed by")
    return found


def unchanged(request: Request[Any], known: Known) -> Record:
    """Return the reply that changes nothing of what was sent, as the mean of nobody's."""
    kind = reply_type(type(request))
    fields: dict[str, Any] = {}
    for name, annotation in field_types(kind).items():
        if name == "weight":
            fields[name] = 1.0
        elif hasattr(request, name):
            fields[name] = getattr(request, name)
        elif annotation == Params:
            fields[name] = {key: torch.zeros_like(tensor) for key, tensor in known.params.items()}
        elif annotation is float:
            fields[name] = 0.0
        else:
            raise CourseFailed(
                f"nobody was drawn, and what no {kind.__name__} holds as {name} is not known; use another algorithm, "
                "or sampling.name=uniform"
            )
    return kind(**fields)
