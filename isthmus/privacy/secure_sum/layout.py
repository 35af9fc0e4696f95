"""A reply as one row of numbers, and back: what replies that are added up must have in common.

`narrow` numbers are those of floating-point tensors, held in words of 32 bits unless the course says 64; `wide` ones
are single numbers and tensors of whole numbers, always in words of 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import decode, encode, opened, pack
from isthmus.core.errors import BadMessage
from isthmus.core.outside import named
from isthmus.core.record import Record, Value, leaves, with_leaves

# Numbers of a reply, of 4 bytes each: what a message may hold.
MAX_NUMBERS = 2**29
WEIGHT = ".weight"


@dataclass(frozen=True)
class Outline(Record):
    """The form of a reply without its numbers, as a client tells it."""

    reply: Tensor
    """The encoded reply with empty tensors and zeros: names, kinds and nothing else."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each tensor in it, in order."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a reply in two rows."""

    narrow: Tensor  # (narrow numbers,), float32 or float64
    wide: Tensor  # (wide numbers,), float64


@dataclass(frozen=True)
class Layout:
    """Which number of a reply stands where in the rows; `outline` is a reply without numbers."""

    outline: Record
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, reply: Record) -> Layout:
        """Return the layout of a reply; raises BadMessage for one that holds what cannot be added up."""
        found, shapes = leaves(reply), []
        for path, leaf in found.items():
            if isinstance(leaf, Tensor):
                shapes.append(tuple(leaf.shape))
                found[path] = torch.empty(0, dtype=leaf.dtype)
            elif isinstance(leaf, float):
                found[path] = 0.0
            elif leaf is not None:
                kind = type(leaf).__name__
                raise BadMessage(
                    f"{type(reply).__name__}{path} is of the type {kind}, which cannot be added up: under a secure sum "
                    "it would be one client's own; send a float or a tensor"
                )
        return cls(with_leaves(reply, found), tuple(shapes))

    @classmethod
    def told(cls, outline: Outline, kind: type[Record]) -> Layout:
        """Return the layout that another party tells; raises BadMessage if it is none."""
        reply: Record = decode(opened(outline.reply), kind)
        layout = cls.of(reply)
        if any(size for shape in layout.shapes for size in shape) or len(outline.shapes) != len(layout.shapes):
            raise BadMessage("the form of a reply comes with empty tensors, and a shape for each")
        if any(size < 0 for shape in outline.shapes for size in shape):
            raise BadMessage("a shape has a negative size")
        if sum(math.prod(shape) for shape in outline.shapes) > MAX_NUMBERS:
            raise BadMessage(f"replies of more than {MAX_NUMBERS} numbers are not added up")
        return cls(layout.outline, outline.shapes)

    def to_tell(self) -> Outline:
        """Return the layout as a message holds it."""
        return Outline(pack(encode(self.outline)), self.shapes)

    @cached_property
    def _places(self) -> dict[str, tuple[torch.dtype | None, tuple[int, ...]]]:
        shapes = iter(self.shapes)
        found: dict[str, tuple[torch.dtype | None, tuple[int, ...]]] = {}
        for path, leaf in leaves(self.outline).items():
            if isinstance(leaf, Tensor):
                found[path] = (leaf.dtype, next(shapes))
            elif isinstance(leaf, float) and path != WEIGHT:
                found[path] = (None, ())
        return found

    def _paths(self, narrow: bool) -> Iterator[str]:
        for path, (dtype, _) in self._places.items():
            if (dtype is not None and dtype.is_floating_point) == narrow:
                yield path

    def size(self, narrow: bool) -> int:
        """Return how many numbers a row has."""
        return sum(math.prod(self._places[path][1]) for path in self._paths(narrow))

    @property
    def weighted(self) -> bool:
        """Whether replies say what they weigh."""
        return hasattr(self.outline, "weight")

    def shaped(self) -> Record:
        """Return a reply with tensors that have a shape and a type, but no numbers."""
        found = leaves(self.outline)
        for path, (dtype, shape) in self._places.items():
            if dtype is not None:
                found[path] = torch.empty(shape, dtype=dtype, device="meta")
        return with_leaves(self.outline, found)

    def numbers(self, reply: Record) -> Numbers:
        """Return a reply of this layout as two rows."""
        found = leaves(reply)
        kind = torch.float64 if any(self._places[p][0] == torch.float64 for p in self._paths(True)) else torch.float32
        narrow = [found[path].detach().reshape(-1).to(kind) for path in self._paths(True)]
        wide = [torch.as_tensor(found[path]).reshape(-1).double() for path in self._paths(False)]
        empty = [torch.empty(0, dtype=torch.float64)]
        return Numbers(torch.cat(narrow or [torch.empty(0)]), torch.cat(wide or empty))

    def record(self, numbers: Numbers, weight: float) -> Record:
        """Return the reply that two rows are; whole numbers are rounded, and the weight is put in its place."""
        found = leaves(self.outline)
        for narrow, row in ((True, numbers.narrow), (False, numbers.wide)):
            start = 0
            for path in self._paths(narrow):
                dtype, shape = self._places[path]
                part = row[start : start + math.prod(shape)]
                start += math.prod(shape)
                found[path] = _leaf(part, dtype, shape)
        if self.weighted:
            found[WEIGHT] = weight
        return with_leaves(self.outline, found)


def _leaf(part: Tensor, dtype: torch.dtype | None, shape: tuple[int, ...]) -> Value:
    if dtype is None:
        return float(part[0])
    return (part if dtype.is_floating_point else part.round()).to(dtype).view(shape)


def told_leaf(leaf: Value) -> str:
    """Return a leaf of an outline in words that tell it from every other: honest ones hold nothing."""
    return f"{leaf.dtype} {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"{type(leaf).__name__} {leaf!r}"


def names_in(value: Any) -> frozenset[str]:
    """Return the names of entries in a value, at any depth."""
    if isinstance(value, Record):
        return frozenset().union(*(names_in(part) for part in vars(value).values()))
    if isinstance(value, dict):
        return frozenset(map(str, value)).union(*(names_in(part) for part in value.values()))
    if isinstance(value, tuple):
        return frozenset().union(*map(names_in, value))
    return frozenset()


def refuse_own_names(reply: Record, request: Record) -> None:
    """Raise BadMessage where a reply names what its request does not: it may be this client's alone, and would show."""
    own = sorted(names_in(reply) - names_in(request))
    if own:
        raise BadMessage(
            f"{type(reply).__name__} has the name {named(own[0])}, which {type(request).__name__} has not: under a "
            "secure sum the names of what is added up cross in the open, so they must be the server's"
        )
