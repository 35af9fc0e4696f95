"""The same course without a federation: every client alone, and all data in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from isthmus.algorithms import ALGORITHMS
from isthmus.config.course import Course
from isthmus.config.registry import name_of
from isthmus.core.training import Callback
from isthmus.data.zoo import data_root as locate_data
from isthmus.report.summary import Table, run_table
from isthmus.runs.folder import RunFolder
from isthmus.runs.journal import replace_file
from isthmus.runs.result import Result
from isthmus.runs.simulated import run
from isthmus.runs.simulation import Scenario, load_scenario, torch_threads

# Title in tables -> name of the algorithm.
BASELINES = {"Local": "local", "Global (centralised)": "global"}

# From the title of a run, its course and its folder to a context that gives the callbacks for it.
Watch: TypeAlias = Callable[[str, Course, Path | None], AbstractContextManager[Sequence[Callback]]]


def baseline(course: Course, name: str) -> Course:
    """Return the same course without a federation: as many local steps and the same optimiser, where it has them."""
    wanted = ("local_steps", "step_unit", "optimizer")
    same = {key: getattr(course.algorithm, key) for key in wanted if hasattr(course.algorithm, key)}
    alone: dict[str, Any] = {"min_replies": 1} if name == "global" else {}
    return replace(course, algorithm=ALGORITHMS[name](**same), **alone)


def run_with_baselines(
    course: Course | None = None,
    *,
    run_dir: str | Path | None = None,
    data_root: str | Path | None = None,
    scenario: Scenario | None = None,
    notes: Sequence[str] = (),
    watch: Watch = lambda title, course, path: nullcontext(()),
) -> dict[str, Result]:
    """Run a course, then Local and Global on the same data; return the results by title, the course's own first.

    With `run_dir` the baselines are kept below it, and its table has all of them.
    """
    course = course or Course()
    path = None if run_dir is None else Path(run_dir)
    if path is not None:
        RunFolder.check_new(path)  # before the data is loaded
    if scenario is None:
        with torch_threads(course.threads):
            scenario = load_scenario(course, locate_data(data_root))
    main = name_of(type(course.algorithm))
    courses = {main: course, **{title: baseline(course, name) for title, name in BASELINES.items()}}
    results = {}
    for title, each in courses.items():
        place = path if path is None or title == main else path / "baselines" / BASELINES[title]
        with watch(title, each, place) as callbacks:
            results[title] = run(each, run_dir=place, scenario=scenario, callbacks=callbacks, notes=notes)
    if path is not None:
        replace_file(RunFolder(path).report, table_of(results).markdown().encode())
    return results


def table_of(results: dict[str, Result]) -> Table:
    """Return the table of some results on the same data."""
    first = next(iter(results.values()))
    return run_table({title: each.events for title, each in results.items()}, first.course.task.metrics[0])
