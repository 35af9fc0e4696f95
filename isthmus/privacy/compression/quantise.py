"""Quantisation: parameters of few bits, right on average. Alistarh et al., QSGD, 2017."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.core.record import State
from isthmus.privacy.compression.blob import Form, Kind, read_blob, write_blob
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.draws import Draws
from isthmus.privacy.compression.grid import BITS, WHOLE, read_numbers, write_numbers

MAX_BUCKET = 2**20


@dataclass(frozen=True)
class Quantise(Coder):
    """Changes of parameters cross as numbers of few bits, rounded at random so that they are right on average.

    A number is off by less than a step: the largest magnitude of its bucket over 127 (8 bits), 7 (4), 1 (2), or, with 1
    bit, twice that magnitude. Requests, and replies with error feedback, are rounded to the nearest level instead:
    later messages make up for what one lacks.

    Fields:
        bits:           8, 4, 2 or 1 for each number; 32 leaves all as it is
        bucket:         how many numbers share a scale: fewer are nearer to the truth, and take 4 bytes for each scale
        direction:      which messages are coded
        error_feedback: whether a client adds what its last reply lacked to its next
        max_drift:      a client whose model would be off by more than this share of its length is sent all of it
        min_numbers:    tensors of fewer numbers cross as they are
    """

    bits: int = 8
    bucket: int = 1024
    error_feedback: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.bits not in (*BITS, WHOLE), self, "bits", "choose 8, 4, 2, 1, or 32 for none")
        refuse(not 1 <= self.bucket <= MAX_BUCKET, self, "bucket", f"it must be from 1 to {MAX_BUCKET}")

    def coded(self, value: Tensor, base: Tensor, draws: Draws, kept: State) -> Tensor | None:
        """Return the change on a grid."""
        if self.bits == WHOLE:
            return None
        change = (value.float() - base.float()).reshape(-1)
        return write_blob(Kind.GRID, Form.of(value), write_numbers(change, self.bits, self.bucket, draws.rounding))

    def applied(self, wire: Tensor, base: Tensor, draws: Draws) -> Tensor:
        """Return the tensor with the change."""
        form, body = read_blob(wire, Kind.GRID, Form.of(base))
        change = read_numbers(body, form.numbers)
        body.end()
        return (base.float() + change.view(form.shape)).to(form.dtype)
