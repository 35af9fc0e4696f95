"""GraphSAGE with the mean aggregator. Hamilton et al. (2017), "Inductive representation learning on large graphs"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Part, StackSpec, glorot, lack_of, shape_of
from isthmus.models.products.affine import affine, aggregated_affine
from isthmus.models.products.sparse import Features


class SAGELayer(Part):
    """D^-1 A H W_n + H W_o + b (Hamilton et al., 2017); a node without neighbours gets H W_o + b.

    With edge weights the mean is weighted.
    """

    gives_rows = True

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.neighbor_weight = glorot(in_dim, out_dim)
        self.own_weight = glorot(in_dim, out_dim)
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(out_dim))

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (nodes, out)."""
        neighbors = aggregated_affine(graph.operator("mean"), h, self.neighbor_weight)
        own = graph.own(h) if isinstance(h, Tensor) else h
        return neighbors + affine(own, self.own_weight, self.bias)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return shape_of(self.own_weight) + lack_of(self.bias)


@dataclass(frozen=True)
class SAGE(StackSpec):
    """H' = relu(mean over neighbours(H) W_n + H W_o + b); fields as in `StackSpec`."""

    layer_type: ClassVar[type[Part]] = SAGELayer
