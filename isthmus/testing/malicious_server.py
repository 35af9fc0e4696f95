"""A server that means harm, played against a silo in process: bytes in, bytes out.

    from isthmus.testing import besiege
    besiege(MyMethod(my_field=3), tmp_path)

It proposes hostile courses, asks out of order, at positions that were answered already, from wrong memories and for
other courses, with numbers and sizes that make no sense. A silo must answer everything with a reply, or with a refusal
of a declared kind that tells nothing else; no personal parameters may leave, and what protects must be another draw
whenever the request is another one. `SIEGES` holds the attacks by name; each raises AssertionError.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from isthmus import __version__
from isthmus.algorithms import ALGORITHMS
from isthmus.config.course import Course
from isthmus.config.load import course_to_yaml
from isthmus.config.tables import FAMILIES, name_of
from isthmus.core.codec import MAX_KEY, PREFIX, decode, encode, pack, unpack
from isthmus.core.federation import Position
from isthmus.core.protocol import Algorithm, Request, reply_type
from isthmus.core.record import Record, State, leaves
from isthmus.core.secrets import ProtectingStream, Secret
from isthmus.data.sources import write_graph_folder
from isthmus.data.zoo import Folder
from isthmus.federation.messages import NOT_AGREED, Finish, Proposal, Receipt, Terms, Verdict
from isthmus.federation.policy import Policy
from isthmus.federation.service import SiloService
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.runtime.reasons import KINDS
from isthmus.simulation import Scenario
from isthmus.testing.toys import toy_course, toy_scenario
from isthmus.testing.traces import Message, trace_course

Attack: TypeAlias = "Callable[[Siege], None]"

COURSE_ID, OTHER_ID = "ab" * 16, "cd" * 16
FAILURES = ("error", "malformed", "refused", "late", "memory")
MAX_REFUSAL_BYTES = 4_096
MAX_FILES = 50
# The longest key that our own encoder writes; a server that means harm has another encoder, see `_encode`.
LONG_KEY = "k" * MAX_KEY
LONGER_KEY = "k" * 10_000


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


@dataclass
class Siege:
    """A silo under attack, and what an honest course of the same algorithm has looked like.

    Fields:
        silo:    the silo
        course:  the course that it agrees to
        honest:  messages of an honest course with this client, in order
        said:    what the silo printed for its own people
        streams: names of the protecting streams that were drawn
        sent:    tensors that the server itself has sent: they are no secret of the silo's
        names:   memories that the silo has named, and is told to keep
    """

    silo: SiloService
    course: Course
    honest: list[Message]
    said: list[str]
    streams: list[tuple[Any, ...]]
    sent: list[Tensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    # ---- what a server can do

    def propose(self, course: Course | str | None = None, course_id: str = COURSE_ID, **changes: Any) -> Terms:
        """Propose a course, or any text; the terms must be whole, or a refusal of a declared kind."""
        text = course if isinstance(course, str) else course_to_yaml(course or self.course)
        sites = tuple(f"client-{k}" for k in range(3))
        fields: dict[str, Any] = {"course_id": course_id, "course": text, "version": __version__, "sites": sites}
        raw = self.silo.handle("propose", encode(Proposal(**{**fields, **changes})))
        terms: Terms = decode(raw, Terms)
        if terms.refusal:
            _declared(terms.refusal, raw)
            if terms.input_dim or terms.output_dim or terms.class_names or terms.holds:
                raise AssertionError(f"a refusal tells of the data: {terms!r}")
        return terms

    def ask(self, request: Request[Any], at: Position, memory: str = BLANK, **changes: Any) -> tuple[Any, str]:
        """Ask anything; return the reply, or None, and the memory's name. A refusal must be of a declared kind."""
        self.sent += [leaf for leaf in leaves(request).values() if isinstance(leaf, Tensor)]
        fields: dict[str, Any] = {"course": COURSE_ID, "position": at, "kind": type(request).__name__}
        fields |= {"payload": pack(_encode(request)), "memory": memory, "keep": tuple(self.names)}
        raw = self.silo.handle("exchange", encode(Envelope(**{**fields, **changes})))
        if raw == NOT_AGREED:
            return None, BLANK
        answer: Answer = decode(raw, Answer)
        if answer.failure is not None:
            if answer.failure.kind not in FAILURES:
                raise AssertionError(f"the failure has the kind {answer.failure.kind!r}, known: {', '.join(FAILURES)}")
            _declared(answer.failure.reason, raw)
            return None, BLANK
        if answer.memory != BLANK:
            self.names.append(answer.memory)
        return decode(unpack(answer.payload), reply_type(type(request))), answer.memory

    def march(self) -> Iterator[tuple[Message, Any, str]]:
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
        ((_, answering),) = self.silo._courses.values()
        return answering.store.load(name)


def lay_siege(algorithm: Algorithm[Any], folder: Path, policy: Policy | None = None) -> Siege:
    """Start a silo on a toy graph, and watch an honest course of the algorithm to know its requests."""
    made = toy_scenario()
    names = tuple(f"class {k}" for k in range(made.whole.num_classes))
    scenario = Scenario(
        replace(made.whole, class_names=names),
        {name: replace(part, class_names=names) for name, part in made.parts.items()},
    )
    course = toy_course(algorithm, dataset=Folder(class_names=names), rounds=2)
    trace = trace_course(course, scenario)
    client = trace.clients[-1]
    data = folder / "graph"
    if not data.exists():
        write_graph_folder(scenario.parts[client], data)
    said: list[str] = []
    streams: list[tuple[Any, ...]] = []
    silo = SiloService(client, data, folder / "state", policy, said.append, b"a secret of all silos")
    silo.own_secret.secret = WatchedSecret(bytes(range(32)), streams)
    return Siege(silo, course, [m for m in trace.messages if m.client == client], said, streams)


# ---- the attacks


def siege_proposals(siege: Siege) -> None:
    """Propose courses that no silo may take: made-up sites, texts that are none, settings without bounds."""
    text = course_to_yaml(siege.course)
    hostile: list[dict[str, Any]] = [
        {"course_id": "../../etc/passwd"},
        {"course_id": "x" * 10**5},
        {"version": "9.9\x1b[31m"},
        {"sites": ("client-0",) * 1000},
        {"sites": tuple(f"made-up-{k}" for k in range(20_000))},
        {"course": "[" * 30_000},
        {"course": "a: &x [1]\nb: *x"},
        {"course": "rounds: !!int ''"},
        {"course": "!!python/object/apply:os.system [ls]"},
        {"course": "\x00\x1b[2J"},
        {"course": text.replace("rounds: 2", "rounds: 999999999")},
        {"course": text.replace("hidden: 5", "hidden: 10000000000")},
        {"course": text.replace("seed: 0", "seed: .nan")},
        {"course": text.replace("name: gcn", "name: os:system")},
        {"course": text + "\nclient_settings: {client-2: {optimizer.lr: -1, model.gnn.layers: 1000000000}}\n"},
    ]
    for changes in hostile:
        if not siege.propose(**changes).refusal:
            raise AssertionError(f"the silo takes part in a course with {str(changes)[:80]}")
    for kind in ("", "x" * 10**5, "exchange", "verdict", "finish", "columns", "propose"):
        for data in (b"", b"ISTH", bytes(64), encode(Verdict(COURSE_ID, "")), encode({"a": (1,) * 1000})):
            raw = siege.silo.handle(kind, data)
            if len(raw) > MAX_REFUSAL_BYTES:
                raise AssertionError(f"{len(data)} bytes of the kind {kind[:20]!r} are answered by {len(raw)}")


def siege_order(siege: Siege) -> None:
    """Ask everything out of order, with nothing remembered, twice, and after the end of the course."""
    if siege.propose().refusal:
        raise AssertionError(f"the silo refuses the honest course: {siege.said[-1]}")
    distinct = {type(message.request): message for message in siege.honest}
    for message in reversed(list(distinct.values())):
        siege.ask(message.request, message.position)
        siege.ask(message.request, Position(2**62, 10**9, 10**9))
        siege.ask(message.request, Position(-1, -1, -1))
    for _ in siege.march():
        pass
    raw = siege.silo.handle("finish", encode(Finish(OTHER_ID, {}, BLANK)))
    receipt: Receipt = decode(raw, Receipt)
    _declared(receipt.problem, raw)


def siege_memories(siege: Siege) -> None:
    """Ask from memories that are not there, of other courses, or no names at all, and under other course ids."""
    names = [name for *_, name in siege.march() if name != BLANK]
    message = siege.honest[-1]
    for name in ("0" * 32, "../../secret", "x" * 10**5, "\x00", "ab" * 16):
        if siege.ask(message.request, message.position, name)[0] is not None:
            raise AssertionError(f"the silo answers from the memory {name[:40]!r}, which is none of its own")
    for changes in ({"course": OTHER_ID}, {"kind": "EvaluateEverything"}, {"kind": "x" * 10**5}):
        if siege.ask(message.request, message.position, **changes)[0] is not None:
            raise AssertionError(f"the silo answers a request with {str(changes)[:60]}")
    siege.propose(course_id=OTHER_ID)
    for name in names[-1:]:
        if siege.ask(message.request, message.position, name, course=OTHER_ID)[0] is not None:
            raise AssertionError("a memory of one course is answered from in another")


def siege_sizes(siege: Siege) -> None:
    """Send requests whose tensors have other shapes, types and values than they should, and bytes that are cut."""
    draw = random.Random(0)
    steps = list(siege.march())
    kept = len(siege.names)
    for message, _, memory in steps:
        del siege.names[kept:]  # what this siege itself leaves behind need not be kept
        for spoilt in _spoilt(message.request, draw):
            siege.ask(spoilt, message.position, memory)
        whole = encode(message.request)
        for cut in (b"", whole[: len(whole) // 2], whole + b"\0" * 8, bytes(len(whole))):
            siege.ask(message.request, message.position, memory, payload=pack(cut))
    files = sum(1 for path in siege.silo.state.rglob("*") if path.is_file())
    if files > kept + MAX_FILES:
        raise AssertionError(f"the siege left {files} files in the silo's folder, {kept} of which it asked to keep")


def siege_personal(siege: Siege) -> None:
    """Look for what stays with the silo in all that it sends, also when the same id is another algorithm's course."""
    kept: list[Tensor] = []
    replies: list[Any] = []
    last = BLANK
    algorithm = siege.course.algorithm
    for _, reply, memory in siege.march():
        replies.append(reply)
        last = memory if memory != BLANK else last
        found = siege.memory(memory)
        kept += [*algorithm.client_params({}, found).values(), *found.get("personal", {}).values()]
    for name, kind in ALGORITHMS.items():
        if kind is type(algorithm) or kind.pooled:
            continue
        try:
            other = replace(siege.course, algorithm=kind(), rounds=1)
        except ValueError:
            continue  # heads of one's own need a model with a head
        if siege.propose(other).refusal:
            continue
        for request in _plain_requests(kind, siege.honest):
            reply, _ = siege.ask(request, Position(0, 1, 0), last)
            if reply is not None and last != BLANK:  # from nothing everybody may answer
                raise AssertionError(f"a memory of {type(algorithm).__name__} is answered from in a course of {name}")
    _none_among(kept, replies, siege.sent)


def siege_noise(siege: Siege) -> None:
    """Repeat positions: the same request must draw the same streams, another request none of them."""
    for message, reply, memory in list(siege.march()):
        if reply is None:
            continue
        siege.streams.clear()
        siege.ask(message.request, message.position, memory)
        first = list(siege.streams)
        siege.streams.clear()
        again, _ = siege.ask(message.request, message.position, memory)
        if siege.streams != first or encode(again) != encode(reply):
            raise AssertionError(f"the same {type(message.request).__name__} was answered in another way")
        for nudged in _nudged(message.request):
            siege.streams.clear()
            siege.ask(nudged, message.position, memory)
            if set(siege.streams) & set(first):
                raise AssertionError(
                    f"another {type(message.request).__name__} at the same place got the same noise: the difference "
                    "of the two replies is without any"
                )


SIEGES: dict[str, Attack] = {
    "proposals": siege_proposals,
    "order": siege_order,
    "memories": siege_memories,
    "sizes": siege_sizes,
    "personal": siege_personal,
    "noise": siege_noise,
}


def besiege(algorithm: Algorithm[Any], folder: Path) -> None:
    """Lay every siege to a silo that runs this algorithm; raise AssertionError that says which one got through."""
    with _known(type(algorithm)):
        siege = lay_siege(algorithm, folder)
        for name, attack in SIEGES.items():
            try:
                attack(siege)
            except AssertionError as error:
                raise AssertionError(f"{type(algorithm).__name__}, siege {name!r}: {error}") from error


@contextmanager
def _known(kind: type[Algorithm[Any]]) -> Iterator[None]:
    """Let an algorithm of one's own count as installed: a silo runs nothing that is not."""
    table: Any = FAMILIES[Algorithm].table
    name = kind.__name__.lower()
    added = ":" in name_of(kind) and name not in table
    if added:
        table[name] = kind
    try:
        yield
    finally:
        if added:
            del table[name]


# ---- what they are made of


def _declared(text: str, raw: bytes) -> None:
    """Raise unless a refusal is one of the sentences that may cross, and short."""
    kind, _, rest = text.partition(": ")
    if kind not in KINDS or not rest.startswith(KINDS[kind]) or len(raw) > MAX_REFUSAL_BYTES:
        raise AssertionError(f"a refusal tells more than its kind: {text[:200]!r}")


def _encode(request: Request[Any]) -> bytes:
    """Encode a request as somebody would whose keys have no limit: the longest key becomes a much longer one."""
    data = encode(request)
    magic, version, flags, length = PREFIX.unpack_from(data)
    end = PREFIX.size + length
    skeleton = data[PREFIX.size : end].replace(LONG_KEY.encode(), LONGER_KEY.encode())
    return PREFIX.pack(magic, version, flags, len(skeleton)) + skeleton + data[end:]


def _tensors(request: Record) -> Iterator[tuple[str, str | None, Tensor]]:
    """Yield the tensors right in a request's fields: field, key in it, tensor."""
    for each in fields(request):
        value = getattr(request, each.name)
        if isinstance(value, Tensor):
            yield each.name, None, value
        elif isinstance(value, dict):
            yield from ((each.name, key, inner) for key, inner in value.items() if isinstance(inner, Tensor))


def _changed(request: Any, name: str, key: str | None, tensor: Tensor) -> Any:
    value = tensor if key is None else {**getattr(request, name), key: tensor}
    return replace(request, **{name: value})


def _spoilt(request: Any, draw: random.Random) -> Iterator[Any]:
    """Yield requests with one tensor, or one dict, that is not what it should be."""
    places = list(_tensors(request))
    for name, key, tensor in draw.sample(places, min(3, len(places))):
        for odd in (
            torch.zeros(0),
            torch.full_like(tensor, -1) if not tensor.dtype.is_floating_point else torch.full_like(tensor, torch.nan),
            tensor.to(torch.int64) if tensor.dtype.is_floating_point else tensor.float(),
            tensor.flatten()[:1].expand(1000).clone() if tensor.numel() else torch.ones(1000),
        ):
            yield _changed(request, name, key, odd)
    for each in fields(request):
        value = getattr(request, each.name)
        if isinstance(value, dict):
            yield replace(request, **{each.name: {}})
            yield replace(request, **{each.name: {**value, LONG_KEY: next(iter(value.values()), torch.ones(1))}})
        elif type(value) is int:
            yield replace(request, **{each.name: 2**40})
        elif type(value) is str:
            yield replace(request, **{each.name: "x" * 100_000})


def _nudged(request: Any) -> Iterator[Any]:
    """Yield the same request with a number that is another one in its last bits, and as another kind of request."""
    for name, key, tensor in _tensors(request):
        if tensor.dtype.is_floating_point and tensor.numel():
            moved = tensor.clone()
            moved.view(-1)[0] = torch.nextafter(moved.view(-1)[0], torch.tensor(torch.inf))
            yield _changed(request, name, key, moved)
            return


def _plain_requests(kind: type[Algorithm[Any]], honest: Iterable[Message]) -> Iterator[Request[Any]]:
    """Yield requests of another algorithm that can be made of what there is: those that only need a model."""
    models = [getattr(message.request, "params", None) for message in honest]
    params: Any = next((found for found in models if found), {})
    for request in kind.handlers():
        names = {each.name for each in fields(request)}
        if names <= {"params"}:
            yield request(**{name: params for name in names})


def _none_among(kept: list[Tensor], replies: list[Any], sent: list[Tensor]) -> None:
    """Raise if a tensor that a silo keeps for itself is in a reply; those that came from the server are not its own."""

    def bits(tensors: Iterable[Tensor]) -> set[bytes]:
        return {encode({"": tensor}) for tensor in tensors if tensor.numel() > 1 and bool((tensor != 0).any())}

    own = bits(kept) - bits(sent)
    crossed = [leaf for reply in replies if reply is not None for leaf in leaves(reply).values()]
    if own & bits(leaf for leaf in crossed if isinstance(leaf, Tensor)):
        raise AssertionError("a reply holds a tensor that is the silo's own")


__all__ = ["SIEGES", "Siege", "besiege", "lay_siege"]
