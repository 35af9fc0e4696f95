"""A multi-layer perceptron on each node's features: the baseline that never looks at an edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.models.parts import LayerStack, StackSpec


class MLPStack(LayerStack):
    """The module of `MLP`."""


@dataclass(frozen=True)
class MLP(StackSpec):
    """H' = relu(H W + b), and a last linear layer; fields as in `StackSpec`."""

    module: ClassVar[type[LayerStack]] = MLPStack
