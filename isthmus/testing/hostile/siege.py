"""A silo under attack: what a server can say to it, what it may answer, and what that may cost it.

`lay_siege` starts a silo on toy data and watches an honest course to know its requests; `malicious_server.py` has the
attacks. Costs are counted, never timed (`counting.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus import __version__
from isthmus.config.build import name_of
from isthmus.config.course import Course
from isthmus.config.load import course_to_yaml
from isthmus.config.registry import FAMILIES
from isthmus.core.codec import decode, encode, opened, pack
from isthmus.core.guards.guard import Guard
from isthmus.core.protocol import Algorithm, Position, Request, reply_type
from isthmus.core.random import ProtectingStream, Secret
from isthmus.core.record import State, leaves
from isthmus.runs.folder import ID_FILE
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.runtime.reasons import KINDS
from isthmus.sites.courses.messages import NOT_AGREED, Proposal, Terms
from isthmus.sites.silo.policy import MAX_DEPTH_OF_ALL, Policy
from isthmus.sites.silo.service import SiloService
from isthmus.testing.hostile.counting import Bound, Cost, Meter, require_within
from isthmus.testing.hostile.forging import forged, num_tensors
from isthmus.testing.hostile.lying import RecordingSilo
from isthmus.testing.hostile.sites import ID_SECRET, World, kinds_of, toy_world, trace_sites

OTHER_ID = "cd" * 16
FAILURES = ("error", "malformed", "refused", "late", "memory")
MAX_REFUSAL_BYTES = 4_096

# What a message may cost a silo beside the work that an honest one of its kind asks for.
MESSAGE = Bound(
    # Copies of a small model.
    tensor_bytes=500_000,
    # It is read, kept and compared. The dearest honest bytes are the embeddings of FedSage+'s peers: of the 256 bytes
    # of a node come as many again in each of five slots.
    tensors_per_byte=20.0,
    # A reason in full, a line on the screen, the files of a memory.
    python_bytes=1_000_000,
    # As at the server: JSON values become objects; the text of a course is read by a scanner in Python.
    python_per_byte=60.0,
    operations=500,
    # A parameter is looked at, copied, kept and compared.
    operations_per_tensor=20.0,
)
# What it may cost to agree to a course, whose models are built, or at least measured: each layer up to three times.
AGREED = replace(MESSAGE, operations=25 * MAX_DEPTH_OF_ALL, python_bytes=20_000 * MAX_DEPTH_OF_ALL)
# An honest answer may cost more than another one of its kind: other nodes are drawn, other numbers come out.
HONEST_TIMES = 2


class WatchedSecret(Secret):
    """A silo's secret that takes note of which streams are drawn."""

    __slots__ = ("names",)

    def __init__(self, key: bytes, names: list[tuple[Any, ...]]) -> None:
        super().__init__(key)
        self.names = names

    def derive(self, *parts: int | str | bytes) -> Secret:
        """Return the secret of a course, watched too."""
        key = super().stream("watched", *parts).take(32)
        return WatchedSecret(key, self.names)

    def stream(self, *parts: int | str | bytes) -> ProtectingStream:
        """Return a stream and take note of its name."""
        self.names.append(parts)
        return super().stream(*parts)


@dataclass(frozen=True, eq=False)
class Asked:
    """One request, and where in the course it stands."""

    position: Position
    request: Request[Any]


@dataclass
class Siege:
    """A silo under attack, and what an honest course of the same algorithm has looked like.

    Fields:
        silo:    the silo
        course:  the course that it agrees to
        course_id: how it is called; the silo's names of nodes belong to it
        honest:  what an honest server asks this silo in that course, in order
        said:    what the silo printed for its own people
        streams: names of the protecting streams that were drawn
        sent:    tensors that the server itself has sent: they are no secret of the silo's
        names:   memories that the silo has named, and is told to keep
        usual:   what honest messages cost, by kind, as far as that was counted
        counted: how many messages were held to a bound
        dearest: of each count the largest share of its bound that was seen
        num_sent: bytes of the last request
    """

    silo: SiloService
    course: Course
    course_id: str
    honest: list[Asked]
    said: list[str]
    streams: list[tuple[Any, ...]]
    sent: list[Tensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    usual: dict[str, Cost] = field(default_factory=dict)
    counted: int = 0
    dearest: dict[str, float] = field(default_factory=dict)
    num_sent: int = 0
    _meter: Meter | None = None
    _learning: bool = False

    # ---- what a server can do

    def handle(self, kind: str, data: bytes, about: str = "", tensors: int = 0, behind: int = 0) -> bytes:
        """Hand the silo a message; where costs are counted, it may cost what its kind usually does, and by its size.

        `behind` are bytes of an earlier message, which the silo has kept and works with now.
        """
        if self._meter is None or self._meter.is_paused:
            return self.silo.handle(kind, data)
        self._meter.split()
        answer = self.silo.handle(kind, data)
        cost = self._meter.split()
        with self._meter.paused():
            usual = self.usual.get(about or kind, Cost())
            if self._learning:
                self.usual[about or kind] = Cost(*map(max, astuple(cost), astuple(usual)))
            else:
                agreed = kind == "propose" and not decode(answer, Terms).refusal
                bound = (AGREED if agreed else MESSAGE).of(len(data) + behind, tensors)
                self._require(cost, usual, bound, f"{about or kind}: a message of {len(data) + behind:,} bytes")
        return answer

    def _require(self, cost: Cost, usual: Cost, bound: Cost, what: str) -> None:
        most = bound.allowing(usual, HONEST_TIMES)
        self.counted += 1
        for name in ("operations", "tensor_bytes", "python_bytes"):
            share = getattr(cost, name) / getattr(most, name)
            self.dearest[name] = max(self.dearest.get(name, 0.0), share)
        require_within(cost, most, what)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what messages cost the silo, and hold each to its bound; honest ones are counted first."""
        list(self.march())  # what is built once is built
        with Meter() as meter:
            self._meter, self._learning = meter, True
            list(self.march())
            self._learning = False
            try:
                yield
            finally:
                self._meter = None

    def uncounted(self) -> Any:
        """Do not count what is done in this context."""
        return nullcontext() if self._meter is None else self._meter.paused()

    def propose(self, course: Course | str | None = None, course_id: str = "", **changes: Any) -> Terms:
        """Propose a course, or any text; the terms must be whole, or a refusal of a declared kind."""
        text = course if isinstance(course, str) else course_to_yaml(course or self.course)
        sites = tuple(f"client-{k}" for k in range(3))
        honest = Proposal(course_id=course_id or self.course_id, course=text, version=__version__, sites=sites)
        raw = self.handle("propose", encode(replace(honest, **changes)))
        terms: Terms = decode(raw, Terms)
        if terms.refusal:
            require_declared(terms.refusal, raw)
            if terms.input_dim or terms.output_dim or terms.class_names or terms.holds:
                raise AssertionError(f"a refusal tells of the data: {terms!r}")
        return terms

    def ask(
        self, request: Request[Any], at: Position, memory: str = BLANK, *, behind: int = 0, **changes: Any
    ) -> tuple[Any, str]:
        """Ask anything; return the reply, or None, and the memory's name. A refusal must be of a declared kind."""
        with self.uncounted():
            self.sent += [leaf for leaf in leaves(request).values() if isinstance(leaf, Tensor)]
            kind = type(request).__name__
            fields: dict[str, Any] = {"course": self.course_id, "position": at, "kind": kind}
            fields |= {"payload": pack(forged(request)), "memory": memory, "keep": tuple(self.names)}
            message = encode(Envelope(**{**fields, **changes}))
            self.num_sent = len(message)
        raw = self.handle("exchange", message, kind, num_tensors(request), behind)
        with self.uncounted():
            return self._answered(raw, request)

    def _answered(self, raw: bytes, request: Request[Any]) -> tuple[Any, str]:
        if raw == NOT_AGREED:
            return None, BLANK
        answer: Answer = decode(raw, Answer)
        if answer.failure is not None:
            if answer.failure.kind not in FAILURES:
                raise AssertionError(f"the failure has the kind {answer.failure.kind!r}, known: {', '.join(FAILURES)}")
            require_declared(answer.failure.reason, raw)
            return None, BLANK
        if answer.memory != BLANK:
            self.names.append(answer.memory)
        return decode(opened(answer.payload), reply_type(type(request))), answer.memory

    def march(self) -> Iterator[tuple[Asked, Any, str]]:
        """Send the requests of the honest course again, in order; yield each with its reply and the memory before."""
        if self.propose().refusal:
            raise AssertionError(f"the silo refuses the honest course: {self.said[-1]}")
        memory = BLANK
        for message in self.honest:
            reply, after = self.ask(message.request, message.position, memory)
            yield message, reply, memory
            memory = after if reply is not None else memory

    def memory(self, name: str) -> State:
        """Look into the silo's memory, which no server can."""
        assert self.silo._last is not None
        return self.silo._last.silo.store.load(name)


def lay_siege(
    algorithm: Algorithm[Any], folder: Path, policy: Policy | None = None, *, world: World | None = None
) -> Siege:
    """Start a silo on a toy graph, after listening to an honest course of the algorithm to know its requests."""
    world = world or toy_world()
    course = world.course(algorithm, rounds=2)
    silos, run = world.silos(folder / "honest"), folder / "honest" / "run"
    client = list(silos)[-1]
    listening = RecordingSilo(silos[client])
    trace = trace_sites(course, {**silos, client: listening}, run)
    if trace.ended_by is not None or trace.failures:
        raise AssertionError(f"the honest course ended: {trace.ended_by or trace.failures[0][1]}")
    said: list[str] = []
    streams: list[tuple[Any, ...]] = []
    silo = SiloService(client, folder / "honest" / client / "data", folder / "state", policy, said.append, ID_SECRET)
    silo.own_secret.secret = WatchedSecret(bytes(range(32)), streams)
    course_id = (run / ID_FILE).read_text()
    kinds = {kind.__name__: kind for kind in kinds_of(course)}
    asked = [Asked(each.position, decode(opened(each.payload), kinds[each.kind])) for each in listening.asked]
    return Siege(silo, course, course_id, asked, said, streams)


def require_declared(text: str, raw: bytes) -> None:
    """Raise unless a refusal is one of the sentences that may cross, and short."""
    kind, _, rest = text.partition(": ")
    if kind not in KINDS or not rest.startswith(KINDS[kind]) or len(raw) > MAX_REFUSAL_BYTES:
        raise AssertionError(f"a refusal tells more than its kind: {text[:200]!r}")


@contextmanager
def known_here(*kinds: type[Algorithm[Any]] | type[Guard]) -> Iterator[None]:
    """Let algorithms and guards of one's own count as installed: a silo runs nothing that is not."""
    added: list[tuple[Any, str]] = []
    for kind in kinds:
        table: Any = FAMILIES[Guard if issubclass(kind, Guard) else Algorithm].table
        name = kind.__name__.lower()
        if ":" in name_of(kind) and name not in table:
            table[name] = kind
            added.append((table, name))
    try:
        yield
    finally:
        for table, name in added:
            del table[name]
