"""APPNP. Gasteiger et al. (2019), "Predict then propagate: graph neural networks meet personalized PageRank"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import LayerStack, Part, StackSpec, require_count, require_fraction
from isthmus.models.products.propagation import pagerank_weights, propagate
from isthmus.models.products.sparse import Features


class APPNPStack(LayerStack):
    """The module of `APPNP`: `hidden` is the MLP before its last linear map, `last` that map and the propagation."""

    def __init__(self, spec: APPNP, layers: Sequence[Part]) -> None:
        super().__init__(spec, layers)
        self.hops, self.alpha = spec.hops, spec.alpha
        self._weights = pagerank_weights(spec.alpha, spec.hops)

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return the propagated predictions, (nodes, out)."""
        return propagate(graph.operator("gcn"), super().last(graph, h, generator), self._weights)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{super().extra_repr()}, hops={self.hops}, alpha={self.alpha:g}"


@dataclass(frozen=True)
class APPNP(StackSpec):
    """Z <- (1 - alpha) S Z + alpha H, `hops` times from Z = H = MLP(X), with S as in GCN.

    Fields: those of `StackSpec`, and
        hops:  number of propagation steps
        alpha: probability of a return to the node itself
    """

    module: ClassVar[type[LayerStack]] = APPNPStack

    hops: int = 10
    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("hops", self.hops, least=0)
        require_fraction("alpha", self.alpha)
