"""The silo's side of a remote runtime: bytes in, bytes out, memories in a folder of its own."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from isthmus.core.client import Client
from isthmus.core.codec import DEFAULT_MAX_BYTES, decode, encode, opened, pack
from isthmus.core.errors import BadMessage
from isthmus.core.outside import Damaged, replace_file, sealed, unsealed
from isthmus.core.protocol import Algorithm, Failure, Request
from isthmus.core.record import Record, State
from isthmus.runtime.envelope import BLANK, Answer, EnclosedAnswer, Enclosure, Envelope
from isthmus.runtime.loop import Site
from isthmus.runtime.reasons import Reasons, Refusal

_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Memory(Record):
    """A client's memory as it lies in a file."""

    owner: str
    """Which course and algorithm it belongs to: no other finds it."""
    state: State
    """What the client remembers."""


def memory_owner(algorithm: Algorithm[Any], course: str) -> str:
    """Return what memories are bound to: a course with its settings, an algorithm and its kinds of requests."""
    # What one algorithm keeps to itself, the requests of another may ask for.
    kind = type(algorithm)
    kinds = sorted(request.__name__ for request in kind.handlers())
    parts = (course, f"{kind.__module__}.{kind.__qualname__}", *kinds)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class MemoryStore:
    """A client's memories as files, each written whole or not at all, under names that reveal nothing.

    `beside` are the names of files in the folder that are no memories, and stay as long as it does.
    """

    folder: Path
    owner: str = ""
    beside: tuple[str, ...] = ()

    def load(self, name: str) -> State:
        """Return a memory; the blank one is always there. One that is lost or damaged is refused by its file's name."""
        if name == BLANK:
            return {}
        if not _NAME.fullmatch(name):  # names become paths, so nothing else may pass
            raise BadMessage(f"{name[:60]!r} is not the name of a memory")
        path = self.folder / name
        try:
            # What we wrote ourselves must be readable at any size.
            content = unsealed(path.read_bytes())
            memory: Memory = decode(content, Memory, max_bytes=len(content))
        except FileNotFoundError:
            raise Refusal("memory", f"the memory {path} is lost: there is no such file") from None
        except OSError as error:
            raise Refusal("memory", f"the memory {path} cannot be read: {error.strerror or error}") from None
        except (Damaged, BadMessage) as error:
            raise Refusal("memory", f"the memory {path} is damaged: {error}") from None
        if memory.owner != self.owner:
            raise Refusal("memory", f"the memory {path} belongs to another course or algorithm")
        return memory.state

    def save(self, state: State, before: str, old: State) -> str:
        """Keep a memory and return its name; one that did not change keeps the name it had."""
        content = encode(Memory(self.owner, state))
        if content == encode(Memory(self.owner, old)):
            return before
        name = secrets.token_hex(16)
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / name, sealed(content))
        return name

    def drop_all_but(self, names: Iterable[str]) -> None:
        """Remove every other memory."""
        kept = {*names, *self.beside}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name not in kept:
                path.unlink(missing_ok=True)


@dataclass(eq=False)
class Silo:
    """One client of a course at its own site."""

    course: str
    algorithm: Algorithm[Any]
    _make: Callable[[], Client]
    store: MemoryStore
    max_bytes: int = DEFAULT_MAX_BYTES
    reasons: Reasons = field(default_factory=Reasons)

    @cached_property
    def client(self) -> Any:
        """The client, made when it is first needed."""
        return self._make()

    def answer(self, message: bytes) -> bytes:
        """Answer the bytes of an envelope with the bytes of an answer, whatever they are."""
        try:
            envelope: Envelope = decode(message, Envelope, max_bytes=self.max_bytes, share=True)
            if envelope.course != self.course:
                raise BadMessage(f"the request is for course {envelope.course!r}; this silo agreed to {self.course!r}")
            request = self._read(envelope)
            before = self.store.load(envelope.memory)
        except BadMessage as error:
            return self._failed("malformed", "message", str(error))
        except Refusal as error:
            todo = "it starts the course anew if its method allows that, else it leaves the course"
            self.reasons.say(f"{error}; put it back from a backup if there is one, else this silo cannot go on: {todo}")
            return self._failed("memory", error.kind, str(error), said=True)
        return self._carried_out(envelope, request, before)

    def _read(self, asked: Envelope | Enclosure) -> Request[Any]:
        """Return a request of a kind that this client answers; raises BadMessage if it is none."""
        own = self.client.guards.kinds if self.client.guards else ()
        kinds = {kind.__name__: kind for kind in (*type(self.algorithm).handlers(), *own)}
        kind = kinds.get(asked.kind)
        if kind is None:
            raise BadMessage(f"{type(self.algorithm).__name__} has no handler for {asked.kind[:60]!r}")
        found: Request[Any] = decode(opened(asked.payload), kind, max_bytes=self.max_bytes)
        return found

    def _carried_out(self, envelope: Envelope, request: Request[Any], before: State) -> bytes:
        self.client.state = dict(before)
        reply = Site(self.algorithm, self.client).answer(envelope.position, request)
        if isinstance(reply, Failure):
            return self._failed(reply.kind, _why(reply), f"{envelope.kind}: {reply.reason}", envelope.memory)
        memory = self.store.save(self.client.state, envelope.memory, before)
        kept, enclosed = {memory, envelope.memory, *envelope.keep}, None
        if envelope.enclosed is not None:
            enclosed = self._carried_out_too(envelope.enclosed, memory)
            kept.add(enclosed.memory)
        self.store.drop_all_but(kept)
        return encode(Answer(pack(encode(reply)), None, memory, envelope.question, enclosed))

    def _carried_out_too(self, enclosure: Enclosure, memory: str) -> EnclosedAnswer:
        """Answer an enclosed request, as it would be answered in a message of its own."""
        before = dict(self.client.state)
        try:
            request = self._read(enclosure)
        except BadMessage as error:
            return EnclosedAnswer(pack(b""), self._failure("malformed", "message", str(error)), memory)
        reply = Site(self.algorithm, self.client).answer(enclosure.position, request)
        if isinstance(reply, Failure):
            why = f"{enclosure.kind}: {reply.reason}"
            return EnclosedAnswer(pack(b""), self._failure(reply.kind, _why(reply), why), memory)
        return EnclosedAnswer(pack(encode(reply)), None, self.store.save(self.client.state, memory, before))

    def _failed(self, kind: str, why: str, reason: str, memory: str = BLANK, said: bool = False) -> bytes:
        return encode(Answer(pack(b""), self._failure(kind, why, reason, said), memory))

    def _failure(self, kind: str, why: str, reason: str, said: bool = False) -> Failure:
        """Say here why there is no reply, and return what the server is told of it."""
        if not said:
            self.reasons.say(f"could not answer: {reason}")
        return Failure("", kind, self.reasons.crossing(why, reason))


def _why(failure: Failure) -> str:
    """Return of which kind a reason is that may cross."""
    return "request" if failure.kind == "refused" else "error"
