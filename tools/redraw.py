"""Draws the figures of suites anew from what was kept as CSV, without running anything.

python tools/redraw.py papers/fedgl/fig11.yaml ...    results/fig11.csv beside a suite -> fig11.svg beside it
python tools/redraw.py papers/fgssl/table1.yaml ...   fig3.csv beside a suite          -> fig3.svg beside it

Figures of kind `lines` are drawn from the rows of runs. Those of rounds and of clients need more than scores, so the
table that `isthmus compare` leaves beside each figure is kept beside theirs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from isthmus.core.errors import BadInput
from isthmus.core.outside import replace_file
from isthmus.report.charts import to_svg
from isthmus.suites.drawn import Drawn
from isthmus.suites.figure_spec import Figure
from isthmus.suites.figures import shown
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
    return replace(narrowed(suite, words), seeds=tuple(seed for seed in suite.seeds if seed in seen))


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


def kept_figures(path: Path) -> Iterator[tuple[Figure, Drawn]]:
    """Yield the figures of a suite's file with what is kept of them; those that were never drawn are left out."""
    suite = load_suite(path)
    kept = path.parent / "results" / f"{path.stem}.csv"
    for figure in suite.figures:
        table = path.parent / f"{figure.name}.csv"
        if figure.kind == "lines" and kept.is_file():
            rows = kept_rows(suite, kept)
            part = kept_part(suite, rows)
            yield figure, shown(part, figure, cells(part, kept_runs(part, rows)), path.parent)
        elif table.is_file():
            yield figure, Drawn.from_csv(table.read_text(encoding="utf-8"), str(table))


def redraw(path: Path, folder: Path) -> list[Path]:
    """Draw a suite's figures into a folder."""
    metric = load_suite(path).metric
    drawn = []
    for figure, kept in kept_figures(path):
        drawn.append(folder / f"{figure.name}.svg")
        replace_file(drawn[-1], to_svg(kept.chart(figure, metric)).encode())
    return drawn


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path, nargs="+", metavar="SUITE.yaml")
    for path in parser.parse_args().suites:
        for figure in redraw(path, path.parent):
            print(figure)


if __name__ == "__main__":
    main()
