"""The server's process: it runs courses on the sites, its own or those that the operator submits."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.config.tables import name_of
from isthmus.core.codec import decode, encode, pack
from isthmus.core.course import RoundReport, weighted_metric
from isthmus.core.errors import BadInput, BadMessage, IsthmusError, MissingExtra
from isthmus.core.federation import ExchangeReport
from isthmus.federation.course import Patience, SiteCourse, course_of
from isthmus.federation.kit import OPERATOR, Kit
from isthmus.federation.messages import News, Receipt, RunFile, Submission
from isthmus.federation.preflight import clock_problem, port_problem
from isthmus.federation.service import read_course
from isthmus.monitor.folder import new_run_path
from isthmus.results import Result
from isthmus.runs import Watcher


class Server:
    """A federation's server: listens from the moment it is made until `stop`; "0" is every interface."""

    def __init__(self, kit: Kit, *, interface: str = "0", say: Callable[[str], None] = print) -> None:
        try:
            from isthmus.runtime.flare.link import Credentials, LinkHub
        except ImportError:
            raise MissingExtra("nvflare", "sites", "serving a federation") from None
        for problem in (clock_problem(kit), port_problem(kit.port)):
            if problem:
                raise BadInput(problem)
        self.kit, self.say = kit, say
        self._submitted: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._cancelled = False
        self.hub = LinkHub(
            f"{interface}:{kit.port}",
            Credentials(kit.root, kit.certificate, kit.key),
            {*kit.sites, OPERATOR},
            on_unasked=self._unasked,
            on_change=lambda peer, what: say(f"{peer} {what}"),
        )

    def stop(self) -> None:
        """Close every connection."""
        self.hub.stop()

    def run(
        self, course: Course, run_dir: Path, *, patience: Patience | None = None, watchers: Sequence[Watcher] = ()
    ) -> Result:
        """Run one course."""
        return self._course(course, run_dir, patience, watchers).run()

    def resume(self, run_dir: Path, *, patience: Patience | None = None, watchers: Sequence[Watcher] = ()) -> Result:
        """Go on with a run."""
        return self._course(course_of(run_dir), run_dir, patience, watchers).resume()

    def _course(
        self, course: Course, run_dir: Path, patience: Patience | None, watchers: Sequence[Watcher]
    ) -> SiteCourse:
        return SiteCourse(course, self.hub, self.kit.sites, run_dir, patience=patience, watchers=watchers, say=self.say)

    # ---- courses of the operator's

    def serve(self, runs: Path, *, patience: Patience | None = None, once: bool = False) -> None:
        """Wait for courses from the operator and run them, one after the other; `runs` is where their folders go."""
        self.say(f"listening on port {self.kit.port} for {', '.join(self.kit.sites)} and the operator")
        while True:
            try:
                ident, data = self._submitted.get(timeout=0.2)
            except queue.Empty:
                continue
            self._serve_one(ident, data, runs, patience)
            if once:
                return

    def _serve_one(self, ident: str, data: bytes, runs: Path, patience: Patience | None) -> None:
        try:
            submission: Submission = decode(data, Submission)
            if submission.version != __version__:
                raise BadInput(
                    f"the operator runs isthmus {submission.version}, the server {__version__}; install the same"
                )
            course = read_course(submission.course)
        except (BadMessage, BadInput, ValueError) as error:
            self.hub.link.send(OPERATOR, "answer", ident, encode(Receipt(str(error))))
            return
        self.hub.link.send(OPERATOR, "answer", ident, encode(Receipt("")))
        path = new_run_path(runs, name_of(type(course.algorithm)))
        self._cancelled = False
        reporter = _Reporter(self)
        problem = ""
        try:
            result = self.run(course, path, patience=patience, watchers=[reporter])
            reporter.send(result.events)
        except _Cancelled:
            problem = f"cancelled by the operator; the server's run folder {path} can be resumed"
        except IsthmusError as error:
            problem = str(error)
        except Exception as error:  # a course that breaks must not end the server
            problem = f"{type(error).__name__}: {error}"
        self.say(problem or f"finished: {path}")
        self._bring(path, problem)

    def _bring(self, path: Path, problem: str) -> None:
        """Bring the run folder to the operator."""
        for file in sorted(path.iterdir()) if path.is_dir() else []:
            if file.is_file():
                self.hub.tell(OPERATOR, "file", encode(RunFile(file.name, pack(file.read_bytes()), "")))
        self.hub.tell(OPERATOR, "file", encode(RunFile("", pack(b""), problem)))

    def _unasked(self, peer: str, kind: str, ident: str, data: bytes) -> None:
        if peer == OPERATOR and kind == "submit":
            self._submitted.put((ident, data))
        elif peer == OPERATOR and kind == "cancel":
            self._cancelled = True
        else:
            self.say(f"{peer} said something that nobody asked for; ignored")

    def check_cancelled(self) -> None:
        """Raise if the operator has cancelled the course."""
        if self._cancelled:
            raise _Cancelled


class _Cancelled(IsthmusError):
    """The operator has cancelled the course; a checkpoint is left like after any error."""


class _Reporter:
    """A watcher that sends the operator what happens."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._up = self._down = 0

    def exchanged(self, report: ExchangeReport) -> None:
        """Count bytes; stop if the operator said so."""
        self._up += report.bytes_up
        self._down += report.bytes_down
        self.server.check_cancelled()

    def round_done(self, report: RoundReport) -> None:
        """Send the round's numbers."""
        metric = weighted_metric(report.evaluations, "train", "loss")
        self._tell(
            {
                "round": report.round,
                "loss": None if metric != metric else metric,
                "score": report.score,
                "bytes_up": self._up,
                "bytes_down": self._down,
            }
        )

    def send(self, events: list[dict[str, Any]]) -> None:
        """Send the last words of the journal."""
        self._tell({"end": [event for event in events if event["event"] == "end"]})

    def _tell(self, fact: dict[str, Any]) -> None:
        self.server.hub.tell(OPERATOR, "news", encode(News(json.dumps(fact))))
