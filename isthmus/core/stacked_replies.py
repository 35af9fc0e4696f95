"""Many replies as one: what clients that were simulated together give back, without a copy for each of them.

A `Stack` holds one record whose leaves are `Stacked` (a tensor for each client) or `Each` (a scalar for each client);
any other leaf is the same for all. A fold that knows sums can take it whole; everybody else takes it apart.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import encoded_size
from isthmus.core.record import Record, largest, leaves, non_finite_leaf, with_leaves


class Stacked(ABC):
    """One tensor for each client, all of one shape and type; how they are stored is the subclass's affair."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one client's tensor."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of clients."""

    @abstractmethod
    def member(self, position: int) -> Tensor:
        """Return one client's tensor."""

    @abstractmethod
    def bound(self) -> Tensor:
        """Return for each client a number that none of its numbers exceeds in magnitude, (clients,), float64.

        It may be larger than necessary, or NaN: then the client's tensor is looked at.
        """

    def finite(self) -> Tensor:
        """Return for each client whether all its numbers are finite, (clients,)."""
        if not self.dtype.is_floating_point:
            return torch.ones(len(self), dtype=torch.bool)
        fit = self.bound() <= torch.finfo(self.dtype).max  # never true of NaN
        for position in (~fit).nonzero().flatten().tolist():
            fit[position] = math.isfinite(largest(self.member(position)))
        return fit

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum over clients of weight times tensor, in double precision."""
        total = torch.zeros(self.shape, dtype=torch.float64)
        for position, weight in enumerate(weights.tolist()):
            if weight:
                total.add_(self.member(position), alpha=weight)
        return total


class StackedTensor(Stacked):
    """The plain way: one tensor with a row for each client, (clients, ...); a row may stand for many (stride 0)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one client's tensor."""
        return tuple(self.values.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def member(self, position: int) -> Tensor:
        """Return one client's tensor, a view."""
        return self.values[position]

    def bound(self) -> Tensor:
        """Return each client's largest magnitude."""
        if not self.values.numel():
            return torch.zeros(len(self), dtype=torch.float64)
        if self.values.stride(0) == 0:
            return torch.full((len(self),), largest(self.values[0]), dtype=torch.float64)
        low, high = torch.aminmax(self.values.reshape(len(self), -1), dim=1)
        return torch.maximum(-low, high).double()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum."""
        if not bool(weights.any()):
            return torch.zeros(self.shape, dtype=torch.float64)
        if self.values.stride(0) == 0:
            return self.values[0].double() * float(weights.sum())
        counted, values = weights != 0.0, self.values
        if not bool(counted.all()):  # who has no weight may hold anything, NaN too
            weights, values = weights[counted], values[counted]
        total: Tensor = torch.tensordot(weights, values.double(), dims=1)
        return total


@dataclass(frozen=True)
class Each:
    """One scalar or string for each client."""

    values: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.values)

    def member(self, position: int) -> Any:
        """Return one client's value."""
        return self.values[position]


@dataclass(frozen=True)
class Stack:
    """The replies of some clients to one kind of request.

    Fields:
        clients: whose replies these are
        record:  a reply whose leaves are `Stacked`, `Each`, or the same for all
    """

    clients: tuple[str, ...]
    record: Record

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
        return self._taken(lambda leaf: leaf.member(position))

    def outline(self, position: int = 0) -> Record:
        """Return one client's reply with tensors that have a shape and a type, but no numbers."""

        def drawn(leaf: Stacked | Each) -> Any:
            if isinstance(leaf, Each):
                return leaf.member(position)
            return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")

        return self._taken(drawn)

    def _taken(self, take: Callable[[Any], Any]) -> Record:
        chosen = {
            p: take(leaf) if isinstance(leaf, Stacked | Each) else leaf for p, leaf in leaves(self.record).items()
        }
        record = with_leaves(self.record, chosen)
        assert isinstance(record, Record)
        return record

    def weights(self, sound: Tensor | None = None) -> Tensor:
        """Return the weight that each reply asks for, (clients,), in double precision; ones without such a field.

        Replies that are not sound get 0, whatever they ask for.
        """
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
                lengths = [encoded_size(value) for value in leaf.values]
                sizes = [size + length - lengths[0] for size, length in zip(sizes, lengths, strict=True)]
        return sizes
