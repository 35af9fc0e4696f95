"""Says of things that happen often only now and then that they happen, and how often."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from isthmus.core.outside import printable

SELDOM_SECONDS = 60.0
MAX_KINDS = 1000


class Seldom:
    """Says each kind of thing at most `burst` times a while; then how many were left unsaid."""

    def __init__(
        self,
        say: Callable[[str], None],
        seconds: float = SELDOM_SECONDS,
        burst: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._seconds, self._burst, self._clock = say, seconds, burst, clock
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[float, int]] = {}  # kind -> since when we count, and how many came since

    def __call__(self, kind: str, text: str) -> None:
        """Say a text of a kind, or count it."""
        now, unsaid = self._clock(), 0
        with self._lock:
            kind = kind if kind in self._counts or len(self._counts) < MAX_KINDS else ""
            since, count = self._counts.get(kind, (now, 0))
            if now - since >= self._seconds:
                since, count, unsaid = now, 0, max(count - self._burst, 0)
            self._counts[kind] = (since, count + 1)
        if count < self._burst:
            self._say(f"{text} (and {unsaid} like it before, unsaid)" if unsaid else text)


class SeldomHandler(logging.Handler):
    """Writes log records, of each place in the code at most one a while."""

    def __init__(self, seconds: float = SELDOM_SECONDS) -> None:
        super().__init__(logging.WARNING)
        self._seldom = Seldom(self._write, seconds)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        text = printable(record.getMessage()[:300])
        self._seldom(f"{record.name}:{record.lineno}", text)

    @staticmethod
    def _write(text: str) -> None:
        if logging.lastResort is not None:
            logging.lastResort.handle(logging.makeLogRecord({"msg": "%s", "args": (text,), "levelno": logging.WARNING}))
