"""Courses to their end, those on the same data one after the other, so that it is loaded and divided once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus.config.course import Course
from isthmus.core.errors import IsthmusError, NotResumable
from isthmus.core.outside import data_root as locate_data
from isthmus.data.folders.own_kinds import Folders
from isthmus.runs.folder import set_aside
from isthmus.runs.simulated import resume, run
from isthmus.runs.simulation import Scenario, load_scenario, torch_threads
from isthmus.suites.spec import Point

# What decides who holds what, but for folders of one's own, where all of a course does.
DECIDING = ("dataset", "masks", "splitter", "num_clients", "seed", "global_graph")


def division(course: Course) -> tuple[Any, ...]:
    """Return what two courses have in common whose clients hold the same."""
    return (course,) if isinstance(course.dataset, Folders) else tuple(getattr(course, key) for key in DECIDING)


def side_by_side(points: Sequence[Point]) -> list[Point]:
    """Return the same points, those on the same data one after the other."""
    groups: list[tuple[tuple[Any, ...], list[Point]]] = []  # parts of a course may not be hashable
    for point in points:
        key = division(point.course)
        group = next((members for known, members in groups if known == key), None)
        if group is None:
            groups.append((key, [point]))
        else:
            group.append(point)
    return [point for _, group in groups for point in group]


class LastScenario:
    """Keeps the data of the last course; the next one on the same data gets it again."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[Any, ...], Scenario] | None = None

    def of(self, course: Course, root: Path | None) -> Scenario:
        """Return who holds what in a course."""
        key = (root, *division(course))
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # not both at once
            with torch_threads(course.threads):
                self._kept = (key, load_scenario(course, locate_data(root)))
        return self._kept[1]


# Yields each course as it ends: why it failed, if it did, and what became of an earlier run that could not be resumed.
Finishing = Generator[tuple[Point, str, str], None, None]


def finish_course(course: Course, path: Path, data_root: Path | None, data: LastScenario) -> tuple[str, str]:
    """Run one course to its end, from its checkpoint if it has one; return why it failed, and a note, if any."""
    course, note = replace(course, threads=1), ""
    try:
        scenario = data.of(course, data_root)
        if path.exists():
            try:
                resume(path, course=course, scenario=scenario)
                return "", ""
            except NotResumable as error:
                aside = set_aside(path, str(error))
                note = f"{path.name} was run anew; what was there is in {aside.name}, since {error}"
        run(course, run_dir=path, scenario=scenario)
    except IsthmusError as error:
        return str(error), ""
    return "", note
