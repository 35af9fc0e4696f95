"""How one parameter of many clients is held while they train together.

Plain        (clients, ...): a copy for each
WideRows     sparse features: (clients * features, out), a copy for each, for columns that are each client's own
FullRows     the same, multiplied by a block-diagonal matrix that serves every step
CompactRows  sparse features and a common start: for each client only the rows of the features that occur at it,
             and once for all what becomes of a row that no data touches
Span         sparse features, few nodes and a linear optimiser: what training added, one row for each node
             (`models/products/affine.py`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from isthmus.core.client import NotTogether
from isthmus.core.replies import Combination, Stacked, StackedTensor
from isthmus.learn.together.stacked_features import CompactStack, SpanStack, StackedFeatures
from isthmus.learn.together.starts import Rows, Start, shapes_of, term_of
from isthmus.models.products.affine import SpanFeatures, SpanWeight
from isthmus.models.products.sparse import SparseMatrix


class Layout(ABC):
    """How a parameter is held; `live` is the tensor that the optimiser moves."""

    @abstractmethod
    def live(self, start: Start) -> Tensor:
        """Return the tensor to train, a fresh one."""

    def installed(self, live: Tensor, start: Start) -> Any:
        """Return what the model finds in the parameter's place."""
        return live

    @abstractmethod
    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return what became of each client's parameter."""

    def beside(self, live: Tensor, start: Start) -> Stacked:
        """Return what became of each client's gradients or moments, which are held like the parameter."""
        return self.finished(live, start)

    def constant(self, drift: Start) -> Tensor:
        """Return what is added to the gradient of the live tensor where `drift` is added to each client's."""
        return self.live(drift)

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return a number for each client, (clients,), so that it multiplies each client's part of `live`."""
        raise NotTogether(f"{type(self).__name__} does not hold every client's parameters apart")

    def part(self, live: Tensor, position: int) -> Tensor:
        """Return one client's part of the tensor that is trained, where every client's is held whole."""
        return self.some(live, position, position + 1)

    def some(self, live: Tensor, start: int, stop: int) -> Tensor:
        """Return the part of some clients in a row, in the same memory, where every client's is held whole."""
        raise NotTogether(f"{type(self).__name__} does not hold every client's parameters whole")


class Plain(Layout):
    """A copy for each client."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients

    def live(self, start: Start) -> Tensor:
        """Return (clients, ...)."""
        if isinstance(start, Tensor):
            return start.expand(self.num_clients, *start.shape).clone()
        return start.values.clone() if isinstance(start, Rows) else torch.stack(list(start))

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows."""
        return StackedTensor(live)

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (clients, 1, ...)."""
        return by_client.view(-1, *[1] * (live.ndim - 1))

    def part(self, live: Tensor, position: int) -> Tensor:
        """Return a row."""
        return live[position]

    def some(self, live: Tensor, start: int, stop: int) -> Tensor:
        """Return rows."""
        return live[start:stop]


class WideRows(Layout):
    """A copy for each client, one below the other: for features whose columns are each client's own."""

    def __init__(self, num_clients: int, num_features: int) -> None:
        self.num_clients, self.num_features = num_clients, num_features

    def live(self, start: Start) -> Tensor:
        """Return (clients * features, out)."""
        return Plain(self.num_clients).live(start).flatten(0, 1)

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return the copies."""
        return StackedTensor(live.view(-1, self.num_features, live.shape[1]))

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (clients * features, 1)."""
        return by_client.repeat_interleave(self.num_features).unsqueeze(1)

    def some(self, live: Tensor, start: int, stop: int) -> Tensor:
        """Return the copies of some clients."""
        return live[start * self.num_features : stop * self.num_features]


class FullRows(WideRows):
    """The same for features that are known beforehand; `x` is what the model is fed in their place."""

    def __init__(self, features: StackedFeatures) -> None:
        super().__init__(features.num_clients, features.num_features)
        self.features = features

    @property
    def x(self) -> SparseMatrix:
        """The block-diagonal features."""
        return self.features.full


class CompactRows(Layout):
    """The rows of the features that occur at a client; the others move alike at all clients and are held once.

    Where nothing moves those (no decay, no drift), they stand `still` and are not held at all.
    """

    def __init__(self, features: StackedFeatures, still: bool = False) -> None:
        self.features, self.still = features, still

    @property
    def x(self) -> SparseMatrix:
        """The features with compact columns."""
        return self.features.touched if self.still else self.features.compact

    def live(self, start: Start) -> Tensor:
        """Return (used + features, out), or (used, out) where the others stand still."""
        features = self.features
        used = start.index_select(0, features.feature) if isinstance(start, Tensor) else features.gathered(start)
        if self.still:
            return used.clone() if isinstance(start, Rows) else used  # a stack's own rows are not to be changed
        return torch.cat([used, rest_of(start) if is_compact(start) else used.new_zeros(start[0].shape)])

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (used + features, 1), or (used, 1); nothing is multiplied by a row that no data touches."""
        used = by_client.index_select(0, self.features.owner)
        return torch.cat([used, used.new_zeros(len(live) - len(used))]).unsqueeze(1)

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows."""
        used, rest = len(self.features.used), rest_of(start)
        return CompactStack(live[:used], rest if self.still else live[used:], self.features)

    def beside(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows; what stands still has no gradient and no moments."""
        return self.finished(live, torch.zeros_like(rest_of(start)) if self.still else start)


def rest_of(start: Start) -> Tensor:
    """Return the rows that no data touches, of a start that has them in common."""
    if isinstance(start, Rows) and isinstance(start.stacked, CompactStack):
        return start.stacked.rest
    if not isinstance(start, Tensor):
        raise TypeError("compact rows need a common start: the rows that no data touches are held once")
    return start


def is_compact(start: Start) -> bool:
    """Whether rows that no data touches are known to be the same for all clients."""
    return isinstance(start, Tensor) or (isinstance(start, Rows) and isinstance(start.stacked, CompactStack))


class Span(Layout):
    """What training added to the start, one row for each node, how much of the start is left, and of a drift."""

    def __init__(self, features: StackedFeatures, drift: Start | None = None) -> None:
        self.features, self.drift = features, drift

    @property
    def x(self) -> SpanFeatures:
        """The features with their Gram matrix."""
        return self.features.span

    def live(self, start: Start) -> Tensor:
        """Return (clients * rows + origins, out): zeros, and ones in the row of the start."""
        rows = self.features.matrix.shape[0]
        coordinates = self._nothing(start)
        coordinates[rows] = 1.0
        return coordinates

    def constant(self, drift: Start) -> Tensor:
        """Return the drift itself in coordinates: ones in its row."""
        coordinates = self._nothing(drift)
        coordinates[-1] = 1.0
        return coordinates

    def _nothing(self, like: Start) -> Tensor:
        rows = self.features.matrix.shape[0] + (1 if self.drift is None else 2)
        return self.features.matrix.values.new_zeros(rows, next(shapes_of(like))[1])

    def installed(self, live: Tensor, start: Start) -> SpanWeight:
        """Return the coordinates with what they start from."""
        return SpanWeight(live, *(self._seen(origin) for origin in (start, self.drift) if origin is not None))

    def _seen(self, origin: Start) -> Tensor:
        """Return X times the weights of all clients, or of each, (clients * rows, out)."""
        features = self.features
        if isinstance(origin, Tensor):
            return features.matrix.matmul(origin)
        return features.touched.matmul(CompactRows(features, still=True).live(origin))

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return what was added, plus the start and the drift as far as they are in it."""
        rows = self.features.matrix.shape[0]
        terms: list[tuple[float, Stacked | Tensor]] = [(1.0, SpanStack(live[:rows], self.features))]
        origins = [origin for origin in (start, self.drift) if origin is not None]
        shares = live[rows:, 0].tolist()
        return Combination([*terms, *zip(shares, map(term_of, origins), strict=True)])
