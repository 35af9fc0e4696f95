"""What a study wants: numbers that the journal of a course has, or that follow from it, after so many rounds.

val/accuracy, train/loss, ...   a metric, of the round that is kept so far (`at: best`) or the last one evaluated
bytes, bytes_up, bytes_down     of all messages so far
round_seconds                   seconds of a round's exchanges, in the mean: of this machine, so no two runs agree
epsilon                         what the guards have used up so far
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.config.course import Course
from isthmus.core.errors import nearest
from isthmus.core.guards.guard import Guard
from isthmus.core.protocol import LOWER_IS_BETTER

BYTES = ("bytes", "bytes_up", "bytes_down")
ROUND_SECONDS, EPSILON = "round_seconds", "epsilon"
SPLITS = ("train", "val")
BEST, LAST = "best", "last"


@dataclass(frozen=True)
class Objective:
    """A number to be made large, or small."""

    name: str
    at: str = BEST

    @property
    def lower(self) -> bool:
        """Whether less is better."""
        return "/" not in self.name or self.name.split("/", 1)[1] in LOWER_IS_BETTER

    def problem(self, course: Course) -> str:
        """Return why no journal of a course has it; empty if it has."""
        known = [f"{split}/{metric}" for split in SPLITS for metric in course.task.metrics]
        known += [*BYTES, ROUND_SECONDS, EPSILON]
        if self.name not in known:
            return f"no journal of the course has {self.name!r}; {nearest(self.name, known)}"
        if self.name == EPSILON and all(type(guard).spent is Guard.spent for guard in course.guards):
            return "no guard of the course uses up an epsilon; add one to base.guards"
        return ""

    def value(self, events: Iterable[Mapping[str, Any]], until: int) -> float:
        """Return it after so many rounds, of a run's events; NaN where nothing was measured by then."""
        rounds = [event for event in events if event["event"] == "round" and event["round"] <= until]
        if not rounds:
            return math.nan
        if self.name in BYTES:
            ways = ("bytes_down", "bytes_up") if self.name == "bytes" else (self.name,)
            return float(sum(event[way] for event in rounds for way in ways))
        if self.name == ROUND_SECONDS:
            return float(sum(event["seconds"] for event in rounds)) / len(rounds)
        if self.name == EPSILON:
            return float(
                next((e["spent"]["epsilon"] for e in reversed(rounds) if "epsilon" in e.get("spent", {})), 0.0)
            )
        scored = [event for event in rounds if event["metrics"]]
        kept = [event for event in scored if event["is_best"]] if self.at == BEST else scored
        found = kept[-1]["metrics"].get(self.name) if kept else None
        return math.nan if found is None else float(found)


def not_dominated(scores: Sequence[Sequence[float]], lower: Sequence[bool]) -> list[int]:
    """Return by place the front that it is in: 0 for what nothing beats in everything, 1 for what only those do, ...

    NaN is worse than any number. With one objective it is the rank, which what is equal shares.
    """
    cost = np.asarray(scores, dtype=np.float64).reshape(len(scores), len(lower)) * np.where(lower, 1.0, -1.0)
    cost[np.isnan(cost)] = math.inf
    never_worse, somewhere_better = (np.ones((len(cost),) * 2, bool), np.zeros((len(cost),) * 2, bool))
    for column in cost.T:
        never_worse &= column[:, None] <= column
        somewhere_better |= column[:, None] < column
    beats = never_worse & somewhere_better  # (who, whom)
    front, left, number = np.zeros(len(cost), int), np.ones(len(cost), bool), 0
    beaten_by = beats.sum(axis=0)
    while left.any():
        free = left & (beaten_by == 0)
        front[free] = number
        left &= ~free
        beaten_by -= beats[free].sum(axis=0)
        number += 1
    return [int(place) for place in front]
