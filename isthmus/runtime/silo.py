"""The silo's side of a remote runtime: bytes in, bytes out, memories in a folder of its own."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from isthmus.core.client import Client
from isthmus.core.codec import DEFAULT_MAX_BYTES, decode, encode, pack, unpack
from isthmus.core.errors import BadMessage
from isthmus.core.protocol import Algorithm, Failure, Request
from isthmus.core.record import State
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.runtime.site import Site

_NAME = re.compile(r"[0-9a-f]{32}")


class MemoryStore:
    """A client's memories as files, each written whole or not at all, under names that reveal nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, name: str) -> State:
        """Return a memory; the blank one is always there."""
        if name == BLANK:
            return {}
        if not _NAME.fullmatch(name):  # names become paths, so nothing else may pass
            raise BadMessage(f"{name[:60]!r} is not the name of a memory")
        path = self.folder / name
        if not path.is_file():
            raise BadMessage(f"this silo has no memory {name}: it was lost, or belongs to another course")
        return decode(path.read_bytes(), State)

    def save(self, state: State, before: str, old: State) -> str:
        """Keep a memory and return its name; one that did not change keeps the name it had."""
        content = encode(state)
        if content == encode(old):
            return before
        name = secrets.token_hex(16)
        temporary = self.folder / f".{name}.part"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / name)
        return name

    def drop_all_but(self, names: Iterable[str]) -> None:
        """Remove every other memory."""
        kept = set(names)
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)


class Silo:
    """One client of a course at its own site."""

    def __init__(
        self,
        course: str,
        algorithm: Algorithm[Any],
        client: Callable[[], Client],
        store: MemoryStore,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.course = course
        self.algorithm = algorithm
        self.store = store
        self.max_bytes = max_bytes
        self._make = client
        self._client: Client | None = None
        self._kinds = {kind.__name__: kind for kind in type(algorithm).handlers()}

    @property
    def client(self) -> Any:
        """The client, made when it is first needed."""
        if self._client is None:
            self._client = self._make()
        return self._client

    def answer(self, message: bytes) -> bytes:
        """Answer the bytes of an envelope with the bytes of an answer, whatever they are."""
        try:
            envelope: Envelope = decode(message, Envelope, max_bytes=self.max_bytes)
            if envelope.course != self.course:
                raise BadMessage(f"the request is for course {envelope.course!r}; this silo agreed to {self.course!r}")
            kind = self._kinds.get(envelope.kind)
            if kind is None:
                raise BadMessage(f"{type(self.algorithm).__name__} has no handler for {envelope.kind[:60]!r}")
            request: Request[Any] = decode(unpack(envelope.payload), kind, max_bytes=self.max_bytes)
            before = self.store.load(envelope.memory)
        except BadMessage as error:
            return encode(Answer(pack(b""), Failure("", "malformed", str(error)), BLANK))
        return encode(self._carried_out(envelope, request, before))

    def _carried_out(self, envelope: Envelope, request: Request[Any], before: State) -> Answer:
        self.client.state = dict(before)
        reply = Site(self.algorithm, self.client).answer(envelope.position, request)
        if isinstance(reply, Failure):
            return Answer(pack(b""), reply, envelope.memory)
        memory = self.store.save(self.client.state, envelope.memory, before)
        self.store.drop_all_but({memory, envelope.memory, *envelope.keep})
        return Answer(pack(encode(reply)), None, memory)
