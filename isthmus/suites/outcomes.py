"""What became of the courses of a suite, as their run folders tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.config.course import Course
from isthmus.core.errors import BadInput
from isthmus.core.outside import some
from isthmus.report.summary import score_of
from isthmus.runs.journal import JOURNAL_FILE, read_journal
from isthmus.suites.spec import Point, Suite


@dataclass(frozen=True)
class Run:
    """A course of the suite with its outcome."""

    point: Point
    score: float | None  # on test
    validation: float | None  # what the search goes by
    num_rounds: int
    seconds: float
    error: str = ""
    missing: tuple[str, ...] = ()  # clients that did not score the round that is kept, or are in no test score
    note: str = ""  # what became of an earlier run of the same course that could not be resumed
    data: str = ""  # what tells its data from others of the same name; empty where the run's folder does not say


def outcome(suite: Suite, point: Point, path: Path, error: str, note: str) -> Run:
    """Return what became of a course that was run just now; a failure is the run's, not the suite's."""
    if error:
        return Run(point, None, None, 0, 0.0, error, note=note)
    finished = read_run(suite, point, path)
    assert finished is not None
    return replace(finished, note=note)


def read_run(suite: Suite, point: Point, path: Path) -> Run | None:
    """Return the outcome of a finished run from its journal, or None."""
    journal = path / JOURNAL_FILE
    if not journal.is_file():
        return None
    try:
        events = list(read_journal(journal))
    except BadInput:  # damaged: whoever goes on with the run says so
        return None
    end: dict[str, Any] = next((event for event in reversed(events) if event["event"] == "end"), {})
    if not {"metrics", "best_score", "num_rounds", "seconds"} <= end.keys():
        return None
    score = score_of(end["metrics"], suite.graph, point.metric, suite.model)
    missing = _missing(events, end)
    data = next((str(event.get("data", "")) for event in events if event["event"] == "course"), "")
    return Run(point, score, end["best_score"], end["num_rounds"], end["seconds"], missing=missing, data=data)


def _missing(events: Sequence[dict[str, Any]], end: dict[str, Any]) -> tuple[str, ...]:
    """Return the clients that did not score the round that is kept, and those that are in no test score."""
    kept = [e for e in events if e["event"] == "round" and e.get("round") == end.get("best_round")]
    away = [*(kept[-1].get("unscored", ()) if kept else ()), *end.get("missing", ())]
    return tuple(dict.fromkeys(away))


def on_other_data(runs: Sequence[Run]) -> list[str]:
    """Return which courses were to be on the same data and were not, in words: a folder changed while a suite grew."""
    groups: list[tuple[tuple[Any, ...], dict[str, dict[str, str]]]] = []  # parts of a course may not be hashable
    for run in runs:
        if run.data:
            key = _data_of(run.point.course)
            found = next((found for known, found in groups if known == key), None)
            if found is None:
                groups.append((key, found := {}))
            found.setdefault(run.data, {})[run.point.key] = (
                f"{', '.join(run.point.cell.values())} seed={run.point.seed}"
            )
    told = [" and ".join(some(rows.values()) for rows in found.values()) for _, found in groups if len(found) > 1]
    return [
        f"the data changed between {rows}, which are not comparable: give another --out, or take the folders of the "
        "older ones out of runs and their rows out of runs.csv"
        for rows in told
    ]


def _data_of(course: Course) -> tuple[Any, ...]:
    """Return what decides which data a course is on; how it is divided only where the whole is made of the parts."""
    merged = (course.splitter, course.num_clients) if course.global_graph == "merged" else ()
    own = course.algorithm.learns_without_labels  # folders of one's own are divided otherwise then
    return course.dataset, course.masks, course.seed, own, *merged
