"""Decoders: what turns representations of nodes, or of whole graphs, into scores of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from isthmus.models.link_decoders import LinkPart
from isthmus.models.parts import Part, Perceptron, require_count, require_dropout


class DecoderSpec(Protocol):
    """What describes a decoder: a frozen dataclass with `build`."""

    def build(self, in_dim: int, out_dim: int) -> Part | LinkPart:
        """Return the module, from (rows, in_dim) representations to (rows, out_dim) scores.

        A `LinkPart` scores pairs of nodes; it is for link tasks alone.
        """


@dataclass(frozen=True)
class LinearDecoder:
    """H W + b."""

    def build(self, in_dim: int, out_dim: int) -> Perceptron:
        """Return the module."""
        return Perceptron([in_dim, out_dim])


@dataclass(frozen=True)
class MLPDecoder:
    """Linear maps with relu(dropout(.)) between them.

    Fields:
        hidden:  width between the maps
        layers:  number of linear maps
        dropout: probability of dropping an entry between them
    """

    hidden: int = 64
    layers: int = 2
    dropout: float = 0.5

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        require_count("layers", self.layers)
        require_dropout("dropout", self.dropout)

    def build(self, in_dim: int, out_dim: int) -> Perceptron:
        """Return the module."""
        return Perceptron([in_dim, *[self.hidden] * (self.layers - 1), out_dim], self.dropout)
