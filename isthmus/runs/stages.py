"""Runs that are frozen after some round and thawed later, with the bits of one that never stopped.

A stage trains a course up to a round and leaves its checkpoint. Nothing else happens at its end: no evaluation that the
course has not, no patience that starts anew. Some keys may be changed between two stages (`mid_course_problem`), and a
run may be continued in another folder by a course that differs in such keys (`fork`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.config.build import name_of
from isthmus.config.course import Course
from isthmus.config.load import NOT_IN_DIGEST, course_digest, course_to_dict, course_to_yaml, differences, load_course
from isthmus.core.errors import BadInput, NotResumable, OtherCourse
from isthmus.core.guards.guard import Guard
from isthmus.core.outside import new_folder, replace_file
from isthmus.core.training import Callback, Standing, finished
from isthmus.runs.folder import RunFolder, load_checkpoint, save_checkpoint
from isthmus.runs.journal import read_journal
from isthmus.runs.simulated import SimulatedRun, checked_events
from isthmus.runs.simulation import Scenario, Simulation, torch_threads

# What may be another from one round to the next: no memory of a client or of the server is made of it.
MID_COURSE = (
    "sampling.fraction",
    "algorithm.local_steps",
    "algorithm.mu",
    "algorithm.optimizer.lr",
    "algorithm.optimizer.weight_decay",
    "model.encoder.dropout",
    "model.gnn.dropout",
    "model.decoder.dropout",
)


@dataclass(frozen=True)
class Frozen:
    """A run as a stage left it.

    Fields:
        round:  the last round that was run
        ended:  whether the course has come to its end, by its rounds or by patience, and is scored
        events: its journal so far
    """

    round: int
    ended: bool
    events: Sequence[dict[str, Any]]


def run_stage(
    course: Course,
    path: Path,
    until: int,
    scenario: Callable[[], Scenario],
    callbacks: Sequence[Callback] = (),
) -> Frozen:
    """Take a run up to a round, from its start or from where it was frozen; at the course's end it is scored.

    What was done before is not done again. A folder that was cut off before its first checkpoint is begun anew.
    """
    folder = RunFolder(path)
    if path.exists() and not folder.checkpoint.is_file():
        shutil.rmtree(path)
    if not path.exists():
        return _trained(course, RunFolder.create(path, course_to_yaml(course)), None, until, scenario, callbacks)
    take_on(folder, course)
    standing, memories = load_checkpoint(folder.checkpoint, course_digest(course), course.algorithm)
    over = finished(course.plan(), standing)
    events = list(read_journal(folder.journal)) if folder.journal.exists() else []
    ended = any(event["event"] == "end" for event in events)
    if ended if over else standing.round >= until:
        return Frozen(standing.round, over, [entry for entry in events if entry.get("round", 0) <= standing.round])
    return _trained(course, folder, (standing, memories), until, scenario, callbacks)


def _trained(
    course: Course,
    folder: RunFolder,
    thawed: tuple[Standing, dict[str, bytes]] | None,
    until: int,
    scenario: Callable[[], Scenario],
    callbacks: Sequence[Callback],
) -> Frozen:
    with torch_threads(course.threads):
        simulation = Simulation(course, scenario())
        made = SimulatedRun(simulation, folder, callbacks)
        standing = None
        if thawed is None:
            made.begin()
        else:
            standing, memories = thawed
            checked_events(folder, simulation)
            simulation.runtime.load_clients(memories)
            if not made.journal.rewind(standing.round):
                made.begin()
            made.journal.write("resume", after=standing.round)
        made.until = until
        standing, seconds = made.train(standing)
        ended = finished(course.plan(), standing)
        if ended:
            made.wound_up(standing, seconds)
    return Frozen(standing.round, ended, made.journal.events)


# ---- other settings from a round on


def mid_course_problem(course: Course, key: str) -> str:
    """Return why a key of a course cannot be another from one round to the next; empty if it can."""
    if key in NOT_IN_DIGEST:
        return ""
    if key not in MID_COURSE:
        return f"memories of the server and of clients may be made of it; what can change is {', '.join(MID_COURSE)}"
    if key != "sampling.fraction":
        return ""
    if course.algorithm.pooled:
        return f"{name_of(type(course.algorithm))} has one client that holds everything, of which there is no share"
    counting = [type(guard).__name__ for guard in course.guards if type(guard).spent is not Guard.spent]
    if counting:
        return f"the guard {counting[0]} counts what is given away by the share of clients that the course begins with"
    return ""


def take_on(folder: RunFolder, course: Course) -> None:
    """Make a frozen run one of a course that differs in what may change mid-course; refuse any other."""
    found = load_course(folder.course)
    changed = {key: (was, now) for key, was, now in _changes(found, course)}
    if not changed:
        return
    for key, (was, now) in changed.items():
        problem = mid_course_problem(course, key)
        if problem:
            raise OtherCourse(f"{folder.path}: {key} was {was!r} and is {now!r}, mid-course: {problem}")
    try:
        standing, memories = load_checkpoint(folder.checkpoint, course_digest(found), found.algorithm)
    except OtherCourse:  # it was cut off between the two files
        load_checkpoint(folder.checkpoint, course_digest(course), course.algorithm)
    else:
        save_checkpoint(folder.checkpoint, course_digest(course), standing, memories)
    replace_file(folder.course, course_to_yaml(course).encode())


def fork(source: Path, target: Path, course: Course) -> None:
    """Continue a frozen run in another folder by a course that may differ in what may change mid-course."""
    before = RunFolder.open(source)
    if not before.checkpoint.is_file():
        raise NotResumable(f"{source} has no checkpoint to continue from")
    if target.exists():
        raise BadInput(f"{target} exists already; a run is continued in a folder of its own")
    with new_folder(target) as place:
        for file in (before.course, before.journal, before.checkpoint):
            shutil.copy(file, place / file.name)
        take_on(RunFolder(place), course)


def _changes(before: Course, now: Course) -> list[tuple[str, Any, Any]]:
    found = differences(course_to_dict(before), course_to_dict(now))
    return [entry for entry in found if entry[0].split(".")[0] not in NOT_IN_DIGEST]
