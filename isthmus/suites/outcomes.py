"""What became of the courses of a suite: as their run folders tell it, or rows of runs.csv where folders are elsewhere.

A suite may have been begun elsewhere. A row counts when its digest is that of the present course: then anything that
decides the result is the same. One with another digest is not counted, and its run says so; rows of files that have no
digests, as they were written before there were any, are not counted either.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput
from isthmus.report.summary import as_csv, score_of
from isthmus.runs.journal import JOURNAL_FILE, read_journal
from isthmus.suites.spec import Point, Suite

RUNS_FILE = "runs.csv"
BY_ROW = (
    "runs without a folder here count by their rows in runs.csv; figures of rounds and of clients have nothing of them"
)


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
    kept = [e for e in events if e["event"] == "round" and e.get("round") == end.get("best_round")]
    away = [*(kept[-1].get("unscored", ()) if kept else ()), *end.get("missing", ())]
    missing = tuple(dict.fromkeys(away))
    return Run(point, score, end["best_score"], end["num_rounds"], end["seconds"], missing=missing)


# ---- rows of runs.csv


def runs_csv(suite: Suite, runs: Sequence[Run]) -> str:
    """Return every run as a line of CSV."""
    score = "score" if suite.measured else suite.metric
    facts = ["validation", "rounds", "seconds", "error", "run", "missing", "digest"]
    rows: list[list[Any]] = [[*suite.axes, "searched", "seed", score, *facts]]
    for run in runs:
        found = [run.score, run.validation, run.num_rounds, run.seconds, run.error, run.point.key]
        # With these a row stands for its run where the run's folder is not.
        proof = [" ".join(run.missing), run.point.digest]
        rows.append([*run.point.cell.values(), searched_text(run.point), run.point.seed, *found, *proof])
    return as_csv(rows)


def searched_text(point: Point) -> str:
    """Return the point of a search as a row has it."""
    return json.dumps(point.searched, sort_keys=True) if point.searched else ""


class Rows:
    """The rows of a suite's runs.csv, by what they are of."""

    def __init__(self, suite: Suite, folder: Path) -> None:
        self.suite, self.path = suite, folder / RUNS_FILE
        _, self.rows = _read(self.path)

    def of(self, points: Sequence[Point]) -> list[Run] | None:
        """Return the runs of some points by their rows; None where one has no row that counts."""
        runs = list(filter(None, map(self._run, points)))
        return runs if len(runs) == len(points) else None

    def why_not(self, point: Point) -> str:
        """Return why a point's row does not count, if there is one; else nothing."""
        row = self._row(point)
        if row is None or row.get("error"):
            return ""
        label = f"{', '.join(point.cell.values())} seed={point.seed}"
        if not row.get("digest"):
            return f"rows of {self.path.name} without a digest do not count: their courses were run"
        if row["digest"] != point.digest:
            return (
                f"{label}: the row in {self.path.name} is of another course (digest {row['digest']}, now "
                f"{point.digest}) and does not count: the course was run"
            )
        return ""

    def _row(self, point: Point) -> dict[str, str] | None:
        wanted = {**point.cell, "searched": searched_text(point), "seed": str(point.seed)}
        mine = (row for row in self.rows if all(row.get(key) == value for key, value in wanted.items()))
        return next(mine, None)

    def _run(self, point: Point) -> Run | None:
        row = self._row(point)
        if row is None or row.get("error") or row.get("digest") != point.digest:
            return None
        score = "score" if self.suite.measured else self.suite.metric
        try:
            return Run(
                point=point,
                score=_number(row[score]),
                validation=_number(row["validation"]),
                num_rounds=int(row["rounds"]),
                seconds=float(row["seconds"]),
                missing=tuple(row["missing"].split()),
                note=BY_ROW,
            )
        except (KeyError, ValueError) as error:
            raise BadInput(f"{self.path}: the row of {row.get('run')!r} cannot be read: {error}") from None


def with_others(suite: Suite, runs: Sequence[Run], folder: Path) -> str:
    """Return runs.csv with these runs, and below them the rows of before that are of another part of the suite.

    The folders of those runs may be on another machine.
    """
    text = runs_csv(suite, runs)
    header, rows = _read(folder / RUNS_FILE)
    new = csv.DictReader(io.StringIO(text))
    if header != new.fieldnames:
        return text
    keys = [*suite.axes, "searched", "seed"]
    mine = {tuple(row[key] for key in keys) for row in new}
    known = [row for row in rows if all(row[axis] in choices for axis, choices in suite.axes.items())]
    return text + as_csv(row.values() for row in known if tuple(row[key] for key in keys) not in mine)


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    if not path.is_file():
        return [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            # A line that was cut off stands for nothing.
            rows = [row for row in reader if None not in row and None not in row.values()]
            return list(reader.fieldnames or ()), rows
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None


def _number(text: str) -> float | None:
    return float(text) if text else None
