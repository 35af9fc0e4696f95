"""An operator's line to the server: every question is asked until it is answered, whatever gets lost on the way."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput, BadMessage, CourseFailed
from isthmus.core.outside import foreign
from isthmus.core.record import Record, foreign_texts
from isthmus.sites.courses.messages import open_answer

RETRY_SECONDS = 10.0  # above the time for which the server holds a question for news
PATIENCE_SECONDS = 60.0
MAX_ANSWER_BYTES = 1 << 24
MAX_DAMAGED = 20  # answers to one question that cannot be read
MAX_SAID = 1000  # characters of a text of the server's
PAUSE_SECONDS = 0.3  # before a question is asked again that could not be sent

R = TypeVar("R", bound=Record)


class Line:
    """Asks over `send(kind, ident, data)`, which returns why a message could not be sent; `heard` takes answers."""

    def __init__(self, send: Callable[[str, str, bytes], str], retry_seconds: float = RETRY_SECONDS) -> None:
        self._send, self.retry_seconds = send, retry_seconds
        self._lock = threading.Lock()
        self._open: dict[str, queue.Queue[bytes]] = {}

    def heard(self, kind: str, ident: str, data: bytes) -> None:
        """Take an answer; one that nobody waits for is dropped."""
        with self._lock:
            answers = self._open.get(ident)
        if kind == "answer" and answers is not None:
            answers.put(data)

    def ask(self, kind: str, question: Record, reply: type[R], *, patience_seconds: float = PATIENCE_SECONDS) -> R:
        """Ask the server and return its reply; asked again until one comes that can be read."""
        answers: queue.Queue[bytes] = queue.Queue()
        deadline = time.monotonic() + patience_seconds
        idents: list[str] = []
        damaged = 0
        try:
            while time.monotonic() < deadline:
                # An answer to an earlier try is as good, so that all of them stay open.
                idents.append(uuid.uuid4().hex)
                with self._lock:
                    self._open[idents[-1]] = answers
                if self._send(kind, idents[-1], encode(question)):
                    time.sleep(PAUSE_SECONDS)
                    continue
                try:
                    seconds = min(self.retry_seconds, deadline - time.monotonic())
                    problem, content = open_answer(answers.get(timeout=max(seconds, 0.001)))
                    if problem:
                        raise BadInput(f"the server says: {foreign(problem, MAX_SAID)}")
                    return foreign_texts(decode(content, reply), MAX_SAID)
                except queue.Empty:
                    continue
                except BadMessage as error:
                    damaged += 1
                    if damaged >= MAX_DAMAGED:
                        raise CourseFailed(f"the server's answers to {kind!r} cannot be read: {error}") from None
        finally:
            with self._lock:
                for ident in idents:
                    del self._open[ident]
        raise CourseFailed(f"the server has not answered for {patience_seconds:.0f} s")
