"""A time limit for tests whose promise, once broken, would be a test that never ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest


@contextmanager
def within(seconds: float = 25.0) -> Iterator[None]:
    """Fail where the block, or a test that this decorates, takes longer; in the main thread, where tests run."""

    def strike(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # and each second after, in case that one was swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
