"""What a suite file says about its figures: see `suites/spec.py` for the keys."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput, nearest
from isthmus.suites.choices import Choices, agrees, read_choices

# Kind -> its keys for axes, and its other keys beside those that every figure may have.
ROLES = {"lines": ("x", "lines", "panels"), "rounds": ("lines", "panels"), "clients": ("bars", "panels")}
KEYS = {"lines": ("log_x",), "rounds": ("metric",), "clients": ("metric",)}
EVERY = ("name", "kind", "title", "x_label", "y_label", "shared_y", "only")
SPLITS = ("train", "val")  # what a round is scored on
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Cell = Mapping[str, str]


@dataclass(frozen=True)
class Figure:
    """A figure to be drawn from the cells of a suite.

    Fields:
        x:        the axis along which the lines of kind `lines` go
        each:     the axis whose choices are lines, or bars; all cells are one line without it
        panels:   the axis whose choices are panels side by side; one panel without it
        metric:   of a round as `val/accuracy`, of a client as `accuracy`; the suite's without it
        shared_y: whether all panels have one range
        only:     the choices that are drawn, on the axes that it names
    """

    name: str
    kind: str
    x: str = ""
    each: str = ""
    panels: str = ""
    metric: str = ""
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    shared_y: bool = False
    only: Choices = field(default_factory=dict)

    def cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return those of a suite's cells that are drawn."""
        return [cell for cell in cells if agrees(cell, self.only)]

    def references(self, cells: Sequence[Cell]) -> set[tuple[str, str]]:
        """Return the (panel, line) pairs that have one place on the x axis only, if others go along it."""
        places: dict[tuple[str, str], int] = {}
        for cell in self.cells(cells):
            key = self.place(cell)
            places[key] = places.get(key, 0) + 1
        single = {key for key, count in places.items() if count == 1}
        return single if self.x and len(single) < len(places) else set()

    def place(self, cell: Cell) -> tuple[str, str]:
        """Return a cell's panel and line."""
        return cell.get(self.panels, ""), cell.get(self.each, "")

    def sweep(self, cells: Sequence[Cell], order: Sequence[str]) -> dict[str, float]:
        """Return where the choices of the x axis lie: at their numbers if all are, else one after the other.

        A choice that only references have is not on the axis.
        """
        aside = self.references(cells)
        used = {cell[self.x] for cell in self.cells(cells) if self.place(cell) not in aside}
        names = [choice for choice in order if choice in used]
        numbers = [_number(name) for name in names]
        if all(map(math.isfinite, numbers)) and len(set(numbers)) == len(numbers):
            return dict(zip(names, numbers, strict=True))
        return {name: float(i) for i, name in enumerate(names)}


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.nan


def read_figures(
    raw: Any, axes: Mapping[str, Mapping[str, Any]], cells: Sequence[Cell], metric: str, path: Path
) -> tuple[Figure, ...]:
    """Return the figures of a suite file, of which every key was checked; `metric` is the suite's."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise BadInput(f"{path}: figures is {raw!r}, expected a list, each with a name and a kind")
    figures: list[Figure] = []
    for number, entry in enumerate(raw, start=1):
        figure = _figure(entry, number, axes, metric, path)
        if figure.name.lower() in {other.name.lower() for other in figures}:
            raise BadInput(f"{path}: two figures have the name {figure.name!r}; each is a file of its own")
        _check_cells(figure, axes, cells, path)
        figures.append(figure)
    return tuple(figures)


def _figure(raw: Any, number: int, axes: Mapping[str, Mapping[str, Any]], metric: str, path: Path) -> Figure:
    if not isinstance(raw, dict):
        raise BadInput(f"{path}: entry {number} of figures is {raw!r}, expected keys, at least name and kind")
    name = raw.get("name")
    if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
        raise BadInput(
            f"{path}: the name of figure {number} is {name!r}, expected a file's name of letters, digits, _ - and ."
        )
    where = f"{path}: figure {name}"
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in ROLES:
        raise BadInput(f"{where}: kind is {kind!r}; {nearest(str(kind), ROLES)}")
    known = (*EVERY, *ROLES[kind], *KEYS[kind])
    for key in raw:
        if key not in known:
            raise BadInput(f"{where}: {key} is not a known key of kind {kind}; {nearest(str(key), known)}")
    roles = {role: _axis(raw[role], role, axes, where) for role in ROLES[kind] if role in raw}
    if kind == "lines" and "x" not in roles:
        raise BadInput(f"{where}: x is missing; give the axis along which the lines go: {', '.join(axes)}")
    for role, axis in roles.items():
        if list(roles.values()).count(axis) > 1:
            raise BadInput(f"{where}: {role} is {axis!r}, which another of {', '.join(roles)} is as well")
    return Figure(
        name=name,
        kind=kind,
        x=roles.get("x", ""),
        each=roles.get("lines", roles.get("bars", "")),
        panels=roles.get("panels", ""),
        metric=_metric(raw, kind, metric, where),
        only=read_choices(raw["only"], axes, f"figure {name}: only", path) if "only" in raw else {},
        title=_text(raw.get("title", ""), "title", where),
        x_label=_text(raw.get("x_label", ""), "x_label", where),
        y_label=_text(raw.get("y_label", ""), "y_label", where),
        log_x=_flag(raw.get("log_x", False), "log_x", where),
        shared_y=_flag(raw.get("shared_y", False), "shared_y", where),
    )


def _axis(value: Any, role: str, axes: Mapping[str, Any], where: str) -> str:
    if not isinstance(value, str) or value not in axes:
        raise BadInput(f"{where}: {role} is {value!r}, which is no axis of the suite; {nearest(str(value), axes)}")
    return value


def _text(value: Any, key: str, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{where}: {key} is {value!r}, expected text")
    return str(value)


def _flag(value: Any, key: str, where: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{where}: {key} is {value!r}, expected true or false")
    return value


def _metric(raw: Mapping[str, Any], kind: str, default: str, where: str) -> str:
    if kind != "rounds":
        return _text(raw.get("metric", default), "metric", where)
    metric = _text(raw.get("metric", f"val/{default}"), "metric", where)
    if metric.partition("/")[0] not in SPLITS or not metric.partition("/")[2]:
        raise BadInput(f"{where}: metric is {metric!r}, expected {' or '.join(f'{s}/{default}' for s in SPLITS)}")
    return metric


def _check_cells(figure: Figure, axes: Mapping[str, Mapping[str, Any]], cells: Sequence[Cell], path: Path) -> None:
    """Refuse a figure in which several cells would have one place, or none has a place."""
    where = f"{path}: figure {figure.name}"
    drawn = figure.cells(cells)
    if not drawn:
        raise BadInput(f"{where}: only and skip leave no cell to draw")
    taken: dict[tuple[str, ...], Cell] = {}
    for cell in drawn:
        other = taken.setdefault((*figure.place(cell), cell.get(figure.x, "")), cell)
        for axis in axes:
            if other[axis] != cell[axis]:
                both = f"{other[axis]!r} and {cell[axis]!r}"
                raise BadInput(
                    f"{where}: {both} of {axis} would lie at one place; {axis} is none of "
                    f"{', '.join(ROLES[figure.kind])}: make it one, or choose with only: {{{axis}: {other[axis]!r}}}"
                )
    if figure.log_x:
        order = list(axes[figure.x])
        places = figure.sweep(cells, order)
        for choice in places:
            if not _number(choice) > 0 or places[choice] != _number(choice):
                raise BadInput(f"{where}: log_x needs numbers above 0, but {figure.x} has the choice {choice!r}")


def check_metric(figure: Figure, cell: Cell, metrics: Sequence[str], path: Path) -> None:
    """Refuse a figure of a metric that a course in it does not report."""
    name = figure.metric.rpartition("/")[2]
    if agrees(cell, figure.only) and name not in metrics:
        raise BadInput(
            f"{path}: figure {figure.name}: metric is {figure.metric!r}, which the task does not report; "
            f"choose from {', '.join(metrics)} or add it to base.task.metrics"
        )
