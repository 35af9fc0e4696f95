"""The courses at a server and what became of them: a folder and a small status file each, read again at the start."""

from __future__ import annotations

import dataclasses
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from isthmus.config.build import name_of
from isthmus.config.course import Course
from isthmus.config.load import course_to_yaml
from isthmus.core.errors import BadInput
from isthmus.core.outside import foreign, new_folder, replace_file, require_types
from isthmus.runs.folder import COURSE_FILE, ID_FILE, new_run_path
from isthmus.sites.courses.messages import CourseEvent, CourseStatus

STATUS_FILE = "status.json"
QUEUED, RUNNING, PAUSED, FROZEN = "queued", "running", "paused", "frozen"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
OPEN = (QUEUED, RUNNING, PAUSED)
STATES = (*OPEN, FROZEN, DONE, FAILED, CANCELLED)
OF_ITS_STUDY = "the study that it is a trial of goes on with it"
MAX_EVENTS = 1000  # of a course that are kept for operators who ask
MAX_TEXT = 1000  # characters of an event or a reason
SAVE_SECONDS = 1.0  # rounds within this time are saved together


@dataclass(frozen=True)
class Status:
    """What the status file holds."""

    course_id: str
    submission: str
    operator: str
    algorithm: str
    sites: tuple[str, ...]
    rounds: int
    number: int
    submitted: float
    state: str = QUEUED
    reason: str = ""
    round: int = 0
    changed: float = 0.0
    study: str = ""
    until: int = 0
    fault: str = ""


def read_status(path: Path) -> Status:
    """Read a status file."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        found = Status(**{**facts, "sites": tuple(facts["sites"])})
        require_types(found)
        if found.state not in STATES:
            raise ValueError(f"state is {found.state!r}; known: {', '.join(STATES)}")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{path} is damaged: {error}") from None
    return found


class Entry:
    """One course: its folder, where it is, and what happened lately."""

    def __init__(self, path: Path, status: Status, changed: Callable[[], None], say: Callable[[str], None]) -> None:
        self.path, self.status = path, status
        self.cancelled = threading.Event()
        self._changed, self._say = changed, say
        self._lock = threading.Lock()
        self._events: deque[CourseEvent] = deque(maxlen=MAX_EVENTS)
        self._num_events = 0
        self._saved = 0.0
        self._save_failed = False

    @property
    def is_open(self) -> bool:
        """Whether the course is still to be run, or to be run on."""
        return self.status.state in OPEN

    def events(self, after: int) -> tuple[CourseEvent, ...]:
        """Return what happened after an event, as far as it is kept."""
        with self._lock:
            return tuple(event for event in self._events if event.number > after)

    def tell(self, text: str) -> None:
        """Keep a text for the operators."""
        self._add(CourseEvent(0, foreign(text, MAX_TEXT), self.status.round, None, None, 0, 0))

    def round_done(self, round: int, loss: float | None, score: float | None, up: int, down: int) -> None:
        """Keep a round's figures for the operators."""
        self.status = replace(self.status, round=round)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self._save()
        self._add(CourseEvent(0, "", round, loss, score, up, down))

    def become(
        self, state: str, reason: str = "", *, number: int | None = None, silently: bool = False, fault: str = ""
    ) -> None:
        """Change the state; it is saved before anybody is told. With a number, it takes another place in the queue."""
        reason = foreign(reason, MAX_TEXT)
        number = self.status.number if number is None else number
        now = round(time.time(), 3)
        self.status = replace(self.status, state=state, reason=reason, number=number, changed=now, fault=fault)
        self._save()
        if not silently:
            self.tell(f"{state}: {reason}" if reason else state)

    def _add(self, event: CourseEvent) -> None:
        with self._lock:
            self._num_events += 1
            self._events.append(replace(event, number=self._num_events))
        self._changed()

    def _save(self) -> None:
        self._saved = time.monotonic()
        try:
            write_status(self.path, self.status)
        except OSError as error:  # a full disk must not end the course; what it needs to go on is in its checkpoint
            if not self._save_failed:
                self._say(f"{self.path / STATUS_FILE} cannot be written: {error.strerror or error}")
            self._save_failed = True


def write_status(path: Path, status: Status) -> None:
    """Write a status file in place of the one before."""
    replace_file(path / STATUS_FILE, json.dumps(dataclasses.asdict(status), indent=2).encode())


class Ledger:
    """All courses of a server, in the order of their submission."""

    def __init__(self, runs: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self.runs, self.say = runs, say
        self.life = secrets.token_hex(8)
        self.changed = threading.Condition()
        self.entries: list[Entry] = []
        self.left: set[str] = set()  # open courses that this server leaves alone
        for file in sorted(runs.glob(f"[!.]*/{STATUS_FILE}")):  # with a dot: a folder that was not finished
            try:
                self._append(file.parent, read_status(file))
            except BadInput as error:
                say(f"a course is left alone: {error}")
        self.entries.sort(key=lambda entry: entry.status.number)

    def _append(self, path: Path, status: Status) -> Entry:
        entry = Entry(path, status, self._notify, self.say)
        self.entries.append(entry)
        return entry

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def add(
        self, course: Course, sites: tuple[str, ...], operator: str, submission: str, study: str = "", until: int = 0
    ) -> Entry:
        """Put a course at the end of the queue; one that was submitted before is given back as it is.

        One that is frozen goes on, where it is wanted for more rounds than it has.
        """
        for entry in self.entries:
            if entry.status.submission == submission:
                if entry.status.state == FROZEN and (until == 0 or until > entry.status.round):
                    entry.status = replace(entry.status, until=until)
                    self.requeue(entry)
                return entry
        status = Status(
            course_id=secrets.token_hex(16),
            submission=submission,
            operator=operator,
            algorithm=name_of(type(course.algorithm)),
            sites=sites,
            rounds=course.rounds,
            number=1 + max((entry.status.number for entry in self.entries), default=0),
            submitted=round(time.time(), 3),
            changed=round(time.time(), 3),
            study=study,
            until=until,
        )
        path = new_run_path(self.runs, status.algorithm.replace(":", "_"))
        with new_folder(path) as temporary:
            replace_file(temporary / ID_FILE, status.course_id.encode())
            replace_file(temporary / COURSE_FILE, course_to_yaml(course).encode())
            write_status(temporary, status)
        entry = self._append(path, status)
        self._notify()
        return entry

    def find(self, course_id: str) -> Entry:
        """Return a course by its id."""
        for entry in self.entries:
            if entry.status.course_id == course_id:
                return entry
        raise BadInput(f"the server has no course {course_id[:40]!r}; isthmus courses KIT lists those it has")

    def waiting(self) -> list[Entry]:
        """Return the courses that are open, and not left alone, in their order."""
        return [entry for entry in list(self.entries) if entry.is_open and entry.status.course_id not in self.left]

    def next(self) -> Entry | None:
        """Return the course that is run next."""
        return next(iter(self.waiting()), None)

    def requeue(self, entry: Entry) -> None:
        """Let a course that failed or was cancelled go on from its checkpoint, after those that wait."""
        entry.cancelled.clear()
        number = 1 + max(other.status.number for other in self.entries)
        entry.become(QUEUED, number=number)
        self.entries.sort(key=lambda other: other.status.number)

    def facts(self, entry: Entry) -> CourseStatus:
        """Return where a course is, for operators."""
        shared = {each.name: getattr(entry.status, each.name) for each in fields(CourseStatus) if each.name != "place"}
        times = {name: float(shared[name]) for name in ("submitted", "changed")}
        before = [other for other in self.waiting() if other.status.number < entry.status.number]
        return CourseStatus(**{**shared, **times, "place": len(before) if entry.is_open else 0})
