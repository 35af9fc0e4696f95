"""Encoders: what turns a client's features into the width that the graph network takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from isthmus.models.parts import Part, Perceptron, require_count, require_dropout


class EncoderSpec(Protocol):
    """What describes an encoder: a frozen dataclass with the width it gives and `build`."""

    @property
    def dim(self) -> int:
        """Width of the encoded features."""

    def build(self, in_dim: int) -> Part:
        """Return the module, from (nodes, in_dim) features to (nodes, dim)."""


@dataclass(frozen=True)
class LinearEncoder:
    """X W + b.

    Fields:
        dim: width of the encoded features
    """

    dim: int = 64

    def __post_init__(self) -> None:
        require_count("dim", self.dim)

    def build(self, in_dim: int) -> Perceptron:
        """Return the module."""
        return Perceptron([in_dim, self.dim])


@dataclass(frozen=True)
class MLPEncoder:
    """Linear maps with relu(dropout(.)) between them, all of width `dim`.

    Fields:
        dim:     width of the encoded features
        layers:  number of linear maps
        dropout: probability of dropping an entry between them
    """

    dim: int = 64
    layers: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_count("dim", self.dim)
        require_count("layers", self.layers)
        require_dropout("dropout", self.dropout)

    def build(self, in_dim: int) -> Perceptron:
        """Return the module."""
        return Perceptron([in_dim, *[self.dim] * self.layers], self.dropout)
