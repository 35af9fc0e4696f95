"""What a suite file says about its figures, and about some of its cells: see `suites/spec.py` for the keys."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isthmus.config.build import Builder
from isthmus.core.errors import nearest

# Kind -> its keys for axes, and its other keys beside those that every figure may have.
ROLES = {"lines": ("x", "lines", "panels"), "rounds": ("lines", "panels"), "clients": ("bars", "panels")}
KEYS = {"lines": ("log_x",), "rounds": ("metric",), "clients": ("metric",)}
EVERY = ("name", "kind", "title", "x_label", "y_label", "shared_y", "only")
TEXTS = ("title", "x_label", "y_label", "metric")  # where a number is a text too
SPLITS = ("train", "val")  # what a round is scored on
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Cell = Mapping[str, str]
Choices = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """A figure to be drawn from the cells of a suite.

    Fields:
        x:        the axis along which the lines of kind `lines` go
        lines:    the axis whose choices are lines; all cells are one line without it
        bars:     the same in a figure of clients
        panels:   the axis whose choices are panels side by side; one panel without it
        metric:   of a round as `val/accuracy`, of a client as `accuracy`; the suite's without it
        shared_y: whether all panels have one range
        only:     the choices that are drawn, on the axes that it names
    """

    name: str
    kind: str
    x: str = ""
    lines: str = ""
    bars: str = ""
    panels: str = ""
    metric: str = ""
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    shared_y: bool = False
    only: Choices = field(default_factory=dict)

    @property
    def each(self) -> str:
        """The axis whose choices are drawn in one panel."""
        return self.lines or self.bars

    def cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return those of a suite's cells that are drawn."""
        return [cell for cell in cells if agrees(cell, self.only)]

    def references(self, cells: Sequence[Cell]) -> set[tuple[str, str]]:
        """Return the (panel, line) pairs that have one place on the x axis only, if others go along it."""
        places = Counter(map(self.place, self.cells(cells)))
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
    raw: Any, axes: Mapping[str, Mapping[str, Any]], cells: Sequence[Cell], metric: str, builder: Builder
) -> tuple[Figure, ...]:
    """Return the figures of a suite file, of which every key was checked; `metric` is the suite's."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise ValueError(f"figures is {raw!r}, expected a list, each with a name and a kind")
    figures: dict[str, Figure] = {}
    for number, entry in enumerate(raw, start=1):
        if not isinstance(entry, dict):
            raise ValueError(f"entry {number} of figures is {entry!r}, expected keys, at least name and kind")
        name = entry.get("name")
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
            text = "expected a file's name of letters, digits, _ - and ."
            raise ValueError(f"the name of figure {number} is {name!r}, {text}")
        if name.lower() in figures:
            raise ValueError(f"two figures have the name {name!r}; each is a file of its own")
        mine = replace(builder, source=builder.place(f"figure {name}"))
        with mine.placed(""):
            figure: Figure = mine.fields(Figure, _plain(entry, axes, metric), "")
            _check_cells(figure, axes, cells)
        figures[name.lower()] = figure
    return tuple(figures.values())


def _plain(raw: Mapping[str, Any], axes: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the keys of a figure, if its kind has them and its axes are the suite's."""
    kind = _kind(raw)
    _check_roles(kind, raw, axes)
    plain = {key: str(value) if key in TEXTS and type(value) in (int, float) else value for key, value in raw.items()}
    plain.setdefault("metric", f"val/{metric}" if kind == "rounds" else metric)
    split, _, name = str(plain["metric"]).partition("/")
    if kind == "rounds" and (split not in SPLITS or not name):
        raise ValueError(f"metric is {plain['metric']!r}, expected {' or '.join(f'{s}/{metric}' for s in SPLITS)}")
    if "only" in plain:
        plain["only"] = read_choices(plain["only"], axes, "only")
    return plain


def _kind(raw: Mapping[str, Any]) -> str:
    """Return the kind of a figure, if all its keys are that kind's."""
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in ROLES:
        raise ValueError(f"kind is {kind!r}; {nearest(str(kind), ROLES)}")
    known = (*EVERY, *ROLES[kind], *KEYS[kind])
    for key in raw:
        if key not in known:
            raise ValueError(f"{key} is not a known key of kind {kind}; {nearest(str(key), known)}")
    return kind


def _check_roles(kind: str, raw: Mapping[str, Any], axes: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse roles that are no axes of the suite, or one axis in two, and lines that go along none."""
    roles = {role: raw[role] for role in ROLES[kind] if role in raw}
    for role, axis in roles.items():
        if not isinstance(axis, str) or axis not in axes:
            raise ValueError(f"{role} is {axis!r}, which is no axis of the suite; {nearest(str(axis), axes)}")
        if list(roles.values()).count(axis) > 1:
            raise ValueError(f"{role} is {axis!r}, which another of {', '.join(roles)} is as well")
    if kind == "lines" and "x" not in roles:
        raise ValueError(f"x is missing; give the axis along which the lines go: {', '.join(axes)}")


def _check_cells(figure: Figure, axes: Mapping[str, Mapping[str, Any]], cells: Sequence[Cell]) -> None:
    """Refuse a figure in which several cells would have one place, or none has a place."""
    drawn = figure.cells(cells)
    if not drawn:
        raise ValueError("only and skip leave no cell to draw")
    taken: dict[tuple[str, ...], Cell] = {}
    for cell in drawn:
        other = taken.setdefault((*figure.place(cell), cell.get(figure.x, "")), cell)
        for axis in axes:
            if other[axis] != cell[axis]:
                both = f"{other[axis]!r} and {cell[axis]!r}"
                raise ValueError(
                    f"{both} of {axis} would lie at one place; {axis} is none of "
                    f"{', '.join(ROLES[figure.kind])}: make it one, or choose with only: {{{axis}: {other[axis]!r}}}"
                )
    if figure.log_x:
        order = list(axes[figure.x])
        places = figure.sweep(cells, order)
        for choice in places:
            if not _number(choice) > 0 or places[choice] != _number(choice):
                raise ValueError(f"log_x needs numbers above 0, but {figure.x} has the choice {choice!r}")


def check_metric(figure: Figure, cell: Cell, metrics: Sequence[str]) -> None:
    """Refuse a figure of a metric that a course in it does not report."""
    name = figure.metric.rpartition("/")[2]
    if agrees(cell, figure.only) and name not in metrics:
        raise ValueError(
            f"figure {figure.name}: metric is {figure.metric!r}, which the task does not report; "
            f"choose from {', '.join(metrics)} or add it to base.task.metrics"
        )


# ---- some cells of a suite, named by choices on some of its axes


def agrees(cell: Mapping[str, str], choices: Choices) -> bool:
    """Return whether a cell has, on every axis that is named, one of the choices named there."""
    return all(cell[axis] in allowed for axis, allowed in choices.items())


def read_choices(raw: Any, axes: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, tuple[str, ...]]:
    """Return `{axis: choice or list of choices}` as it stands in a suite file; a ValueError names `where`, its key."""
    if not isinstance(raw, Mapping) or not raw:
        axis, known = next(iter(axes.items()))
        example = f"{{{axis}: {next(iter(known))!r}}}"
        raise ValueError(f"{where} is {raw!r}, expected axes and choices, for example: {example}")
    found: dict[str, tuple[str, ...]] = {}
    for key, value in raw.items():
        axis = str(key)
        if axis not in axes:
            raise ValueError(f"{where} names the axis {axis!r}; {nearest(axis, axes)}")
        found[axis] = _choices(value, axis, axes[axis], where)
    return found


def _choices(value: Any, axis: str, known: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the choice or the choices that a value names on an axis."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values or any(isinstance(item, list | tuple | Mapping) for item in values):
        raise ValueError(f"{where}.{axis} is {value!r}, expected a choice or a list of choices")
    for choice in map(str, values):
        if choice not in known:
            raise ValueError(f"{where} names {axis} {choice!r}; {nearest(choice, known)}")
    return tuple(map(str, values))
