"""What runs at a client in every runtime: the algorithm's handler answers, or a named failure does."""

from __future__ import annotations

import time
import traceback
from typing import Any

from isthmus.core.client import Client
from isthmus.core.errors import BadMessage, IsthmusError
from isthmus.core.federation import Outcome, Position
from isthmus.core.protocol import Algorithm, Failure, Request
from isthmus.core.record import Record, State, check_value


class Site:
    """A client together with the algorithm whose handlers it runs; its own settings of it come first."""

    def __init__(self, algorithm: Algorithm[Any], client: Client) -> None:
        self.algorithm = getattr(client, "algorithm", None) or algorithm
        self.client = client
        self._handlers = type(algorithm).handlers()

    def answer(self, position: Position, request: Request[Any]) -> Record | Failure:
        """Run the handler; when it fails, the client's memory is what it was before."""
        before = dict(self.client.state)
        self.client.begin(position, request)
        try:
            name = self._handlers.get(type(request))
            if name is None:
                raise BadMessage(f"{type(self.algorithm).__name__} has no handler for {type(request).__name__}")
            reply: Record = getattr(self.algorithm, name)(request, self.client)
            check_value(self.client.state, State, f"state of client {self.client.id}")
        except IsthmusError as error:
            self.client.state = before
            return Failure(self.client.id, "error", str(error))
        except Exception as error:  # whatever a handler raises must not end the others' course; it is reported by name
            self.client.state = before
            return Failure(self.client.id, "error", f"{type(error).__name__}: {error} ({_place(error)})")
        return reply


def timed(site: Site, position: Position, request: Request[Any], timeout_seconds: float | None) -> Outcome:
    """Answer and measure; an answer in process cannot be cut short, so a late one becomes a failure after the fact."""
    started = time.perf_counter()
    before = dict(site.client.state)
    reply = site.answer(position, request)
    seconds = time.perf_counter() - started
    if timeout_seconds is not None and seconds > timeout_seconds:
        site.client.state = before
        reason = f"answered after {seconds:.3f} s, the limit is {timeout_seconds} s"
        reply = Failure(site.client.id, "late", reason)
    return Outcome(site.client.id, reply, 0, 0, seconds)


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {frame.name}, line {frame.lineno} of {frame.filename.rsplit('/', 1)[-1]}"
