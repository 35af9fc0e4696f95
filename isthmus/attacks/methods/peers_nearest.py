"""FedSage+'s gradients from peers: linear equations of the features of their nearest nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedsage import FedSagePlus
from isthmus.algorithms.fedsage.messages import GeneratorView, ShareGenerator, UpdateGenerator
from isthmus.attacks.attack import CURIOUS_CLIENT, Case, Naming, NothingSeen, Seen
from isthmus.attacks.inputs.words import present
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request


@dataclass(frozen=True, eq=False)
class Strangers:
    """Features of all nodes, (nodes, features), and which of them are the attacker's own."""

    x: Tensor
    own: Tensor


@dataclass(frozen=True)
class PeersNearest(Naming):
    """Solves what peers found for its generator for their nodes' features, and names the nodes whose features fit.

    With h_v the hidden layer of fGen at one of its own nodes v, x_v^p what it generates there in slot p and n_v^p the
    sum of the nearest nodes' features over J peers, what a client gets back is, by slot,

        gradient of W_p = sum_v 2 h_v (J x_v^p - n_v^p),      of b_p the same with h_v = 1

    The client knows h and x: where no more nodes are given a p-th neighbour than fGen's hidden layer has columns, the
    equations have one solution. A node is named where all features that it has are in one of the solutions.

    Fields:
        client:    who is curious; "" for the first one
        least:     a feature is in a solution from this part of what a node has of it
        condition: a slot's equations are solved if no direction of theirs is shorter than this part of the longest
    """

    position: ClassVar[str] = CURIOUS_CLIENT
    learns: ClassVar[str] = "which of many nodes, whose features are known, peers hold"
    knows: ClassVar[str] = "the features of all nodes, and its own nodes"

    client: str = ""
    least: float = 0.5
    condition: float = 1e-3

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.least < 1.0, self, "least", "it must be in (0, 1)")
        refuse(not 0.0 < self.condition < 1.0, self, "condition", "it must be in (0, 1)")

    def problem(self, course: Course) -> str:
        """Return that no gradients of generators are sent."""
        if not isinstance(course.algorithm, FedSagePlus) or not course.algorithm.cross_rounds:
            return f"{type(course.algorithm).__name__} sends no gradients from peers (fedsage_plus with cross_rounds)"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about its own view and what comes back."""
        return issubclass(request, ShareGenerator | UpdateGenerator)

    def _who(self, clients: Sequence[str]) -> str:
        return self.client or clients[0]

    def known(self, case: Case) -> Strangers:
        """Return the features of all nodes, and which are its own."""
        x = case.scenario.whole.x.to_dense().double()
        own = torch.zeros(len(x), dtype=torch.bool)
        own[case.scenario.parts[self._who(case.clients)].node_ids] = True
        return Strangers(x, own)

    def guess(self, seen: Seen, known: Strangers) -> dict[str, Tensor]:
        """Return the nodes whose features are in a solution."""
        who = self._who(seen.clients)
        view, found, solved = None, torch.zeros(len(known.x), dtype=torch.bool), False
        for message in seen.messages:
            if message.clients == (who,) and isinstance(message.reply, GeneratorView):
                view = message.reply
            if view is not None and who in message.requests and isinstance(message.requests[who], UpdateGenerator):
                gradients = message.requests[who].gradients  # type: ignore[attr-defined]
                if gradients:
                    solved = True
                    for rows in nearest_sums(view, gradients, len(seen.clients) - 1, self.condition):
                        found |= self._fitting(rows, known.x)
        if not solved:
            raise NothingSeen("nothing comes back of what peers found")
        return {who: found & ~known.own}

    def _fitting(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return which nodes have all their features in one of some sums of rows, (nodes,)."""
        there = present(x)
        smallest = torch.where(there, x, torch.inf).amin(dim=1).clamp_max(1e30)  # (nodes,)
        fits = torch.zeros(len(x), dtype=torch.bool)
        for row in rows:
            missing = there & (row.unsqueeze(0) < self.least * smallest.unsqueeze(1))
            fits |= ~missing.any(dim=1)
        return fits & there.any(dim=1)

    def prior(self, known: Strangers, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return everybody that is not its own: somebody holds them, if all nodes are held."""
        return {self._who(clients): torch.zeros_like(known.own)}

    def truth(self, case: Case, known: Strangers) -> dict[str, Tensor]:
        """Return the nodes that others hold and it does not."""
        who = self._who(case.clients)
        held = torch.zeros_like(known.own)
        for client, part in case.scenario.parts.items():
            if client != who:
                held[part.node_ids] = True
        return {who: held & ~known.own}


def nearest_sums(view: GeneratorView, gradients: dict[str, Tensor], peers: int, condition: float) -> list[Tensor]:
    """Return for each slot that can be solved the sums of the nearest rows over peers, (generated, features)."""
    params = {name: tensor.double() for name, tensor in view.params.items()}
    h = (view.inputs.double() @ params["hidden_weight"] + params["hidden_bias"]).relu()  # (nodes, hidden)
    found = []
    for slot in range(len(params["slot_bias"])):
        inside = view.counts > slot
        if not bool(inside.any()):
            continue
        mine = torch.cat([h[inside], torch.ones(int(inside.sum()), 1, dtype=torch.float64)], dim=1)
        x = h[inside] @ params["slot_weight"][slot] + params["slot_bias"][slot]
        told = torch.cat([gradients["slot_weight"][slot], gradients["slot_bias"][slot].unsqueeze(0)]).double()
        lengths = torch.linalg.svdvals(mine)
        if len(mine) > mine.shape[1] or float(lengths[-1]) < condition * float(lengths[0]):
            continue
        left = torch.linalg.lstsq(mine.t(), told / 2).solution  # (generated, features): J x - n
        found.append(peers * x - left)
    return found
