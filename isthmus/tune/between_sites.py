"""A study between sites: its trials are courses of a federation, that a server freezes and goes on with.

What names a trial's course is drawn from the study's own name, which is in its folder, and from the trial: so a study
that is started again hands in the same courses, and the server has each once. What a server has computed while nobody
followed it is fetched.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from isthmus.config.course import Course
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.outside import replace_file
from isthmus.runs.folder import RunFolder
from isthmus.runs.journal import read_journal
from isthmus.sites.courses.ledger import CANCELLED, DONE, FAILED, FROZEN
from isthmus.sites.courses.messages import CourseEvent, CourseStatus
from isthmus.sites.courses.site_course import for_sites, refuse_meaningless
from isthmus.sites.submit import Operator
from isthmus.tune.backends import Backend
from isthmus.tune.reading import corners
from isthmus.tune.spec import Study
from isthmus.tune.trials import Measured, Task, seconds_of

NAME_FILE = "federation.json"


class Federation(Backend):
    """The silos of a federation, to whose server an operator submits each trial."""

    def __init__(
        self, operator: Operator, folder: Path, sites: Sequence[str], say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.operator, self.folder, self.sites, self.say = operator, folder, tuple(sites), say

    def facts(self) -> dict[str, Any]:
        """Return who takes part: trials on other data cannot be compared."""
        return {"sites": list(self.sites)}

    def start(self, task: Task) -> tuple[Task, CourseStatus]:
        """Submit a stage; one whose course was disturbed goes on."""
        status = self._submitted(task)
        if status.state == CANCELLED or (status.state == FAILED and not status.fault):
            self.say(f"the course {status.course_id[:8]} goes on, which {ended(status)}")
            status = self.operator.resume(status.course_id)
        return task, status

    def _submitted(self, task: Task) -> CourseStatus:
        study = name_of_study(self.folder)
        path = task.folder.relative_to(self.folder)
        submission = hashlib.sha256(f"{study} {path}".encode()).hexdigest()[:32]
        until = 0 if task.until >= task.course.rounds else task.until
        return self.operator.submit(as_submitted(task.course, self.sites), submission, study, until)

    def result(self, call: tuple[Task, CourseStatus]) -> Measured:
        """Wait until the server has done the stage, and take the run folder in."""
        task, status = call
        status = self.operator.follow(status.course_id, self._heard)
        while status.state == FROZEN and status.round < task.until:  # by an earlier stage
            status = self.operator.follow(self._submitted(task).course_id, self._heard)
        if status.state == FAILED and status.fault:
            return Measured(tuple(math.nan for _ in task.objectives), 0.0, status.reason)
        if status.state not in (FROZEN, DONE):
            raise CourseFailed(
                f"the course {status.course_id[:8]} of {task.folder.parent.name} {ended(status)}. What is finished "
                "stays: start the same again, and it goes on from its checkpoint"
            )
        shutil.rmtree(task.folder, ignore_errors=True)  # of an earlier stage
        self.operator.fetch(status.course_id, task.folder)
        events = list(read_journal(RunFolder(task.folder).journal))
        return Measured(tuple(each.value(events, task.until) for each in task.objectives), seconds_of(events))

    def _heard(self, event: CourseEvent) -> None:
        if event.text:
            self.say(event.text)


def ended(status: CourseStatus) -> str:
    """Return in words how a course ended that was disturbed, with what would do where that is known."""
    if status.state == CANCELLED:
        return f"was cancelled {status.reason}"
    more = ""
    if "max_trials" in status.reason:
        more = "; a budget of fewer trials or seeds would do, or a larger max_trials in that silo's policy"
    return f"failed: {status.reason}{more}"


def name_of_study(folder: Path) -> str:
    """Return what a study is called at the server and at the silos: a random name, kept in its folder."""
    path = folder / NAME_FILE
    if not path.is_file():
        replace_file(path, json.dumps({"study": secrets.token_hex(16)}).encode())
    try:
        return str(json.loads(path.read_text())["study"])
    except (ValueError, KeyError, TypeError):
        raise BadInput(
            f"{path} is damaged: which courses of the server are this study's, nobody knows now; choose another folder "
            "with --out"
        ) from None


def as_submitted(course: Course, sites: Sequence[str]) -> Course:
    """Return a trial's course as an operator submits it."""
    refuse_meaningless(course, len(sites))
    return for_sites(course, sites)


def check_study(study: Study, sites: Sequence[str]) -> None:
    """Refuse what cannot be searched between sites, before anything is submitted."""
    if study.search.forks:
        raise BadInput(
            f"{study.source}: search: its trials go on from copies of others, and what a silo remembers of a course is "
            "copied into no other; choose another search, such as asha"
        )
    shares = sorted({study.fraction(rung) for rung in range(len(study.rungs))})
    if len(shares) > 1:
        raise BadInput(
            f"{study.source}: fidelity.sampling.fraction changes from rung to rung; silos agree to a course once, so "
            f"give one value, such as {shares[-1]:g}"
        )
    for where, point in [("base", study.first), *((f"space.{key}", point) for key, point in corners(study.space))]:
        try:
            as_submitted(study.course(point), sites)
        except BadInput as error:
            raise BadInput(f"{study.source}: {where}: {error}") from None
