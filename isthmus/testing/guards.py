"""What every guard must keep to, as one check for guards of one's own.

    from isthmus.testing import check_guard
    check_guard(MyGuard(my_field=3))

The checks are those of algorithms (`isthmus.testing.conformance`), on toy courses in which the guard stands between a
known algorithm and its messages; and a few that are a guard's alone. AssertionError says which rule is broken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.algorithms import FedAvg, Scaffold
from isthmus.config.course import Course
from isthmus.core.errors import nearest
from isthmus.core.exposure import field_docs
from isthmus.core.guards.guard import Guard
from isthmus.core.guards.line import GuardLine
from isthmus.core.protocol import Algorithm, reply_type
from isthmus.testing.conformance import (
    check_failure,
    check_idle_client,
    check_lies,
    check_loop_equals_strict,
    check_partial_participation,
    check_replies,
    check_resume,
    check_same_seed,
    check_stacked_equals_loop,
)
from isthmus.testing.inspection import has_source, require_frozen, require_sayable, with_nested
from isthmus.testing.toys import toy_course


def check_guard(
    guard: Guard, *, algorithms: Sequence[Algorithm[Any]] = (), beside: Sequence[Guard] = (), skip: Sequence[str] = ()
) -> list[str]:
    """Run every check (`GUARD_CHECKS`, `COURSE_CHECKS`) but those in `skip`; raise AssertionError for a broken rule.

    Returns the names of the checks that were made.

    Fields:
        algorithms: on whose toy courses; by default FedAvg, whose replies are folded, and SCAFFOLD, which remembers
        beside:     guards that stand before it in the course
        skip:       names of checks to leave out: `stacked_equals_loop` where the guard rounds by chance, for example,
                    as the last bit of what is rounded may decide
    """
    for name in skip:
        if name not in (*GUARD_CHECKS, *COURSE_CHECKS):
            raise ValueError(f"skip has {name!r}; {nearest(name, (*GUARD_CHECKS, *COURSE_CHECKS))}")
    made = [name for name in (*GUARD_CHECKS, *COURSE_CHECKS) if name not in skip]
    for name in made:
        try:
            if name in GUARD_CHECKS:
                GUARD_CHECKS[name](guard)
                continue
            for algorithm in algorithms or (FedAvg(local_steps=2), Scaffold(local_steps=2)):
                COURSE_CHECKS[name](algorithm, toy_course(algorithm, guards=(*beside, guard)))
        except AssertionError as error:
            raise AssertionError(f"{type(guard).__name__}, check {name!r}: {error}") from error
    return made


def _check_settings(guard: Guard) -> None:
    """Check that a file can say all of its fields, and that what it says it protects is among them."""
    require_sayable(guard, "guards")
    names = {field.name for field in dataclasses.fields(guard)}
    strange = sorted(set(type(guard).protects) - names)
    if strange:
        raise AssertionError(f"protects names {strange[0]!r}, which is no field of it")


def _check_docstrings(guard: Guard) -> None:
    """Check that every field of what it sends by itself says what it reveals."""
    kinds = GuardLine((guard,)).kinds
    roots = [*kinds, *(reply_type(kind) for kind in kinds)]
    for kind in with_nested(roots):
        docs = field_docs(kind) if has_source(kind) else {}
        for name in [name for name, text in docs.items() if not text]:
            raise AssertionError(f"{kind.__name__}.{name} has no docstring; write one under the field that says it")


GUARD_CHECKS: dict[str, Callable[[Guard], None]] = {
    "frozen": require_frozen,
    "settings": _check_settings,
    "docstrings": _check_docstrings,
}


def _check_lies(algorithm: Algorithm[Any], course: Course | None) -> int:
    return check_lies(algorithm, course, thorough=True)


COURSE_CHECKS: dict[str, Callable[[Algorithm[Any], Course | None], Any]] = {
    "replies": check_replies,
    "loop_equals_strict": check_loop_equals_strict,
    "stacked_equals_loop": check_stacked_equals_loop,
    "same_seed": check_same_seed,
    "resume": check_resume,
    "failure": check_failure,
    "partial_participation": check_partial_participation,
    "idle_client": check_idle_client,
    "lies": _check_lies,
}
