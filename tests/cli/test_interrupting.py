"""Being told to end is an interruption while a command works, and only then."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from isthmus.cli import ended_like_interrupted
from isthmus.cli.federation import interruptible

from .command import call


def test_a_command_leaves_the_signals_of_its_process_as_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    assert call("run", "-q", "rounds=1", "--out", str(tmp_path / "run"))[0] == 0
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_a_signal_interrupts_within_and_handlers_come_back_after_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ended_like_interrupted(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_nothing_is_changed() -> None:
    import threading

    found = []

    def work() -> None:
        with ended_like_interrupted(signal.SIGTERM):
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
