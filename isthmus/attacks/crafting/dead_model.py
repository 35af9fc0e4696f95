"""Label shares are read exactly from the reply to a model that is dead: nothing but the last bias moves.

After Fu et al. (2025), "EC-LDA: label distribution inference attack against federated graph learning with embedding
compression", whose server makes embeddings small; here they are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import MALICIOUS_SERVER, Case, Estimating, Seen, Tampering
from isthmus.attacks.crafting.crafting_server import CraftingServer, crafted_messages
from isthmus.attacks.inputs.label_shares import shares_of
from isthmus.attacks.inputs.layers import at_the_output, steps_problem
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Params

# Shares are found by putting them in and seeing where the bias goes, so often.
ITERATIONS = 200


@dataclass(frozen=True)
class DeadServer(CraftingServer):
    """Sends a model all of whose parameters are zero.

    Hidden units put out zero and so have no part in any gradient; every node has the same scores, the last bias.

    Fields: as of every such server
    """

    def crafted(self, params: Params, at: Position) -> Params:
        """Return zeros."""
        return {name: torch.zeros_like(tensor) for name, tensor in params.items()}


@dataclass(frozen=True)
class DeadModel(Estimating):
    """Reads the share of each class among the labels that a client trains on, exactly, off the reply to a dead model.

    All nodes have the scores b, so a step of plain SGD moves the last bias by  lr (s - softmax(b)),  less its decay,
    with s the label shares. For several steps s is what leads from zero to where the bias is.

    Fields:
        at_round: in which round the model is dead
    """

    position: ClassVar[str] = MALICIOUS_SERVER
    learns: ClassVar[str] = "which share of a client's training labels each class has"
    knows: ClassVar[str] = "the shares of all training labels together"
    reads: ClassVar[tuple[str, ...]] = ("params",)

    at_round: int = 1

    def __post_init__(self) -> None:
        refuse(self.at_round < 1, self, "at_round", "rounds are counted from 1")

    def problem(self, course: Course) -> str:
        """Return why the bias would not tell."""
        if not course.task.outputs_are_classes:
            return f"it is about shares of classes, and the task {type(course.task).__name__} has none"
        if course.rounds < self.at_round:
            return f"at_round is {self.at_round}, and the course has {course.rounds} rounds"
        return steps_problem(course)

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the round with the dead model."""
        return at.round == self.at_round

    def tampering(self, case: Case) -> tuple[Tampering, ...]:
        """Return the server that crafts."""
        return (DeadServer(from_round=self.at_round),)

    def known(self, case: Case) -> Tensor:
        """Return the shares of the whole data."""
        return shares_of(case.scenario.whole)

    def guess(self, seen: Seen, known: Tensor) -> dict[str, Tensor]:
        """Return what the biases say."""
        return {client: self._of(seen, client, len(known)) for client in seen.clients}

    def _of(self, seen: Seen, client: str, num_classes: int) -> Tensor:
        message = crafted_messages(seen, client, DeadServer(from_round=self.at_round))[0]
        back = message.reply.params  # type: ignore[attr-defined]
        algorithm: Any = seen.course.algorithm
        spec = algorithm.optimizer
        return shares_that_lead_to(
            back[at_the_output(back, num_classes)].double().reshape(-1),
            lr=spec.lr,
            decay=spec.weight_decay,
            steps=algorithm.local_steps,
        )

    def prior(self, known: Tensor, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return the shares of all."""
        return dict.fromkeys(clients, known)

    def truth(self, case: Case, known: Tensor) -> dict[str, Tensor]:
        """Return the shares among the labels that each client trains on, of those that have some."""
        found = {client: shares_of(part) for client, part in case.scenario.parts.items()}
        return {client: shares for client, shares in found.items() if shares.sum() > 0}


def shares_that_lead_to(bias: Tensor, lr: float, decay: float, steps: int) -> Tensor:
    """Return s with which  b <- b + lr (s - softmax(b) - decay b)  leads from zero to a bias, (classes,)."""
    shares = torch.full_like(bias, 1.0 / len(bias))
    for _ in range(ITERATIONS):
        reached = torch.zeros_like(bias)
        for _ in range(steps):
            reached = reached + lr * (shares - reached.softmax(dim=0) - decay * reached)
        shares = shares + (bias - reached) / (lr * steps)
    found: Tensor = shares.clamp_min(0.0)
    return found / found.sum().clamp_min(1e-12)
