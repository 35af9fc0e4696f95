"""A client that lies: replies that are wrong in one place, for every field of every reply of any algorithm.

    from isthmus.testing import Liar, lies_about, trace_course
    trace_course(toy_course(MyMethod()), toy_scenario(), liar=Liar("client-0", "TrainModel", lies_about))

A lie is either certain to be found (a NaN, another shape, a weight that the client's data cannot have), and then the
client must be named as a failure in that very exchange; or it could be the truth, and then nobody else may suffer more
from it than from a bad model. `check_lies` holds an algorithm to that.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import DEFAULT_MAX_BYTES, decode, encode, opened, pack
from isthmus.core.errors import BadMessage
from isthmus.core.federation import Outcome, Outcomes, Runtime, apart
from isthmus.core.protocol import Failure, Kept, Position, Request, Requests, reply_type
from isthmus.core.record import Params, Record, field_types
from isthmus.runtime.envelope import Answer, Envelope
from isthmus.runtime.loop import measured
from isthmus.runtime.strict import StrictRuntime
from isthmus.testing.hostile.forging import altered, forged

HUGE = 2**62
LONG = 160_000


@dataclass(frozen=True)
class Lie:
    """A reply that is wrong in one place.

    Fields:
        place:   which field, or what part of it
        how:     what is wrong with it
        reply:   the reply
        certain: whether no honest client could have sent it, so that it must be found out
    """

    place: str
    how: str
    reply: Record | Failure
    certain: bool


def lies_about(reply: Record) -> list[Lie]:
    """Return lies about every field of a reply, and replies that are no such thing at all."""
    found = [Lie(*change) for change in _about(reply, type(reply), "")]
    if not isinstance(reply, Kept):
        found.append(Lie("reply", "another record", Kept(), True))
    text = "\x1b[2J\n[bold]" + "x" * LONG
    found.append(Lie("reply", "a failure with a long reason", Failure("somebody else", text, text), True))
    return found


def some_lies_about(reply: Record) -> list[Lie]:
    """Return one lie about each field that is certain to be found, each field another one as far as there are."""
    by_field: dict[str, list[Lie]] = {}
    for lie in lies_about(reply):
        if lie.certain:
            by_field.setdefault(lie.place.split("[")[0].split(".")[0], []).append(lie)
    fields = [lies for place, lies in by_field.items() if place != "reply"] or list(by_field.values())
    return [lies[(3 * k + len(lies) // 2) % len(lies)] for k, lies in enumerate(fields)]


Change = tuple[str, str, Any, bool]  # place, how, the value instead, whether it is certain to be found


def _about(value: Any, hint: Any, place: str) -> Iterator[Change]:
    if isinstance(value, Record):
        for name, inner in field_types(type(value)).items():
            for where, how, other, certain in _about(getattr(value, name), inner, f"{place}.{name}".lstrip(".")):
                yield where, how, altered(value, **{name: other}), certain
    elif isinstance(value, dict):
        yield from _about_dict(value, hint, place)
    elif isinstance(value, tuple):
        yield place, "empty", (), False
        yield place, "doubled", (*value, *value), False
        yield place, "a number", 3.5, True
    elif isinstance(value, Tensor):
        yield from _about_tensor(value, place)
    elif isinstance(value, bool | None):
        yield place, "a text", "yes", True
    elif isinstance(value, int | float):
        yield from _about_number(value, hint, place)
    elif isinstance(value, str):
        yield place, "a number", 3.5, True
        yield place, "a long text", "\x1b[31m\n" + "x" * LONG, False


def _about_dict(value: dict[Any, Any], hint: Any, place: str) -> Iterator[Change]:
    model = hint == Params  # its names are those of the parameters that were sent
    some = next(iter(value.values()), torch.zeros(2) if model else 0.5)
    yield place, "a long name", {**value, "x" * LONG: some}, True
    yield place, "a list", [1, 2], True
    yield place, "one more", {**value, "extra": some}, model
    if not value:
        return
    first = next(iter(value))
    yield place, "one less", {key: item for key, item in value.items() if key != first}, model
    yield place, "empty", {}, model
    if isinstance(some, float | int) and not isinstance(some, bool):
        yield place, "very many", {**value, **{f"m{i}": some for i in range(2000)}}, True
    for key in dict.fromkeys((first, [*value][-1])):
        yield from _about_entry(value, key, model, place)


def _about_entry(value: dict[Any, Any], key: Any, model: bool, place: str) -> Iterator[Change]:
    for where, how, other, certain in _about(value[key], Tensor if model else Any, f"{place}[{key!r}]"):
        # Of a model every length is known, so another number of rows is certain to be found too.
        yield where, how, {**value, key: other}, certain or (model and how != "the sign")


def _about_tensor(value: Tensor, place: str) -> Iterator[Change]:
    yield place, "a number", 1.5, True
    yield place, "another axis", value[None], True
    if value.ndim:
        yield place, "no axis", torch.zeros((), dtype=value.dtype), True
        yield place, "no rows", value[:0], False
    if value.is_floating_point():
        yield place, "integers", value.long(), True
        yield place, "half precision", value.half(), False
    else:
        yield place, "fractions", value.float(), True
    if not value.numel():
        return
    if value.ndim:
        yield place, "one row more", torch.cat([value, value[:1]]), False
        yield place, "very many rows", value[:1].expand(20_000, *value.shape[1:]).clone(), False
    if value.is_floating_point():
        for how, number in (("NaN", torch.nan), ("infinity", torch.inf), ("1e37", 1e37)):
            other = value.clone()
            other.view(-1)[0] = number
            yield place, how, other, True
        yield place, "the sign", -value, False
    elif value.dtype == torch.uint8:  # what a guard made bytes of: any of them could be the truth
        yield place, "other bytes", value.bitwise_not(), False
        yield place, "half of the bytes", value[: len(value) // 2].clone(), False
        yield place, "bytes of zero", torch.zeros_like(value), False
    elif value.dtype == torch.int64:
        yield place, "huge numbers", torch.full_like(value, HUGE), False
        yield place, "negative numbers", -1 - value.abs(), False


def _about_number(value: float, hint: Any, place: str) -> Iterator[Change]:
    counts = place == "weight" or place.startswith("counts")  # bounded by what the client holds
    yield place, "a text", "many", True
    yield place, "below zero", -1 if isinstance(value, int) else -1.0, counts
    if isinstance(value, int):
        yield place, "huge", HUGE, counts
        yield place, "an integer of 80 bits", 2**80, True
    if isinstance(value, float) or hint is float:
        for how, number in (("NaN", float("nan")), ("infinity", float("inf")), ("1e300", 1e300)):
            yield place, how, number, True
        yield place, "1e15", 1e15, counts


# ---- who tells them


@dataclass
class Told:
    """A lie that was told, and where."""

    position: Position
    lie: Lie


@dataclass
class Dishonest(ABC):
    """A client that may answer something else than it should.

    Fields:
        client:  who
        request: the name of the request type that it lies about
        told:    the lies that were told so far
    """

    client: str
    request: str
    told: list[Told] = field(default_factory=list, init=False)

    def answer(self, position: Position, request: Request[Any], reply: Record | Failure) -> Record | Failure:
        """Return what the client sends in place of its reply; the very same object where that is the reply."""
        lie = None if isinstance(reply, Failure) else self.lie_about(position, request, reply)
        if lie is None:
            return reply
        self.told.append(Told(position, lie))
        return lie.reply

    @abstractmethod
    def lie_about(self, position: Position, request: Request[Any], reply: Record) -> Lie | None:
        """Return what it says in place of an honest reply; None where it says that."""


@dataclass
class Liar(Dishonest):
    """A client that answers one kind of request with lies, one after the other, and is honest otherwise.

    Fields:
        lies:  which lies there are about an honest reply
        start: how many of them to leave out at first
    """

    lies: Callable[[Record], Sequence[Lie]]
    start: int = 0

    def lie_about(self, position: Position, request: Request[Any], reply: Record) -> Lie | None:
        """Return the next lie."""
        if type(request).__name__ != self.request:
            return None
        lies = self.lies(reply)
        return lies[(self.start + len(self.told)) % len(lies)]


class HostileRuntime:
    """Another runtime, one client of which lies; everything else is passed on.

    In the strict runtime all replies are bytes, and so are the lies: as somebody writes them whose encoder has no
    limits, and as the server reads them.
    """

    def __init__(self, runtime: Runtime, liar: Dishonest) -> None:
        self.runtime, self.liar = runtime, liar

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Pass the exchange on, and the liar's reply through it; clients that answered together are taken apart."""
        for each in apart(self.runtime.exchange(position, requests, timeout_seconds)):
            if each.client == self.liar.client:
                reply = self.liar.answer(position, requests[each.client], each.reply)
                if reply is not each.reply:
                    each = self._sent(requests[each.client], dataclasses.replace(each, reply=reply))
            yield each

    def _sent(self, request: Request[Any], lied: Outcome) -> Outcome:
        """Return an outcome as it arrives at the server."""
        if not isinstance(self.runtime, StrictRuntime) or isinstance(lied.reply, Failure):
            return measured(lied.client, lied.reply, lied.bytes_down, lied.seconds, lied.codec_seconds)
        message = forged(lied.reply)
        reply: Record | Failure
        try:
            reply = decode(message, reply_type(type(request)), max_bytes=DEFAULT_MAX_BYTES)
        except BadMessage as error:
            reply = Failure(lied.client, "malformed", str(error))
        return dataclasses.replace(lied, reply=reply, bytes_up=len(message))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)


class Interposed(ABC):
    """What stands before a silo between sites, with the same interface, and answers exchanges in its place."""

    def __init__(self, honest: Any) -> None:
        self.honest = honest

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    def handle(self, kind: str, data: bytes) -> bytes:
        """Answer a message."""
        try:
            envelope: Envelope | None = decode(data, Envelope) if kind == "exchange" else None
        except BadMessage:
            envelope = None
        answer: bytes = self.honest.handle(kind, data) if envelope is None else self.exchange(envelope, data)
        return answer

    @abstractmethod
    def exchange(self, envelope: Envelope, data: bytes) -> bytes:
        """Answer a request."""


class HostileSilo(Interposed):
    """A silo between sites that lies."""

    def __init__(self, honest: Any, liar: Dishonest, kinds: Sequence[type[Request[Any]]]) -> None:
        super().__init__(honest)
        self.liar = liar
        self.kinds = {kind.__name__: kind for kind in kinds}

    def exchange(self, envelope: Envelope, data: bytes) -> bytes:
        """Answer as the honest silo would, but for the lie."""
        message: bytes = self.honest.handle("exchange", data)
        try:
            answer: Answer = decode(message, Answer)
        except BadMessage:
            return message
        asked = self.kinds[envelope.kind]
        if answer.failure is not None:
            return message
        request: Request[Any] = decode(opened(envelope.payload), asked)
        honest: Record = decode(opened(answer.payload), reply_type(asked))
        reply = self.liar.answer(envelope.position, request, honest)
        if reply is honest:
            return message
        if isinstance(reply, Failure):
            return encode(dataclasses.replace(answer, payload=pack(b""), failure=reply))
        return encode(dataclasses.replace(answer, payload=pack(forged(reply))))
