"""Whose features a client has: the gradient of the first layer is made of them, so they lie in its span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Case, Naming, Seen
from isthmus.attacks.inputs.layers import UPDATES, at_the_input, by_feature, first_update, steps_problem, without_decay
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request


@dataclass(frozen=True)
class FeatureSpan(Naming):
    """Takes the nodes whose features lie in the span of a client's first gradient for the client's.

    The gradient of a linear first layer is X^T C, where row i of C is what reaches node i from the loss. If no more
    nodes are reached than the layer has outputs, and their rows are independent, each reached node's features lie in
    the span of the columns, and hardly anybody else's do. Features that several nodes share tell of none of them.

    Fields:
        rank:      directions whose singular value is below this share of the largest are rounding
        tolerance: features lie in the span if no more than this share of their length does not
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which of many nodes, whose features are known, a client holds"
    knows: ClassVar[str] = "the features of all nodes"
    reads: ClassVar[tuple[str, ...]] = UPDATES

    rank: float = 1e-6
    tolerance: float = 1e-2

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.rank < 1.0, self, "rank", "it must be in (0, 1)")
        refuse(not 0.0 < self.tolerance < 1.0, self, "tolerance", "it must be in (0, 1)")

    def problem(self, course: Course) -> str:
        """Return why there is no single gradient to be seen."""
        return steps_problem(course, (1,))

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first round."""
        return at.round <= 1

    def known(self, case: Case) -> Tensor:
        """Return the features of all nodes, (nodes, features), of length 1."""
        x: Tensor = case.scenario.whole.x.to_dense().double()
        return torch.nn.functional.normalize(x)

    def guess(self, seen: Seen, known: Tensor) -> dict[str, Tensor]:
        """Return which nodes lie in the span of each client's gradient."""
        single, thin = alone(known), known.to_sparse_csr()  # of words, few are in a text
        return {client: self._in_span(seen, client, known.shape[1], thin) & single for client in seen.clients}

    def _in_span(self, seen: Seen, client: str, number: int, x: Tensor) -> Tensor:
        sent, back = first_update(seen, client)
        name = at_the_input(back, number)
        gradient = by_feature(without_decay(sent[name], back[name], seen.course), number)
        directions, lengths, _ = torch.linalg.svd(gradient, full_matrices=False)
        basis = directions[:, lengths > self.rank * lengths[0].clamp_min(1e-30)]
        # Rows of x are of length 1, or 0; what is inside and what is outside make up a right angle.
        inside: Tensor = (x @ basis).square().sum(dim=1)
        return torch.gt(inside, 1.0 - self.tolerance**2)

    def prior(self, known: Tensor, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return nobody: without a gradient no node is more a client's than another's."""
        return dict.fromkeys(clients, torch.zeros(len(known), dtype=torch.bool))

    def truth(self, case: Case, known: Tensor) -> dict[str, Tensor]:
        """Return the nodes that each client holds."""
        found = {}
        for client, part in case.scenario.parts.items():
            found[client] = torch.zeros(len(known), dtype=torch.bool)
            found[client][part.node_ids] = True
        return found


def alone(x: Tensor) -> Tensor:
    """Return which rows no other row is equal to, (rows,)."""
    _, which, counts = torch.unique(x, dim=0, return_inverse=True, return_counts=True)
    return torch.eq(counts[which], 1)
