"""Graph convolutional network.

Kipf and Welling (2017), "Semi-supervised classification with graph convolutional networks".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Part, StackSpec, glorot, lack_of, shape_of
from isthmus.models.products.affine import Activate, pooled_affine
from isthmus.models.products.sparse import Features, dense


class GCNLayer(Part):
    """S H W + b with S = D^-1/2 (A + I) D^-1/2 (Kipf and Welling, 2017)."""

    gives_rows = True

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = glorot(in_dim, out_dim)
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (nodes, out)."""
        return self.activated(graph, h, None)

    def activated(self, graph: GraphInput, h: Features, activate: Activate | None) -> Tensor:
        """Return the same, made hidden rows where it is asked for, (nodes, out)."""
        return graph.mixed("gcn", h, self.weight, self.bias, activate)

    def pooled(self, graph: GraphInput, h: Features, generator: torch.Generator | None, mean: bool) -> Tensor:
        """Return the sums, or means, of each graph's rows, (graphs, out): P (S H W + b) = (P S H) W + (P 1) b."""
        pool = graph.pooling(mean)
        aggregated = pool.matmul(graph.operator("gcn").matmul(dense(h)))
        return pooled_affine(pool, aggregated, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return shape_of(self.weight) + lack_of(self.bias)


@dataclass(frozen=True)
class GCN(StackSpec):
    """H' = relu(S H W + b) with S = D^-1/2 (A + I) D^-1/2; fields as in `StackSpec`."""

    layer_type: ClassVar[type[Part]] = GCNLayer
