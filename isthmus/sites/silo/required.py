"""The guards that a silo requires of a course, with the least that each must protect, and whether a course has them.

    required_guards: {client_dp: {mode: [distributed, local], epsilon: 4}, secure_sum: {min_cohort: 3}}

A bound on a number is a least or a most, as the guard's class says (`Guard.protects`); on a text, what it may be.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from isthmus.config.build import name_of
from isthmus.config.load import weaker
from isthmus.config.registry import FAMILIES, find_part, known_names
from isthmus.core.errors import nearest
from isthmus.core.guards.guard import Guard

Bound: TypeAlias = bool | float | str | tuple[str, ...] | list[str]
Bounds: TypeAlias = Mapping[str, Bound]


def check_required(required: Mapping[str, Bounds]) -> None:
    """Raise ValueError where a guard is required that there is not, or one with bounds that it cannot have."""
    known = known_names(FAMILIES[Guard])
    for name, bounds in required.items():
        if name not in known:
            raise ValueError(f"required_guards has {name[:60]!r}, and there is no such guard; {nearest(name, known)}")
        kind = guard_of(name)
        for field, bound in bounds.items():
            problem = _bound_problem(kind, field, bound)
            if problem:
                raise ValueError(f"required_guards.{name}{problem}")
        problem = _impossible(kind, bounds)
        if problem:
            raise ValueError(f"required_guards.{name} asks for what no guard can be: {problem}")


def guard_of(name: str) -> type[Guard]:
    """Return the guard of a name, which is installed here."""
    return find_part(FAMILIES[Guard], name, "required_guards", allow_import=False)


def _bound_problem(kind: type[Guard], field: str, bound: Bound) -> str:
    hint = typing.get_type_hints(kind).get(field)
    kinds = {hint, *typing.get_args(hint)}
    texts = [name for name, each in typing.get_type_hints(kind).items() if each is str]
    if field not in (*kind.protects, *texts):
        return f" has {field!r}; {nearest(field, (*kind.protects, *texts))}"
    if str in kinds:
        return (
            ""
            if isinstance(bound, str | tuple | list)
            else f".{field} is {bound!r}, expected a text, or a list of texts"
        )
    wanted = "true or false" if bool in kinds else "a number"
    if isinstance(bound, str | tuple | list) or (bool in kinds) != isinstance(bound, bool):
        return f".{field} is {bound!r}, expected {wanted}"
    return f".{field} is {bound!r}, which is no bound" if math.isnan(bound) else ""


def _impossible(kind: type[Guard], bounds: Bounds) -> str:
    """Return why there can be no guard that is just what is asked for; empty if there can."""
    for choice in itertools.zip_longest(*(_choices(bound) for bound in bounds.values())):
        values = {field: value for field, value in zip(bounds, choice, strict=True) if value is not None}
        try:
            kind(**values)
        except ValueError as error:
            return str(error)
        except TypeError:  # it has fields that must be given
            return ""
    return ""


def _choices(bound: Bound) -> tuple[bool | float | str, ...]:
    return tuple(bound) if isinstance(bound, tuple | list) else (bound,)


def problems_of_guards(required: Mapping[str, Bounds], guards: Sequence[Guard]) -> Iterator[str]:
    """Yield what keeps guards from being what is required, each with what would do.

    Of several of one name one that fulfils all is enough: whatever else is done to a message comes on top of it.
    """
    for name, bounds in required.items():
        asks = f"its policy requires the guard {told(name, bounds)}"
        places = [place for place, guard in enumerate(guards) if name_of(type(guard)) == name]
        problems = [_problem_at(place, bounds, guards) for place in places]
        if not places:
            yield f"{asks}, which the course does not have: add {_entry(name, bounds)} to its guards"
        elif all(problems):
            yield f"{asks}; {problems[0]}"


def _problem_at(place: int, bounds: Bounds, guards: Sequence[Guard]) -> str:
    """Return why the guard at a place does not do; empty if it does."""
    guard, name = guards[place], name_of(type(guards[place]))
    for field, bound in bounds.items():
        found = getattr(guard, field)
        if found not in _choices(bound) if isinstance(found, str) else weaker(guard, field, found, bound):
            return f"the course's has {field}={_plain(found)}: {_wanted(type(guard), field, bound)} is needed"
    for before in guards[:place]:
        # What one has turned into bytes, the next finds no numbers in, so it would protect nothing of it.
        if not before.linear and type(before).release is not Guard.release:
            first = name_of(type(before))
            return f"{first} stands before it and leaves no numbers that it could protect: put {name} before {first}"
    return ""


def told(name: str, bounds: Bounds) -> str:
    """Return a required guard in words: "secure_sum with threshold at least 3"."""
    wanted = [f"{field} {_wanted(guard_of(name), field, bound)}" for field, bound in bounds.items()]
    return f"{name} with {' and '.join(wanted)}" if wanted else f"{name} of any settings"


def _wanted(kind: type[Guard], field: str, bound: Bound) -> str:
    if isinstance(bound, bool | str | tuple | list):
        return " or ".join(map(_plain, _choices(bound)))
    return f"{_plain(bound)} or {'more' if kind.protects[field] == 'more' else 'less'}"


def _entry(name: str, bounds: Bounds) -> str:
    said = [f"{field}: {_plain(_choices(bound)[0])}" for field, bound in bounds.items()]
    return "{" + ", ".join([f"name: {name}", *said]) + "}"


def _plain(value: object) -> str:
    """Return a value as a course's file has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, int | float) else str(value)[:60]


def sums(required: Mapping[str, Bounds]) -> bool:
    """Whether a guard is required that lets nobody see a reply that is folded."""
    return any(guard_of(name).sums for name in required)
