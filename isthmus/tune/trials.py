"""A trial as it is carried out: a run folder for each seed, taken up to a rung from where it was frozen before.

    trials/0007-1a2b3c4d5e/seed-0/     a run folder like any other: on the last rung, that of `isthmus run`

The folder's name has the number of the configuration and a digest of it, with those that it goes on from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from isthmus.config.course import Course
from isthmus.core.errors import IsthmusError
from isthmus.core.outside import data_root as locate_data
from isthmus.runs.simulation import Scenario, load_scenario, torch_threads
from isthmus.runs.stages import fork, run_stage
from isthmus.suites.same_data import DECIDING, division
from isthmus.tune.objectives import Objective
from isthmus.tune.spec import Study, digest_of
from isthmus.tune.table import Row, Table, Trial

MOST_SCENARIOS = 8  # that are kept in memory at a time


class Scenarios:
    """Data that was loaded and divided, once for all trials on the same division."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self._kept: list[tuple[object, Scenario]] = []  # parts of a course may not be hashable

    def of(self, course: Course) -> Scenario:
        """Return who holds what in a course."""
        key = division(course)
        for known, scenario in self._kept:
            if known == key:
                return scenario
        with torch_threads(course.threads):
            scenario = load_scenario(course, locate_data(self.root))
        self._kept = [*self._kept[1 - MOST_SCENARIOS :], (key, scenario)]
        return scenario


@dataclass(frozen=True)
class Task:
    """A stage of one run, to be done by whoever is free: all that another process needs to know.

    Fields:
        course:     as on the rung, with its seed
        folder:     of the run
        until:      the round of the rung
        source:     the folder of the run that it goes on from, where it does not start anew
        objectives: what is read from the journal
        divides:    whether the trial decides itself how data are divided; else it is not to blame where there are none
    """

    course: Course
    folder: Path
    until: int
    source: Path | None
    objectives: tuple[Objective, ...]
    divides: bool = False


@dataclass(frozen=True)
class Measured:
    """What came of a stage.

    Fields:
        scores:    the objectives
        seconds:   of all its rounds so far
        error:     why it failed
        blameless: whether it failed for what is no matter of its trial
    """

    scores: tuple[float, ...]
    seconds: float = 0.0
    error: str = ""
    blameless: bool = False


class NoData(IsthmusError):
    """Data could not be loaded or divided."""


def tasks_of(study: Study, trial: Trial, table: Table, folder: Path) -> list[Task]:
    """Return the stages of a trial, one for each seed."""
    name = trial_name(trial, table)
    source = None if trial.parent is None else trial_name(_arm(table, trial.parent), table)
    rung = study.rungs[trial.rung]
    found = []
    for seed in study.seeds[: rung.seeds]:
        course = study.course(trial.values, trial.rung, seed)
        path, before = folder / name / f"seed-{seed}", None if source is None else folder / source / f"seed-{seed}"
        divides = _deciding(course) != _deciding(study.course(study.first, trial.rung, seed))
        found.append(Task(course, path, rung.rounds, before, study.objectives, divides))
    return found


def _deciding(course: Course) -> list[Any]:
    """Return what decides how data are divided."""
    return [getattr(course, key) for key in DECIDING]


def trial_name(trial: Trial, table: Table) -> str:
    """Return the name of a configuration's folder."""
    digest = digest_of(values=dict(trial.values), line=_line(trial, table))
    return f"{trial.arm:04d}-{digest}"


def _line(trial: Trial, table: Table) -> list[object]:
    """Return those that a configuration goes on from."""
    found: list[object] = []
    while trial.parent is not None:
        trial = _arm(table, trial.parent)
        found.append([dict(trial.values), trial.rung])
    return found


def _arm(table: Table, arm: int) -> Trial:
    return next(row.trial for row in table.rows if row.trial.arm == arm)


def carry_out(task: Task, scenarios: Scenarios) -> Measured:
    """Do a stage; a failure is the trial's, and not the study's."""
    try:
        course = replace(task.course, threads=1)
        if task.source is not None and not task.folder.exists():
            task.folder.parent.mkdir(parents=True, exist_ok=True)
            fork(task.source, task.folder, course)
        frozen = run_stage(course, task.folder, task.until, lambda: _scenario(course, scenarios))
    except IsthmusError as error:
        blameless = isinstance(error, NoData) and not task.divides
        return Measured(tuple(math.nan for _ in task.objectives), 0.0, str(error), blameless)
    scores = tuple(each.value(frozen.events, task.until) for each in task.objectives)
    return Measured(scores, seconds_of(frozen.events))


def _scenario(course: Course, scenarios: Scenarios) -> Scenario:
    try:
        return scenarios.of(course)
    except IsthmusError as error:
        raise NoData(str(error)) from None


def seconds_of(events: Iterable[Mapping[str, Any]]) -> float:
    """Return how long the rounds of a run took."""
    return float(sum(event.get("wall_seconds", 0.0) for event in events if event["event"] == "round"))


def row_of(study: Study, trial: Trial, table: Table, found: Sequence[Measured]) -> Row:
    """Return what came of a trial, by what came of its stages: the mean over the seeds."""
    scores = tuple(fmean(values) for values in zip(*(each.scores for each in found), strict=True))
    mine = [row for row in table.rows if row.done and row.trial.arm == trial.arm]
    before = max((row.trial.rung for row in mine), default=None)
    cost = study.cost(trial.rung, before)
    if trial.parent is not None:
        cost = study.cost(trial.rung, _arm(table, trial.parent).rung)
    own = sum(each.seconds for each in found) - _seconds_before(trial, table)
    seconds = max(own, 0.0)  # a failure may have none
    errors = [each.error for each in found if each.error]
    firsts = tuple(each.scores[0] for each in found)
    return Row(trial, True, scores, firsts, cost, round(seconds, 6), errors[0] if errors else "")


def _seconds_before(trial: Trial, table: Table) -> float:
    """Return what a configuration's journals had taken before this trial, with those that it goes on from."""
    arms = {trial.arm}
    while trial.parent is not None:
        trial = _arm(table, trial.parent)
        arms.add(trial.arm)
    return sum(row.seconds for row in table.rows if row.done and row.trial.arm in arms)


def failed_row(study: Study, trial: Trial, table: Table, error: str) -> Row:
    """Return the row of a trial that cannot be begun."""
    nothing = Measured(tuple(math.nan for _ in study.objectives), 0.0, error)
    return row_of(study, trial, table, [nothing])


def facts_of_row(row: Row) -> Mapping[str, object]:
    """Return a row as a line of a file has it; NaN is nothing."""
    plain = {**vars(row), "trial": vars(row.trial)}
    plain["scores"] = [None if math.isnan(value) else value for value in row.scores]
    plain["each"] = [None if math.isnan(value) else value for value in row.each]
    return {**plain, "time": round(time.time(), 3)}
