"""Graph isomorphism network. Xu et al. (2019), "How powerful are graph neural networks?"."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from isthmus.models.affine import affine, per_row
from isthmus.models.gnn.stack import LayerStack, StackSpec
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Linear, Part, glorot, shape_of
from isthmus.models.sparse import Features


@dataclass(frozen=True)
class GIN(StackSpec):
    """H' = relu(MLP((1 + eps) H + A H)) with an MLP of two layers.

    Fields: those of `StackSpec`, and
        train_eps: whether eps is learnt (from 0), or stays 0
    """

    train_eps: bool = False

    def build(self, in_dim: int, out_dim: int) -> GINStack:
        """Return the module."""
        return GINStack(self, in_dim, out_dim)


class GINStack(LayerStack):
    """The module of `GIN`."""

    def __init__(self, spec: GIN, in_dim: int, out_dim: int) -> None:
        pairs = pairwise(spec.widths(in_dim, out_dim))
        super().__init__(spec, [GINLayer(inner, spec.hidden, outer, spec.train_eps) for inner, outer in pairs])


class GINLayer(Part):
    """relu(((1 + eps) H + A H) W_1 + b_1) W_2 + b_2 (Xu et al., 2019).

    The sum runs over H W_1, which is the same and takes sparse features as they are.
    """

    eps: Tensor | None

    def __init__(self, in_dim: int, hidden: int, out_dim: int, train_eps: bool = False) -> None:
        super().__init__()
        self.weight = glorot(in_dim, hidden)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.second = Linear(hidden, out_dim)
        self.register_parameter("eps", nn.Parameter(torch.zeros(())) if train_eps else None)

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (nodes, out)."""
        h = affine(h, self.weight)  # (nodes, hidden)
        bias = per_row(self.bias, 1, len(h))
        own = h + bias if self.eps is None else torch.addcmul(bias, h, 1.0 + self._eps(len(h)))
        return self.second(graph, (own + graph.operator("sum").matmul(h)).relu(), generator)

    def _eps(self, rows: int) -> Tensor:
        assert self.eps is not None
        return self.eps if self.eps.ndim == 0 else per_row(self.eps.unsqueeze(1), 1, rows)  # (), or (rows, 1)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{shape_of(self.weight)}, train_eps={self.eps is not None}"
