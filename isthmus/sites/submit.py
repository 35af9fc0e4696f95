"""The operator's process: it hands courses to the server, lists, follows, cancels them, and brings results home."""

from __future__ import annotations

import queue
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput, BadMessage, CourseFailed
from isthmus.core.outside import foreign
from isthmus.core.record import Record, foreign_texts
from isthmus.runs.folder import RunFolder
from isthmus.sites.courses import desk, messages
from isthmus.sites.courses.ledger import CANCELLED, DONE, FROZEN, OF_ITS_STUDY, OPEN
from isthmus.sites.courses.transfer import take_folder
from isthmus.sites.parties.admission import Entrance, connection_problem, wait_for_server
from isthmus.sites.parties.certificates import SERVER, require_engine
from isthmus.sites.parties.kit import Kit, hold

# How long a server that does not listen yet is waited for: where processors are slow or few, it imports for minutes.
START_SECONDS = 180.0
CONNECT_SECONDS = 30.0
RETRY_SECONDS = 10.0  # above the time for which the server holds a question for news
PATIENCE_SECONDS = 60.0
MAX_ANSWER_BYTES = 1 << 24
MAX_DAMAGED = 20  # answers to one question that cannot be read
MAX_SAID = 1000  # characters of a text of the server's
PAUSE_SECONDS = 0.3  # before a question is asked again that could not be sent
SILENCE_SECONDS = 3600.0  # how long an operator who follows a course waits for a server that is gone

R = TypeVar("R", bound=Record)
OnEvent = Callable[[messages.CourseEvent], None]
OnStatus = Callable[[messages.CourseStatus], None]


class Operator:
    """What an operator can do, over a line to the server."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def courses(self) -> tuple[messages.CourseStatus, ...]:
        """Return all courses at the server, first submitted first."""
        return self.line.ask(desk.LIST, messages.ListCourses(), messages.Courses).courses

    def sites(self) -> tuple[str, ...]:
        """Return who takes part in a course that is submitted now; an operator's kit may be older than that."""
        return self.line.ask(desk.LIST, messages.ListCourses(), messages.Courses).sites

    def find(self, prefix: str) -> messages.CourseStatus:
        """Return the course whose id begins with `prefix`; without one, the only course that is not over."""
        found = self.courses()
        if not prefix:
            going = [course for course in found if course.state in OPEN]
            if len(going) != 1:
                raise BadInput(f"{len(going)} courses are queued or running; name one by its id")
            return going[0]
        fitting = [course for course in found if course.course_id.startswith(prefix)]
        if len(fitting) != 1:
            known = ", ".join(course.course_id[:8] for course in found[-5:]) or "none"
            raise BadInput(f"{len(fitting)} courses have an id that begins with {prefix!r}; the last ones are {known}")
        return fitting[0]

    def submit(self, course: Course, submission: str = "", study: str = "", until: int = 0) -> messages.CourseStatus:
        """Hand a course in; again with the same submission, it is the same course.

        With `until` it is frozen after that round, and goes on when it is handed in again for more. `study` names the
        study that it is a trial of.
        """
        name = submission or secrets.token_hex(16)
        named = messages.Submission(name, course_to_yaml(course), __version__, study, until)
        return self.line.ask(desk.SUBMIT, named, messages.CourseStatus)

    def follow(
        self, course_id: str, on_event: OnEvent, on_status: OnStatus = lambda status: None
    ) -> messages.CourseStatus:
        """Hear what happens in a course until it is over; a server that is gone is waited for."""
        life, after = "", 0
        while True:
            asked = messages.FollowCourse(course_id, life, after)
            news = self.line.ask(desk.FOLLOW, asked, messages.News, patience_seconds=SILENCE_SECONDS)
            if news.life != life:
                life, after = news.life, 0
            for event in news.events:
                if event.number > after:
                    after = event.number
                    on_event(event)
            on_status(news.status)
            if news.status.state not in OPEN:
                return news.status

    def cancel(self, course_id: str) -> messages.CourseStatus:
        """Tell the server to end a course; its checkpoint stays."""
        return self.line.ask(desk.CANCEL, messages.AskCourse(course_id), messages.CourseStatus)

    def resume(self, course_id: str) -> messages.CourseStatus:
        """Tell the server to go on with a course that failed or was cancelled."""
        return self.line.ask(desk.RESUME, messages.AskCourse(course_id), messages.CourseStatus)

    def fetch(self, course_id: str, run_dir: Path) -> None:
        """Bring the run folder of a course that is over to `run_dir`, whole or not at all."""
        RunFolder.check_new(run_dir)
        manifest = self.line.ask(desk.FILES, messages.AskCourse(course_id), messages.Manifest)

        def ask(name: str, offset: int) -> messages.FilePart:
            return self.line.ask(desk.PART, messages.AskPart(course_id, name, offset), messages.FilePart)

        take_folder(manifest, course_id, ask, run_dir)
        self.line.ask(desk.TAKEN, messages.AskCourse(course_id), messages.Receipt)


class NoAnswer(CourseFailed):
    """The server stopped answering; what it is about may go on there."""


def finished(status: messages.CourseStatus) -> messages.CourseStatus:
    """Return the status of a course that is done; one that ended otherwise is an error."""
    if status.state == FROZEN:
        raise CourseFailed(f"the course {status.course_id[:8]} is frozen {status.reason}: {OF_ITS_STUDY}")
    if status.state != DONE:
        ended = "was cancelled" if status.state == CANCELLED else "failed:"
        raise CourseFailed(f"the course {status.course_id[:8]} {ended} {status.reason}")
    return status


@contextmanager
def connected(kit: Kit, say: Callable[[str], None] = print) -> Iterator[Operator]:
    """Connect to the server with an operator's kit."""
    require_engine("speaking to a federation's server")
    deadline = time.monotonic() + START_SECONDS
    if not wait_for_server(kit, say, lambda: time.monotonic() > deadline):
        problem = connection_problem(kit) or "the server came too late; try again"
        raise BadInput(f"{problem} (waited {START_SECONDS:.0f} s for it)")
    with hold(kit):
        up, entrance = threading.Event(), Entrance(kit, say)

        def came() -> None:
            if up.is_set():
                say("the server is back")
            up.set()

        def hear(peer: str, kind: str, ident: str, data: bytes) -> None:
            line.heard(kind, ident, data)

        link = entrance.link(hear, came, max_bytes=MAX_ANSWER_BYTES)

        def send(kind: str, ident: str, data: bytes) -> str:
            entrance.check()
            return link.send(SERVER, kind, ident, data)

        line = Line(send)
        try:
            deadline = time.monotonic() + CONNECT_SECONDS
            while not up.wait(0.2):
                entrance.check()
                if time.monotonic() > deadline:
                    raise NoAnswer(f"the server did not greet within {CONNECT_SECONDS:.0f} s")
            yield Operator(line)
        finally:
            link.stop()


class Line:
    """Asks over `send(kind, ident, data)`, which returns why a message could not be sent; `heard` takes answers."""

    def __init__(self, send: Callable[[str, str, bytes], str], retry_seconds: float = RETRY_SECONDS) -> None:
        self._send, self.retry_seconds = send, retry_seconds
        self._lock = threading.Lock()
        self._open: dict[str, queue.Queue[bytes]] = {}

    def heard(self, kind: str, ident: str, data: bytes) -> None:
        """Take an answer; one that nobody waits for is dropped."""
        with self._lock:
            answers = self._open.get(ident)
        if kind == "answer" and answers is not None:
            answers.put(data)

    def ask(self, kind: str, question: Record, reply: type[R], *, patience_seconds: float = PATIENCE_SECONDS) -> R:
        """Ask the server and return its reply; asked again until one comes that can be read."""
        answers: queue.Queue[bytes] = queue.Queue()
        deadline = time.monotonic() + patience_seconds
        ident, damaged = uuid.uuid4().hex, 0  # the same for all tries: an answer to an earlier one is as good
        with self._lock:
            self._open[ident] = answers
        try:
            while time.monotonic() < deadline:
                if self._send(kind, ident, encode(question)):
                    time.sleep(PAUSE_SECONDS)
                    continue
                try:
                    seconds = min(self.retry_seconds, deadline - time.monotonic())
                    problem, content = messages.open_answer(answers.get(timeout=max(seconds, 0.001)))
                    if problem:
                        raise BadInput(f"the server says: {foreign(problem, MAX_SAID)}")
                    return foreign_texts(decode(content, reply), MAX_SAID)
                except queue.Empty:
                    continue
                except BadMessage as error:
                    damaged += 1
                    if damaged >= MAX_DAMAGED:
                        raise CourseFailed(f"the server's answers to {kind!r} cannot be read: {error}") from None
        finally:
            with self._lock:
                del self._open[ident]
        raise NoAnswer(f"the server has not answered for {patience_seconds:.0f} s")
