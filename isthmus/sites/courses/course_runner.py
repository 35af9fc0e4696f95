"""Runs the courses of a ledger, one at a time, and keeps in their status what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isthmus.core.errors import IsthmusError
from isthmus.core.training import Callback
from isthmus.runs.life import Result
from isthmus.sites.courses.hub import Hub
from isthmus.sites.courses.ledger import CANCELLED, DONE, FAILED, PAUSED, RUNNING, Entry, Ledger
from isthmus.sites.courses.reporter import Reporter
from isthmus.sites.courses.site_course import Patience, SiteCourse, course_of

LEFT = "left by an earlier server; it goes on when the server is started without --no-resume"
STOPPED = "the server was stopped; the course goes on when it is started again"


class Cancelled(IsthmusError):
    """An operator has cancelled the course; a checkpoint is left like after any error."""

    def __init__(self) -> None:
        super().__init__("the course was cancelled by an operator; its checkpoint stays")


class CourseRunner:
    """Runs courses on the sites of a hub; `current` is the one that runs now."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.current: Entry | None = None

    def take_up(self, ledger: Ledger) -> None:
        """Say what an earlier server left, which is run before anything new."""
        for entry in ledger.entries:
            if entry.is_open:
                self.say(f"takes up {entry.path} ({entry.status.state})")

    def serve_one(self, entry: Entry, hub: Hub, patience: Patience | None = None) -> None:
        """Run a course of an operator's; whatever becomes of it, the server goes on."""
        try:
            self.carry_out(entry, hub, patience)
        except Exception:
            return  # its status has the reason
        self.say(f"finished: {entry.path}")

    def carry_out(
        self, entry: Entry, hub: Hub, patience: Patience | None = None, callbacks: Sequence[Callback] = ()
    ) -> Result:
        """Run a course from where it is."""

        def say(text: str) -> None:
            self.say(text)
            entry.tell(text)

        def pause(reason: str) -> None:
            entry.become(PAUSED if reason else RUNNING, reason, silently=True)  # the course says it itself

        def check() -> None:
            if entry.cancelled.is_set():
                raise Cancelled

        self.current, hub.check = entry, check
        entry.become(RUNNING)
        try:
            course = SiteCourse(
                course_of(entry.path),
                hub,
                entry.status.sites,
                entry.path,
                patience=patience,
                callbacks=[Reporter(entry), *callbacks],
                say=say,
                on_pause=pause,
                check=check,
            )
            result = course.resume()
        except Cancelled:
            self._ended(entry, CANCELLED, "by an operator; its checkpoint stays")
            raise
        except IsthmusError as error:
            self._ended(entry, FAILED, str(error))
            raise
        except Exception as error:  # a course that breaks must not end the server
            self._ended(entry, FAILED, f"{type(error).__name__}: {error}")
            raise
        except KeyboardInterrupt:
            entry.become(PAUSED, STOPPED)
            raise
        finally:
            self.current, hub.check = None, lambda: None
        entry.become(DONE)
        return result

    def _ended(self, entry: Entry, state: str, reason: str) -> None:
        self.say(f"{state}: {entry.path}: {reason}")
        entry.become(state, reason)


def leave_alone(ledger: Ledger) -> None:
    """Leave what an earlier server has not finished as it is, as long as this one runs."""
    for entry in ledger.entries:
        if entry.is_open:
            entry.become(PAUSED, LEFT)
            ledger.leave(entry)
