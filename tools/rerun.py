"""Runs some courses of the papers' suites again and puts their scores beside those that are kept as CSV.

    python tools/rerun.py [SUITE.yaml ...] [--out FOLDER] [--longest 60] [--data-root DATA]

Without suites, those of all papers. Of each, for each choice of its last axis (its methods, mostly), the course whose
kept row took the least time, where that is at most so many seconds. Scores are the same to the last digit that is kept
where nothing rounds otherwise than it did; the table says by how much they differ where something does. What is in the
folder is not run again, so that a table that was cut short goes on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from redraw import kept_rows

from isthmus.suites.outcomes import Run, outcome, read_run, searched_text
from isthmus.suites.part import narrowed
from isthmus.suites.same_data import LastScenario, finish_course
from isthmus.suites.spec import Point, Suite, load_suite

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


def quickest(suite: Suite, rows: list[Row], longest: float) -> Iterator[Row]:
    """Yield for each choice of the last axis the row that took the least time, if that was not too long."""
    last = list(suite.axes)[-1]
    for choice in suite.axes[last]:
        seconds = [(float(row["seconds"]), number) for number, row in enumerate(rows) if row.get(last) == choice]
        if seconds and min(seconds)[0] <= longest:
            yield rows[min(seconds)[1]]


def again(path: Path, folder: Path, longest: float, data_root: Path | None) -> Iterator[tuple[str, ...]]:
    """Yield a line for each course of a suite that is run again: its choices, the kept score, the new one."""
    suite = load_suite(path)
    rows = [row for row in kept_rows(suite, kept(path)) if row.get("seconds") and not row.get("error")]
    for row in quickest(suite, rows, longest):
        words = [f"{axis}={row[axis]}" for axis in suite.axes if axis in row]
        part = replace(narrowed(suite, words), seeds=(int(row["seed"]),))
        point = next(point for point in part.points() if is_of(point, row))
        place = folder / path.parent.name / path.stem / point.key
        error = (
            "" if read_run(suite, point, place) else finish_course(point.course, place, data_root, LastScenario())[0]
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
        for path in suites:
            for line in again(path, chosen.out or Path(place), chosen.longest, chosen.data_root):
                print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
