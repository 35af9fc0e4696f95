"""A course between sites without a network: the server's own code for sites, silos in this process, bytes between them.

    world = toy_world()
    silos = world.silos(tmp_path)
    silos["client-0"] = HostileSilo(silos["client-0"], liar, kinds)
    trace = trace_sites(world.course(MyMethod()), silos, tmp_path / "run")

With a `Meter` all that the server does is counted, and of each answer apart what it takes to receive and to judge it;
what the silos do is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from isthmus.config.course import Course
from isthmus.core.errors import IsthmusError
from isthmus.core.federation import ExchangeReport
from isthmus.core.guards.line import GuardLine
from isthmus.core.protocol import Algorithm, Evaluation, Failure, Position, Request
from isthmus.core.record import Params
from isthmus.core.training import Callback, RoundReport
from isthmus.data.folders.own_kinds import kind_for
from isthmus.runs.simulation import Scenario
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.service import SiloService
from isthmus.sites.silo.state import simulate
from isthmus.testing.hostile.counting import Bound, Cost, Meter, require_within
from isthmus.testing.toys import toy_course, toy_scenario

ID_SECRET = b"a secret of all silos"
# Nobody is away in a toy federation, so nothing is waited for.
HASTE = Patience(start_seconds=1.0, pause_seconds=1.0, retry_seconds=0.0)


# What it may take to receive a reply and to judge it.
RECEIVED = Bound(
    # A model, its mean and its limits, as small as the toys' are.
    tensor_bytes=200_000,
    # Read once; where nodes have ids, these are sorted and compared with each other, which makes seven of them.
    tensors_per_byte=10.0,
    # What an exchange takes, and the reason that is told.
    python_bytes=300_000,
    # JSON values become objects of a hundred bytes for three or four characters; as in tests/core/test_codec_limits.py.
    python_per_byte=40.0,
    # For limits, which look at the model that was sent.
    operations=200,
    # Made, looked at for NaN, measured, compared; then added to a sum.
    operations_per_tensor=15.0,
)


class AnySilo(Protocol):
    """Whoever answers a server's messages."""

    def handle(self, kind: str, data: bytes) -> bytes:
        """Answer a message of the server's, whatever it is."""


@dataclass(frozen=True)
class World:
    """Who holds what, and what a course on it has beside its algorithm.

    Fields:
        scenario: the clients' data; classes must have names, which silos compare
        fields:   fields of the course, such as its task and its model
    """

    scenario: Scenario
    fields: Mapping[str, Any] = field(default_factory=dict)

    def course(self, algorithm: Algorithm[Any], **changes: Any) -> Course:
        """Return a short course for silos that bring folders of their own."""
        whole = self.scenario.whole
        return toy_course(algorithm, **{"dataset": kind_for(type(whole)).like(whole), **self.fields, **changes})

    def write(self, client: str, path: Path) -> None:
        """Write a client's data as a folder, if there is none yet."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = self.scenario.parts[client]
            kind_for(type(part)).write(part, path)

    def silos(self, folder: Path, policy: Policy | None = None) -> dict[str, AnySilo]:
        """Start the silos, each with its own folders, and with the secrets of a simulation: runs can be compared."""
        silos: dict[str, AnySilo] = {}
        for client in self.scenario.parts:
            data, state = folder / client / "data", folder / client / "state"
            self.write(client, data)
            simulate(state, 0, client)
            silos[client] = SiloService(client, data, state, policy, lambda text: None, ID_SECRET)
        return silos


def kinds_of(course: Course) -> tuple[type[Request[Any]], ...]:
    """Return all that a server may ask in a course: what the algorithm answers, and the guards' own requests."""
    return (*type(course.algorithm).handlers(), *GuardLine(course.guards).kinds)


def toy_world() -> World:
    """Return the toy clients, with names for their classes."""
    made = toy_scenario()
    names = tuple(f"class {k}" for k in range(made.whole.num_classes))
    parts = {client: replace(part, class_names=names) for client, part in made.parts.items()}
    return World(Scenario(replace(made.whole, class_names=names), parts))


@dataclass(frozen=True)
class Weighed:
    """What it took the server to receive one message and to judge it."""

    site: str
    kind: str
    num_bytes: int
    cost: Cost


class SitesHere:
    """The server's end of links that are function calls; answers come in the opposite order of the questions.

    `deliver` may bring other answers than the silo gave, or several.
    """

    def __init__(self, silos: Mapping[str, AnySilo], meter: Meter | None = None) -> None:
        self.silos, self.meter = dict(silos), meter
        self.check: Callable[[], None] = lambda: None
        self.deliver: Callable[[str, str, bytes], list[bytes]] = lambda site, kind, answer: [answer]
        self.weighed: list[Weighed] = []
        self.spent = Cost()  # by the server, in all

    def connected(self) -> set[str]:
        """Return all silos."""
        return set(self.silos)

    def generation(self, site: str) -> int:
        """Return 1: nobody comes back, because nobody goes."""
        return 1

    def heard(self, site: str) -> int:
        """Return 0: nobody is silent."""
        return 0

    def ping(self, site: str) -> None:
        """Do nothing."""

    def ask(
        self, kind: str, messages: Mapping[str, bytes], timeout_seconds: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Hand each silo its message and bring the answers."""
        for site in reversed(list(messages)):
            with self.meter.paused() if self.meter else nullcontext():
                answers = self.deliver(site, kind, self.silos[site].handle(kind, messages[site]))
            for answer in answers:
                self.count()
                yield site, answer
                cost = self.count()
                if self.meter:
                    self.weighed.append(Weighed(site, kind, len(answer), cost))

    def count(self) -> Cost:
        """Return what the server has done since the last time."""
        spent = self.meter.split() if self.meter else Cost()
        self.spent += spent
        return spent


@dataclass
class SiteTrace(Callback):
    """What was seen of a course between sites.

    Fields:
        exchanges: what was reported, in order
        scores:    by round, what each client said of its model
        params:    the global model at the end; empty where there is none
        weighed:   what the server did with each message, if that was counted
        server:    what the server did in all
        ended_by:  the error that ended the course, if one did
    """

    exchanges: list[ExchangeReport] = field(default_factory=list)
    scores: dict[int, Mapping[str, Evaluation]] = field(default_factory=dict)
    params: Params = field(default_factory=dict)
    weighed: list[Weighed] = field(default_factory=list)
    server: Cost = field(default_factory=Cost)
    ended_by: IsthmusError | None = None

    def exchanged(self, report: ExchangeReport) -> None:
        """Keep an exchange."""
        self.exchanges.append(report)

    def round_done(self, report: RoundReport) -> None:
        """Keep the scores of a round."""
        self.scores[report.round] = report.evaluations

    def require_within_bounds(self) -> None:
        """Raise unless it took no more than it may to receive and to judge each message, for its size."""
        for each in self.weighed:
            # How many operations it takes depends on how many tensors are in it, which are not counted here.
            cost, said = replace(each.cost, operations=0), f"{each.kind} with {each.num_bytes:,} bytes from {each.site}"
            require_within(cost, RECEIVED.of(each.num_bytes), said)

    @property
    def failures(self) -> list[tuple[ExchangeReport, Failure]]:
        """Every failure, with the exchange that it was in."""
        return [(report, failure) for report in self.exchanges for failure in report.failures]


def trace_sites(
    course: Course,
    silos: Mapping[str, AnySilo],
    run_dir: Path,
    *,
    meter: Meter | None = None,
    deliver: Callable[[str, str, bytes], list[bytes]] | None = None,
    graph: Path | None = None,
) -> SiteTrace:
    """Run a course on silos in this process and return what was seen; an error of Isthmus ends the trace.

    `graph` is the folder of a graph of the server's own.
    """
    hub, trace = SitesHere(silos, meter), SiteTrace()
    hub.deliver = deliver or hub.deliver
    made = SiteCourse(
        course, hub, tuple(silos), run_dir, patience=HASTE, callbacks=[trace], say=lambda text: None, graph=graph
    )
    if meter:
        meter.split()
    try:
        result = made.run()
        trace.params = result.params
        # The last evaluation, after the rounds, is in the journal alone.
        found = [event for event in result.events if event["event"] == "exchange"]
        trace.exchanges += [_reported(course, event) for event in found[len(trace.exchanges) :]]
    except IsthmusError as error:
        trace.ended_by = error
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"the server raised {type(error).__name__}: {error}") from error
    hub.count()
    trace.weighed, trace.server = hub.weighed, hub.spent
    return trace


def _reported(course: Course, event: Mapping[str, Any]) -> ExchangeReport:
    return ExchangeReport(
        position=Position(course.seed, event["round"], event["exchange"]),
        request=event["request"],
        num_clients=event["num_clients"],
        bytes_down=event["bytes_down"],
        bytes_up=event["bytes_up"],
        seconds=0.0,
        client_seconds=0.0,
        failures=tuple(Failure(**failure) for failure in event["failures"]),
    )
