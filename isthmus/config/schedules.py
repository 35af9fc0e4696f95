"""Whether what an algorithm lets run over rounds, such as a falling learning rate, is as long as the course."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from isthmus.config.course import Course
from isthmus.core.protocol import Algorithm
from isthmus.learn.optimizers import Optimizer


def schedule_notes(course: Course) -> list[str]:
    """Return a note for each schedule of the course's algorithm whose number of rounds is not the course's."""
    rounds = course.rounds
    return [
        f"{place}.rounds is {part.rounds}, and the course has {rounds} rounds: {_what_happens(part, rounds)}"
        for place, part in _schedules(course.algorithm)
        if part.rounds != rounds
    ]


def _schedules(algorithm: Algorithm[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each part of an algorithm that has a number of `rounds` to follow, and where it stands."""
    for field in dataclasses.fields(algorithm):
        value, place = getattr(algorithm, field.name), f"algorithm.{field.name}"
        if isinstance(value, Optimizer):
            value, place = value.schedule, f"{place}.schedule"
        if dataclasses.is_dataclass(value) and hasattr(value, "rounds"):
            yield place, value


def _what_happens(part: Any, rounds: int) -> str:
    if part.rounds < rounds:
        return f"after round {part.rounds} it stays as it ends"
    if rounds <= getattr(part, "warmup_rounds", 0):
        return f"it ends within the warm-up of {part.warmup_rounds} rounds"
    return "it ends on the way"
