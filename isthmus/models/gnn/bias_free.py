"""Networks without bias terms, as the experiments of GFL-APPNP (Wu et al., 2022) have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.models.gnn.appnp import APPNP
from isthmus.models.gnn.gat import GAT
from isthmus.models.gnn.gcn import GCN
from isthmus.models.gnn.sage import SAGE
from isthmus.models.parts import BiasFreeLinear, LayerStack, Part, StackSpec


@dataclass(frozen=True)
class BiasFreeMLP(StackSpec):
    """H' = relu(H W), and a last linear layer; fields as in `StackSpec`."""

    layer_type: ClassVar[type[Part]] = BiasFreeLinear


class BiasFreeAPPNP(APPNP):
    """APPNP whose perceptron has no bias; fields as in `APPNP`."""

    layer_type = BiasFreeLinear


class _WithoutBias(StackSpec):
    def build(self, in_dim: int, out_dim: int) -> LayerStack:
        """Return the module."""
        stack = super().build(in_dim, out_dim)
        for layer in stack.layers:
            layer.register_parameter("bias", None)
        return stack


class BiasFreeGCN(_WithoutBias, GCN):
    """GCN without bias; fields as in `GCN`."""


class BiasFreeSAGE(_WithoutBias, SAGE):
    """GraphSAGE without bias; fields as in `SAGE`."""


class BiasFreeGAT(_WithoutBias, GAT):
    """GAT without bias; fields as in `GAT`."""
