"""The server's desk: it answers what operators ask about courses, and takes new ones."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isthmus import __version__
from isthmus.core.codec import decode
from isthmus.core.errors import BadInput, BadMessage, IsthmusError
from isthmus.core.record import Record
from isthmus.sites.courses import messages
from isthmus.sites.courses.ledger import CANCELLED, FROZEN, OF_ITS_STUDY, OPEN, QUEUED, Entry, Ledger
from isthmus.sites.courses.own_graph import require_own_graph
from isthmus.sites.courses.site_course import for_sites, refuse_meaningless
from isthmus.sites.courses.transfer import manifest_of, part_of
from isthmus.sites.silo.service import read_course
from isthmus.sites.silo.studies import names_study

SUBMIT, LIST, FOLLOW, CANCEL, RESUME = "submit", "courses", "follow", "cancel", "resume"
FILES, PART, TAKEN = "files", "part", "taken"
HOLD_SECONDS = 5.0  # how long a question for news waits for some
MAX_QUESTIONS = 64  # that wait to be answered; an operator asks again what is left out
MAX_QUESTION_BYTES = 10**6
_SUBMISSION = re.compile(r"[0-9a-f]{16,64}")


@dataclass(frozen=True)
class _Question:
    operator: str
    kind: str
    ident: str
    data: bytes
    until: float


@dataclass(eq=False)
class Desk:
    """Answers operators from a ledger. All of them may do the same; nothing is kept for one who does not ask."""

    ledger: Ledger
    sites: tuple[str, ...]
    reply: Callable[[str, str, bytes], None] = lambda operator, ident, data: None
    say: Callable[[str], None] = lambda text: None
    graph: Path | None = None  # a folder of the server's own

    def __post_init__(self) -> None:
        self.taken: set[str] = set()  # courses whose folders an operator has
        self.last_question = time.monotonic()
        self._waiting: deque[_Question] = deque()
        self._held: dict[str, _Question] = {}  # of each operator the last question for news
        self._stopped = False

    # ---- questions, one at a time

    def answer(self, operator: str, kind: str, data: bytes) -> bytes:
        """Answer a question; whatever it brings about is told, and never ends the server."""
        try:
            return messages.desk_answer("", self._reply(operator, kind, data))
        except Exception as error:
            problem = str(error) if isinstance(error, IsthmusError) else f"{type(error).__name__}: {error}"
            return messages.desk_answer(problem[:1000])

    def _reply(self, operator: str, kind: str, data: bytes) -> Record:
        self.last_question = time.monotonic()
        if kind == SUBMIT:
            return self._submit(operator, decode(data, messages.Submission, max_bytes=MAX_QUESTION_BYTES))
        if kind == LIST:
            decode(data, messages.ListCourses, max_bytes=MAX_QUESTION_BYTES)
            return messages.Courses(tuple(self.ledger.facts(entry) for entry in list(self.ledger.entries)), self.sites)
        if kind == FOLLOW:
            return self._news(decode(data, messages.FollowCourse, max_bytes=MAX_QUESTION_BYTES))
        if kind == PART:
            return self._part(decode(data, messages.AskPart, max_bytes=MAX_QUESTION_BYTES))
        if kind in (CANCEL, RESUME, FILES, TAKEN):
            asked: messages.AskCourse = decode(data, messages.AskCourse, max_bytes=MAX_QUESTION_BYTES)
            entry = self.ledger.find(asked.course_id)
            if kind == CANCEL:
                return self._cancel(operator, entry)
            if kind == RESUME:
                return self._resume(operator, entry)
            if kind == FILES:
                return self._files(entry)
            self.taken.add(asked.course_id)
            return messages.Receipt("")
        raise BadMessage(f"an operator cannot ask for {kind[:40]!r}; is it another version of the package?")

    def _submit(self, operator: str, submission: messages.Submission) -> messages.CourseStatus:
        if submission.version != __version__:
            raise BadInput(
                f"the operator runs isthmus {submission.version[:40]}, the server {__version__}; install the same"
            )
        if not _SUBMISSION.fullmatch(submission.submission):
            raise BadInput(f"{submission.submission[:40]!r} cannot name a submission")
        course = read_course(submission.course)
        refuse_meaningless(course, len(self.sites))
        require_own_graph(course, self.graph)
        study, until = submission.study, submission.until
        if study and not names_study(study):
            raise BadInput(f"{study[:40]!r} cannot name a study")
        if until < 0:
            raise BadInput(f"until is {until}; it must be a round, or 0 for the course's end")
        added = for_sites(course, self.sites)
        entry = self.ledger.add(added, self.sites, operator, submission.submission, study, until)
        facts = self.ledger.facts(entry)
        self.say(f"{operator} submitted a course of {facts.algorithm}: {entry.path}")
        return facts

    def _news(self, follow: messages.FollowCourse) -> messages.News:
        entry = self.ledger.find(follow.course_id)
        after = follow.after if follow.life == self.ledger.life else 0
        # The state first: what led to it is then among the events.
        facts = self.ledger.facts(entry)
        return messages.News(self.ledger.life, facts, entry.events(after))

    def _cancel(self, operator: str, entry: Entry) -> messages.CourseStatus:
        if entry.status.state == CANCELLED:
            return self.ledger.facts(entry)
        if not entry.is_open:
            raise BadInput(f"the course is {entry.status.state}; there is nothing to cancel")
        entry.cancelled.set()
        if entry.status.state == QUEUED:
            entry.become(CANCELLED, f"by {operator}")
        return self.ledger.facts(entry)

    def _resume(self, operator: str, entry: Entry) -> messages.CourseStatus:
        if entry.status.state in OPEN:
            return self.ledger.facts(entry)
        if entry.status.state == FROZEN:
            raise BadInput(f"the course is frozen; {OF_ITS_STUDY}")
        if entry.status.state not in (CANCELLED, "failed"):
            raise BadInput(f"the course is {entry.status.state}; there is nothing to go on with")
        self.ledger.requeue(entry)
        entry.tell(f"taken up again by {operator}")
        return self.ledger.facts(entry)

    def _files(self, entry: Entry) -> messages.Manifest:
        if entry.is_open:
            raise BadInput(
                f"the course is {entry.status.state} (round {entry.status.round} of {entry.status.rounds}); its folder "
                "can be fetched when it is over"
            )
        return manifest_of(entry.path)

    def _part(self, asked: messages.AskPart) -> messages.FilePart:
        entry = self.ledger.find(asked.course_id)
        if entry.is_open:
            raise BadInput(f"the course is {entry.status.state}; its folder can be fetched when it is over")
        return part_of(entry.path, asked.course_id, asked.name, asked.offset)

    # ---- the thread that answers

    def hear(self, operator: str, kind: str, ident: str, data: bytes) -> None:
        """Take a question, from any thread."""
        with self.ledger.changed:
            if len(self._waiting) < MAX_QUESTIONS and len(data) <= MAX_QUESTION_BYTES:
                self._waiting.append(_Question(operator, kind, ident, data, time.monotonic() + HOLD_SECONDS))
                self.ledger.changed.notify_all()

    def work(self) -> None:
        """Answer questions until told to stop."""
        while True:
            with self.ledger.changed:
                if not self._waiting and not self._stopped:
                    self.ledger.changed.wait(0.5 if self._held else None)
                if self._stopped:
                    return
                questions, self._waiting = self._waiting, deque()
            for question in questions:
                if question.kind == FOLLOW:
                    self._held[question.operator] = question
                else:
                    self._answer(question)
            self._answer_held()

    def _answer_held(self) -> None:
        """Answer questions for news where there are some, or where they have waited long enough."""
        for question in list(self._held.values()):
            if self._has_news(question) or time.monotonic() > question.until:
                del self._held[question.operator]
                self._answer(question)

    def _answer(self, question: _Question) -> None:
        self.reply(question.operator, question.ident, self.answer(question.operator, question.kind, question.data))

    def _has_news(self, question: _Question) -> bool:
        try:
            follow: messages.FollowCourse = decode(question.data, messages.FollowCourse, max_bytes=MAX_QUESTION_BYTES)
            news = self._news(follow)
        except IsthmusError:
            return True  # which is an answer too
        return bool(news.events) or news.status.state not in OPEN

    def start(self) -> None:
        """Answer questions in a thread of its own."""
        threading.Thread(target=self.work, name="desk", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        with self.ledger.changed:
            self._stopped = True
            self.ledger.changed.notify_all()
