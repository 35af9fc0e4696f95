"""Networks without bias terms, as the experiments of GFL-APPNP (Wu et al., 2022) have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from isthmus.models.gnn.appnp import APPNP
from isthmus.models.gnn.gat import GAT, GATStack
from isthmus.models.gnn.gcn import GCN, GCNStack
from isthmus.models.gnn.sage import SAGE, SAGEStack
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import LayerStack, Part, StackSpec, glorot, shape_of
from isthmus.models.products.affine import affine
from isthmus.models.products.propagation import pagerank_weights, propagate
from isthmus.models.products.sparse import Features

Stack = TypeVar("Stack", bound=LayerStack)


@dataclass(frozen=True)
class BiasFreeMLP(StackSpec):
    """H' = relu(H W), and a last linear layer; fields as in `StackSpec`."""

    def build(self, in_dim: int, out_dim: int) -> BiasFreeMLPStack:
        """Return the module."""
        return BiasFreeMLPStack(self, _layers(self.widths(in_dim, out_dim)))


@dataclass(frozen=True)
class BiasFreeAPPNP(APPNP):
    """APPNP whose perceptron has no bias; fields as in `APPNP`."""

    def build(self, in_dim: int, out_dim: int) -> BiasFreeAPPNPStack:  # type: ignore[override]
        """Return the module."""
        return BiasFreeAPPNPStack(self, in_dim, out_dim)


@dataclass(frozen=True)
class BiasFreeGCN(GCN):
    """GCN without bias; fields as in `GCN`."""

    def build(self, in_dim: int, out_dim: int) -> GCNStack:
        """Return the module."""
        return _without_bias(super().build(in_dim, out_dim))


@dataclass(frozen=True)
class BiasFreeSAGE(SAGE):
    """GraphSAGE without bias; fields as in `SAGE`."""

    def build(self, in_dim: int, out_dim: int) -> SAGEStack:
        """Return the module."""
        return _without_bias(super().build(in_dim, out_dim))


@dataclass(frozen=True)
class BiasFreeGAT(GAT):
    """GAT without bias; fields as in `GAT`."""

    def build(self, in_dim: int, out_dim: int) -> GATStack:
        """Return the module."""
        return _without_bias(super().build(in_dim, out_dim))


class BiasFreeMLPStack(LayerStack):
    """The module of `BiasFreeMLP`."""


class BiasFreeAPPNPStack(LayerStack):
    """The module of `BiasFreeAPPNP`."""

    def __init__(self, spec: BiasFreeAPPNP, in_dim: int, out_dim: int) -> None:
        super().__init__(spec, _layers(spec.widths(in_dim, out_dim)))
        self.hops, self.alpha = spec.hops, spec.alpha
        self._weights = pagerank_weights(spec.alpha, spec.hops)

    def last(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return the propagated predictions, (nodes, out)."""
        return propagate(graph.operator("gcn"), super().last(graph, h, generator), self._weights)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{super().extra_repr()}, hops={self.hops}, alpha={self.alpha:g}"


class BiasFreeLinear(Part):
    """H W, row by row, W drawn after Glorot and Bengio (2010)."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = glorot(in_dim, out_dim)

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return H W, (rows, out); the graph's edges play no part."""
        return affine(h, self.weight)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return shape_of(self.weight)


def _without_bias(stack: Stack) -> Stack:
    for layer in stack.layers:
        layer.register_parameter("bias", None)
    return stack


def _layers(widths: Sequence[int]) -> list[Part]:
    return [BiasFreeLinear(inner, outer) for inner, outer in pairwise(widths)]
