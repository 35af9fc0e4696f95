"""GPR-GNN. Chien et al. (2021), "Adaptive universal generalized PageRank graph neural network"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from isthmus.models.dropout import dropout
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import LayerStack, Part, StackSpec, require_count, require_dropout, require_fraction
from isthmus.models.products.propagation import pagerank_weights, propagate
from isthmus.models.products.sparse import Features


class GPRGNNStack(LayerStack):
    """The module of `GPRGNN`: `hidden` is the MLP before its last linear map, `last` that map and the propagation."""

    def __init__(self, spec: GPRGNN, layers: Sequence[Part]) -> None:
        super().__init__(spec, layers)
        self.alpha, self.propagation_dropout = spec.alpha, spec.propagation_dropout
        self.gamma = nn.Parameter(torch.tensor(pagerank_weights(spec.alpha, spec.hops)))

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return the propagated predictions, (nodes, out)."""
        said = dropout(super().last(graph, h, generator), self.propagation_dropout, generator)
        return propagate(graph.operator("gcn"), said, self.gamma)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        own = f"hops={len(self.gamma) - 1}, alpha={self.alpha:g}, propagation_dropout={self.propagation_dropout:g}"
        return f"{super().extra_repr()}, {own}"


@dataclass(frozen=True)
class GPRGNN(StackSpec):
    """Z = sum over k of gamma_k S^k MLP(X) with gamma learnt, and S as in GCN.

    Fields: those of `StackSpec`, and
        hops:                highest power of S
        alpha:               gamma starts as the weights of personalised PageRank with this probability of return
        propagation_dropout: probability of dropping an entry of MLP(X) before it is propagated; the authors' code
                             has 0.5 there, and `dropout` at the features too (`input_dropout`)
    """

    module: ClassVar[type[LayerStack]] = GPRGNNStack

    hops: int = 10
    alpha: float = 0.1
    propagation_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("hops", self.hops, least=0)
        require_fraction("alpha", self.alpha)
        require_dropout("propagation_dropout", self.propagation_dropout)
