"""A suite that was begun elsewhere: rows of its runs.csv stand for runs whose folders are not here.

A row counts when its digest is that of the present course: then anything that decides the result is the same, but for
what folders of one's own hold, of which a row has a digest too; where that differs, a note says so. One with another
digest of the course is not counted, and its run says so; rows of files that have no digests, as they were written
before there were any, are not counted either. A row that is all there is of a run is never written over: a file with
rows that no longer have a place is set aside.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from isthmus.core.errors import BadInput
from isthmus.core.outside import replace_file
from isthmus.report.summary import as_csv
from isthmus.runs.folder import set_aside
from isthmus.suites.outcomes import Run
from isthmus.suites.spec import Point, Suite
from isthmus.suites.table import runs_csv, searched_text

RUNS_FILE, RUNS_FOLDER = "runs.csv", "runs"
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
        if row is None or row["error"]:
            return ""
        label = f"{', '.join(point.cell.values())} seed={point.seed}"
        if not row["digest"]:
            return f"rows of {self.path.name} without a digest do not count: their courses were run"
        if row["digest"] != point.digest:
            return (
                f"{label}: the row in {self.path.name} is of another course (digest {row['digest']}, now "
                f"{point.digest}) and does not count: the course was run"
            )
        return ""

    def _row(self, point: Point) -> dict[str, str] | None:
        """Return what the row of a point says beside its choices; nothing of what the file has no column for."""
        names = self.suite.columns
        wanted = {**point.cell, names["searched"]: searched_text(point), names["seed"]: str(point.seed)}
        mine = (row for row in self.rows if all(row.get(key) == value for key, value in wanted.items()))
        row = next(mine, None)
        return None if row is None else {fact: row.get(name, "") for fact, name in names.items()}

    def _run(self, point: Point) -> Run | None:
        row = self._row(point)
        if row is None or row["error"] or row["digest"] != point.digest:
            return None
        try:
            return Run(
                point=point,
                score=_number(row["score"]),
                validation=_number(row["validation"]),
                num_rounds=int(row["rounds"]),
                seconds=float(row["seconds"]),
                missing=tuple(row["missing"].split()),
                note=BY_ROW,
                data=row["data"],
            )
        except ValueError as error:
            raise BadInput(f"{self.path}: the row of {row['run']!r} cannot be read: {error}") from None


def write_rows(suite: Suite, runs: Sequence[Run], folder: Path) -> str:
    """Write runs.csv; one whose rows would be lost with it is set aside first. Return what to say of that, if so."""
    path, text = folder / RUNS_FILE, with_others(suite, runs, folder)
    lost = _lost(suite, text, folder)
    aside = set_aside(path, "its rows have no place in the suite") if lost else None
    replace_file(path, text.encode())
    if aside is None:
        return ""
    rows = f"{len(lost)} rows of {RUNS_FILE} have" if len(lost) > 1 else f"1 row of {RUNS_FILE} has"
    return f"{rows} no place in this suite and no run folder here; they are kept in {aside}"


def _lost(suite: Suite, text: str, folder: Path) -> list[str]:
    """Return the runs that only rows of runs.csv tell of, and no row of the text that is to take its place."""
    run, error = suite.columns["run"], suite.columns["error"]
    kept = {row[run] for row in csv.DictReader(io.StringIO(text))}
    names = [row.get(run) or "" for row in _read(folder / RUNS_FILE)[1] if not row.get(error)]
    return [name for name in names if name not in kept and not (folder / RUNS_FOLDER / name).is_dir()]


def with_others(suite: Suite, runs: Sequence[Run], folder: Path) -> str:
    """Return runs.csv with these runs, and below them the rows of before that are of another part of the suite.

    The folders of those runs may be on another machine.
    """
    text = runs_csv(suite, runs)
    header, rows = _read(folder / RUNS_FILE)
    new = csv.DictReader(io.StringIO(text))
    if header != new.fieldnames:
        return text
    keys = [*suite.axes, suite.columns["searched"], suite.columns["seed"]]
    mine = {tuple(row[key] for key in keys) for row in new}
    others = [row for row in rows if tuple(row[key] for key in keys) not in mine and _has(suite, row)]
    return text + as_csv(row.values() for row in others)


def _has(suite: Suite, row: dict[str, str]) -> bool:
    return all(row[axis] in choices for axis, choices in suite.axes.items())


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
