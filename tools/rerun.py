"""Runs some courses of the papers' suites again and puts their scores beside those that are kept as CSV.

    python tools/rerun.py [SUITE.yaml ...] [--only AXIS=CHOICE] [--set KEY=VALUE] [--all] [--out FOLDER] [--longest 60]
        [--data-root DATA]

Without suites, those of all papers. Of each, for each choice of its last axis (its methods, mostly), the course whose
kept row took the least time, where that is at most so many seconds; with `--all` every course that took no longer, the
quickest first. Scores are the same to the last digit that is kept
where nothing rounds otherwise than it did; the table says by how much they differ where something does. Kept rows do
not say what was set when they were made: RESULTS.md beside the suite has the command, and `--set` takes its words, or
others, such as runtime=loop, to see what rounding does. What is in the folder is not run again, so that a table that
was cut short goes on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from redraw import kept_rows

from isthmus.suites.outcomes import Run, outcome, read_run
from isthmus.suites.part import changed, narrowed
from isthmus.suites.same_data import LastScenario, finish_course
from isthmus.suites.spec import Point, Suite, load_suite
from isthmus.suites.table import searched_text

PAPERS = Path(__file__).parents[1] / "papers"
KEPT_DIGITS = 5e-7
Row = dict[str, str]


def kept(path: Path) -> Path:
    """Return where the rows of a suite are kept."""
    return path.parent / "results" / f"{path.stem}.csv"


def is_of(point: Point, row: Row) -> bool:
    """Whether a row is of a course: its choices, its seed, and what was searched, as far as the row says so."""
    wanted = {**point.cell, "seed": str(point.seed)}
    if "searched" in row:
        wanted["searched"] = searched_text(point)
    else:
        wanted |= {key.split(".")[-1]: f"{value}" for key, value in point.searched.items()}
    return all(row[key] == value for key, value in wanted.items() if key in row)


def score_in(suite: Suite, row: Row) -> float:
    """Return the score of a row, which has the name of its metric or none."""
    names = ("score", suite.metric) if not suite.measured else ("validation",)
    return float(next(row[name] for name in names if name in row))


@dataclass(frozen=True)
class Asked:
    """What is run again, where, and what is changed in it."""

    folder: Path
    data_root: Path | None = None
    only: Sequence[str] = ()
    changes: Sequence[str] = ()
    longest: float = 60.0
    every: bool = False

    def suite(self, path: Path) -> Suite:
        """Return the part of a suite that is asked for."""
        return changed(narrowed(load_suite(path), self.only), self.changes)

    def chosen(self, suite: Suite, rows: list[Row]) -> list[Row]:
        """Return the rows of courses that are run again."""
        cells = suite.cells()
        known = [
            row for row in rows if any(all(row.get(axis, cell[axis]) == cell[axis] for axis in cell) for cell in cells)
        ]
        quick = sorted(
            (row for row in known if float(row["seconds"]) <= self.longest), key=lambda row: float(row["seconds"])
        )
        return quick if self.every else quickest(suite, quick)


def quickest(suite: Suite, rows: list[Row]) -> list[Row]:
    """Return for each choice of the last axis the first of rows that are sorted by time."""
    last = list(suite.axes)[-1]
    firsts = (next((row for row in rows if row.get(last) == choice), None) for choice in suite.axes[last])
    return [row for row in firsts if row is not None]


def again(path: Path, asked: Asked) -> Iterator[tuple[str, ...]]:
    """Yield a line for each course of a suite that is run again: its choices, the kept score, the new one."""
    suite = asked.suite(path)
    rows = [row for row in kept_rows(suite, kept(path)) if row.get("seconds") and not row.get("error")]
    scenarios = LastScenario()
    for row in asked.chosen(suite, rows):
        words = [f"{axis}={row[axis]}" for axis in suite.axes if axis in row]
        part = replace(narrowed(suite, words), seeds=(int(row["seed"]),))
        point = next(point for point in part.points() if is_of(point, row))
        place = asked.folder / path.parent.name / path.stem / point.key
        error = (
            "" if read_run(suite, point, place) else finish_course(point.course, place, asked.data_root, scenarios)[0]
        )
        told = (f"{path.parent.name}/{path.stem}", ", ".join(point.cell.values()), row["seed"])
        yield *told, *compared(suite, row, outcome(suite, point, place, error, ""))


def compared(suite: Suite, row: Row, run: Run) -> tuple[str, str, str]:
    """Return the kept score, the new one or why there is none, and by how much they differ."""
    was, score = score_in(suite, row), run.validation if suite.measured else run.score
    if score is None:
        return f"{was:.6f}", run.error, ""
    return f"{was:.6f}", f"{score:.6f}", "same" if abs(score - was) < KEPT_DIGITS else f"{score - was:+.6f}"


def main() -> None:
    """Run, and print the table line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path, nargs="*", metavar="SUITE.yaml")
    only = "as `isthmus compare --only`"
    parser.add_argument("--only", action="append", default=[], metavar="AXIS=CHOICE", help=only)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as `isthmus compare --set`")
    parser.add_argument("--all", action="store_true", help="every kept course, not the quickest of each method alone")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where runs are kept; else they are not")
    parser.add_argument("--longest", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--data-root", type=Path, metavar="DATA")
    chosen = parser.parse_args()
    for path in chosen.suites:
        if not kept(path).is_file():
            parser.error(f"{path}: there are no kept rows of it, {kept(path)} is missing")
    suites = chosen.suites or sorted(path for path in PAPERS.glob("*/*.yaml") if kept(path).is_file())
    print("| suite | course | seed | kept | now | differs |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = chosen.out or Path(place)
        asked = Asked(folder, chosen.data_root, chosen.only, chosen.set, chosen.longest, chosen.all)
        for path in suites:
            for line in again(path, asked):
                print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
