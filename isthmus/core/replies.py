"""Replies of many as one.

What clients that were simulated together give back is held without a copy for each: a `Stack` is one record with
leaves for all. A fold that knows sums takes it whole; everybody else takes it apart.

A handler gets its client's part of parameters that were trained together as a dict like any other, `MemberParams`. As
long as nobody looks into it, it is a place in the stack: a reply with it goes to the server as part of the stack
(`gathered`), and from a memory it is trained further as part of it.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import encoded_size, scalar_size
from isthmus.core.record import LazyParams, Record, fields_of, largest, leaves, non_finite_leaf, with_leaves


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

    def member_onto(self, position: int, other: Tensor) -> Tensor:
        """Return one client's tensor plus another."""
        return self.member(position) + other

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

    def added_up(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, which is not to be changed."""
        return self.weighted_sum(weights)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum over clients of weight times tensor, in double precision; like the weights, on the CPU."""
        total = torch.zeros(self.shape, dtype=torch.float64)
        for position, weight in enumerate(weights.tolist()):
            if weight:
                total.add_(self.member(position).cpu(), alpha=weight)
        return total


class SummedOnce(Stacked):
    """A stack that may be a part of several sums, each of which asks for the same weighted sum of it."""

    _sum: tuple[Tensor, Tensor] | None = None  # the last weights, and what came of them

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum."""
        return self.added_up(weights).clone()

    def added_up(self, weights: Tensor) -> Tensor:
        """Return the same, made once."""
        if self._sum is None or not torch.equal(self._sum[0], weights):
            self._sum = (weights, self._added(weights))
        return self._sum[1]

    @abstractmethod
    def _added(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, in double precision and on the CPU."""


# Numbers of each row that are made double at a time where rows are added up.
CACHED_WIDTH = 1 << 14
# Tensors of no more numbers of each client are checked and added up with others: calls would take longer than these.
SMALL = 1 << 13


class Joined:
    """Small tensors of the same clients, (clients, ...) each, of which checks and sums are made in one go."""

    def __init__(self, values: Sequence[Tensor]) -> None:
        self.values = list(values)
        self._wide: Tensor | None = None  # from the check to the sum
        self._sum: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def _joined(self) -> Tensor:
        return torch.cat([each.reshape(len(each), -1) for each in self.values], dim=1)

    @cached_property
    def bound(self) -> Tensor:
        """The largest magnitude of each client in any of them."""
        self._wide = self._joined()
        return largest_of_rows(self._wide)

    def added(self, weights: Tensor) -> tuple[Tensor, ...]:
        """Return the weighted sum of each, in double precision, made once."""
        if self._sum is None or not torch.equal(self._sum[0], weights):
            wide, self._wide = self._joined() if self._wide is None else self._wide, None
            parts = torch.split(_weighted(weights, wide), [each[0].numel() for each in self.values])
            found = tuple(part.view(each.shape[1:]) for part, each in zip(parts, self.values, strict=True))
            self._sum = (weights, found)
        return self._sum[1]


def join_small(stacks: Iterable[Stacked]) -> None:
    """Let small tensors of the same clients be checked and added up in one go."""
    small = [each for each in stacks if type(each) is StackedTensor and each.is_small]
    if len(small) > 1 and len({(each.dtype, each.values.device, len(each)) for each in small}) == 1:
        joined = Joined([each.values for each in small])
        for place, each in enumerate(small):
            each.joined = (joined, place)


def largest_of_rows(rows: Tensor) -> Tensor:
    """Return the largest magnitude in each row, (rows,), float64, on the CPU."""
    # Two passes: the kernel that finds both in one goes number by number, five times as slowly.
    return torch.maximum(-rows.amin(dim=1), rows.amax(dim=1)).cpu().double()


class StackedTensor(SummedOnce):
    """The plain way: one tensor with a row for each client, (clients, ...); a row may stand for many (stride 0)."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(values.shape[1:], values.dtype, len(values))
        self.values = values
        self.joined: tuple[Joined, int] | None = None  # what it is checked and added up with, and its place there

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
        if self.joined is not None:
            return self.joined[0].bound
        return largest_of_rows(self.values.reshape(len(self), -1))

    @property
    def is_small(self) -> bool:
        """Whether it has so few numbers that calls take longer, and nothing to be checked or added up with yet."""
        few = len(self) > 0 and 0 < self.values[0].numel() <= SMALL and self.values.stride(0) != 0
        return few and self.dtype.is_floating_point and self.joined is None

    def _added(self, weights: Tensor) -> Tensor:
        if self.joined is not None:
            joined, place = self.joined
            return joined.added(weights)[place]
        if self.values.stride(0) == 0 and bool(weights.any()):
            return self.values[0].cpu().double() * float(weights.sum())
        return _weighted(weights, self.values.reshape(len(self.values), -1)).view(self.shape)


def _weighted(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the sum of weight times row, (width,), in double precision, on the CPU."""
    if not bool(weights.any()):
        return torch.zeros(rows.shape[1], dtype=torch.float64)
    weights = weights.to(rows.device)
    counted = weights != 0.0
    if not bool(counted.all()):  # who has no weight may hold anything, NaN too
        weights, rows = weights[counted], rows[counted]
    return weighted_rows(weights, rows).cpu()


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

    @cached_property
    def leaves(self) -> dict[str, Any]:
        """The record's leaves by their path, which is not to be changed."""
        return leaves(self.record)

    def __post_init__(self) -> None:
        for path, leaf in self.leaves.items():
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
        found = dict(self.leaves)
        for path, leaf in self.leaves.items():
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
        found = self.leaves
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
        for leaf in self.leaves.values():
            if isinstance(leaf, Each):
                known = {repr(value): value for value in leaf.values}  # 1, 1.0 and True are not as long
                length = {text: scalar_size(value) for text, value in known.items()}
                lengths = [length[repr(value)] for value in leaf.values]
                sizes = [size + length - lengths[0] for size, length in zip(sizes, lengths, strict=True)]
        return sizes


# ---- parameters


class StackedParams:
    """The parameters of so many clients (`size`) that were trained together, by name (`each`)."""

    def __init__(self, each: Mapping[str, Stacked], size: int) -> None:
        self.each, self.size = dict(each), size
        join_small(self.each.values())
        self._members: list[weakref.ref[MemberParams]] = []
        self.fits: set[Any] = set()

    @cached_property
    def outline(self) -> dict[str, Tensor]:
        """Tensors with the shapes and types of one client's, but no numbers."""
        return {name: each.outline() for name, each in self.each.items()}

    @cached_property
    def bounds(self) -> dict[str, list[float]]:
        """What no number of each client exceeds in magnitude, or more, or NaN, by name."""
        return {name: each.bound().tolist() for name, each in self.each.items()}

    def members(self) -> list[MemberParams]:
        """Return each client's parameters."""
        made = [MemberParams(self, position) for position in range(self.size)]
        self._members = [weakref.ref(member) for member in made]
        return made

    def condense(self) -> None:
        """Add sums up: one that is kept would remember all that it ever was made of."""
        sums = {name: each for name, each in self.each.items() if isinstance(each, Combination)}
        self.each |= {name: each.condensed() for name, each in sums.items()}
        for member in self._members:
            found = member()
            if found is not None:
                found.forget(sums)  # added up in another order, the last bits may be others

    @property
    def is_mostly_gone(self) -> bool:
        """Whether most clients have let go of their part, so that the few others should have theirs alone."""
        return 2 * sum(member() is not None for member in self._members) < self.size


def _settled(name: str) -> Any:
    """Return a method of dict's for parameters that are taken out of their stack before."""
    own = getattr(dict, name)

    def method(self: MemberParams, *arguments: Any) -> Any:
        self.settle()
        return own(self, *arguments)

    return method


class MemberParams(LazyParams):
    """One client's parameters in a stack; a dict of tensors of its own, without `stack`, as soon as it is changed."""

    def __init__(self, stack: StackedParams, position: int) -> None:
        super().__init__()
        self.stack: StackedParams | None = stack
        self.position = position

    def outline(self) -> dict[str, Tensor]:
        """Return tensors with shapes and types but no numbers, or what there is."""
        return dict(self) if self.stack is None else self.stack.outline

    def fits(self) -> set[Any]:
        """Return the annotations that all clients' parameters of the stack are known to fit."""
        return set() if self.stack is None else self.stack.fits

    def within(self, limit_of: Callable[[str], float]) -> bool:
        """Whether the stack's bounds say so; what somebody has looked at may have been changed."""
        if self.stack is None or dict.__len__(self):
            return False
        each = self.stack.each
        return all(
            bounds[self.position] <= min(limit_of(name), torch.finfo(each[name].dtype).max)
            for name, bounds in self.stack.bounds.items()
            if each[name].dtype.is_floating_point
        )

    def plain(self) -> dict[str, Tensor]:
        """Return the tensors; the stack stays as it is."""
        return {name: self._own(name) for name in self}

    def _own(self, name: str) -> Tensor:
        if self.stack is None or dict.__contains__(self, name):
            return dict.__getitem__(self, name)
        return own_tensor(self.stack.each[name].member(self.position))

    def settle(self) -> None:
        """Take everything out of the stack, and let go of it."""
        if self.stack is not None:
            found, self.stack = self.plain(), None
            for name, tensor in found.items():  # in the stack's order, whichever was looked at first
                dict.pop(self, name, None)
                dict.__setitem__(self, name, tensor)

    def forget(self, names: Iterable[str]) -> None:
        """Let go of what was taken out of the stack, which still has it."""
        if self.stack is not None:
            for name in names:
                dict.pop(self, name, None)

    # ---- looking

    def __getitem__(self, name: str) -> Tensor:
        found = self._own(name)
        if self.stack is not None:
            dict.__setitem__(self, name, found)
        return found

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self) if self.stack is None else iter(self.stack.each)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self))

    def __len__(self) -> int:
        return dict.__len__(self) if self.stack is None else len(self.stack.each)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) if self.stack is None else name in self.stack.each

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, MemberParams) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    # A dict's own would look past the stack; these go by what stands here.
    get: Any = MutableMapping.get
    pop: Any = MutableMapping.pop
    update: Any = MutableMapping.update
    setdefault: Any = MutableMapping.setdefault

    def keys(self) -> Any:
        """Return the names."""
        return dict.keys(self) if self.stack is None else self.stack.each.keys()

    def copy(self) -> dict[str, Tensor]:
        """Return a plain dict of the same tensors."""
        return dict(self)

    values: Any = _settled("values")
    items: Any = _settled("items")
    __setitem__: Any = _settled("__setitem__")
    __delitem__: Any = _settled("__delitem__")
    __ior__: Any = _settled("__ior__")
    popitem: Any = _settled("popitem")
    clear: Any = _settled("clear")


class Combination(Stacked):
    """A sum of factor times tensor for each client, made when it is looked at; a tensor may be the same for all."""

    def __init__(self, terms: Sequence[tuple[float, Stacked | Tensor]]) -> None:
        found: dict[int, tuple[float, Stacked | Tensor]] = {}  # what occurs several times is one term
        for factor, each in terms:
            for own, term in each.terms if isinstance(each, Combination) else [(1.0, each)]:
                found[id(term)] = (found[id(term)][0] + factor * own if id(term) in found else factor * own, term)
        self.terms: list[tuple[float, Stacked | Tensor]] = list(found.values())
        first = next(each for _, each in self.terms if isinstance(each, Stacked))
        super().__init__(first.shape, first.dtype, len(first))

    def member(self, position: int) -> Tensor:
        """Return one client's sum."""
        if len(self.terms) == 2 and all(factor == 1.0 for factor, _ in self.terms):
            (one, other) = sorted((each for _, each in self.terms), key=lambda each: isinstance(each, Tensor))
            if isinstance(one, Stacked) and isinstance(other, Tensor):
                return one.member_onto(position, other)
        return combined([(f, t if isinstance(t, Tensor) else t.member(position)) for f, t in self.terms])

    def whole(self) -> Tensor:
        """Return all clients' sums."""
        return combined([(f, t if isinstance(t, Tensor) else t.whole()) for f, t in self.terms])

    def condensed(self) -> Stacked:
        """Return the sum as it is kept: as its terms know to add it up, else a tensor for each client."""
        ways = (each.added(self.terms) for _, each in self.terms if isinstance(each, Stacked))
        found = next((way for way in ways if way is not None), None)
        return StackedTensor(self.whole()) if found is None else found

    def bound(self) -> Tensor:
        """Return the sum of the bounds."""
        total = torch.zeros(len(self), dtype=torch.float64)
        for factor, each in self.terms:
            total = total + abs(factor) * (largest(each) if isinstance(each, Tensor) else each.bound())
        return total

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of the weighted sums."""
        total, mass = torch.zeros(self.shape, dtype=torch.float64), float(weights.sum())
        for factor, each in self.terms:
            if isinstance(each, Tensor):
                total.add_(each.cpu(), alpha=factor * mass)
            else:
                total.add_(each.added_up(weights), alpha=factor)
        return total


def combined(terms: Sequence[tuple[float, Tensor]]) -> Tensor:
    """Return the sum of factor times tensor; tensors may have a dimension for clients in front."""
    (factor, first), *others = terms
    total = factor * first
    for factor, tensor in others:
        # In place where it fits: sums of many clients are many megabytes.
        fits = total.shape == tensor.shape and total.dtype == tensor.dtype
        total = total.add_(tensor, alpha=factor) if fits else torch.add(total, tensor, alpha=factor)
    return total


def own_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in memory of its own: a view would keep all clients' alive."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def common_stack(members: Sequence[Any]) -> StackedParams | None:
    """Return the stack whose clients' parameters these are, all of them and in order; None if they are not."""
    first = members[0]
    stack = first.stack if isinstance(first, MemberParams) else None
    if stack is None or stack.size != len(members):
        return None
    for position, member in enumerate(members):
        if not (isinstance(member, MemberParams) and member.stack is stack and member.position == position):
            return None
    return stack


def gathered(clients: tuple[str, ...], replies: Sequence[Record]) -> Stack | None:
    """Return replies as one where they hold a stack's parts, so that no client's parameters are made; else None."""
    kind = type(replies[0])
    if any(type(reply) is not kind for reply in replies):
        return None
    try:
        joined = _joined(replies)
    except _Apart:
        return None
    return Stack(clients, joined) if any(isinstance(leaf, Stacked) for leaf in leaves(joined).values()) else None


def whole_stacks(replies: Mapping[str, Record]) -> Iterator[Stack]:
    """Yield those of the replies as one that hold a stack's parts, where all of its clients are among them."""
    places: dict[StackedParams, list[tuple[int, str]]] = {}
    for client, reply in replies.items():
        members = [part for part in fields_of(reply).values() if isinstance(part, MemberParams)]
        if members and members[0].stack is not None:
            places.setdefault(members[0].stack, []).append((members[0].position, client))
    for stack, found in places.items():
        clients = tuple(client for _, client in sorted(found))
        joined = gathered(clients, [replies[client] for client in clients]) if len(clients) == stack.size else None
        if joined is not None:
            yield joined


class _Apart(Exception):
    """Values that cannot be held as one."""


def _joined(values: Sequence[Any]) -> Any:
    """Return values as one, leaf by leaf."""
    first = values[0]
    if isinstance(first, Record):
        fields = [fields_of(value) for value in values]
        return type(first)(**{name: _joined([each[name] for each in fields]) for name in fields[0]})
    stack = common_stack(values)
    if stack is not None:
        return dict(stack.each)
    if all(value is first for value in values):
        return first
    if isinstance(first, dict):
        return _joined_dicts(values)
    if isinstance(first, bool | int | float | str | None):
        return Each(tuple(values))
    raise _Apart


def _joined_dicts(values: Sequence[Any]) -> dict[Any, Any]:
    first = values[0]
    if isinstance(first, MemberParams) or any(value.keys() != first.keys() for value in values):
        raise _Apart
    return {key: _joined([value[key] for value in values]) for key in first}
