"""Clients that send other changes than they learned, each by what it knows itself."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.config.course import Course
from isthmus.core.guards.guard import AtClient, Guard
from isthmus.core.protocol import Request
from isthmus.core.record import Record, leaves, with_leaves


@dataclass(frozen=True)
class MessagePoisoning(Guard, Poisoning):
    """Some clients send other changes than they should have; what has no counterpart in the request counts as a change.

    It is a guard that has nothing but a client half: first in a course's list, it changes what leaves the handlers of
    its clients, whatever the method, the runtime and the guards behind it.

    Fields:
        clients:    who does so
        from_round: since when
    """

    from_round: int = 1

    def problem(self, course: Course) -> str:
        """Return why it cannot stand among a course's guards, or be audited there."""
        if self not in course.guards:
            return Poisoning.problem(self, course)
        number = self.malicious
        return f"malicious is {number}, and a guard must know who it is: name them in clients" if number else ""

    def of_course(self, course: Course) -> Course:
        """Return the course with this before all of its guards."""
        return replace(course, guards=(self, *course.guards))

    def acts(self, at: AtClient) -> bool:
        """Whether a client is one of those, by now."""
        return at.client.id in self.clients and at.position.round >= self.from_round

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return what is sent in place of a reply."""
        if not self.acts(at):
            return reply
        sent, found = leaves(request), leaves(reply)
        for path, leaf in found.items():
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                start = sent.get(path)
                matched = isinstance(start, Tensor) and start.shape == leaf.shape
                base = start.double() if matched and start is not None else torch.zeros_like(leaf, dtype=torch.float64)
                found[path] = (base + self.poisoned(leaf.double() - base, path, at)).to(leaf.dtype)
        return with_leaves(reply, found)

    @abstractmethod
    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the change that is sent in place of an honest one."""
