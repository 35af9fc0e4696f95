"""Delta: parameters cross as the difference of their bits to what both sides know, without loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isthmus.core.record import State
from isthmus.privacy.compression.blob import Form, Kind, read_blob, write_blob
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.draws import Draws
from isthmus.privacy.compression.planes import difference, undifferenced


@dataclass(frozen=True)
class Delta(Coder):
    """Parameters cross as differences of bit patterns: as many bytes, with little in them. Pack them after.

    `guards: [delta, entropy]` changes no bit of any result. What a client was just sent costs next to nothing when it
    is sent again, as the model of an evaluation is for training.

    Fields:
        direction:      which messages are coded
        error_feedback: of no effect: nothing is lost
        max_drift:      of no effect
        min_numbers:    tensors of fewer numbers cross as they are
    """

    lossless: ClassVar[bool] = True

    error_feedback: bool = False

    def coded(self, value: Tensor, base: Tensor, draws: Draws, kept: State) -> Tensor | None:
        """Return the difference."""
        return write_blob(Kind.DIFFERENCE, Form.of(value), [difference(value, base)])

    def applied(self, wire: Tensor, base: Tensor, draws: Draws) -> Tensor:
        """Return the tensor with its own bits."""
        form, body = read_blob(wire, Kind.DIFFERENCE, Form.of(base))
        found = undifferenced(body.take(form.size), base)
        body.end()
        return found
