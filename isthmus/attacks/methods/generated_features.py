"""FedSage+'s generators: what they generate is made after their client's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedsage import FedSagePlus
from isthmus.algorithms.fedsage.messages import GeneratorView, ShareGenerator
from isthmus.algorithms.fedsage.neighbor_generation import FeatureGenerator
from isthmus.attacks.attack import CURIOUS_SERVER, Case, Deciding, NothingSeen, Seen
from isthmus.attacks.inputs.words import present
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.learn.optimizers import load_params


@dataclass(frozen=True)
class OfGenerators(Deciding):
    """Reads the generators of features that FedSage+'s clients send, with what goes into them."""

    position: ClassVar[str] = CURIOUS_SERVER
    reads: ClassVar[tuple[str, ...]] = ("params", "inputs", "counts")

    def problem(self, course: Course) -> str:
        """Return that no generators are sent."""
        if not isinstance(course.algorithm, FedSagePlus) or not course.algorithm.cross_rounds:
            return f"{type(course.algorithm).__name__} sends no generators of features (fedsage_plus with cross_rounds)"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about generators."""
        return issubclass(request, ShareGenerator)


@dataclass(frozen=True)
class GeneratedFeatures(OfGenerators):
    """Takes the features (words) that a client's generator gives most of, next to what is usual, for the client's.

    Server and peers get each client's fGen with what goes into it, so they can generate what the client would. The mean
    of the generated rows less the mean over all clients' generators says what is typical of this one; it is added to
    the feature's share among all nodes. What is decided is, for each client and each feature, whether one of its nodes
    has it.
    """

    learns: ClassVar[str] = "which features (words) occur among a client's nodes"
    knows: ClassVar[str] = "in which share of all nodes each feature occurs"

    def known(self, case: Case) -> Tensor:
        """Return in which share of all nodes each feature occurs, (features,)."""
        return present(case.scenario.whole.x).double().mean(dim=0)

    def guess(self, seen: Seen, known: Tensor) -> Tensor:
        """Return how much speaks for each feature at each client, client after client."""
        rows = {client: _typical(seen, client, len(known)) for client in seen.clients}
        usual = torch.stack(list(rows.values())).mean(dim=0)
        return torch.cat([known + row - usual for row in rows.values()])

    def prior(self, known: Tensor, clients: Sequence[str]) -> Tensor:
        """Return how usual each feature is."""
        return known.repeat(len(clients))

    def truth(self, case: Case, known: Tensor) -> Tensor:
        """Return which features each client has."""
        return torch.cat([present(part.x).any(dim=0) for part in case.scenario.parts.values()])


def _typical(seen: Seen, client: str, number: int) -> Tensor:
    """Return the mean of what a client's generator gives of what it was last seen to be given, (features,)."""
    views = [m.reply for m in seen.messages if m.clients == (client,) and isinstance(m.reply, GeneratorView)]
    if not views:
        raise NothingSeen(f"no generator of {client} is seen")
    rows = generated(views[-1])
    return rows.double().mean(dim=0) if len(rows) else torch.zeros(number, dtype=torch.float64)


def generated(view: GeneratorView) -> Tensor:
    """Return the features that a client generates, (generated, features)."""
    slots, hidden, columns = view.params["slot_weight"].shape
    with torch.random.fork_rng(devices=[]):
        model = FeatureGenerator(view.inputs.shape[1], hidden, slots, columns)
    load_params(model, view.params)
    with torch.no_grad():
        rows: Tensor = model(view.inputs, view.counts)[0]
    return rows
