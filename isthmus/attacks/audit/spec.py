"""What an audit is: a course, attacks, lists of guards to try, and seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from isthmus.attacks import Attack
from isthmus.attacks.poisoning import POISONINGS
from isthmus.config.build import brief, describe
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_dict
from isthmus.core.errors import BadInput
from isthmus.core.guards.guard import Guard

Guards = tuple[Guard, ...]
NO_GUARDS = "none"


def told(part: Any) -> str:
    """Return a part in a few words: its name, and the fields that are not what they are by default."""
    plain = _named(part)
    try:
        usual = describe(type(part)())
    except TypeError:  # it has fields without a default
        return brief(plain)
    assert isinstance(usual, dict)
    return brief({key: value for key, value in plain.items() if key == "name" or value != usual.get(key)})


def _named(part: Any) -> dict[str, Any]:
    """Return a part as plain values; poisonings that a file names by their path have their short name here."""
    plain = describe(part)
    short = next((name for name, kind in POISONINGS.items() if kind is type(part)), "")
    return {**plain, "name": short} if short else dict(plain)


def guards_told(guards: Guards) -> str:
    """Return a list of guards in a few words."""
    return ", ".join(map(told, guards)) or NO_GUARDS


@dataclass(frozen=True)
class Cell:
    """One course of an audit: the guards that it has, and its seed."""

    guards: str
    course: Course

    @cached_property
    def digest(self) -> str:
        """What tells it from others."""
        return course_digest(self.course)


@dataclass(frozen=True)
class Audit:
    """A course to be attacked.

    Fields:
        course:  the course; its seed does not count
        attacks: what is tried
        lines:   lists of guards, each of which takes the place of the course's own; the first is what others are
                 compared with
        seeds:   of the courses
        title:   what it is called; by default after method and data
    """

    course: Course
    attacks: tuple[Attack, ...]
    lines: tuple[Guards, ...]
    seeds: tuple[int, ...]
    title: str = ""

    def __post_init__(self) -> None:
        names = [told(attack) for attack in self.attacks]
        for what, each in (("attacks", names), ("guards", list(map(guards_told, self.lines))), ("seeds", self.seeds)):
            if not each:
                raise ValueError(f"an audit without {what} has nothing to do; name at least one")
            twice = next((one for one in each if list(each).count(one) > 1), None)
            if twice is not None:
                raise ValueError(f"{what} has {twice!r} twice; name it once")

    def cells(self) -> Iterator[Cell]:
        """Yield the courses, all guards of a seed one after the other, as they are on the same data."""
        for seed in self.seeds:
            for guards in self.lines:
                yield Cell(guards_told(guards), replace(self.course, guards=guards, seed=seed))

    def problems(self) -> dict[str, str]:
        """Return by attack why nobody in its position could do it to the course; it is not tried."""
        found = {told(attack): attack.problem(self.course) for attack in self.attacks}
        return {name: problem for name, problem in found.items() if problem}

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        course = course_to_dict(replace(self.course, seed=0, guards=()))
        return {
            "course": course,
            "attacks": [describe(attack) for attack in self.attacks],
            "guards": [[describe(guard) for guard in guards] for guards in self.lines],
            "seeds": list(self.seeds),
        }


def require_attackable(audit: Audit) -> Sequence[Attack]:
    """Return the attacks that can be tried; raises BadInput where none can."""
    problems = audit.problems()
    left = [attack for attack in audit.attacks if told(attack) not in problems]
    if not left:
        reasons = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise BadInput(f"no attack can be tried on this course: {reasons}")
    return left


def key_of(**facts: Any) -> str:
    """Return a short digest of some facts."""
    return hashlib.sha256(json.dumps(_plain(facts), sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
