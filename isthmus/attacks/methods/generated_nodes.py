"""FedSage+'s generators and embeddings: whose nodes are like what a client would generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.algorithms.fedsage.messages import GeneratorView
from isthmus.attacks.attack import Case, NothingSeen, Seen
from isthmus.attacks.methods.generated_features import OfGenerators, generated


@dataclass(frozen=True)
class GeneratedNodes(OfGenerators):
    """Takes the nodes that are like something that a client's generator gives, next to others' generators, for its own.

    Server and peers have each client's fGen with the embeddings that go into it, so they generate what the client
    would, row by row. A node's number is the cosine to the row that is most like it, both less the mean of all nodes;
    what counts is by how much it is above the mean over all clients' generators. What is decided is, for each client
    and each node, whether the client holds it.
    """

    learns: ClassVar[str] = "which of many nodes, whose features are known, a client holds"
    knows: ClassVar[str] = "the features of all nodes"

    def known(self, case: Case) -> Tensor:
        """Return the features of all nodes, (nodes, features)."""
        x: Tensor = case.scenario.whole.x.to_dense().double()
        return x

    def guess(self, seen: Seen, known: Tensor) -> Tensor:
        """Return how much speaks for each node at each client, client after client."""
        rows = {client: _likeness(seen, client, known) for client in seen.clients}
        usual = torch.stack(list(rows.values())).mean(dim=0)
        return torch.cat([row - usual for row in rows.values()])

    def prior(self, known: Tensor, clients: Sequence[str]) -> Tensor:
        """Return the same for all: features alone do not say whose a node is."""
        return torch.zeros(len(known) * len(clients), dtype=torch.float64)

    def truth(self, case: Case, known: Tensor) -> Tensor:
        """Return which nodes each client holds."""
        held = torch.zeros(len(case.clients), len(known), dtype=torch.bool)
        for place, part in enumerate(case.scenario.parts.values()):
            held[place, part.node_ids] = True
        return held.flatten()


def _likeness(seen: Seen, client: str, x: Tensor) -> Tensor:
    """Return the cosine of each node to the row most like it of what a client's last view gives, (nodes,)."""
    views = [m.reply for m in seen.messages if m.clients == (client,) and isinstance(m.reply, GeneratorView)]
    if not views:
        raise NothingSeen(f"no generator of {client} is seen")
    rows = generated(views[-1]).double()
    if not len(rows):
        return torch.zeros(len(x), dtype=torch.float64)
    mean = x.mean(dim=0)
    most: Tensor = (F.normalize(x - mean) @ F.normalize(rows - mean).t()).amax(dim=1)
    return most
