"""Encoders: what turns a client's features into the width that the graph network takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from isthmus.models.parts import BiasFreeLinear, Part, Perceptron, require_count, require_dropout
from isthmus.models.products.sparse import Pattern, SparseMatrix


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

    def build(self, in_dim: int) -> Part:
        """Return the module."""
        return Perceptron([in_dim, self.dim])


@dataclass(frozen=True)
class MLPEncoder(LinearEncoder):
    """Linear maps with relu(dropout(.)) between them, all of width `dim`.

    Fields: those of `LinearEncoder`, and
        layers:  number of linear maps
        dropout: probability of dropping an entry between them
    """

    layers: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("layers", self.layers)
        require_dropout("dropout", self.dropout)

    def build(self, in_dim: int) -> Perceptron:
        """Return the module."""
        return Perceptron([in_dim, *[self.dim] * self.layers], self.dropout)


class CategoricalEncoder(LinearEncoder):
    """h_i = sum_c E_c[x_ic]: one embedding for each category of each column, drawn after Glorot and Bengio (2010).

    There is no bias. For features that are no indicators it is X E, a linear map.

    Fields:
        dim: width of the embeddings
    """

    def build(self, in_dim: int) -> EmbeddingSum:
        """Return the module; `in_dim` is the number of categories of all columns together."""
        return EmbeddingSum(in_dim, self.dim)


class EmbeddingSum(BiasFreeLinear):
    """The module of `CategoricalEncoder`; `weight` has the tables of all columns one below the other."""


def places(codes: Tensor, sizes: Sequence[int], what: str) -> Tensor:
    """Return where the one of each number stands among the indicators of all columns, (rows, columns), int32.

    Raises ValueError where a number is no category of its column; `what` says whose columns they are.
    """
    if codes.shape[1] != len(sizes):
        raise ValueError(f"{what}: {codes.shape[1]} columns, but sizes of {len(sizes)}")
    whole = codes.to(torch.int32)
    odd = (whole != codes) | (whole < 0) | (whole >= torch.tensor(sizes, dtype=torch.int32, device=whole.device))
    if bool(odd.any()):
        row, column = odd.nonzero()[0].tolist()
        raise ValueError(
            f"{what}: row {row}, column {column} is {codes[row, column].item():g}; it must be a whole number from 0 to "
            f"{sizes[column] - 1}"
        )
    return whole + torch.tensor(list(accumulate(sizes, initial=0))[:-1], dtype=torch.int32, device=whole.device)


def indicators(place: Tensor, width: int) -> SparseMatrix:
    """Return the matrix with ones at `place` (rows, columns) and zeros elsewhere, (rows, width)."""
    rows, columns = place.shape
    crow = torch.arange(rows + 1, dtype=torch.int32, device=place.device) * columns
    ones = torch.ones(rows * columns, device=place.device)
    return SparseMatrix(Pattern(crow, place.flatten(), (rows, width)), ones)


def dense_indicators(place: Tensor, width: int) -> Tensor:
    """Return the same matrix, dense, one byte for each entry."""
    blank = torch.zeros(len(place), width, dtype=torch.uint8, device=place.device)
    return blank.scatter_(1, place.long(), 1)
