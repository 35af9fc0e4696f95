"""What a study searches: keys of a course, each with the values that it can have.

space:
  algorithm.name: [fedavg, fedprox]                                    choices
  algorithm.local_steps: {low: 1, high: 16, log: true}                 whole numbers, as both ends are
  algorithm.optimizer.lr: {low: 0.01, high: 1.0, log: true}            numbers
  algorithm.mu: {choices: [0.01, 0.1], when: {algorithm.name: fedprox}}  there only if another key has this value
  optimizer.lr: {low: 0.01, high: 1.0, log: true, each: client}        one for each client: client_settings
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import quoted, some
from isthmus.core.random import numpy_generator

Values: TypeAlias = Mapping[str, Any]
KEYS = ("choices", "low", "high", "log", "when", "each")
EXPECTED = "expected a list of choices, or {low: ..., high: ...}"
OF_CLIENT = "client_settings"
_POWER = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
MANY = 2**31  # values of a range, when all are wanted
MOST_TRIES = 1000  # draws for a point that was not drawn yet
MOST_COUNTED = 10_000  # points of a space


@dataclass(frozen=True)
class Dimension:
    """The values that a key can have: some choices, or a range from `low` to `high`, both of them in it.

    Fields:
        log:  whether a range is drawn from evenly in its logarithm
        when: keys with the values at which this one is there; empty: always
    """

    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool = False
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            self._check_choices()
            return
        if self.choices or self.low is None or self.high is None:
            raise ValueError(f"it has {'choices beside' if self.choices else 'one end of'} a range; {EXPECTED}")
        if not (math.isfinite(self.low) and math.isfinite(self.high)) or self.low > self.high:
            raise ValueError(f"low is {self.low!r} and high {self.high!r}, between which there is nothing")
        if self.log and self.low <= 0:
            raise ValueError(f"low is {self.low!r}, and a range of logarithms begins above 0")

    def _check_choices(self) -> None:
        if not self.choices:
            raise ValueError(f"it has no choices; {EXPECTED}")
        if self.log:
            raise ValueError("log is said of choices; it is of a range")
        twice = next((one for number, one in enumerate(self.choices) if one in self.choices[:number]), None)
        if twice is not None:
            raise ValueError(f"it has the choice {twice!r} twice")

    @property
    def whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def finite(self) -> bool:
        """Whether its values can be listed."""
        return bool(self.choices) or self.whole or self.low == self.high

    @property
    def number(self) -> float:
        """How many values it has."""
        if self.choices:
            return len(self.choices)
        assert self.low is not None and self.high is not None
        return self.high - self.low + 1 if self.whole else 1 if self.finite else math.inf

    def has(self, value: Any) -> bool:
        """Whether a value is one of its own."""
        if self.choices:
            return value in self.choices
        assert self.low is not None and self.high is not None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and (not self.whole or isinstance(value, int))

    @property
    def told(self) -> str:
        """Its values in words."""
        return some(list(map(repr, self.choices))) if self.choices else f"from {self.low} to {self.high}"

    @property
    def values(self) -> tuple[Any, ...]:
        """Its values, where they can be listed."""
        if self.choices:
            return self.choices
        assert self.low is not None and self.high is not None
        return tuple(range(int(self.low), int(self.high) + 1)) if self.whole else (self.low,)

    @property
    def ordered(self) -> bool:
        """Whether its choices are numbers that rise: a neighbour of a good one may be as good."""
        numbers = [each for each in self.choices if isinstance(each, int | float) and not isinstance(each, bool)]
        return len(numbers) == len(self.choices) > 1 and all(a < b for a, b in pairwise(numbers))

    def is_there(self, values: Values) -> bool:
        """Whether it has a value beside the values of other keys."""
        return all(values.get(key) in allowed for key, allowed in self.when.items())

    def at(self, share: float) -> Any:
        """Return the value at a share of the way, from 0 to below 1; all choices and whole numbers have as much room.

        In a range of logarithms a whole number n has the room from n - 1/2 to n + 1/2.
        """
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        assert self.low is not None and self.high is not None
        half = 0.5 if self.whole else 0.0
        low, high = self.low - half, self.high + half
        found = low * (high / low) ** share if self.log else low + (high - low) * share
        if self.whole:
            return int(min(max(math.floor(found + 0.5), self.low), self.high))
        return float(min(max(found, self.low), self.high))

    def spread(self, number: int) -> tuple[Any, ...]:
        """Return all values where they are no more than `number`; else so many from end to end."""
        if self.choices or (self.finite and len(self.values) <= number):
            return self.values
        assert self.low is not None and self.high is not None
        shares = [place / max(number - 1, 1) for place in range(number)]
        way = [
            self.low * (self.high / self.low) ** s if self.log else self.low + (self.high - self.low) * s
            for s in shares
        ]
        found = [round(value) if self.whole else min(max(value, self.low), self.high) for value in way]
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Space:
    """The dimensions of a study, by key; one stands after those that it depends on."""

    dimensions: Mapping[str, Dimension]

    def drawn(self, number: int, *seed: int | str) -> dict[str, Any]:
        """Return the point of a number in a row of draws, in which one comes twice only where none else is left.

        As long as none comes twice they are plain draws, each with its number.
        """
        points, seen, place = self._rows.setdefault(seed, ([], set(), [0]))
        while len(points) <= number:
            if len(seen) == self._number:
                seen.clear()  # from the start again
            for _ in range(MOST_TRIES):
                point = self.draw(*seed, place[0])
                place[0] += 1
                if repr(point) not in seen:
                    break
            seen.add(repr(point))
            points.append(point)
        return dict(points[number])

    @cached_property
    def _number(self) -> int | None:
        """How many points there are, where they are few enough to be counted."""
        return len(self.listed) if self.most <= MOST_COUNTED else None

    @property
    def most(self) -> float:
        """How many points there are at most: some may be the same without keys that are not there."""
        return math.prod(dimension.number for dimension in self.dimensions.values())

    @cached_property
    def _rows(self) -> dict[tuple[int | str, ...], tuple[list[dict[str, Any]], set[str], list[int]]]:
        """What was drawn already, which is the same whenever it is drawn."""
        return {}

    def draw(self, *seed: int | str) -> dict[str, Any]:
        """Return a point drawn at random; each key has a stream of its own, whichever others there are."""
        found: dict[str, Any] = {}
        for key, dimension in self.dimensions.items():
            if dimension.is_there(found):
                found[key] = dimension.at(float(numpy_generator(*seed, key).random()))
        return found

    def points(self, number: int = 3) -> Iterator[dict[str, Any]]:
        """Yield all points, the last key running fastest; of a range as many values as `spread` gives."""
        spreads = {key: dimension.spread(number) for key, dimension in self.dimensions.items()}
        seen: set[str] = set()
        for values in itertools.product(*spreads.values()):
            point = self.there(dict(zip(spreads, values, strict=True)))
            if repr(point) not in seen:
                seen.add(repr(point))
                yield point

    def there(self, values: Values) -> dict[str, Any]:
        """Return values without those of keys that are not there beside the others."""
        found: dict[str, Any] = {}
        for key, dimension in self.dimensions.items():
            if key in values and dimension.is_there(found):
                found[key] = values[key]
        return found

    @cached_property
    def listed(self) -> tuple[dict[str, Any], ...]:
        """All points, of a space that is finite."""
        return tuple(self.points(MANY))

    @property
    def finite(self) -> bool:
        """Whether its points can be listed."""
        return all(dimension.finite for dimension in self.dimensions.values())


def read_space(raw: Any, clients: Sequence[str], where: str) -> Space:
    """Return the space that a file describes; `where` is the file, for messages."""
    if not isinstance(raw, Mapping) or not raw:
        raise BadInput(f"{where}: space is {quoted(raw)}, expected keys of a course, each with the values to try")
    found: dict[str, Dimension] = {}
    for key, said in raw.items():
        place = f"{where}: space.{key}"
        try:
            dimension, each = _dimension(said, place)
        except ValueError as error:
            raise BadInput(f"{place}: {error}") from None
        for other, values in dimension.when.items():
            if other not in found:
                raise BadInput(f"{place}.when has {other!r}, which does not stand before it; {nearest(other, found)}")
            never = [value for value in values if not found[other].has(value)]
            if never:
                raise BadInput(f"{place}.when: {other} is never {never[0]!r}; it can be {found[other].told}")
        keys = [f"{OF_CLIENT}.{client}.{key}" for client in clients] if each else [str(key)]
        found |= dict.fromkeys(keys, dimension)
    return Space(found)


def _dimension(said: Any, place: str) -> tuple[Dimension, bool]:
    """Return a dimension, and whether each client has its own."""
    if isinstance(said, list):
        return Dimension(_choices(said)), False
    if not isinstance(said, Mapping):
        raise BadInput(f"{place} is {quoted(said)}, {EXPECTED}")
    for key in said:
        if key not in KEYS:
            raise BadInput(f"{place}.{key} is not a known key; {nearest(str(key), KEYS)}")
    choices, log, each = said.get("choices", []), said.get("log", False), said.get("each", "")
    if not isinstance(choices, list):
        raise BadInput(f"{place}.choices is {quoted(choices)}, expected a list")
    if not isinstance(log, bool):
        raise BadInput(f"{place}.log is {quoted(log)}, expected true or false")
    if each not in ("", "client"):
        raise BadInput(f"{place}.each is {quoted(each)}; it can be 'client'")
    ends = {end: _number(said[end], f"{place}.{end}") for end in ("low", "high") if end in said}
    return Dimension(
        _choices(choices), ends.get("low"), ends.get("high"), log, _when(said.get("when", {}), place)
    ), bool(each)


def _choices(said: list[Any]) -> tuple[Any, ...]:
    """Return choices; powers of ten such as 1e-3, which YAML takes for words, are the numbers that they look like."""
    return tuple(float(each) if isinstance(each, str) and _POWER.fullmatch(each) else each for each in said)


def _number(value: Any, place: str) -> float:
    """Return a number; YAML takes 1e-3 for a word."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{place} is {quoted(value)}, expected a number") from None


def _when(said: Any, place: str) -> dict[str, tuple[Any, ...]]:
    if not isinstance(said, Mapping):
        raise BadInput(f"{place}.when is {quoted(said)}, expected keys with values")
    return {str(key): tuple(value) if isinstance(value, list) else (value,) for key, value in said.items()}
