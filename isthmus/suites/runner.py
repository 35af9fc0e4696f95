"""Runs the courses of a suite on the cores there are, or on a cluster; what is finished stays finished."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from isthmus.config.course import Course
from isthmus.core.errors import BadInput
from isthmus.runs.in_processes import in_processes
from isthmus.suites import elsewhere
from isthmus.suites.moving import Rows, write_rows
from isthmus.suites.outcomes import Run, outcome, read_run
from isthmus.suites.same_data import Finishing, LastScenario, finish_course, side_by_side
from isthmus.suites.spec import Point, Suite


def run_suite(
    suite: Suite,
    folder: Path,
    *,
    workers: int | None = None,
    data_root: Path | None = None,
    on_done: Callable[[Run], None] = lambda run: None,
    cluster: str | None = None,
) -> list[Run]:
    """Run what is not finished yet and return every run, in the order of the suite's points.

    Finished is what has a run folder with an end, or a row in runs.csv with the digest of the course. With `cluster`
    the courses run on the workers of the Dask cluster at that address, each on one.
    """
    if cluster is not None and workers is not None:
        raise BadInput(f"workers is {workers} and cluster {cluster!r}; give one of them")
    campaign = _Campaign(suite, folder, on_done)
    todo = side_by_side(campaign.look_for_finished())
    number = min(workers or os.cpu_count() or 1, len(todo))
    folder.mkdir(parents=True, exist_ok=True)
    if not todo:
        return campaign.runs()
    if cluster is not None:
        finished = elsewhere.on_cluster(todo, folder, data_root, cluster)
    elif number > 1:
        finished = _in_parallel(todo, folder, data_root, number)
    else:
        data = LastScenario()
        finished = ((point, *finish_course(point.course, point.path(folder), data_root, data)) for point in todo)
    try:
        with closing(finished):
            for point, error, note in finished:
                campaign.take(outcome(suite, point, point.path(folder), error, note))
    finally:
        campaign.keep_rows()
    return campaign.runs()


class _Campaign:
    """The runs of a suite, as far as they are known: by what was finished before, and by what has finished since."""

    def __init__(self, suite: Suite, folder: Path, on_done: Callable[[Run], None]) -> None:
        self.suite, self.folder, self.on_done = suite, folder, on_done
        self.points, self.rows = suite.points(), Rows(suite, folder)
        self.found: dict[str, Run] = {}
        self.refused: dict[str, str] = {}  # why a row does not stand for its run

    def take(self, run: Run) -> None:
        """Say of a run that it is done, and count it as such."""
        self.on_done(run)
        self.found[run.point.key] = run

    def look_for_finished(self) -> list[Point]:
        """Take in what was finished before; return a point of each course that was not."""
        todo: dict[str, Point] = {}
        for point in self.points:
            if point.key in self.found or point.key in todo:
                continue  # the same course, of which another metric is read
            finished = read_run(self.suite, point, point.path(self.folder))
            if finished is None:
                by_row = self.rows.of([other for other in self.points if other.key == point.key])
                finished = by_row[0] if by_row else None
                self.refused[point.key] = self.rows.why_not(point)
            if finished is not None:
                self.take(finished)
            else:
                todo[point.key] = point
        return list(todo.values())

    def runs(self) -> list[Run]:
        """Return the run of every point that is known, in the order of the points."""
        runs = [self._read_as(point, self.found[point.key]) for point in self.points if point.key in self.found]
        return [replace(run, note=run.note or self.refused.get(run.point.key, "")) for run in runs]

    def _read_as(self, point: Point, run: Run) -> Run:
        """Return a run as the given point of the suite reads it."""
        if point == run.point or run.error:
            return replace(run, point=point)
        by_row = self.rows.of([point]) or ()
        read = read_run(self.suite, point, point.path(self.folder)) or next(iter(by_row), None)
        assert read is not None
        return replace(read, note=run.note)

    def keep_rows(self) -> None:
        """Write what is finished of a suite that is cut short, so that it can go on without the run folders."""
        if self.found and any(point.key not in self.found for point in self.points):
            write_rows(self.suite, self.runs(), self.folder)


# ---- in other processes of this machine


def _in_parallel(points: Sequence[Point], folder: Path, data_root: Path | None, number: int) -> Finishing:
    arguments = [(point.course, point.path(folder), data_root) for point in points]
    with closing(in_processes(_finish_in_worker, arguments, number)) as finished:
        for place, (error, note) in finished:
            yield points[place], error, note


# Of a worker, which lives as long as its suite is run.
_data = LastScenario()


def _finish_in_worker(course: Course, path: Path, data_root: Path | None) -> tuple[str, str]:
    return finish_course(course, path, data_root, _data)
