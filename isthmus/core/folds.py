"""Pure aggregation: how the replies of an exchange become one record, streamed where the mathematics allows.

A fold never shows its caller an individual reply. `weighted_mean` keeps one running sum; the robust folds must hold all
replies until the last (`streams` is False), so secure aggregation cannot serve them. The result of median and trimmed
mean is the same for replies as for what they change of what was sent, where all were sent the same; those that compare
whole replies, and the table of all, are in `isthmus.core.folding`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from isthmus.core.errors import CourseFailed, refuse
from isthmus.core.record import Record, State, Value, leaves, with_leaves
from isthmus.core.replies import Each, Stack, Stacked

ReplyT = TypeVar("ReplyT", bound=Record)


@dataclass(frozen=True)
class Fold(ABC):
    """Turns a stream of replies of one type into one reply of the same type."""

    # Whether replies can be forgotten as they come.
    streams: ClassVar[bool] = False

    @abstractmethod
    def start(self) -> Any:
        """Return an empty accumulator."""

    @abstractmethod
    def add(self, total: Any, reply: Record) -> None:
        """Take one more reply into the accumulator."""

    def add_answer(self, total: Any, reply: Record, sent: Record | None, client: str = "") -> None:
        """Take one more reply with the request that it answers and who gave it; here that makes no difference."""
        self.add(total, reply)

    def add_stack(self, total: Any, stack: Stack, sound: Tensor) -> None:
        """Take the replies of a stack for which `sound` is true; here one by one."""
        for position in sound.nonzero().flatten().tolist():
            self.add(total, stack.member(position))

    @abstractmethod
    def finish(self, total: Any) -> Record:
        """Return the folded record."""

    @property
    def least_replies(self) -> int:
        """How many replies it takes to promise what it promises."""
        return 1

    def __call__(self, replies: Iterable[ReplyT]) -> ReplyT:
        """Fold some replies at once."""
        total = self.start()
        for reply in replies:
            self.add(total, reply)
        return cast(ReplyT, self.finish(total))


def form_of(reply: Record) -> tuple[tuple[str, str], ...]:
    """Return what replies that are folded together must have in common: names, shapes and types of all leaves."""
    return tuple((path, _form(leaf)) for path, leaf in leaves(reply).items())


def weight_of(reply: Record) -> float:
    """Return the weight that a reply asks for; 1 when it has no such field, or one of another meaning."""
    found = getattr(reply, "weight", 1.0)
    return float(found) if isinstance(found, int | float) else 1.0


@dataclass
class RunningSum:
    """The accumulator of a weighted mean: sums in double precision, and one reply that gives the shape."""

    weight: float = 0.0
    like: Record | None = None
    sums: dict[str, Value] = field(default_factory=dict)

    def shape_by(self, reply: Record, weight: float) -> Record:
        """Return the reply that gives the shape: the first, or the first that weighs something if there is one."""
        if self.like is None or (self.weight == 0.0 and weight > 0.0):
            self.like = reply
        return self.like

    def add(self, path: str, leaf: Value, weight: float) -> None:
        """Add a leaf that counts so much, if it is of a kind that is averaged."""
        if isinstance(leaf, Tensor):
            if path not in self.sums:
                # -0.0 is what leaves every number as it is when added; 0.0 would turn -0.0 into 0.0.
                self.sums[path] = torch.full(leaf.shape, -0.0, dtype=torch.float64)
            self.sums[path].add_(leaf.detach(), alpha=weight)
        elif isinstance(leaf, float):
            self.sums[path] = self.sums.get(path, -0.0) + weight * leaf

    def means(self) -> dict[str, Value]:
        """Return each leaf's mean, of the type that it has in the reply that gives the shape."""
        return {path: _mean(self, path, leaf) for path, leaf in leaves(self.like).items()} if self.like else {}


@dataclass(frozen=True)
class WeightedMean(Fold):
    """Sum of w_k r_k over sum of w_k, leaf by leaf; w_k is the reply's own `weight`, which becomes the total.

    Tensors and floats are averaged (integer tensors, such as the counter of a batch norm, are rounded); strings, truth
    values and integers are taken from the first reply. A reply of weight zero leaves no trace. Sums run in double
    precision, so the mean of equal replies is that reply to the bit (if in double precision: but for the last bits).
    """

    streams: ClassVar[bool] = True

    def start(self) -> RunningSum:
        """Return an empty accumulator."""
        return RunningSum()

    def add(self, total: RunningSum, reply: Record) -> None:
        """Add one reply to the running sums."""
        weight = weight_of(reply)
        if weight < 0.0:
            raise CourseFailed(f"a reply of type {type(reply).__name__} has the negative weight {weight}")
        like = total.shape_by(reply, weight)
        if weight == 0.0:
            return
        new = leaves(reply)
        _check_same_shape(like, new)
        total.weight += weight
        for path, leaf in new.items():
            total.add(path, leaf, weight)

    def add_stack(self, total: RunningSum, stack: Stack, sound: Tensor) -> None:
        """Add the weighted sum of a stack to the running sums, without taking it apart."""
        weights = stack.weights(sound)
        mass = float(weights.sum())
        outline = stack.outline(int((weights > 0.0).int().argmax()))
        like = total.shape_by(outline, mass)
        if mass == 0.0:
            return
        plain = leaves(outline)
        _check_same_shape(like, plain)
        shares: list[float] = weights.tolist()
        counted = [position for position, share in enumerate(shares) if share]
        _check_same_kinds(like, stack, counted)
        total.weight += mass
        for path, leaf in stack.leaves.items():
            if isinstance(leaf, Stacked):
                found = leaf.weighted_sum(weights)
                total.sums[path] = total.sums[path].add_(found) if path in total.sums else found
            elif isinstance(leaf, Each) and isinstance(plain[path], float):
                added = sum(shares[position] * leaf.values[position] for position in counted)
                total.sums[path] = total.sums.get(path, -0.0) + added
            else:
                total.add(path, leaf, mass)

    def finish(self, total: RunningSum) -> Record:
        """Divide the sums by the total weight."""
        if total.like is None:
            raise CourseFailed("there is no reply to average")
        if total.weight == 0.0:
            raise CourseFailed(
                f"every {type(total.like).__name__} has weight 0: no client in the cohort has training examples, or "
                "what else algorithm.weighting counts"
            )
        means = total.means()
        if ".weight" in means:
            means[".weight"] = total.weight
        return with_leaves(total.like, means)


def _mean(total: RunningSum, path: str, leaf: Value) -> Value:
    if isinstance(leaf, Tensor):
        mean = total.sums[path] / total.weight
        return (mean if leaf.is_floating_point() else mean.round()).to(leaf.dtype)
    return total.sums[path] / total.weight if isinstance(leaf, float) else leaf


def _check_same_shape(like: Record, new: dict[str, Value]) -> None:
    old = leaves(like)
    for path in {**old, **new}:
        kinds = [_form(side[path]) if path in side else "absent" for side in (old, new)]
        if kinds[0] != kinds[1]:
            raise CourseFailed(
                f"replies of type {type(like).__name__} cannot be folded: {path} is {kinds[0]} in one and "
                f"{kinds[1]} in another"
            )


def _check_same_kinds(like: Record, stack: Stack, counted: list[int]) -> None:
    """Look at the members of a stack whose scalars are of another type than those of the first."""
    every = [leaf.values for leaf in stack.leaves.values() if isinstance(leaf, Each)]
    kinds = {position: tuple(type(values[position]) for values in every) for position in counted}
    for position, kind in kinds.items():
        if kind != kinds[counted[0]]:
            _check_same_shape(like, leaves(stack.outline(position)))


def _form(leaf: Value) -> str:
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
    return type(leaf).__name__


class Answer(NamedTuple):
    """One reply as a fold that holds them all keeps it: with the request that it answers, and who gave it."""

    reply: Record
    sent: Record | None
    client: str


@dataclass(frozen=True)
class Gathered(Fold):
    """Holds all replies of positive weight, then combines them; unless it says else, weights count no further.

    The weight of the result is the sum of all.
    """

    def start(self) -> list[Answer]:
        """Return an empty accumulator."""
        return []

    def add(self, total: list[Answer], reply: Record) -> None:
        """Keep one more reply, unless its weight is zero."""
        self.add_answer(total, reply, None)

    def add_answer(self, total: list[Answer], reply: Record, sent: Record | None, client: str = "") -> None:
        """Keep one more reply with the request that it answers and who gave it, unless its weight is zero."""
        if weight_of(reply) > 0.0:
            total.append(Answer(reply, sent, client))

    def finish(self, total: list[Answer]) -> Record:
        """Combine the kept replies."""
        return self.finish_with(total, {}, "")[0]

    def finish_with(self, total: list[Answer], memory: State, place: str) -> tuple[Record, State]:
        """Combine the kept replies with what was remembered before; return what to remember, too.

        `place` names the exchange, so that what is folded twice in it is remembered once.
        """
        if not total:
            raise CourseFailed("there is no reply of positive weight to aggregate")
        first = total[0].reply
        for answer in total[1:]:
            _check_same_shape(first, leaves(answer.reply))
        found, after = self.combine_with(total, memory, place)
        folded = leaves(found)
        if ".weight" in folded:
            folded[".weight"] = sum(weight_of(answer.reply) for answer in total)
        return with_leaves(first, folded), after

    def combine_with(self, given: list[Answer], memory: State, place: str) -> tuple[Record, State]:
        """Return the folded record and what to remember; most folds remember nothing."""
        return self.combine(given), memory

    @abstractmethod
    def combine(self, given: list[Answer]) -> Record:
        """Return the folded record of at least one reply."""


def by_coordinate(replies: list[Record], reduce: Callable[[Tensor], Tensor]) -> Record:
    """Return a record each of whose tensors and floats is `reduce` of the stacked replies, (replies, ...) -> (...)."""
    every = [leaves(reply) for reply in replies]

    def folded(path: str, first: Value) -> Value:
        if isinstance(first, Tensor):
            found = reduce(torch.stack([part[path].double() for part in every]))
            return (found if first.is_floating_point() else found.round()).to(first.dtype)
        if isinstance(first, float):
            return float(reduce(torch.tensor([part[path] for part in every], dtype=torch.float64)))
        return first

    return with_leaves(replies[0], {path: folded(path, first) for path, first in every[0].items()})


@dataclass(frozen=True)
class Median(Gathered):
    """Coordinate-wise median (Yin et al., 2018), unweighted; the mean of the middle two for an even number."""

    def combine(self, given: list[Answer]) -> Record:
        """Return the coordinate-wise median."""
        return by_coordinate([answer.reply for answer in given], middle)


def middle(stack: Tensor) -> Tensor:
    """Return the median of rows, (rows, ...) -> (...): the mean of the middle two for an even number."""
    ordered, last = stack.sort(dim=0).values, len(stack) - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) / 2


@dataclass(frozen=True)
class TrimmedMean(Gathered):
    """Coordinate-wise mean without the `trim_fraction` smallest and largest values (Yin et al., 2018), unweighted."""

    trim_fraction: float = 0.1

    def __post_init__(self) -> None:
        refuse(not 0.0 <= self.trim_fraction < 0.5, self, "trim_fraction", "it must be in [0, 0.5)")

    def combine(self, given: list[Answer]) -> Record:
        """Return the coordinate-wise trimmed mean."""
        return by_coordinate([answer.reply for answer in given], self._trimmed)

    def _trimmed(self, stack: Tensor) -> Tensor:
        cut = int(self.trim_fraction * len(stack))
        return stack.sort(dim=0).values[cut : len(stack) - cut].mean(dim=0)


weighted_mean = WeightedMean()
median = Median()
