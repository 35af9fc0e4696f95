"""The server's process: it runs courses on the sites, its own or those that operators submit, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isthmus.config.course import Course
from isthmus.core.errors import BadInput, IsthmusError, TooFewReplies
from isthmus.core.federation import ExchangeReport
from isthmus.core.protocol import Failure, told
from isthmus.core.training import Callback, RoundReport
from isthmus.runs.life import Result
from isthmus.runtime.seldom import Seldom
from isthmus.sites.courses.desk import Desk
from isthmus.sites.courses.hub import Hub
from isthmus.sites.courses.ledger import CANCELLED, DONE, FAILED, FROZEN, PAUSED, RUNNING, STATUS_FILE, Entry, Ledger
from isthmus.sites.courses.messages import desk_answer
from isthmus.sites.courses.site_course import Frozen, Patience, SiteCourse, course_of
from isthmus.sites.parties.admission import Roll, credentials_of, require_port
from isthmus.sites.parties.certificates import REVOKED, SERVER, require_engine
from isthmus.sites.parties.kit import KIT_FILE, Kit, Watch, open_kit

NO_DESK = "this server runs a course of its own; it takes courses of operators when it is started without one"
MAX_COMINGS_SAID = 50  # of one party in a minute: that it is connected, or gone
LEFT = "left by an earlier server; it goes on when the server is started without --no-resume"
STOPPED = "the server was stopped; the course goes on when it is started again"
LINGER_SECONDS = 20.0  # how long a server that ends after one course waits for its operator to fetch the result


class Server:
    """A federation's server: listens from the moment it is made until `stop`; "0" is every interface.

    `graph` is a folder of the server's own, for courses that go by one (`server_share`).
    """

    def __init__(
        self, kit: Kit, *, interface: str = "0", say: Callable[[str], None] = print, graph: Path | None = None
    ) -> None:
        require_engine("serving a federation")
        from isthmus.runtime.flare.link import LinkHub

        self.roll = Roll(kit, say)
        require_port(kit.port)
        self.kit, self.say, self.graph = kit, say, graph
        self.desk: Desk | None = None
        self._runs_its_own = False
        self.runner = CourseRunner(say, graph)
        self._comings = Seldom(say, burst=MAX_COMINGS_SAID)
        self.hub = LinkHub(
            f"{interface}:{kit.port}",
            credentials_of(kit),
            {*kit.sites, *kit.operators},
            on_unasked=self._unasked,
            on_change=self._changed,
            on_up=lambda peer: self.roll.greet(peer, self.hub),
            gate=self.roll.gate(),
        )
        self._watch = Watch([kit.path / KIT_FILE, kit.path / REVOKED], self._read_kit_again)

    def stop(self) -> None:
        """Close every connection."""
        self._watch.stop()
        if self.desk is not None:
            self.desk.stop()
        self.hub.stop()

    def _read_kit_again(self) -> None:
        """Take what changed in the kit while the server runs: who is of the federation, and who is not any more."""
        before = self.kit
        try:
            kit = open_kit(before.path, SERVER)
        except BadInput as error:
            self.say(f"{error}; the server goes on with what it read before")
            return
        if (kit.host, kit.port) != (before.host, before.port):
            self.say(f"{before.path} names another address now; it counts when the server is started again")
        parties = {*kit.sites, *kit.operators}
        # The gate must let nobody in to whom the hub would not listen: a newcomer is heard before it is let in, and
        # one that has to go is let in no more before it is not heard.
        self.hub.set_parties({*parties, *before.sites, *before.operators})
        self.roll.take(kit, self.hub)
        self.hub.set_parties(parties)
        self.kit = kit  # now that whom it names can come in
        if self.desk is not None:
            self.desk.sites = self.kit.sites
        for new in sorted(parties - {*before.sites, *before.operators}):
            self.say(f"{new} is of the federation now")

    def run(
        self, course: Course, run_dir: Path, *, patience: Patience | None = None, callbacks: Sequence[Callback] = ()
    ) -> Result:
        """Run one course."""
        return self._own(course, run_dir, patience, callbacks).run()

    def resume(self, run_dir: Path, *, patience: Patience | None = None, callbacks: Sequence[Callback] = ()) -> Result:
        """Go on with a run."""
        self._runs_its_own = True
        course = course_of(run_dir)
        if (run_dir / STATUS_FILE).is_file():
            ledger = Ledger(run_dir.parent, self.say)
            (entry,) = [entry for entry in ledger.entries if entry.path.name == run_dir.name]
            return self.runner.carry_out(entry, self.hub, patience, callbacks)
        return self._own(course, run_dir, patience, callbacks).resume()

    def _own(
        self, course: Course, run_dir: Path, patience: Patience | None, callbacks: Sequence[Callback]
    ) -> SiteCourse:
        self._runs_its_own = True
        return SiteCourse(
            course,
            self.hub,
            self.kit.sites,
            run_dir,
            patience=patience,
            callbacks=callbacks,
            say=self.say,
            graph=self.graph,
        )

    # ---- courses of operators

    def serve(self, runs: Path, *, patience: Patience | None = None, once: bool = False, take_up: bool = True) -> None:
        """Run the courses that operators submit, in order, after what an earlier server left if `take_up` says so."""
        ledger = Ledger(runs, self.say)
        if not take_up:
            leave_alone(ledger)
        for left in ledger.waiting():  # before anything new
            self.say(f"takes up {left.path} ({left.status.state})")
        self.desk = Desk(ledger, self.kit.sites, self._reply, self.say, self.graph)
        self.desk.start()
        self.say(f"listening on port {self.kit.port} for {', '.join((*self.kit.sites, *self.kit.operators))}")
        while True:
            entry = ledger.next()
            if entry is None:
                with ledger.changed:
                    ledger.changed.wait(0.2)
                continue
            self.runner.serve_one(entry, self.hub, patience)
            if once:
                self._linger(entry)
                return

    def _linger(self, entry: Entry) -> None:
        """Wait until the operator has the result, as long as there is one that asks."""
        assert self.desk is not None
        while entry.status.course_id not in self.desk.taken:
            if time.monotonic() - self.desk.last_question > LINGER_SECONDS:
                return
            time.sleep(0.05)

    # ---- what operators say

    def _unasked(self, peer: str, kind: str, ident: str, data: bytes) -> None:
        if peer not in self.kit.operators:
            self.roll.seldom(f"unasked {peer}", f"{peer} said something that nobody asked for; ignored")
        elif self.desk is not None:
            self.desk.hear(peer, kind, ident, data)
        elif self._runs_its_own:  # otherwise it is about to serve, and operators ask again
            self._reply(peer, ident, desk_answer(NO_DESK))

    def _reply(self, operator: str, ident: str, data: bytes) -> None:
        # One that does not read must not keep the others waiting; it asks again.
        self.hub.link.send(operator, "answer", ident, data, patience_seconds=0.0)

    def _changed(self, peer: str, what: str) -> None:
        self._comings(peer, f"{peer} {what}")
        if self.runner.current is not None and peer in self.runner.current.status.sites:
            self.runner.current.tell(f"{peer} {what}")


class Cancelled(IsthmusError):
    """An operator has cancelled the course; a checkpoint is left like after any error."""


class CourseRunner:
    """Runs courses on the sites of a hub; `current` is the one that runs now."""

    def __init__(self, say: Callable[[str], None] = print, graph: Path | None = None) -> None:
        self.say, self.graph = say, graph
        self.current: Entry | None = None

    def serve_one(self, entry: Entry, hub: Hub, patience: Patience | None = None) -> None:
        """Run a course of an operator's; whatever becomes of it, the server goes on."""
        try:
            self.carry_out(entry, hub, patience)
        except Frozen as error:
            self.say(f"{error}: {entry.path}")
            return
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
                raise Cancelled("the course was cancelled by an operator; its checkpoint stays")

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
                graph=self.graph,
                study=entry.status.study,
                until=entry.status.until,
            )
            result = course.resume()
        except Frozen as error:
            entry.become(FROZEN, str(error).removeprefix("frozen "))
            raise
        except Cancelled:
            self._ended(entry, CANCELLED, "by an operator; its checkpoint stays")
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, IsthmusError) else f"{type(error).__name__}: {error}"
            self._ended(entry, FAILED, reason, "course" if isinstance(error, TooFewReplies) else "")
            raise
        except KeyboardInterrupt:
            entry.become(PAUSED, STOPPED)
            raise
        finally:
            self.current, hub.check = None, lambda: None
        entry.become(DONE)
        return result

    def _ended(self, entry: Entry, state: str, reason: str, fault: str = "") -> None:
        self.say(f"{state}: {entry.path}: {reason}")
        entry.become(state, reason, fault=fault)


def leave_alone(ledger: Ledger) -> None:
    """Leave what an earlier server has not finished as it is, as long as this one runs."""
    for entry in ledger.waiting():
        entry.become(PAUSED, LEFT)
        ledger.left.add(entry.status.course_id)


class Reporter(Callback):
    """A callback that writes into a course's entry; a failure that goes on is told once."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._up = self._down = 0
        self._failing: dict[str, tuple[str, str]] = {}  # client -> kind and reason

    def exchanged(self, report: ExchangeReport) -> None:
        """Count bytes; tell who fails from now on."""
        self._up += report.bytes_up
        self._down += report.bytes_down
        failing = {failure.client: (failure.kind, failure.reason) for failure in report.failures}
        new: list[Failure] = [f for f in report.failures if self._failing.get(f.client) != failing[f.client]]
        for line in told(new):
            self.entry.tell(f"round {report.position.round}, {report.request}: {line}")
        self._failing = failing

    def round_done(self, report: RoundReport) -> None:
        """Tell the round's figures."""
        self.entry.round_done(report.round, report.train_loss, report.score, self._up, self._down)
