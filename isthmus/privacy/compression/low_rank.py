"""Low rank: the change of a matrix crosses as two narrow factors. Vogels et al., PowerSGD, 2019."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.errors import BadMessage, refuse
from isthmus.core.record import State
from isthmus.privacy.compression.blob import Form, Kind, read_blob, write_blob
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.draws import Draws
from isthmus.privacy.compression.factors import as_matrix, factors_of, product
from isthmus.privacy.compression.grid import BITS, WHOLE, read_numbers, write_numbers

BUCKET = 256
MAX_RANK = 1024


@dataclass(frozen=True)
class LowRank(Coder):
    """Changes of matrices cross as P Q^T of a low rank; what a client lacked it adds to its next reply.

    One step of power iteration from the factor of the time before. The error is the part of the change outside the span
    of P, and the step of the grid. Tensors of one axis, and those whose factors would have no fewer numbers, cross as
    they are; a tensor of more axes is a matrix of its first against the others.

    Fields:
        rank:           columns of each factor; so many that factors would save nothing leave all as it is
        bits:           of each number of the factors: 8, 4, 2, 1, or 32 for whole floats
        direction:      which messages are coded
        error_feedback: whether a client adds what its last reply lacked to its next
        max_drift:      a client whose model would be off by more than this share of its length is sent all of it
        min_numbers:    tensors of fewer numbers cross as they are
    """

    rank: int = 2
    bits: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 1 <= self.rank <= MAX_RANK, self, "rank", f"it must be from 1 to {MAX_RANK}")
        refuse(self.bits not in (*BITS, WHOLE), self, "bits", "choose 8, 4, 2, 1, or 32 for whole floats")

    def coded(self, value: Tensor, base: Tensor, draws: Draws, kept: State) -> Tensor | None:
        """Return the factors."""
        rows, columns = as_matrix(tuple(value.shape), value.numel())
        if (rows + columns) * self.rank >= rows * columns:
            return None
        start = kept.get("start")
        if start is None or start.shape != (columns, self.rank):
            start = torch.randn(columns, self.rank, generator=draws.own())
        left, right = factors_of((value.float() - base.float()).view(rows, columns), start)
        if float(right.abs().amax()) > 0.0:  # from a start of zeros nothing would ever come
            kept["start"] = right
        stream = draws.rounding
        numbers = [part for f in (left, right) for part in write_numbers(f.reshape(-1), self.bits, BUCKET, stream)]
        return write_blob(Kind.LOW_RANK, Form.of(value), [self.rank.to_bytes(2, "little"), *numbers])

    def applied(self, wire: Tensor, base: Tensor, draws: Draws) -> Tensor:
        """Return the tensor with the product."""
        form, body = read_blob(wire, Kind.LOW_RANK, Form.of(base))
        rows, columns = as_matrix(form.shape, form.numbers)
        rank = body.integer(2)
        if rank != self.rank:
            raise BadMessage(f"coded tensor has factors of rank {rank}, expected {self.rank}")
        left, right = read_numbers(body, rows * rank).view(rows, rank), read_numbers(body, columns * rank)
        body.end()
        return (base.float() + product(left, right.view(columns, rank)).view(form.shape)).to(form.dtype)
