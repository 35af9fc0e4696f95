"""How long a silo works on one message: what takes longer is given up, wherever it is."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Raised in the middle of work that has had its time; no `except Exception` of a handler keeps it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in this thread when the block has taken so long.

    It comes between two steps of Python, so a single call into torch is not cut short; sizes are bounded before.
    Signals would do the same, but only in the main thread.
    """
    thread, lock, over = threading.get_ident(), threading.Lock(), False

    def strike() -> None:
        with lock:
            if not over:
                _raise_in(thread, TookTooLong)

    timer = threading.Timer(seconds, strike)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
        _raise_in(thread, None)  # one that was on its way comes too late


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    exception = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
