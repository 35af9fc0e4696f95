"""What a journal tells of a run, gathered for pages, which show it and never look at the run itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.report.profile import time_by_part

Event = Mapping[str, Any]

MOST_FAILURES = 10_000  # that are kept; the others are counted


@dataclass
class Story:
    """A run as its journal has it; of a run that is not finished, what there is so far.

    Fields:
        title:    what it is called among others
        course:   the event that it begins with
        rounds:   its rounds, without who took part
        holds:    client -> what it holds, in words
        traffic:  (message, "down" or "up") -> bytes; requests go down, replies up
        failures: (round, client, kind, reason)
        num_failures: how many there are of these, also of those that are not kept
        absences: round -> how many of the cohort were missing
        monitors: name -> what was measured, in order
        parts:    part -> seconds
        notes:    (round or None, words)
        end:      the event that it ends with; empty if it has not
    """

    title: str
    course: Event = field(default_factory=dict)
    rounds: list[Event] = field(default_factory=list)
    holds: dict[str, str] = field(default_factory=dict)
    traffic: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str, str, str]] = field(default_factory=list)
    num_failures: int = 0
    absences: dict[int, int] = field(default_factory=dict)
    monitors: dict[str, list[Event]] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    notes: list[tuple[int | None, str]] = field(default_factory=list)
    end: Event = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """What the course reports first."""
        return str((self.course.get("course", {}).get("task", {}).get("metrics") or ["loss"])[0])

    @property
    def spent(self) -> dict[str, float]:
        """What guards used up in all."""
        return dict(self.rounds[-1].get("spent", {})) if self.rounds else {}

    def curve(self, metric: str) -> list[tuple[float, float]]:
        """Return a metric over rounds, where it was measured."""
        found = ((each["round"], each["metrics"].get(metric)) for each in self.rounds)
        return [(float(round), float(value)) for round, value in found if value is not None]

    def band(self, metric: str, low: int, high: int) -> list[tuple[float, float, float]]:
        """Return between which values clients were, at two of the shares that the journal has."""
        found = ((each["round"], each.get("spread", {}).get(metric)) for each in self.rounds)
        return [(float(round), values[low], values[high]) for round, values in found if values]


def story_of(title: str, events: Sequence[dict[str, Any]]) -> Story:
    """Return what events tell."""
    story = Story(title, parts=time_by_part(events))
    for event in events:
        _take(story, event)
    return story


def _take(story: Story, event: Event) -> None:
    kind = event["event"]
    if kind == "course":
        story.course = event
    elif kind == "end":
        story.end = event
    elif kind == "client":
        story.holds[event["client"]] = event["text"]
    elif kind == "note":
        story.notes.append((event.get("round"), event["text"]))
    elif kind == "monitor":
        story.monitors.setdefault(event["name"], []).append(event)
    elif kind == "round":
        _take_round(story, event)
    elif kind == "exchange":
        _take_exchange(story, event)


def _take_round(story: Story, event: Event) -> None:
    story.rounds.append({key: value for key, value in event.items() if key not in ("cohort", "unscored", "missing")})
    missing = len(event.get("missing", ()))
    if missing:
        story.absences[event["round"]] = missing


def _take_exchange(story: Story, event: Event) -> None:
    story.traffic[event["request"], "down"] += event["bytes_down"]
    story.traffic[event["request"], "up"] += event["bytes_up"]
    story.num_failures += len(event["failures"])
    room = MOST_FAILURES - len(story.failures)
    story.failures += [(event["round"], f["client"], f["kind"], f["reason"]) for f in event["failures"][:room]]
