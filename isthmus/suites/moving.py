"""A suite that was begun elsewhere: rows of its runs.csv stand for runs whose folders are not here.

A row counts when its digest is that of the present course: then anything that decides the result is the same. One with
another digest is not counted, and its run says so; rows of files that have no digests, as they were written before
there were any, are not counted either.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from isthmus.core.errors import BadInput
from isthmus.report.summary import as_csv
from isthmus.suites.outcomes import Run
from isthmus.suites.spec import Point, Suite
from isthmus.suites.table import runs_csv, searched_text

RUNS_FILE = "runs.csv"
BY_ROW = (
    "runs without a folder here count by their rows in runs.csv; figures of rounds and of clients have nothing of them"
)


class Rows:
    """The rows of a suite's runs.csv, by what they are of."""

    def __init__(self, suite: Suite, folder: Path) -> None:
        self.suite, self.path = suite, folder / RUNS_FILE
        self.header, self.rows = _read(self.path)

    def of(self, points: Sequence[Point]) -> list[Run] | None:
        """Return the runs of some points by their rows; None where one has no row that counts."""
        found = [self._run(point) for point in points]
        runs = [run for run in found if run is not None]
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
