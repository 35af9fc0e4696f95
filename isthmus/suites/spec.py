"""What a suite file says, and the courses it stands for.

    title: FedAvg against Local
    metric: accuracy
    graph: global_graph
    model: global_model
    seeds: [0, 1, 2]
    base: {rounds: 100, stopping: {patience: 30}}
    axes:
      splitter:
        random: {splitter.name: random}
        community: {splitter.name: community}
      method:
        Local: {algorithm.name: local}
        FedAvg:
          algorithm.name: fedavg
          search: {algorithm.optimizer.lr: [0.05, 0.25], algorithm.local_steps: [1, 4]}
    skip:
      - {method: Local, splitter: [random]}
    adjust:
      - {method: FedAvg, splitter: random, set: {algorithm.weighting: nodes}}
    expected:
      - {splitter: random, method: FedAvg, value: 0.8663, std: 0.0135, within: 0.015}
    figures:
      - {name: curves, kind: rounds, lines: method, panels: splitter, metric: val/accuracy}

Every combination of one choice per axis is a cell of the table; every cell is run with every seed. A choice changes
keys of the base course. Where a choice has a `search`, each point of the grid is run with every seed, and the point
with the best mean validation score over the seeds stands for the cell; test scores play no part in that. Where a choice
has `seeded`, a list of keys, each of them gets the seed's number too: `seeded: [dataset.graph_seed]` draws a new graph
for each seed. An axis of metrics, `score: {Hits@1: {metric: "hits@1"}, Hits@5: {metric: "hits@5"}}`, has several
numbers of the same courses, which are run once.

`spread: ci95` prints, after ±, half of the 95 % interval of the mean over the seeds by Student's distribution, in place
of their standard deviation.

Cells that agree with an entry of `skip` on every axis that it names are left out: not run, in no table. Cells that
agree with an entry of `adjust` get the keys that it sets, unless a choice of theirs sets the same.

Each of `figures` becomes a file `name`.svg. Its kind says what is drawn:

    lines    the score of each cell along the axis `x`, the standard deviation over seeds as error bars; `x` lies at the
             numbers that its choices are (with `log_x: true` in logarithms), or else one choice after the other. A line
             that has one cell only, the others being skipped, is a reference: it goes dashed through the whole panel
    rounds   `metric` (`val/accuracy`, `train/loss`, ...) of each round, mean and deviation over seeds, as far as all
             seeds got
    clients  `metric` of each client on its own graph's test part, mean and deviation over seeds

`lines` (`bars` in a figure of clients) and `panels` name the axes whose choices are drawn as such. No two cells may
lie at one place; `only: {axis: choice or list of choices}` chooses which are drawn. Each figure may have a `title`, an
`x_label`, a `y_label`, and `shared_y: true` for one range in all panels.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from isthmus.config.build import Builder
from isthmus.config.course import Course
from isthmus.config.load import as_before, course_to_dict, leaf_paths, merge, nested
from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import read_yaml
from isthmus.suites.choices import Choices, agrees, read_choices
from isthmus.suites.figure_spec import Figure, check_metric, read_figures

GRAPHS = ("global_graph", "local_graph")
SPREADS = ("std", "ci95")
MODELS = ("global_model", "local_model")
UNWATCHED: dict[str, Any] = {"monitors": [], "monitor_every": 0}


@dataclass(frozen=True)
class Expectation:
    """A number that a paper gives for a cell; `within` is how far ours may be from it."""

    cell: dict[str, str]
    value: float
    std: float | None = None
    within: float | None = None


@dataclass(frozen=True)
class Point:
    """One course of a suite: a cell, a point of its search grid, a seed."""

    cell: dict[str, str]
    searched: dict[str, Any]
    seed: int
    course: Course
    metric: str = "accuracy"
    measured: tuple[str, ...] = ()  # axes that choose what is read from a course, not which course
    stated: frozenset[str] = frozenset()  # keys of the course that the suite sets, whether to the default or not
    notes: tuple[str, ...] = ()  # what the suite sets, and this course does not have

    @cached_property
    def key(self) -> str:
        """A name for the run folder that changes with anything in the course."""
        plain = as_before(course_to_dict(self.course))
        # What is measured besides does not decide a result: a course without monitors needs no word of it.
        telling = {key: value for key, value in plain.items() if key not in UNWATCHED or value != UNWATCHED[key]}
        if telling["stopping"].get("keep") == "best":  # as all courses did before they could say so
            telling["stopping"] = {key: value for key, value in telling["stopping"].items() if key != "keep"}
        text = json.dumps(telling, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        named = (choice for axis, choice in self.cell.items() if axis not in self.measured)
        label = "-".join("".join(c if c.isalnum() else "_" for c in choice) for choice in named)
        return f"{label}-seed{self.seed}-{digest}"


@dataclass(frozen=True)
class Suite:
    """A table to be filled."""

    title: str
    axes: dict[str, dict[str, dict[str, Any]]]
    base: dict[str, Any] = field(default_factory=dict)
    metric: str = "accuracy"
    graph: str = "global_graph"
    model: str = "global_model"
    spread: str = "std"
    seeds: tuple[int, ...] = (0,)
    expected: tuple[Expectation, ...] = ()
    source: str = ""
    skip: tuple[Choices, ...] = ()
    adjust: tuple[tuple[Choices, dict[str, Any]], ...] = ()
    figures: tuple[Figure, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)  # keys of every course, whatever its cell says of them

    @property
    def measured(self) -> tuple[str, ...]:
        """Axes whose choices are metrics of the same courses."""
        return tuple(axis for axis, choices in self.axes.items() if all("metric" in c for c in choices.values()))

    def cells(self) -> list[dict[str, str]]:
        """Return every combination of one choice per axis that is not skipped, the last axis running fastest."""
        every = (dict(zip(self.axes, choice, strict=True)) for choice in itertools.product(*self.axes.values()))
        return [cell for cell in every if not any(agrees(cell, entry) for entry in self.skip)]

    def points(self) -> list[Point]:
        """Return every course of the suite."""
        return list(self._points)

    @cached_property
    def _points(self) -> tuple[Point, ...]:
        return tuple(point for cell in self.cells() for point in self._points_of(cell))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the courses out of what goes to other processes: they can be built again."""
        return {name: value for name, value in vars(self).items() if name != "_points"}

    def _points_of(self, cell: Mapping[str, str]) -> list[Point]:
        changes: dict[str, Any] = {}
        for choices, keys in self.adjust:
            if agrees(cell, choices):
                changes |= keys
        grid: dict[str, list[Any]] = {}
        seeded: list[str] = ["seed"]
        metric = self.metric
        for axis, choice in cell.items():
            options = dict(self.axes[axis][choice])
            metric = options.pop("metric", metric)
            grid |= options.pop("search", {})
            seeded += options.pop("seeded", [])
            changes |= options
        found = []
        for values in itertools.product(*grid.values()):
            searched = dict(zip(grid, values, strict=True))
            words = [(key.split("."), value) for key, value in {**changes, **searched, **self.changes}.items()]
            made: Point | None = None
            for seed in self.seeds:
                if made is not None and seeded == ["seed"]:  # but for the seed it is the same course
                    found.append(replace(made, seed=seed, course=replace(made.course, seed=seed)))
                    continue
                raw = merge(self.base, [*words, *((key.split("."), seed) for key in seeded)], self.title)
                builder = Builder(f"{self.title} [{', '.join(cell.values())}]")
                course = builder.fields(Course, raw, "")
                stated = frozenset(leaf_paths(raw))
                notes = tuple(note for renaming in builder.renamings for note in renaming.losses())
                made = Point(dict(cell), searched, seed, course, metric, self.measured, stated, notes)
                found.append(made)
        return found

    def expectation(self, cell: Mapping[str, str]) -> Expectation | None:
        """Return the paper's number for a cell: the first that agrees on every axis it names."""
        for expected in self.expected:
            if all(cell[axis] == choice for axis, choice in expected.cell.items()):
                return expected
        return None


def load_suite(path: Path) -> Suite:
    """Read a suite file, and build every course in it so that mistakes show before anything runs."""
    raw = read_yaml(path)
    known = (
        "title",
        "source",
        "metric",
        "graph",
        "model",
        "spread",
        "seeds",
        "base",
        "axes",
        "skip",
        "adjust",
        "expected",
        "figures",
    )
    for key in raw:
        if key not in known:
            raise BadInput(f"{path}: {key} is not a known key; {nearest(str(key), known)}")
    axes = _axes(raw.get("axes"), path)
    suite = Suite(
        title=str(raw.get("title", path.stem)),
        source=str(raw.get("source", "")),
        metric=str(raw.get("metric", "accuracy")),
        graph=str(raw.get("graph", "global_graph")),
        model=str(raw.get("model", "global_model")),
        spread=str(raw.get("spread", "std")),
        seeds=_seeds(raw.get("seeds", [0]), path),
        base=_base(raw.get("base"), path),
        axes=axes,
        expected=tuple(_expectation(entry, axes, path) for entry in raw.get("expected") or ()),
        skip=_skip(raw.get("skip"), axes, path),
        adjust=_adjust(raw.get("adjust"), axes, path),
    )
    cells = _checked_cells(suite, path)
    suite = replace(suite, figures=read_figures(raw.get("figures"), axes, cells, suite.metric, path))
    for key, allowed in (("model", MODELS), ("graph", GRAPHS), ("spread", SPREADS)):
        if getattr(suite, key) not in allowed:
            raise BadInput(f"{path}: {key} is {getattr(suite, key)!r}; choose from {', '.join(allowed)}")
    for point in suite.points():
        if point.metric not in point.course.task.metrics:
            raise BadInput(
                f"{path}: metric is {point.metric!r}, which the task does not report; "
                f"choose from {', '.join(point.course.task.metrics)} or add it to base.task.metrics"
            )
        for figure in suite.figures:
            check_metric(figure, point.cell, point.course.task.metrics, path)
    return suite


def _base(raw: Any, path: Path) -> dict[str, Any]:
    if raw is not None and not isinstance(raw, dict):
        raise BadInput(f"{path}: base is {raw!r}, expected keys of the course, for example: {{rounds: 50}}")
    return nested(raw or {}, f"{path}: base")


def _skip(raw: Any, axes: Mapping[str, Mapping[str, Any]], path: Path) -> tuple[Choices, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise BadInput(f"{path}: skip is {raw!r}, expected a list, each with the choices that are not run together")
    return tuple(read_choices(entry, axes, f"entry {i} of skip", path) for i, entry in enumerate(raw, start=1))


def _adjust(raw: Any, axes: Mapping[str, Mapping[str, Any]], path: Path) -> tuple[tuple[Choices, dict[str, Any]], ...]:
    if raw is None:
        return ()
    example = "for example: {method: FedAvg, set: {algorithm.local_steps: 2}}"
    if not isinstance(raw, list):
        raise BadInput(f"{path}: adjust is {raw!r}, expected a list of choices with what is set for them, {example}")
    found = []
    for i, entry in enumerate(raw, start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("set"), dict) or not entry["set"]:
            raise BadInput(f"{path}: entry {i} of adjust is {entry!r}; it needs choices and `set` with keys, {example}")
        chosen = {key: value for key, value in entry.items() if key != "set"}
        found.append((read_choices(chosen, axes, f"entry {i} of adjust", path), dict(entry["set"])))
    return tuple(found)


def _checked_cells(suite: Suite, path: Path) -> list[dict[str, str]]:
    """Return the cells that are run, if there are any and every number of the paper is for one of them."""
    cells = suite.cells()
    if not cells:
        raise BadInput(f"{path}: skip leaves no cell to run")
    for expected in suite.expected:
        if not any(all(cell[axis] == choice for axis, choice in expected.cell.items()) for cell in cells):
            raise BadInput(f"{path}: expected has a value for {expected.cell}, which skip leaves out")
    return cells


def _axes(raw: Any, path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    if not isinstance(raw, dict) or not raw:
        raise BadInput(f"{path}: axes is {raw!r}, expected axes with choices, for example: method: {{FedAvg: {{}}}}")
    axes: dict[str, dict[str, dict[str, Any]]] = {}
    for axis, choices in raw.items():
        if not isinstance(choices, dict) or not choices:
            raise BadInput(f"{path}: axes.{axis} is {choices!r}, expected choices, each with the keys it changes")
        axes[str(axis)] = {}
        for choice, changes in choices.items():
            if not isinstance(changes or {}, dict):
                raise BadInput(f"{path}: axes.{axis}.{choice} is {changes!r}, expected keys and values")
            for key, values in ((changes or {}).get("search") or {}).items():
                if not isinstance(values, list) or not values:
                    raise BadInput(f"{path}: axes.{axis}.{choice}.search.{key} is {values!r}, expected a list to try")
            seeded = (changes or {}).get("seeded", [])
            if not isinstance(seeded, list) or not all(isinstance(key, str) for key in seeded):
                raise BadInput(f"{path}: axes.{axis}.{choice}.seeded is {seeded!r}, expected a list of keys")
            axes[str(axis)][str(choice)] = changes or {}
        _check_metrics(str(axis), axes[str(axis)], path)
    return axes


def _check_metrics(axis: str, choices: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Refuse an axis that chooses metrics and something else besides: its courses would not be the same."""
    if any("metric" in changes for changes in choices.values()):
        for choice, changes in choices.items():
            if set(changes) != {"metric"}:
                raise BadInput(
                    f"{path}: axes.{axis}.{choice} is {dict(changes)!r}; on an axis of metrics every choice "
                    "has `metric` and nothing else"
                )


def _seeds(raw: Any, path: Path) -> tuple[int, ...]:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 1:
        return tuple(range(raw))
    if isinstance(raw, list) and raw and all(type(seed) is int for seed in raw):
        return tuple(raw)
    raise BadInput(f"{path}: seeds is {raw!r}, expected how many, or a list of whole numbers")


def _expectation(raw: Any, axes: Mapping[str, Mapping[str, Any]], path: Path) -> Expectation:
    if not isinstance(raw, dict) or not isinstance(raw.get("value"), int | float):
        raise BadInput(f"{path}: an entry of expected is {raw!r}; it needs a value, and the choices it is for")
    cell = {key: str(value) for key, value in raw.items() if key not in ("value", "std", "within")}
    for axis, choice in cell.items():
        if axis not in axes:
            raise BadInput(f"{path}: expected names the axis {axis!r}; {nearest(axis, axes)}")
        if choice not in axes[axis]:
            raise BadInput(f"{path}: expected names {axis} {choice!r}; {nearest(choice, axes[axis])}")
    return Expectation(cell, float(raw["value"]), raw.get("std"), raw.get("within"))
