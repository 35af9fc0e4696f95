"""What a suite file says, and the courses it stands for; docs/suites.md has a whole one.

    axes:
      method:
        FedAvg:
          algorithm.name: fedavg
          search: {algorithm.optimizer.lr: [0.05, 0.25], algorithm.local_steps: [1, 4]}
    expected:
      - {splitter: random, method: FedAvg, value: 0.8663, std: 0.0135, within: 0.015}

Every combination of one choice per axis is a cell of the table; every cell is run with every seed. A choice changes
keys of the base course. Where a choice has a `search`, each point of the grid is run with every seed, and the point
with the best mean validation score over the seeds stands for the cell; test scores play no part in that. Where a choice
has `seeded`, a list of keys, each of them gets the seed's number too: `seeded: [dataset.graph_seed]` draws a new graph
for each seed. An axis of metrics, `score: {Hits@1: {metric: "hits@1"}, Hits@5: {metric: "hits@5"}}`, has several
numbers of the same courses, which are run once.

With `tune`, a budget of client-rounds takes the place of the grids: each cell that has a `search` gets as many, and the
best point stands for it (isthmus/tune/of_suites.py).

`spread: ci95` prints, after ±, half of the 95 % interval of the mean over the seeds by Student's distribution, in place
of their standard deviation.

Cells that agree with an entry of `skip` on every axis that it names are left out: not run, in no table. Cells that
agree with an entry of `adjust` get the keys that it sets, unless a choice of theirs sets the same.

Each of `figures` becomes a file `name`.svg; docs/suites.md says what each kind draws and which keys it has.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from isthmus.config.build import Builder
from isthmus.config.course import Course
from isthmus.config.load import as_before, course_to_dict, leaf_paths, merge, nested
from isthmus.core.errors import refuse
from isthmus.core.outside import read_yaml
from isthmus.report.summary import MODELS
from isthmus.suites.figure_spec import Figure, agrees, check_metric, read_choices, read_figures

GRAPHS = ("global_graph", "local_graph")
SPREADS = ("std", "ci95")
ADJUST = "for example: {method: FedAvg, set: {algorithm.local_steps: 2}}"
UNWATCHED: dict[str, Any] = {"monitors": [], "monitor_every": 0}


@dataclass(frozen=True)
class Choice:
    """What a choice on an axis is.

    Fields:
        metric:  what is read from the courses, on an axis of metrics
        search:  key -> the values that are tried
        seeded:  keys that get the seed's number
        changes: the other keys of the course that it sets
    """

    metric: str = ""
    search: Mapping[str, Any] = field(default_factory=dict, metadata={"expected": "keys with lists to try"})
    seeded: tuple[str, ...] = field(default=(), metadata={"expected": "a list of keys"})
    changes: Mapping[str, Any] = field(default_factory=dict, metadata={"rest": True})

    def check(self, where: str, of_metrics: bool) -> None:
        """Refuse a search that is no list, and on an axis of metrics all but a metric; a ValueError says where."""
        for key, values in self.search.items():
            if not isinstance(values, list) or not values:
                raise ValueError(f"{where}.search.{key} is {values!r}, expected a list to try")
        if of_metrics and self != Choice(metric=self.metric or "?"):
            given = {key: value for key, value in vars(self).items() if value and key != "changes"}
            raise ValueError(
                f"{where} is {given | dict(self.changes)}; on an axis of metrics every choice has `metric` and "
                "nothing else"
            )


@dataclass(frozen=True)
class Expectation:
    """A number that a paper gives for some cells; `within` is how far ours may be from it."""

    value: float
    std: float | None = None
    within: float | None = None
    cells: Mapping[str, Any] = field(default_factory=dict, metadata={"rest": True})


@dataclass(frozen=True)
class Adjustment:
    """Keys that are set for some cells."""

    set: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, Any] = field(default_factory=dict, metadata={"rest": True})


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
    def digest(self) -> str:
        """What changes with anything in the course that decides its result, its rounds too."""
        plain = as_before(course_to_dict(self.course))
        # What is measured besides does not decide a result: a course without monitors needs no word of it.
        telling = {key: value for key, value in plain.items() if key not in UNWATCHED or value != UNWATCHED[key]}
        if telling["stopping"].get("keep") == "best":  # as all courses did before they could say so
            telling["stopping"] = {key: value for key, value in telling["stopping"].items() if key != "keep"}
        text = json.dumps(telling, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def key(self) -> str:
        """A name for the run folder that changes with anything in the course."""
        named = (choice for axis, choice in self.cell.items() if axis not in self.measured)
        label = "-".join("".join(c if c.isalnum() else "_" for c in choice) for choice in named)
        return f"{label}-seed{self.seed}-{self.digest[:10]}"

    def path(self, folder: Path) -> Path:
        """Return its run folder within the folder of a suite's results."""
        return folder / "runs" / self.key


@dataclass(frozen=True)
class Suite:
    """A table to be filled; every field but the last is a key of the file."""

    title: str
    axes: Mapping[str, Mapping[str, Choice]] = field(
        metadata={"expected": "axes with choices, for example: method: {FedAvg: {}}"}
    )
    base: dict[str, Any] = field(
        default_factory=dict, metadata={"expected": "keys of the course, for example: {rounds: 50}"}
    )
    metric: str = "accuracy"
    graph: str = "global_graph"
    model: str = "global_model"
    spread: str = "std"
    seeds: tuple[int, ...] = field(default=(0,), metadata={"expected": "how many, or a list of whole numbers"})
    expected: tuple[Expectation, ...] = ()
    source: str = ""
    skip: tuple[Any, ...] = field(
        default=(), metadata={"expected": "a list, each with the choices that are not run together"}
    )
    adjust: tuple[Adjustment, ...] = field(
        default=(), metadata={"expected": f"a list of choices with what is set for them, {ADJUST}"}
    )
    tune: Mapping[str, Any] = field(
        default_factory=dict, metadata={"expected": "a budget and how it is spent, for example: {client_rounds: 2000}"}
    )
    figures: tuple[Figure, ...] = ()
    # Keys of every course, whatever its cell says of them.
    changes: Mapping[str, Any] = field(default_factory=dict, metadata={"in_file": False})

    def __post_init__(self) -> None:
        for key, allowed in (("model", MODELS), ("graph", GRAPHS), ("spread", SPREADS)):
            refuse(getattr(self, key) not in allowed, self, key, f"choose from {', '.join(allowed)}")
        if not self.seeds:
            raise ValueError("seeds is [], expected how many, or a list of whole numbers")
        self._check_axes()
        self._take_choices()

    def _check_axes(self) -> None:
        if not self.axes:
            raise ValueError("axes is {}, expected axes with choices, for example: method: {FedAvg: {}}")
        for axis, choices in self.axes.items():
            if not choices:
                raise ValueError(f"axes.{axis} is {{}}, expected choices, each with the keys it changes")
            of_metrics = any(choice.metric for choice in choices.values())
            for name, choice in choices.items():
                choice.check(f"axes.{axis}.{name}", of_metrics)

    def _take_choices(self) -> None:
        """Read the choices of `skip`, `adjust` and `expected`, which must be choices of the axes."""
        for number, entry in enumerate(self.adjust, start=1):
            if not entry.set:
                found = dict(entry.cells)
                raise ValueError(f"entry {number} of adjust is {found}; it needs choices and `set` with keys, {ADJUST}")
        for key in ("skip", "adjust", "expected"):
            taken: list[Any] = []
            for number, entry in enumerate(getattr(self, key), start=1):
                cells = read_choices(entry if key == "skip" else entry.cells, self.axes, f"entry {number} of {key}")
                taken.append(cells if key == "skip" else replace(entry, cells=cells))
            object.__setattr__(self, key, tuple(taken))

    @property
    def measured(self) -> tuple[str, ...]:
        """Axes whose choices are metrics of the same courses."""
        return tuple(axis for axis, choices in self.axes.items() if all(c.metric for c in choices.values()))

    @cached_property
    def columns(self) -> dict[str, str]:
        """What runs.csv says of a run beside its choices, by the column that says it: that of an axis is the axis's."""
        score = "score" if self.measured else self.metric
        facts = (
            "searched",
            "seed",
            "score",
            "validation",
            "rounds",
            "seconds",
            "error",
            "run",
            "missing",
            "digest",
            "data",
        )
        names = {fact: score if fact == "score" else fact for fact in facts}
        return {fact: f"run_{name}" if name in self.axes else name for fact, name in names.items()}

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

    @property
    def choices(self) -> Iterator[Choice]:
        """The choices of all axes."""
        return itertools.chain.from_iterable(choices.values() for choices in self.axes.values())

    def _points_of(self, cell: Mapping[str, str]) -> list[Point]:
        changes: dict[str, Any] = {}
        for entry in self.adjust:
            if agrees(cell, entry.cells):
                changes |= entry.set
        grid: dict[str, Sequence[Any]] = {}
        seeded: list[str] = ["seed"]
        metric = self.metric
        for axis, name in cell.items():
            choice = self.axes[axis][name]
            metric = choice.metric or metric
            grid |= choice.search
            seeded += choice.seeded
            changes |= choice.changes
        found = []
        for values in itertools.product(*grid.values()):
            searched = dict(zip(grid, values, strict=True))
            keys = {**changes, **searched, **self.changes}.items()
            made: Point | None = None
            for seed in self.seeds:
                if made is not None and seeded == ["seed"]:  # but for the seed it is the same course
                    made = replace(made, seed=seed, course=replace(made.course, seed=seed))
                else:
                    course, stated, notes = self._built(cell, [*keys, *((key, seed) for key in seeded)])
                    made = Point(dict(cell), searched, seed, course, metric, self.measured, stated, notes)
                found.append(made)
        return found

    def _built(
        self, cell: Mapping[str, str], keys: Sequence[tuple[str, Any]]
    ) -> tuple[Course, frozenset[str], tuple[str, ...]]:
        """Return the course of a cell with these keys, what is stated of it, and notes on what another name dropped."""
        raw = merge(self.base, [(key.split("."), value) for key, value in keys], self.title)
        builder = Builder(f"{self.title} [{', '.join(cell.values())}]")
        course = builder.fields(Course, raw, "")
        notes = tuple(note for renaming in builder.renamings for note in renaming.losses())
        return course, frozenset(leaf_paths(raw)), notes

    def expectation(self, cell: Mapping[str, str]) -> Expectation | None:
        """Return the paper's number for a cell: the first that agrees on every axis it names."""
        return next((expected for expected in self.expected if agrees(cell, expected.cells)), None)


def load_suite(path: Path) -> Suite:
    """Read a suite file, and build every course in it so that mistakes show before anything runs."""
    builder = Builder(str(path))
    raw = read_yaml(path)
    figures = raw.pop("figures", None)
    suite: Suite = builder.fields(Suite, _plain(raw, path), "")
    with builder.placed(""):
        cells = suite.cells()
        if not cells:
            raise ValueError("skip leaves no cell to run")
        for expected in suite.expected:
            if not any(agrees(cell, expected.cells) for cell in cells):
                chosen = {axis: ", ".join(choices) for axis, choices in expected.cells.items()}
                raise ValueError(f"expected has a value for {chosen}, which skip leaves out")
        suite = replace(suite, figures=read_figures(figures, suite.axes, cells, suite.metric, builder))
        for point in suite.points():
            metrics = point.course.task.metrics
            if point.metric not in metrics:
                raise ValueError(
                    f"metric is {point.metric!r}, which the task does not report; "
                    f"choose from {', '.join(metrics)} or add it to base.task.metrics"
                )
            for figure in suite.figures:
                check_metric(figure, point.cell, metrics)
    return suite


def _plain(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what a suite file says with what may be left out or said in short: a number of seeds, a choice's keys."""
    lists = ("base", "skip", "adjust", "expected", "tune")
    plain = {str(key): value for key, value in raw.items() if value is not None or key not in lists}
    plain |= {key: str(value) for key, value in plain.items() if key in ("title", "source")}
    plain.setdefault("title", path.stem)
    plain.setdefault("axes", None)
    seeds = plain.get("seeds")
    if type(seeds) is int and seeds >= 1:
        plain["seeds"] = list(range(seeds))
    if isinstance(plain["axes"], dict):
        plain["axes"] = {axis: _choices(named) for axis, named in plain["axes"].items()}
    if isinstance(plain.get("base"), dict):
        plain["base"] = nested(plain["base"], f"{path}: base")
    return plain


def _choices(named: Any) -> Any:
    return {name: keys or {} for name, keys in named.items()} if isinstance(named, dict) else named
