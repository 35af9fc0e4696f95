"""Links by influence: who changes one node's features sees at its neighbours that they changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.attacks.asking import probabilities
from isthmus.attacks.attack import Case, NothingSeen, Seen
from isthmus.attacks.links.from_model import LinksFromModel, Nodes
from isthmus.attacks.links.from_rows import require_links
from isthmus.attacks.membership.candidates import LEAST, the_model
from isthmus.core.errors import refuse
from isthmus.core.record import Params
from isthmus.data.graph import Graph

# What a client's service says of its nodes where they have other features: (client, model, features) -> probabilities.
Service = Callable[[str, Params, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Served(Nodes):
    """The same, with a service that answers for a client's graph without telling it."""

    service: Service = field(kw_only=True)


@dataclass(frozen=True)
class LinkInfluence(LinksFromModel):
    """Asks a service for predictions twice, changes one node's features in between, and sees whose output moves.

    Wu et al., "LINKTELLER: Recovering Private Edges from Graph Neural Networks via Influence Analysis" (2022):

        influence(v, u) = | log p_u(x with x_v (1 + delta)) - log p_u(x) | / delta

    is zero where no path of as many edges as the model has layers joins v and u. A pair counts by the sum of both
    ways. No message of a course answers such questions: this is what a silo gives away that lets others ask the trained
    model about its own graph, with features that they choose.

    Fields:
        delta: by which part of themselves features are changed
    """

    knows: ClassVar[str] = (
        "the features of each client's nodes; and each client answers what the last model says of its nodes in its "
        "graph if their features are changed"
    )

    delta: float = 1e-2

    def __post_init__(self) -> None:
        refuse(not self.delta > 0.0, self, "delta", "it must be positive")

    def known(self, case: Case) -> Served:
        """Return nodes and pairs, and the service."""
        nodes = super().known(case)

        def service(client: str, params: Params, x: Tensor) -> Tensor:
            part: Graph = case.scenario.parts[client]
            return probabilities(case.course, replace(part.with_masks({}), x=x), params)

        return Served(nodes.course, nodes.parts, nodes.ends, service=service)

    def guess(self, seen: Seen, known: Nodes) -> Tensor:
        """Return how much each pair's nodes move each other."""
        require_links(known.ends)
        params = the_model(seen)
        if not isinstance(known, Served):
            raise NothingSeen("nobody answers questions about changed features")
        found = []
        for client, ends in known.ends.items():
            x = known.parts[client].x.to_dense()
            usual = known.service(client, params, x).clamp_min(LEAST).log()
            moved = torch.zeros(len(x), len(x), dtype=torch.float64)
            for node in torch.unique(ends).tolist():
                changed = x.clone()
                changed[node] *= 1.0 + self.delta
                moved[node] = (known.service(client, params, changed).clamp_min(LEAST).log() - usual).norm(dim=1)
            found.append((moved[ends[0], ends[1]] + moved[ends[1], ends[0]]) / self.delta)
        return torch.cat(found)
