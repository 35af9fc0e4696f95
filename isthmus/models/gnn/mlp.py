"""A multi-layer perceptron on each node's features: the baseline that never looks at an edge."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from isthmus.models.parts import LayerStack, Linear, StackSpec


@dataclass(frozen=True)
class MLP(StackSpec):
    """H' = relu(H W + b), and a last linear layer; fields as in `StackSpec`."""

    def build(self, in_dim: int, out_dim: int) -> MLPStack:
        """Return the module."""
        return MLPStack(self, in_dim, out_dim)


class MLPStack(LayerStack):
    """The module of `MLP`."""

    def __init__(self, spec: MLP, in_dim: int, out_dim: int) -> None:
        widths = spec.widths(in_dim, out_dim)
        super().__init__(spec, [Linear(inner, outer) for inner, outer in pairwise(widths)])
