"""`python -m isthmus` as a process that kills itself (-9) where it is told to, and writes down what it sees of sums.

ISTHMUS_STRIKES names a folder. A file `ROUND,STAGE,WHO,HOW` in it is a strike; who is struck removes the file first, so
that it hits once. HOW is `before` or `after`: a silo's answer, or the server's exchange. With a file `patient` the
server begins a round when all are connected.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.cli import main
from isthmus.core.codec import decode
from isthmus.runtime.answering import Silo
from isthmus.runtime.envelope import Envelope
from isthmus.runtime.remote import RemoteRuntime
from tests.sites.sums.striking import STAGES, stage_of
from tests.sites.sums.watching import Scribe, watched

SERVER = "server"


def strike(round: int, stage: str, who: str, how: str) -> None:
    """Die if that is what happens here."""
    with suppress(FileNotFoundError):
        (Path(os.environ["ISTHMUS_STRIKES"]) / f"{round},{stage},{who},{how}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def strike_silos(name: str) -> None:
    """Let a silo die before or after it has answered."""
    answer = Silo.answer

    def struck(self: Silo, message: bytes) -> bytes:
        envelope: Envelope = decode(message, Envelope)
        at = envelope.position.round, stage_of(envelope), name
        strike(*at, "before")
        found = answer(self, message)
        strike(*at, "after")
        return found

    Silo.answer = struck  # type: ignore[method-assign]


def strike_server() -> None:
    """Let the server die before or after an exchange, and have its silos back before a round."""
    exchange = RemoteRuntime.exchange

    def struck(self: RemoteRuntime, position: Any, requests: Any, timeout_seconds: float | None) -> Iterator[Any]:
        first = next(iter(requests.values()), None)
        which = getattr(first, "which", None)
        stage = type(first).__name__ + ("" if which is None else f" {which}")
        if stage == STAGES[0] and (Path(os.environ["ISTHMUS_STRIKES"]) / "patient").exists():
            _wait_for(self.transport, set(requests))
        strike(position.round, stage, SERVER, "before")
        yield from exchange(self, position, requests, timeout_seconds)
        strike(position.round, stage, SERVER, "after")

    RemoteRuntime.exchange = struck  # type: ignore[method-assign]


def _wait_for(transport: Any, sites: set[str]) -> None:
    deadline = time.monotonic() + 60
    while not sites <= transport.available() and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    party = Path(sys.argv[2]).name
    if party == SERVER:
        strike_server()
    else:
        strike_silos(party)
    scribe = Scribe(Path(os.environ["ISTHMUS_STRIKES"]) / f"{party}-{os.getpid()}.seen")
    with watched(scribe):
        main()
