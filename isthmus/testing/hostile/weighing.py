"""What a reply may cost the server, by counting: claims that are larger than the message that makes them.

    check_claims(MyMethod(my_field=3))
    check_claims_between_sites(MyMethod(my_field=3), tmp_path)

The first hands the server one message after the other and counts what it takes to receive and to judge it. The second
tells the claims within courses between sites, and counts all that the server does: a claim that is believed must not
become a matrix of n x n later either. Both raise AssertionError that says what cost too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.core.codec import decode, encode, pack
from isthmus.core.errors import IsthmusError
from isthmus.core.exposure import exposure
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation, InitialModel
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import Algorithm, Failure, Holdings, Position, Request
from isthmus.core.record import Record
from isthmus.runs.simulation import Simulation
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.runtime.remote import RemoteRuntime
from isthmus.testing.hostile.counting import Bound, Cost, Meter, require_within
from isthmus.testing.hostile.forging import MANY_NODES, claims_about, forged, grown, num_tensors, rows_of
from isthmus.testing.hostile.lies import Dishonest, HostileSilo, Lie, lies_about
from isthmus.testing.hostile.lying import require_found_out
from isthmus.testing.hostile.sites import RECEIVED, Weighed, World, kinds_of, toy_world, trace_sites
from isthmus.testing.traces import Message, trace_course

# What claims may add to all that the server does in a course, by the bytes of all messages of the one who claims.
IN_COURSE = Bound(
    # A round more or less of what the others share, as small as the toys are.
    tensor_bytes=500_000,
    # Received and judged, as above; and once more, where a claim that is believed is put into the others' messages.
    tensors_per_byte=20.0,
    python_bytes=500_000,
    python_per_byte=40.0,
    operations=500,
)


@dataclass
class OneAnswer:
    """A transport whose only silo answers with one reply, whatever it is asked."""

    holdings: Mapping[str, Holdings]
    meter: Meter
    reply: Record | Failure = field(default_factory=lambda: Failure("", "error", ""))
    num_bytes: int = 0

    def send(self, messages: Mapping[str, bytes], timeout_seconds: float | None) -> Iterator[tuple[str, bytes]]:
        """Bring the answer."""
        for client, message in messages.items():
            with self.meter.paused():
                envelope: Envelope = decode(message, Envelope)
                if isinstance(self.reply, Failure):
                    answer = encode(Answer(pack(b""), self.reply, BLANK))
                else:
                    answer = encode(Answer(pack(forged(self.reply)), None, BLANK, envelope.question))
                self.num_bytes = len(answer)
            yield client, answer


def check_claims(algorithm: Algorithm[Any], world: World | None = None) -> list[Weighed]:
    """Check what every claim and every lie about every reply costs the server; return what was counted."""
    world = world or toy_world()
    course = world.course(algorithm)
    clean = trace_course(course, world.scenario)
    simulation = Simulation(course, world.scenario)
    folded = {e.request for e in exposure(type(algorithm)) if e.server_sees != "each client's"}
    weighed: list[Weighed] = []
    with Meter() as meter:
        for kind, message in clean.first_messages().items():
            assert isinstance(message.outcome.reply, Record)
            for place, what, reply in _replies(message.outcome.reply):
                transport = OneAnswer(simulation.runtime.holdings, meter, reply)
                for cost in _received(message, transport, simulation.initial, kind in folded):
                    said = f"{kind}: receiving a reply of {transport.num_bytes:,} bytes ({place}: {what})"
                    tensors = 0 if isinstance(reply, Failure) else num_tensors(reply)
                    require_within(cost, RECEIVED.of(transport.num_bytes, tensors), said)
                    weighed.append(Weighed(message.client, f"{kind}, {place}: {what}", transport.num_bytes, cost))
    return weighed


def _replies(reply: Record) -> Iterator[tuple[str, str, Record | Failure]]:
    yield from claims_about(reply)
    yield from ((lie.place, lie.how, lie.reply) for lie in lies_about(reply))


def _received(message: Message, transport: OneAnswer, model: InitialModel, folds: bool) -> Iterator[Cost]:
    """Yield what it costs to ask one client, and to fold its reply where the algorithm does, and it is accepted."""
    for folded in (False, True) if folds else (False,):
        reports: list[ExchangeReport] = []
        runtime = RemoteRuntime("c", [message.client], transport)
        rules = ExchangeRules(min_replies=0)
        fed = Federation(
            runtime, seed=0, round=1, cohort=[message.client], model=model, rules=rules, report=reports.append
        )
        transport.meter.split()
        _ask(fed, message.request, folded)
        yield transport.meter.split()
        if reports[0].failures:
            return


def _ask(fed: Federation, request: Request[Any], folded: bool) -> None:
    try:
        if folded:
            fed.ask_folded(request, weighted_mean)
        else:
            fed.ask(request)
    except IsthmusError:
        pass  # of one client that weighs nothing there is no mean
    except Exception as error:
        raise AssertionError(f"the server raised {type(error).__name__}: {error}") from error


# ---- within a course


@dataclass
class Boaster(Dishonest):
    """A client that claims to have many nodes, in all that it says: its replies agree with each other.

    Fields:
        number: how many
    """

    request: str = field(default="everything", init=False)
    number: int

    def lie_about(self, position: Position, request: Request[Any], reply: Record) -> Lie | None:
        """Return a reply with as many rows as it likes, wherever it has a row for each of some nodes."""
        # A model's rows are not nodes.
        rows = [length for place, length in rows_of(reply).items() if not place.startswith("params[")]
        if not rows:
            return None
        return Lie("nodes", f"{self.number} of them", grown(reply, rows[0], self.number), certain=False)


def check_claims_between_sites(algorithm: Algorithm[Any], folder: Path, world: World | None = None) -> list[Weighed]:
    """Check what claims of many nodes cost the server in courses between sites; return what was counted."""
    world = world or toy_world()
    course = world.course(algorithm, rounds=2)  # what is believed in one round may be used in the next
    kinds = list(kinds_of(course))
    weighed: list[Weighed] = []
    with Meter() as meter:
        with meter.paused():
            trace_sites(course, world.silos(folder / "first"), folder / "first" / "run")  # what is built once is built
        honest = trace_sites(course, world.silos(folder / "honest"), folder / "honest" / "run", meter=meter).server
        for number in MANY_NODES:
            silos = world.silos(folder / f"{number}")
            boaster = Boaster(list(silos)[-1], number)
            silos[boaster.client] = HostileSilo(silos[boaster.client], boaster, kinds)
            trace = trace_sites(course, silos, folder / f"{number}" / "run", meter=meter)
            require_found_out(trace, boaster)
            trace.require_within_bounds()
            size = sum(each.num_bytes for each in trace.weighed if each.site == boaster.client)
            said = f"a course in which {boaster.client} claims {number} nodes in {size:,} bytes of messages"
            require_within(trace.server, honest.allowing(IN_COURSE.of(size)), said)
            weighed += trace.weighed
    return weighed
