"""Draws the figures of suites anew from the runs that were kept as CSV, without running anything.

python tools/redraw.py papers/fedgl/fig11.yaml ...    results/fig11.csv beside a suite -> fig11.svg beside it

Only figures of kind `lines` can be drawn so: those of rounds and of clients need the journals of the runs, which
`isthmus compare` draws from.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

from isthmus.core.errors import BadInput
from isthmus.suites.figures import write_figures
from isthmus.suites.outcomes import Run
from isthmus.suites.part import narrowed
from isthmus.suites.spec import Suite, load_suite
from isthmus.suites.table import cells


def kept_rows(suite: Suite, path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV with choices as the suite writes them: a table may have 1 where a suite has 1.0."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    spelled = {(axis, _shortest(choice)): choice for axis, choices in suite.axes.items() for choice in choices}
    return [{key: spelled.get((key, _shortest(value)), value) for key, value in row.items()} for row in rows]


def _shortest(name: str) -> str:
    try:
        return f"{float(name):g}"
    except ValueError:
        return name


def kept_part(suite: Suite, rows: list[dict[str, str]]) -> Suite:
    """Return the part of a suite that was run: the choices and the seeds that stand in the rows."""
    words = [f"{axis}={','.join(dict.fromkeys(row[axis] for row in rows))}" for axis in suite.axes]
    seen = {int(row["seed"]) for row in rows}
    lines = tuple(figure for figure in suite.figures if figure.kind == "lines")
    return replace(narrowed(suite, words), seeds=tuple(seed for seed in suite.seeds if seed in seen), figures=lines)


def kept_runs(suite: Suite, rows: list[dict[str, str]]) -> list[Run]:
    """Return the run of each course of a suite; one of which there is no row is an error."""
    by_place = {(*(row[axis] for axis in suite.axes), int(row["seed"])): row for row in rows}
    runs = []
    for point in suite.points():
        row = by_place.get((*point.cell.values(), point.seed))
        if row is None:
            raise BadInput(f"{suite.title}: no row has {', '.join(point.cell.values())} with seed {point.seed}")
        score, validation = float(row[point.metric]), float(row["validation"])
        runs.append(Run(point, score, validation, int(row["rounds"]), float(row["seconds"])))
    return runs


def redraw(path: Path) -> list[Path]:
    """Draw a suite's figures of lines beside its file."""
    suite = load_suite(path)
    rows = kept_rows(suite, path.parent / "results" / f"{path.stem}.csv")
    suite = kept_part(suite, rows)
    return write_figures(suite, cells(suite, kept_runs(suite, rows)), path.parent)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path, nargs="+", metavar="SUITE.yaml")
    for path in parser.parse_args().suites:
        for figure in redraw(path):
            print(figure)


if __name__ == "__main__":
    main()
