"""Replies of many as one.

What clients that were simulated together give back is held without a copy for each: a `Stack` is one record with
leaves for all. A fold that knows sums takes it whole; everybody else takes it apart.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import encoded_size, scalar_size
from isthmus.core.record import Record, largest, leaves, non_finite_leaf, with_leaves


class Stacked(ABC):
    """One tensor for each client, all of one `shape` and type; how they are stored is the subclass's affair."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, size: int) -> None:
        self.shape, self.dtype, self._size = tuple(shape), dtype, size

    def __len__(self) -> int:
        return self._size

    def outline(self) -> Tensor:
        """Return a tensor with the shape and the type of one client's, but no numbers."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    @abstractmethod
    def member(self, position: int) -> Tensor:
        """Return one client's tensor, where the stack lies."""

    def whole(self) -> Tensor:
        """Return all clients' tensors, (clients, ...); it is not to be changed."""
        return torch.stack([self.member(position) for position in range(len(self))])

    def added(self, terms: Sequence[tuple[float, Stacked | Tensor]]) -> Stacked | None:
        """Return a sum of factor times tensor that this is a part of, where it takes less than a tensor for each."""
        return None

    @abstractmethod
    def bound(self) -> Tensor:
        """Return what no number of a client exceeds in magnitude, or more, or NaN: (clients,), float64, on the CPU."""

    def finite(self) -> Tensor:
        """Return for each client whether all its numbers are finite, (clients,)."""
        if not self.dtype.is_floating_point:
            return torch.ones(len(self), dtype=torch.bool)
        fit = self.bound() <= torch.finfo(self.dtype).max  # never true of NaN
        for position in (~fit).nonzero().flatten().tolist():
            fit[position] = math.isfinite(largest(self.member(position)))
        return fit

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum over clients of weight times tensor, in double precision; like the weights, on the CPU."""
        total = torch.zeros(self.shape, dtype=torch.float64)
        for position, weight in enumerate(weights.tolist()):
            if weight:
                total.add_(self.member(position).cpu(), alpha=weight)
        return total


# Numbers of each row that are made double at a time where rows are added up.
CACHED_WIDTH = 1 << 14


class StackedTensor(Stacked):
    """The plain way: one tensor with a row for each client, (clients, ...); a row may stand for many (stride 0)."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(values.shape[1:], values.dtype, len(values))
        self.values = values
        # A tensor may be a part of several sums, each of which asks for the same.
        self._sum: tuple[Tensor, Tensor] | None = None

    def member(self, position: int) -> Tensor:
        """Return one client's tensor, a view."""
        return self.values[position]

    def whole(self) -> Tensor:
        """Return the rows."""
        return self.values

    def bound(self) -> Tensor:
        """Return each client's largest magnitude."""
        return self._bound

    @cached_property
    def _bound(self) -> Tensor:
        if not self.values.numel():
            return torch.zeros(len(self), dtype=torch.float64)
        if self.values.stride(0) == 0:
            return torch.full((len(self),), largest(self.values[0]), dtype=torch.float64)
        rows = self.values.reshape(len(self), -1)
        # Two passes: the kernel that finds both in one goes number by number, five times as slowly.
        return torch.maximum(-rows.amin(dim=1), rows.amax(dim=1)).cpu().double()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum."""
        if self._sum is None or not torch.equal(self._sum[0], weights):
            self._sum = (weights, self._added(weights))
        return self._sum[1].clone()  # who asked may add to it

    def _added(self, weights: Tensor) -> Tensor:
        if not bool(weights.any()):
            return torch.zeros(self.shape, dtype=torch.float64)
        if self.values.stride(0) == 0:
            return self.values[0].cpu().double() * float(weights.sum())
        weights, values = weights.to(self.values.device), self.values
        counted = weights != 0.0
        if not bool(counted.all()):  # who has no weight may hold anything, NaN too
            weights, values = weights[counted], values[counted]
        return weighted_rows(weights, values.reshape(len(values), -1)).view(self.shape).cpu()


def weighted_rows(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the sum of weight times row, (width,), in double precision, made of parts that fit in a cache."""
    total = torch.empty(rows.shape[1], dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], CACHED_WIDTH):
        part = slice(start, start + CACHED_WIDTH)
        torch.mv(rows[:, part].double().t(), weights, out=total[part])
    return total


@dataclass(frozen=True)
class Each:
    """One scalar or string for each client."""

    values: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Stack:
    """The replies of some clients to one kind of request: a record whose leaves are `Stacked`, `Each`, or for all."""

    clients: tuple[str, ...]
    record: Record
    # Checks, sizes and folds all look at the first one's.
    _outlines: dict[int, Record] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for path, leaf in leaves(self.record).items():
            if isinstance(leaf, Stacked | Each) and len(leaf) != len(self.clients):
                raise ValueError(f"{type(self.record).__name__}{path} holds {len(leaf)} of {len(self.clients)} clients")

    @staticmethod
    def of(clients: tuple[str, ...], kind: type[Record], **fields: Any) -> Stack:
        """Return the stack of replies of a kind whose fields are `Stacked`, `Each`, dicts of them, or for all."""
        return Stack(clients, kind(**fields))

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Record]:
        return (self.member(position) for position in range(len(self)))

    def member(self, position: int) -> Record:
        """Return one client's reply."""
        return self._taken(position, lambda stacked: stacked.member(position).cpu())

    def outline(self, position: int = 0) -> Record:
        """Return one client's reply with tensors that have a shape and a type, but no numbers."""
        if position not in self._outlines:
            self._outlines[position] = self._taken(position, Stacked.outline)
        return self._outlines[position]

    def _taken(self, position: int, take: Callable[[Stacked], Tensor]) -> Record:
        found = leaves(self.record)
        for path, leaf in found.items():
            if isinstance(leaf, Stacked | Each):
                found[path] = take(leaf) if isinstance(leaf, Stacked) else leaf.values[position]
        return with_leaves(self.record, found)

    def weights(self, sound: Tensor | None = None) -> Tensor:
        """Return the weight that each reply asks for (1 without such a field; 0 if not sound), (clients,), float64."""
        weight = getattr(self.record, "weight", 1.0)
        values = weight.values if isinstance(weight, Each) else [weight] * len(self)
        if sound is not None:
            values = [value if counts else 0.0 for value, counts in zip(values, sound.tolist(), strict=True)]
        return torch.tensor(values, dtype=torch.float64)

    def finite(self) -> Tensor:
        """Return for each client whether all numbers of its reply are finite, (clients,)."""
        sound = torch.ones(len(self), dtype=torch.bool)
        found = leaves(self.record)
        if non_finite_leaf(found):  # in what is the same for all
            return ~sound
        for leaf in found.values():
            if isinstance(leaf, Stacked):
                sound &= leaf.finite()
            elif isinstance(leaf, Each) and any(type(value) is float for value in leaf.values):
                sound &= torch.isfinite(torch.tensor(leaf.values, dtype=torch.float64))
        return sound

    def sizes(self) -> list[int]:
        """Return what `encoded_size` would say of each reply."""
        size = encoded_size(self.outline())
        sizes = [size] * len(self)
        for leaf in leaves(self.record).values():
            if isinstance(leaf, Each):
                known = {repr(value): value for value in leaf.values}  # 1, 1.0 and True are not as long
                length = {text: scalar_size(value) for text, value in known.items()}
                lengths = [length[repr(value)] for value in leaf.values]
                sizes = [size + length - lengths[0] for size, length in zip(sizes, lengths, strict=True)]
        return sizes
