"""A multi-layer perceptron on each node's features: the baseline that never looks at an edge."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.models.parts import StackSpec


@dataclass(frozen=True)
class MLP(StackSpec):
    """H' = relu(H W + b), and a last linear layer; fields as in `StackSpec`."""
