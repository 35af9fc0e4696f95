"""Labels from what clients tell of each node: the class that a row says is likely the node's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, ROWS, Attack, Case, NothingSeen, Seen
from isthmus.attacks.links.from_rows import rows_in
from isthmus.attacks.measures import mean_of
from isthmus.config.course import Course
from isthmus.core.exposure import fields_with_rows
from isthmus.core.protocol import reply_type


@dataclass(frozen=True, eq=False)
class Labels:
    """How usual each class is, (classes,), and each client's number of nodes."""

    shares: Tensor
    sizes: dict[str, int]


@dataclass(frozen=True)
class LabelsFromRows(Attack):
    """Takes the largest number of a row with one for each class for the class of the node."""

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "the class of each node that a client holds"
    knows: ClassVar[str] = "how usual each class is"
    reads: ClassVar[tuple[str, ...]] = (ROWS,)
    measures: ClassVar[tuple[str, ...]] = ("accuracy",)

    def problem(self, course: Course) -> str:
        """Return why there are no rows with a number for each class."""
        if not course.task.outputs_are_classes:
            return f"it is about classes, and the task {type(course.task).__name__} has none"
        if not any(fields_with_rows(reply_type(kind)) for kind in type(course.algorithm).handlers()):
            return f"no reply of {type(course.algorithm).__name__} has a row for each node"
        return ""

    def known(self, case: Case) -> Labels:
        """Return how usual each class is."""
        whole = case.scenario.whole
        counts = torch.bincount(whole.labels[whole.labels >= 0], minlength=whole.num_classes).double()
        return Labels(counts / counts.sum(), {client: len(part.labels) for client, part in case.scenario.parts.items()})

    def guess(self, seen: Seen, known: Labels) -> dict[str, Tensor]:
        """Return the class that the last rows say, (nodes,) by client."""
        found: dict[str, Tensor] = {}
        for message in seen.messages:
            if len(message.clients) == 1 and message.clients[0] in known.sizes:
                for rows in _fitting(message.reply, known, message.clients[0]):
                    found[message.clients[0]] = rows.argmax(dim=1)
        if not found:
            raise NothingSeen("no reply that is seen has a row for each node with a number for each class")
        return {**self.prior(known, seen.clients), **found}

    def prior(self, known: Labels, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return the most usual class for all."""
        usual = int(known.shares.argmax())
        return {client: torch.full((known.sizes[client],), usual) for client in clients}

    def truth(self, case: Case, known: Labels) -> dict[str, Tensor]:
        """Return the class of each node, -1 where it has none."""
        return {client: part.labels for client, part in case.scenario.parts.items()}

    def scores(self, guess: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
        """Return how often it is right, in the mean over all nodes that have a class."""
        right = [
            float(one == other)
            for client, labels in truth.items()
            for one, other in zip(guess[client].tolist(), labels.tolist(), strict=True)
            if other >= 0
        ]
        return {"accuracy": mean_of(right)}


def _fitting(reply: object, known: Labels, client: str) -> Iterator[Tensor]:
    """Yield the first rows of a reply with a number for each class."""
    rows = rows_in(reply, known.sizes[client]).values()  # type: ignore[arg-type]
    yield from [each for each in rows if each.ndim == 2 and each.shape[1] == len(known.shares)][:1]
