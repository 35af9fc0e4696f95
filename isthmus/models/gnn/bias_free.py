"""Networks without bias terms, as the experiments of GFL-APPNP (Wu et al., 2022) have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.models.gnn.appnp import APPNP, APPNPStack
from isthmus.models.gnn.gat import GAT
from isthmus.models.gnn.gcn import GCN
from isthmus.models.gnn.sage import SAGE
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import LayerStack, Part, StackSpec, glorot, shape_of
from isthmus.models.products.affine import affine
from isthmus.models.products.sparse import Features


class BiasFreeMLPStack(LayerStack):
    """The module of `BiasFreeMLP`."""


class BiasFreeAPPNPStack(APPNPStack):
    """The module of `BiasFreeAPPNP`."""


@dataclass(frozen=True)
class BiasFreeMLP(StackSpec):
    """H' = relu(H W), and a last linear layer; fields as in `StackSpec`."""

    module: ClassVar[type[LayerStack]] = BiasFreeMLPStack

    def layer(self, in_dim: int, out_dim: int) -> BiasFreeLinear:
        """Return one layer."""
        return BiasFreeLinear(in_dim, out_dim)


@dataclass(frozen=True)
class BiasFreeAPPNP(APPNP):
    """APPNP whose perceptron has no bias; fields as in `APPNP`."""

    module: ClassVar[type[LayerStack]] = BiasFreeAPPNPStack

    def layer(self, in_dim: int, out_dim: int) -> BiasFreeLinear:
        """Return one layer."""
        return BiasFreeLinear(in_dim, out_dim)


@dataclass(frozen=True)
class BiasFreeGCN(GCN):
    """GCN without bias; fields as in `GCN`."""

    def build(self, in_dim: int, out_dim: int) -> LayerStack:
        """Return the module."""
        return _without_bias(super().build(in_dim, out_dim))


@dataclass(frozen=True)
class BiasFreeSAGE(SAGE):
    """GraphSAGE without bias; fields as in `SAGE`."""

    def build(self, in_dim: int, out_dim: int) -> LayerStack:
        """Return the module."""
        return _without_bias(super().build(in_dim, out_dim))


@dataclass(frozen=True)
class BiasFreeGAT(GAT):
    """GAT without bias; fields as in `GAT`."""

    def build(self, in_dim: int, out_dim: int) -> LayerStack:
        """Return the module."""
        return _without_bias(super().build(in_dim, out_dim))


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


def _without_bias(stack: LayerStack) -> LayerStack:
    for layer in stack.layers:
        layer.register_parameter("bias", None)
    return stack
