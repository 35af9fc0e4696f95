"""What every poisoning has: clients that take part in it, and the places of a course at which they can act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.config.course import Course
from isthmus.core.errors import BadInput, nearest
from isthmus.core.federation import Runtime
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True)
class Poisoning:
    """Some clients of a course do not do what they should: malicious clients, each in its own place or all as one.

    It does nothing here: one overrides the place at which it acts, what its clients learn from (`of_data`), what leaves
    their handlers (`of_course`: a guard with nothing but a client half), or what arrives (`of_runtime`).

    Fields:
        clients: who does so
    """

    position: ClassVar[str] = "malicious client"

    clients: tuple[str, ...] = ("client-0",)

    def of_data(self, scenario: Scenario) -> Scenario:
        """Return who holds what, with what is poisoned; the whole graph, and so the scores, stay true."""
        return scenario

    def of_course(self, course: Course) -> Course:
        """Return the course with what these clients do to their messages."""
        return course

    def of_runtime(self, runtime: Runtime, course: Course) -> Runtime:
        """Return what carries exchanges, with what these clients say in the place of their replies."""
        return runtime

    def require_clients(self, scenario: Scenario) -> None:
        """Raise BadInput where one of its clients is none of the course."""
        for client in self.clients:
            if client not in scenario.parts:
                name = type(self).__name__
                raise BadInput(f"{name}.clients has {client!r}; {nearest(client, scenario.parts)}")
