"""Replies as they come back: many as one, and what each must be before anybody counts on it.

What clients that were simulated together give back is held without a copy for each: a `Stack` is one record with
leaves for all. A fold that knows sums takes it whole; everybody else takes it apart. What is not as it must be becomes
a failure with the client's name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import encoded_size
from isthmus.core.errors import BadMessage
from isthmus.core.outside import foreign
from isthmus.core.protocol import MAX_STATISTIC, Evaluation, Failure, Holdings, Known, Request, Requests
from isthmus.core.record import Record, check_record, largest, leaves, non_finite_leaf, with_leaves


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
        return self._taken(position, Stacked.outline)

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
                length = {text: encoded_size(value) for text, value in known.items()}
                lengths = [length[repr(value)] for value in leaf.values]
                sizes = [size + length - lengths[0] for size, length in zip(sizes, lengths, strict=True)]
        return sizes


# ---- what a reply must be

# Numbers beyond these are no counts and no weights, and arithmetic on them would spoil the others' replies.
MAX_INTEGER = 2**63
MAX_WEIGHT = 1e15
# The largest number in a field of which the request says nothing else: its square still is one.
MAX_NUMBER = 1e18
# What is said of a model that came back with numbers that are none.
DIVERGED = ": diverged; a smaller algorithm.optimizer.lr, or dataset.normalize_features=true, may help"
# What a failure can be; the word comes from the client's side too.
KINDS = frozenset({"error", "malformed", "not_finite", "late", "lost", "refused", "oversized", "memory", "suspicious"})
NOTHING_KNOWN = Known()


def judged(
    client: str,
    reply: Record | Failure,
    request: Request[Any],
    expected: type[Record],
    known: Known = NOTHING_KNOWN,
    limits: Mapping[str, float] | None = None,
) -> Record | Failure:
    """Turn a reply of another type, of wrong fields, with NaN or with numbers beyond limits into a named failure."""
    if isinstance(reply, Failure):
        return Failure(client, reply.kind if reply.kind in KINDS else "error", foreign(reply.reason))
    name = type(reply).__name__
    try:
        _check_type(reply, expected)
        check_record(reply)
        _require(f"{name}.", request.misfit(reply, known))
        _require(f"{name}: ", request.problem(reply))
        _check_claims(client, reply, request, known)
        found = leaves(reply, name)
        _check_integers(found)
        place = non_finite_leaf(found)
        odd = place or _too_large(found, _limit_of(request, reply, known, limits))
    except Exception as error:  # a check that stumbles over a reply has found something wrong with it
        text = str(error) if isinstance(error, BadMessage | ArithmeticError | ValueError) else repr(error)
        return Failure(client, "malformed", foreign(text))
    if not odd:
        return reply
    text = foreign(odd, 300) + (DIVERGED if odd.startswith(f"{name}.params[") else "")
    return Failure(client, "not_finite" if place else "malformed", text)


def judged_stack(
    stack: Stack,
    requests: Requests,
    expected: Mapping[str, type[Record]],
    known: Known = NOTHING_KNOWN,
    limits: Mapping[int, Mapping[str, float]] | None = None,
) -> tuple[Tensor, list[Failure]]:
    """Return which replies of a stack are sound, (clients,), and a named failure for each of the others.

    What is the same for all is looked at once; a reply in which something is odd is taken out and judged by itself.
    `limits` are those of the requests by their identity.
    """
    limits = limits or {}
    try:
        _check_type(stack.record, expected[stack.clients[0]])
        outline = stack.outline()
        check_record(outline)
        sound = torch.ones(len(stack), dtype=torch.bool)
        for request in {id(requests[client]): requests[client] for client in stack.clients}.values():
            _require(f"{type(outline).__name__}.", request.misfit(outline, known))
            if type(request).problem is not Request.problem or type(request).num_nodes is not Request.num_nodes:
                raise BadMessage("each reply is to be looked at by itself")
            sound &= _numbers_fit(stack, _limit_of(request, outline, known, limits.get(id(request))))
        sound &= _scalars_fit(stack) & _weights_fit(stack, requests, known)
    except Exception:  # whatever it was, it is told of each reply that it is true of
        sound = torch.zeros(len(stack), dtype=torch.bool)
    failures = []
    for position in (~sound).nonzero().flatten().tolist():
        client = stack.clients[position]
        request = requests[client]
        member = stack.member(position)
        verdict = judged(client, member, request, expected[client], known, limits.get(id(request)))
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            sound[position] = True
    return sound, failures


def _limit_of(
    request: Request[Any], reply: Record, known: Known, limits: Mapping[str, float] | None
) -> Callable[[str], float]:
    """Return what says of a place in a reply how large its numbers may be."""
    fields = request.limits(known) if limits is None else limits
    name = type(reply).__name__
    statistics = {f"{name}.params[{buffer!r}]" for buffer in known.buffers}

    def limit(place: str) -> float:
        if place in statistics:
            return MAX_STATISTIC
        field = place[len(name) + 1 :].split("[", 1)[0].split(".", 1)[0]
        return math.inf if field == "weight" else fields.get(field, MAX_NUMBER)  # weights have their own

    return limit


def _numbers_fit(stack: Stack, limit_of: Callable[[str], float]) -> Tensor:
    """Return for each client whether its numbers are finite and none is too large, (clients,)."""
    fit = torch.ones(len(stack), dtype=torch.bool)
    for place, leaf in leaves(stack.record, type(stack.record).__name__).items():
        limit = limit_of(place)
        if isinstance(leaf, Stacked):
            if leaf.dtype.is_floating_point:
                fit &= leaf.bound() <= limit  # never true of NaN; where the bound is not enough, the reply is taken out
        elif isinstance(leaf, Each):
            if float in map(type, leaf.values):
                values = torch.tensor([float(value or 0.0) for value in leaf.values], dtype=torch.float64)
                fit &= values.abs() <= limit  # never true of NaN
        elif _size(leaf) > limit or math.isnan(_size(leaf)):  # the same for all
            return ~fit
    return fit


def _too_large(found: Mapping[str, Any], limit_of: Callable[[str], float]) -> str:
    """Return where a number stands that is larger than it may be; nothing if there is none."""
    for place, leaf in found.items():
        if isinstance(leaf, float | Tensor):
            size, limit = _size(leaf), limit_of(place)
            if size > limit:
                return f"{place} holds {size:.3g}, which is beyond {limit:.3g}"
    return ""


def _size(leaf: Any) -> float:
    if isinstance(leaf, Tensor):
        return largest(leaf) if leaf.is_floating_point() else 0.0
    return abs(leaf) if isinstance(leaf, float) else 0.0


def _scalars_fit(stack: Stack) -> Tensor:
    fit = torch.ones(len(stack), dtype=torch.bool)
    for leaf in leaves(stack.record).values():
        if isinstance(leaf, int) and abs(leaf) >= MAX_INTEGER:  # the same for all
            return ~fit
        if isinstance(leaf, Each):
            kind = type(leaf.values[0])
            same = [type(v) is kind and (kind is not int or abs(v) < MAX_INTEGER) for v in leaf.values]
            fit &= torch.tensor(same)
    return fit


def _weights_fit(stack: Stack, requests: Requests, known: Known) -> Tensor:
    weights = stack.weights()
    most = [_max_weight(requests[client], known.holdings.get(client)) for client in stack.clients]
    return (weights >= 0.0) & (weights <= torch.tensor(most, dtype=torch.float64))


def _check_type(reply: Record, expected: type[Record]) -> None:
    if type(reply) is not expected:
        raise BadMessage(f"found the record {type(reply).__name__}, expected {expected.__name__}")


def _require(place: str, problem: str) -> None:
    if problem:
        raise BadMessage(f"{place}{problem}")


def _check_integers(found: Mapping[str, Any]) -> None:
    for place, leaf in found.items():
        if isinstance(leaf, int) and abs(leaf) >= MAX_INTEGER:
            raise BadMessage(f"{place} is an integer of {leaf.bit_length()} bits")


def _check_claims(client: str, reply: Record, request: Request[Any], known: Known) -> None:
    """Refuse a weight, or numbers of examples or nodes, that are more than the client holds."""
    held = known.holdings.get(client)
    weight, most = getattr(reply, "weight", 0.0), _max_weight(request, held)
    if isinstance(weight, int | float) and (weight < 0 or weight > most):
        problem = f"{type(reply).__name__}.weight is {float(weight):g}; it must be in [0, {most:g}]"
        raise BadMessage(f"{problem}{_told(held)}" if held else problem)
    if held is None:
        return
    for split, count in reply.counts.items() if isinstance(reply, Evaluation) else ():
        if count > held.examples.get(split, 0):
            raise BadMessage(f"Evaluation.counts[{split!r}] is {float(count):g}{_told(held)}")
    number = request.num_nodes(reply)
    if number > held.nodes:
        raise BadMessage(f"{type(reply).__name__} is about {number} nodes{_told(held)}")


def _told(held: Holdings) -> str:
    examples = ", ".join(f"{count} {split}" for split, count in held.examples.items())
    return f"; the client holds {held.nodes} nodes and as examples {examples or 'none'}"


def _max_weight(request: Request[Any], held: Holdings | None) -> float:
    return MAX_WEIGHT if held is None else min(request.max_weight(held), MAX_WEIGHT)
