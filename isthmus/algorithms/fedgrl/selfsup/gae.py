"""GAE: representations say which nodes are joined. Kipf and Welling (2016), the autoencoder without noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.algorithms.fedgrl.selfsup.objective import SelfSupervision
from isthmus.core.record import Params
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.parts import require_count


@dataclass(frozen=True)
class GAE(SelfSupervision):
    """The mean over edges of -log sigmoid(<h_i, h_j>), plus the mean over pairs without edge of -log(1 - the same).

    Edges that are used are drawn at random in every step, `max_edges` at most, and as many random pairs of nodes;
    those of them that are joined, or the same node twice, do not count.

    Fields:
        max_edges: edges that are looked at in a step, at most
    """

    max_edges: int = 50_000

    def __post_init__(self) -> None:
        require_count("max_edges", self.max_edges)

    def build(self, width: int) -> nn.Module:
        """Return nothing: the decoder is the inner product."""
        return nn.ModuleDict()

    def loss(
        self, model: Model, own: nn.Module, graph: GraphInput, memory: Params, generator: torch.Generator
    ) -> Tensor:
        """Return the loss; a graph without edges has pairs to keep apart only."""
        h = model.embed(graph, generator)
        edges, number = graph.edge_index, graph.num_nodes
        if edges.shape[1] > self.max_edges:
            chosen = torch.randint(edges.shape[1], (self.max_edges,), generator=generator)
            joined = edges[:, chosen]
        else:
            joined = edges
        pairs = torch.randint(number, (2, max(joined.shape[1], 1)), generator=generator)
        apart = pairs[:, ~_joined(pairs, edges, number)]
        total = h.sum() * 0.0
        for ends, sign in ((joined, -1.0), (apart, 1.0)):
            if ends.shape[1]:
                products = (h.index_select(0, ends[0]) * h.index_select(0, ends[1])).sum(dim=1)
                total = total + F.softplus(sign * products).mean()
        return total


def _joined(pairs: Tensor, edges: Tensor, number: int) -> Tensor:
    """Return which pairs are an edge, in either direction, or a node with itself, (pairs,)."""
    keys = torch.unique(torch.cat([edges[0] * number + edges[1], edges[1] * number + edges[0]]))
    wanted = pairs[0] * number + pairs[1]
    place = torch.searchsorted(keys, wanted).clamp_(max=max(len(keys) - 1, 0))
    found = keys[place] == wanted if len(keys) else torch.zeros(len(wanted), dtype=torch.bool)
    return found | (pairs[0] == pairs[1])
