"""Being told to end is an interruption like Ctrl-C, as long as a command works."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_like_interrupted(*numbers: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt for these signals within; afterwards they are handled as before.

    Who calls a command from a program of their own has signals of their own; only the main thread can set them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
