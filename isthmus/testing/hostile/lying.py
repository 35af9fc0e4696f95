"""Whether an algorithm stands a client that lies: through bytes, and between sites, whatever it says.

    check_lies_in_bytes(MyMethod(my_field=3))
    check_lies_between_sites(MyMethod(my_field=3), tmp_path)
    check_stale_messages(MyMethod(my_field=3), tmp_path)

Each raises AssertionError that says which lie got through, and returns how many were told. By default one lie is told
about each field of each reply; `lies=lies_about` tells all there are. In process, `check_lies` of the conformance
checks tells them too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from isthmus.config.course import Course
from isthmus.core.codec import encode, pack
from isthmus.core.federation import ExchangeReport
from isthmus.core.outside import MAX_TEXT
from isthmus.core.protocol import Algorithm, Failure, Position, Request, reply_type
from isthmus.core.record import Record, leaves, non_finite_leaf
from isthmus.runtime.envelope import BLANK, Answer, Enclosure, Envelope
from isthmus.testing.hostile.counting import Meter
from isthmus.testing.hostile.lies import Dishonest, HostileSilo, Interposed, Liar, Lie, some_lies_about
from isthmus.testing.hostile.sites import AnySilo, SiteTrace, World, kinds_of, toy_world, trace_sites
from isthmus.testing.traces import Trace, require_same, trace_course

Given = tuple[str, Position, Any]  # kind of request, where, and what was answered
Place = tuple[str, Position]
Lies = Callable[[Record], Sequence[Lie]]


def require_found_out(trace: Trace | SiteTrace, liar: Dishonest) -> None:
    """Raise AssertionError unless a liar was named wherever it had to be, and nobody else was harmed."""
    said = ", ".join(f"{told.lie.place}: {told.lie.how}" for told in liar.told)
    lied = f"{liar.client} lied about {liar.request} ({said})"
    _require_nobody_else_failed(trace.exchanges, liar, lied)
    if trace.ended_by is not None:
        raise AssertionError(f"{lied}, and the course ended: {trace.ended_by}")
    _require_noticed(trace.exchanges, liar)
    end = trace.state if isinstance(trace, Trace) else trace.params
    place = non_finite_leaf(leaves(end, "the server's state"))
    if place:
        raise AssertionError(f"{lied}, and {place}")


def _require_nobody_else_failed(exchanges: Sequence[ExchangeReport], liar: Dishonest, lied: str) -> None:
    for report, failure in ((each, failure) for each in exchanges for failure in each.failures):
        if failure.client != liar.client:
            raise AssertionError(
                f"{lied}; then, in round {report.position.round}, {report.request} failed at {failure.client}: "
                f"{failure.reason}"
            )
        if len(failure.reason) > MAX_TEXT or not failure.reason.isprintable():
            raise AssertionError(f"a failure of {liar.client} has the reason {failure.reason[:80]!r}...")


def _require_noticed(exchanges: Sequence[ExchangeReport], liar: Dishonest) -> None:
    named = {(r.position, r.request) for r in exchanges for f in r.failures if f.client == liar.client}
    asked = {r.position: r.request for r in exchanges}
    for told in liar.told:
        request = liar.request if liar.request in asked.values() else asked.get(told.position, "")
        if told.lie.certain and (told.position, request) not in named:
            raise AssertionError(
                f"{liar.client} answered {request} with {told.lie.place}: {told.lie.how}, and nobody noticed; "
                f"say in {request}.misfit or .problem what the reply must be"
            )


# ---- through bytes


def check_lies_in_bytes(algorithm: Algorithm[Any], world: World | None = None, *, lies: Lies = some_lies_about) -> int:
    """Check what `check_lies` does in the strict runtime: every lie is bytes that the server has to read."""
    world = world or toy_world()
    course = world.course(algorithm, runtime="strict")
    clean = trace_course(replace(course, runtime="loop"), world.scenario)
    return tell_lies(clean, lies, lambda liar: trace_course(course, world.scenario, liar=liar))


def check_stale_replies(algorithm: Algorithm[Any], world: World | None = None) -> int:
    """Check that replies of before, of another request and of another course harm nobody, in the strict runtime.

    One that is of another kind must be a named failure.
    """
    world = world or toy_world()
    course = world.course(algorithm, runtime="strict")
    another = trace_course(replace(course, runtime="loop"), world.scenario, seed=course.seed + 1)
    number = 0
    for client in (another.clients[0], another.clients[-1]):
        theirs: list[Given] = [
            (type(m.request).__name__, m.position, m.outcome.reply) for m in another.messages if m.client == client
        ]
        for stale in (Stale(client), Stale(client, other_kind=True), Stale(client, given=theirs, foreign=True)):
            trace = trace_course(course, world.scenario, liar=stale)
            require_found_out(trace, stale)
            number += len(stale.told)
    return number


# ---- between sites


def check_lies_between_sites(
    algorithm: Algorithm[Any], folder: Path, world: World | None = None, *, lies: Lies = some_lies_about
) -> int:
    """Check the same lies between sites, all through bytes; what it takes to receive and to judge each is counted."""
    world = world or toy_world()
    course = world.course(algorithm)
    clean = trace_course(course, world.scenario)
    kinds = list(kinds_of(course))

    def between_sites(liar: Liar) -> SiteTrace:
        silos = world.silos(folder / "silos")
        silos[liar.client] = HostileSilo(silos[liar.client], liar, kinds)
        trace = trace_sites(course, silos, folder / f"{liar.request}-{liar.start}", meter=meter)
        trace.require_within_bounds()
        return trace

    trace_sites(course, world.silos(folder / "silos"), folder / "first")  # what is built once is built
    with Meter() as meter:
        return tell_lies(clean, lies, between_sites)


def check_stale_messages(algorithm: Algorithm[Any], folder: Path, world: World | None = None) -> int:
    """Check that messages of before are named failures, and that the course is as if that client had failed there.

    Also that an answer that comes twice counts once. Returns the number of messages that were out of place.
    """
    world = world or toy_world()
    course = world.course(algorithm)
    recorded = {site: RecordingSilo(silo) for site, silo in world.silos(folder / "another").items()}
    trace_sites(replace(course, seed=course.seed + 1), recorded, folder / "another" / "run")
    honest = trace_sites(course, world.silos(folder / "honest"), folder / "honest" / "run")
    twice = trace_sites(
        course, world.silos(folder / "twice"), folder / "twice" / "run", deliver=lambda site, kind, answer: [answer] * 2
    )
    require_same(_seen(honest), _seen(twice), "a course in which every answer comes twice is another one")
    number = len(honest.exchanges) * len(recorded)
    sites = cycle((next(iter(recorded)), list(recorded)[-1]))
    for choice, site in zip(CHOICES, sites, strict=False):
        stale = partial(StaleSilo, choice=choice, others=recorded[site].given if choice == "another course" else ())
        number += _check_stale(world, course, site, stale, folder / choice)
    return number


def _check_stale(world: World, course: Course, site: str, make: Callable[[Any], StaleSilo], folder: Path) -> int:
    silos = world.silos(folder / "stale")
    stale = make(silos[site])
    trace = trace_sites(course, {**silos, site: stale}, folder / "run")
    what = f"{site} answered with messages of {stale.choice}"
    if trace.ended_by is not None:
        raise AssertionError(f"{what}, and the course ended: {trace.ended_by}")
    named: list[tuple[str, Position]] = []
    for report, failure in trace.failures:
        if failure.client != site:
            raise AssertionError(f"{what}; {report.request} failed at {failure.client}: {failure.reason}")
        named.append((report.request, report.position))
    accepted = [place for place in stale.told if place not in named]
    if accepted:
        kind, at = accepted[0]
        raise AssertionError(f"{what}; the one to {kind} in round {at.round} was accepted")
    silos = world.silos(folder / "failing")
    failing = trace_sites(course, {**silos, site: FailingSilo(silos[site], stale.told)}, folder / "failing-run")
    require_same(_seen(failing), _seen(trace), f"{what}; the course is not the one in which it failed there")
    return len(stale.told)


def _seen(trace: SiteTrace) -> dict[str, Any]:
    """Return what must be the same to the bit in two courses that are the same."""
    scores = {f"the scores of round {number}": dict(found) for number, found in trace.scores.items()}
    return {"the global model": trace.params, **scores}


# ---- one lie after the other


def tell_lies(clean: Trace, lies: Lies, course: Callable[[Liar], Trace | SiteTrace]) -> int:
    """Tell every lie about every kind of request of an honest course, in as many courses as that takes.

    The first client tells them and the last, in turn. Raises AssertionError if one gets through; returns their number.
    """
    if clean.ended_by is not None:
        raise AssertionError(f"the honest course ended: {clean.ended_by}")
    number = 0
    for kind, message in clean.first_messages().items():
        assert isinstance(message.outcome.reply, Record)
        told = 0
        while told < len(lies(message.outcome.reply)):  # none, where none of a kind was asked for
            liar = Liar(clean.clients[0 if told % 2 == 0 else -1], kind, lies, told)
            require_found_out(course(liar), liar)
            if not liar.told:
                raise AssertionError(f"{kind} was sent to {liar.client} in one course and not in the next")
            told += len(liar.told)
        number += told
    return number


# ---- a client whose replies are out of place: those of an earlier round, to another request, of another course
#
# A reply that is put into a new message cannot be told from one that was made for it, if it is of the right kind: a
# client may train on whatever it likes. `Stale` does that; nobody but the client itself may suffer from it. A message
# that is sent again as it was (`StaleSilo`) is told by the name of the question that it answers, and must be a named
# failure: the course then is the one in which that client failed there (`FailingSilo`), to the bit.


@dataclass
class Stale(Dishonest):
    """A client that answers with a reply that it has given already, wherever it has one.

    Fields:
        other_kind: whether to take replies to another kind of request, in place of earlier ones to the same
        given:      what there is to choose from; its own replies are added, unless it is somebody else's (`foreign`)
        foreign:    whether `given` is of another course
    """

    request: str = field(default="everything", init=False)
    other_kind: bool = False
    given: list[Given] = field(default_factory=list)
    foreign: bool = False

    def lie_about(self, position: Position, request: Request[Any], reply: Record) -> Lie | None:
        """Return the latest reply that there is, or the true one."""
        kind = type(request).__name__
        old = next((r for k, _, r in reversed(self.given) if (k != kind) == self.other_kind), None)
        if not self.foreign:
            self.given.append((kind, position, reply))
        if old is None:
            return None
        return Lie("reply", f"one of before, a {type(old).__name__}", old, type(old) is not reply_type(type(request)))


# Which message is sent again, by the kind of request that it answered and where, and by those of now: the latest that
# fits. Of those of another course it is the one that was given at the same place.
CHOICES: dict[str, Callable[[Place, Place], bool]] = {
    "an earlier round": lambda old, now: old[0] == now[0] and old[1].round < now[1].round,
    "an earlier exchange": lambda old, now: True,
    "another kind": lambda old, now: old[0] != now[0],
    "another course": lambda old, now: old == now,
}


class RecordingSilo(Interposed):
    """An honest silo that takes note of what it is asked, and of what it answers."""

    def __init__(self, honest: AnySilo) -> None:
        super().__init__(honest)
        self.asked: list[Envelope | Enclosure] = []
        self.given: list[Given] = []

    def exchange(self, envelope: Envelope, data: bytes) -> bytes:
        """Answer, and take note."""
        answer: bytes = self.honest.handle("exchange", data)
        self.asked += [envelope] if envelope.enclosed is None else [envelope, envelope.enclosed]
        self.given.append((envelope.kind, envelope.position, answer))
        return answer


class StaleSilo(RecordingSilo):
    """A silo that answers an exchange with a message of before, as it was, wherever it has one.

    It chooses among its own messages, unless it is given those of another course.
    """

    def __init__(self, honest: AnySilo, choice: str, others: Sequence[Given] = ()) -> None:
        super().__init__(honest)
        self.choice, self.others = choice, others
        self.told: list[Place] = []

    def exchange(self, envelope: Envelope, data: bytes) -> bytes:
        """Answer as the honest silo would, or with something old."""
        before = list(self.others or self.given)
        answer, place = super().exchange(envelope, data), (envelope.kind, envelope.position)
        fits = CHOICES[self.choice]
        old = next((message for kind, at, message in reversed(before) if fits((kind, at), place)), None)
        if old is None:
            return answer
        self.told.append(place)
        return bytes(old)


class FailingSilo(Interposed):
    """A silo that gives no reply at some places, and is honest otherwise."""

    def __init__(self, honest: AnySilo, places: Collection[Place]) -> None:
        super().__init__(honest)
        self.places = list(places)

    def exchange(self, envelope: Envelope, data: bytes) -> bytes:
        """Answer, or fail."""
        if (envelope.kind, envelope.position) in self.places:
            return encode(Answer(pack(b""), Failure("", "error", "it fails on purpose"), BLANK))
        answer: bytes = self.honest.handle("exchange", data)
        return answer
