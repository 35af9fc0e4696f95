"""What the courses behind the rows of a table are set to: what they differ in, what they share, what nobody set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.config.build import brief
from isthmus.config.load import course_to_dict, leaf_values
from isthmus.core.outside import some
from isthmus.report.summary import Table, as_csv
from isthmus.suites.outcomes import Run, on_other_data
from isthmus.suites.spec import Point, Suite

# How a course is run and watched, which no result hangs on.
UNTOLD = (
    "checkpoint_every",
    "runtime",
    "block_mb",
    "threads",
    "device",
    "sinks",
    "monitors",
    "monitor_every",
    "client_settings",
)
# Where a difference that nobody asked for makes a comparison unfair; data have numbers of their own.
METHOD = ("algorithm.", "model.", "batching.", "masks.")
MOST_NOTES = 12

Row = Mapping[str, str]


@dataclass(frozen=True)
class Settings:
    """The settings of a table's rows.

    Fields:
        rows:      each row's choices
        values:    key -> its value in each row, in the order of the rows; None in a row whose course has no such key
        unstated:  key -> whether the suite leaves it to the default, in each row
    """

    axes: Mapping[str, Sequence[str]]
    rows: Sequence[Row]
    values: Mapping[str, Sequence[str | None]]
    unstated: Mapping[str, Sequence[bool]]

    def differing(self) -> dict[str, dict[str, str]]:
        """Return the keys whose values are not the same in all rows: key -> value -> the rows that have it."""
        return {key: self._by_value(found) for key, found in self.values.items() if len(set(found)) > 1}

    def common(self) -> dict[str, str]:
        """Return the keys that have one value in all rows."""
        return {key: found[0] for key, found in self.values.items() if len(set(found)) == 1 and found[0] is not None}

    def unequal(self) -> list[str]:
        """Return a line for each setting of a method that differs between rows of which some do not set it."""
        told = []
        for key, found in self.values.items():
            quiet = self._left_to_default(key)
            by_value = self._by_value(found)
            if key.startswith(METHOD) and key != "algorithm.name" and quiet and len(by_value) > 1:
                values = "; ".join(f"{value} in {rows}" for value, rows in by_value.items())
                where = self._named(quiet)
                told.append(f"rows differ in {key}, which the suite leaves to the default in {where}: {values}")
        return told

    def _left_to_default(self, key: str) -> list[Row]:
        each = zip(self.rows, self.values[key], self.unstated[key], strict=True)
        return [row for row, value, unstated in each if value is not None and unstated]

    def table(self) -> Table:
        """Return what rows differ in, one line for each key."""
        lines = [
            (key, "; ".join(f"{value} ({rows})" for value, rows in found.items()))
            for key, found in self.differing().items()
        ]
        return Table(("setting", "value (rows)"), tuple(lines))

    def markdown(self) -> str:
        """Return what rows differ in and what they share, as Markdown."""
        shared = ", ".join(f"{key}={value}" for key, value in self.common().items())
        table = self.table()
        return (f"{table.markdown()}\n" if table.rows else "") + f"In all rows: {shared}.\n"

    def as_csv(self) -> str:
        """Return every setting of every row as a line of CSV for each row."""
        rows = [[*row.values(), *(found[i] for found in self.values.values())] for i, row in enumerate(self.rows)]
        return as_csv([[*self.axes, *self.values], *rows])

    def named(self, rows: Iterable[Row]) -> str:
        """Return how rows are told by their choices: `method=FedAvg,Local`; a longer list only as a number."""
        return self._named([row for row in self.rows if any(dict(row) == dict(one) for one in rows)])

    def _by_value(self, found: Sequence[str | None]) -> dict[str, str]:
        values = dict.fromkeys(value for value in found if value is not None)
        pairs = list(zip(self.rows, found, strict=True))
        return {value: self._named([row for row, own in pairs if own == value]) for value in values}

    def _named(self, rows: Sequence[Row]) -> str:
        if len(rows) == len(self.rows):
            return "all rows"
        chosen = {axis: _among(choices, axis, rows) for axis, choices in self.axes.items()}
        block = [row for row in self.rows if all(row[axis] in chosen[axis] for axis in chosen)]
        if len(block) != len(rows):
            return f"{len(rows)} of {len(self.rows)} rows"
        whole = {axis: {row[axis] for row in self.rows} for axis in chosen}
        return " ".join(f"{axis}={','.join(some)}" for axis, some in chosen.items() if len(some) < len(whole[axis]))


def _among(choices: Sequence[str], axis: str, rows: Sequence[Row]) -> list[str]:
    taken = {row[axis] for row in rows}
    return [choice for choice in choices if choice in taken]


def settings(suite: Suite, points: Iterable[Point]) -> Settings:
    """Return the settings of a suite's rows; `points` has one course for each, the rows of one course count once."""
    axes = {axis: list(choices) for axis, choices in suite.axes.items() if axis not in suite.measured}
    first: dict[tuple[str, ...], Point] = {}
    for point in points:
        first.setdefault(tuple(_row(point, axes).values()), point)
    seeded = {"seed", *(key for choice in suite.choices for key in choice.seeded)}
    courses = [_told(point, seeded) for point in first.values()]
    keys = dict.fromkeys(key for course in courses for key in course)
    return Settings(
        axes=axes,
        rows=[_row(point, axes) for point in first.values()],
        values={key: [course.get(key) for course in courses] for key in keys},
        unstated={key: [key not in point.stated for point in first.values()] for key in keys},
    )


def _row(point: Point, axes: Iterable[str]) -> Row:
    return {axis: point.cell[axis] for axis in axes}


def _told(point: Point, seeded: Collection[str]) -> dict[str, str]:
    """Return the settings of a course that are told, in few words; the seed and what goes with it are not."""
    told = {key: value for key, value in course_to_dict(point.course).items() if key not in UNTOLD}
    by_key = {".".join(path): value for path, value in leaf_values(told)}
    return {key: brief(value) for key, value in by_key.items() if key not in seeded}


def notes(suite: Suite, found: Settings, runs: Sequence[Run]) -> list[str]:
    """Return what readers of a table should know: what was dropped, what is unequal, what was set aside."""
    lost: dict[str, list[Row]] = {}
    for run in runs:
        for note in run.point.notes:
            lost.setdefault(note, []).append(_row(run.point, found.axes))
    told = [f"{note} ({found.named(rows)})" for note, rows in lost.items()]
    told += found.unequal()
    told += on_other_data(runs)
    for run in runs:
        if run.missing:
            row = " ".join(f"{axis}={choice}" for axis, choice in _row(run.point, found.axes).items())
            told.append(
                f"{row} seed={run.point.seed}: {some(run.missing)} missing in the score of the round that is kept"
            )
    told += dict.fromkeys(run.note for run in runs if run.note)
    more = [f"and {len(told) - MOST_NOTES} more; settings.csv has every row's settings"]
    return told if len(told) <= MOST_NOTES else [*told[:MOST_NOTES], *more]
