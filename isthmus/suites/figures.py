"""The figures of a suite as SVG files, from its cells and the journals of their runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from isthmus.core.outside import replace_file
from isthmus.report.charts import Panel, Point, Series, to_svg
from isthmus.runs.journal import JOURNAL_FILE, read_whole_journal
from isthmus.suites.drawn import Drawn
from isthmus.suites.figure_spec import Figure
from isthmus.suites.outcomes import Run
from isthmus.suites.spec import Suite
from isthmus.suites.table import Cell


def write_figures(suite: Suite, found: Sequence[Cell], folder: Path) -> list[Path]:
    """Draw every figure of a suite into the folder of its results, and return the files.

    Beside each lies a table of what it shows, from which it can be drawn without the runs.
    """
    paths = []
    for figure in suite.figures:
        path, drawn = folder / f"{figure.name}.svg", shown(suite, figure, found, folder)
        replace_file(path, to_svg(drawn.chart(figure, suite.metric)).encode())
        replace_file(path.with_suffix(".csv"), drawn.to_csv().encode())
        paths.append(path)
    return paths


def shown(suite: Suite, figure: Figure, found: Sequence[Cell], folder: Path) -> Drawn:
    """Return what a figure shows; a cell that failed is missing in it."""
    return {"lines": _lines, "rounds": _rounds, "clients": _clients}[figure.kind](suite, figure, found, folder)


def _lines(suite: Suite, figure: Figure, found: Sequence[Cell], folder: Path) -> Drawn:
    cells = suite.cells()
    places = figure.sweep(cells, list(suite.axes[figure.x]))
    aside = figure.references(cells)

    def series(name: str, mine: Sequence[Cell]) -> Series:
        reference = figure.place(mine[0].choices) in aside
        points = []
        for cell in mine:
            place = 0.0 if reference else places[cell.choices[figure.x]]
            points.append(Point(place, math.nan if cell.mean is None else cell.mean, cell.std))
        return Series(name, tuple(points), reference)

    return Drawn(_panels(suite, figure, found, series), {place: choice for choice, place in places.items()})


def _rounds(suite: Suite, figure: Figure, found: Sequence[Cell], folder: Path) -> Drawn:
    def series(name: str, mine: Sequence[Cell]) -> Series:
        (cell,) = mine
        by_round = [_by_round(run, figure.metric, folder) for run in cell.runs]
        common = set.intersection(*map(set, by_round)) if by_round else set()
        return Series(name, tuple(_point(number, [run[number] for run in by_round]) for number in sorted(common)))

    return Drawn(_panels(suite, figure, found, series), {})


def _by_round(run: Run, metric: str, folder: Path) -> dict[int, float]:
    """Return a metric of every round of a run in which it was measured."""
    rounds = (event for event in _events(run, folder) if event["event"] == "round")
    return {event["round"]: event["metrics"][metric] for event in rounds if metric in event["metrics"]}


def _clients(suite: Suite, figure: Figure, found: Sequence[Cell], folder: Path) -> Drawn:
    scores: dict[int, dict[str, list[float]]] = {}
    groups: dict[str, int] = {}
    for cell in found:
        mine = scores.setdefault(id(cell), {})
        for run in cell.runs if figure.cells([cell.choices]) else ():
            for client, value in _by_client(run, figure.metric, folder).items():
                groups.setdefault(client, len(groups))
                mine.setdefault(client, []).append(value)

    def series(name: str, mine: Sequence[Cell]) -> Series:
        (cell,) = mine
        return Series(name, tuple(_point(groups[client], values) for client, values in scores[id(cell)].items()))

    return Drawn(_panels(suite, figure, found, series), {float(place): client for client, place in groups.items()})


def _by_client(run: Run, metric: str, folder: Path) -> dict[str, float]:
    """Return a metric of every client at the end of a run; a client without test examples has none."""
    ends = [event["client_scores"] for event in _events(run, folder) if event["event"] == "end"]
    values = {client: score.get(metric) for client, score in (ends[-1] if ends else {}).items()}
    return {client: value for client, value in values.items() if value is not None and math.isfinite(value)}


def _events(run: Run, folder: Path) -> Iterable[dict[str, Any]]:
    journal = run.point.path(folder) / JOURNAL_FILE
    return read_whole_journal(journal) if journal.is_file() else ()  # a run that is only a row of runs.csv has none


def _point(x: float, values: Sequence[float]) -> Point:
    return Point(float(x), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def _panels(
    suite: Suite, figure: Figure, found: Sequence[Cell], series: Callable[[str, Sequence[Cell]], Series]
) -> tuple[Panel, ...]:
    """Return the panels of a figure, and in each its lines or bars, both in the order of the suite's choices."""
    grouped: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        if figure.cells([cell.choices]):
            grouped.setdefault(figure.place(cell.choices), []).append(cell)
    panels = []
    for title in suite.axes.get(figure.panels) or [""]:
        # Also the series that this panel has not, or one that is missing in the first would come last in the legend.
        names = list(suite.axes.get(figure.each) or [""])
        drawn = [series(n, grouped[title, n]) if (title, n) in grouped else Series(n) for n in names]
        if any(key[0] == title for key in grouped):
            panels.append(Panel(title, tuple(drawn)))
    return tuple(panels)
