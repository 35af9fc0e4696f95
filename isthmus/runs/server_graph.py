"""A graph of the server's own, and a client on it that answers what clients are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from isthmus.config.course import Course
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.federation.judging import judged
from isthmus.core.guards.guard import SERVER
from isthmus.core.protocol import Failure, Known, Position, Request, reply_type
from isthmus.core.random import numpy_generator
from isthmus.core.record import CPU, Record, State, moved
from isthmus.learn.graph_client import GraphClient
from isthmus.runs.simulation import Scenario, fresh_model, simulated_client
from isthmus.runtime.loop import Site


def servers_client(course: Course, scenario: Scenario, known: Sequence[str] | None) -> ServersClient:
    """Return the server's own client in a simulation: on the scenario's graph for it, or on the course's share."""
    if SERVER in scenario.parts:
        raise BadInput(f"a client is called {SERVER!r}, as the server's own is: give it another name")
    data = servers_data(course, scenario)
    return ServersClient(course, simulated_client(course, SERVER, data, *fresh_model(course, SERVER, data, known)))


def servers_data(course: Course, scenario: Scenario) -> Any:
    """Return what the server has: what the scenario says, or the course's share of the whole."""
    return drawn_share(course, scenario.whole) if scenario.server is None else scenario.server


def drawn_share(course: Course, whole: Any) -> Any:
    """Return the course's share of the data, drawn at random."""
    number = max(1, round(course.server_share * whole.num_items))
    chosen = numpy_generator(course.seed, "the server's graph").permutation(whole.num_items)[:number]
    return whole.divide([torch.from_numpy(chosen).sort().values])[0]


class ServersClient:
    """The client half of a course's method on the server's own graph; what it remembers is the guard's that asks it."""

    def __init__(self, course: Course, client: GraphClient) -> None:
        if not client.num_examples:
            raise BadInput(
                f"the server's own graph ({course.task.holds(client.data)}) has no example to train on: set a larger "
                "server_share, or give it one that has"
            )
        client.guards = None  # nothing of it leaves
        self.client, self.site = client, Site(course.algorithm, client)

    def answer(self, position: Position, request: Request[Any], memory: State) -> tuple[Record, State]:
        """Return the reply to a request, and the memory after it."""
        self.client.state = dict(memory)
        held = getattr(self.client, "holdings", None)
        known = Known({} if held is None else {SERVER: held})
        found = judged(SERVER, self.site.answer(position, request), request, reply_type(type(request)), known)
        if isinstance(found, Failure):
            raise CourseFailed(f"the server's own graph gave no answer to {type(request).__name__}: {found.reason}")
        state: State = self.client.state if self.client.device == CPU else moved(self.client.state, CPU)
        return found, dict(state)
