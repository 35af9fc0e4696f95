"""What every poisoning has: clients that take part in it, by name or so many of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch

from isthmus.attacks.attack import Case, Tampering
from isthmus.attacks.spoiling import Spoiling
from isthmus.core.errors import BadInput, nearest, refuse
from isthmus.core.random import torch_generator
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True)
class Poisoning(Spoiling, Tampering):
    """Some clients of a course do not do what they should: malicious clients, each in its own place or all as one.

    It does nothing here: one overrides the place at which it acts, what its clients learn from (`of_data`), what leaves
    their handlers (`of_course`: a guard with nothing but a client half), or what arrives (`of_runtime`).

    Fields:
        clients:   who does so
        malicious: in the place of names: so many, drawn from the seed of the course; 0 for those that are named
    """

    mark: ClassVar[str] = "poisoned"

    clients: tuple[str, ...] = ("client-0",)
    malicious: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        refuse(self.malicious < 0, self, "malicious", "it must be at least 0")

    @property
    def malicious_clients(self) -> tuple[str, ...]:
        """Those that are named."""
        return self.clients

    def tampering(self, case: Case) -> tuple[Tampering, ...]:
        """Return itself, its clients by name."""
        return (self.among(case.scenario, case.course.seed),)

    def among(self, scenario: Scenario, seed: int) -> Self:
        """Return the same with its clients by name; raises BadInput where one is none, or there are too few."""
        name = type(self).__name__
        for client in () if self.malicious else self.clients:
            if client not in scenario.parts:
                raise BadInput(f"{name}.clients has {client!r}; {nearest(client, scenario.parts)}")
        if not self.malicious:
            return self
        everybody = list(scenario.parts)
        if self.malicious >= len(everybody):
            raise BadInput(
                f"{name}.malicious is {self.malicious} of {len(everybody)} clients; leave an honest one at least"
            )
        order = torch.randperm(len(everybody), generator=torch_generator(seed, "malicious clients")).tolist()
        drawn = tuple(everybody[place] for place in sorted(order[: self.malicious]))
        return replace(self, clients=drawn, malicious=0)
