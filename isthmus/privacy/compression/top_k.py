"""Top-k: the largest changes cross, the others wait. Aji and Heafield, 2017; Stich et al., 2018."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.core.record import State
from isthmus.privacy.compression.blob import Form, Kind, read_blob, write_blob
from isthmus.privacy.compression.choosing import largest_places, number_of, read_places, scattered, write_places
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.draws import Draws
from isthmus.privacy.compression.grid import BITS, WHOLE, read_numbers, write_numbers

BUCKET = 256


@dataclass(frozen=True)
class TopK(Coder):
    """The largest changes of each tensor cross, with where they stand; what a client lacked it adds to its next reply.

    The error is what is left out: at most the share 1 - `fraction` of the change's squared length, and the step of the
    grid for what crosses. Without error feedback small changes are lost for good.

    Fields:
        fraction:       the share of a tensor's numbers that cross; 1 with 32 bits leaves all as it is
        bits:           of each number that crosses: 8, 4, 2, 1, or 32 for whole floats
        direction:      which messages are coded
        error_feedback: whether a client adds what its last reply lacked to its next
        max_drift:      a client whose model would be off by more than this share of its length is sent all of it
        min_numbers:    tensors of fewer numbers cross as they are
    """

    fraction: float = 0.1
    bits: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 < self.fraction <= 1.0, self, "fraction", "it must be in (0, 1]")
        refuse(self.bits not in (*BITS, WHOLE), self, "bits", "choose 8, 4, 2, 1, or 32 for whole floats")

    def coded(self, value: Tensor, base: Tensor, draws: Draws, kept: State) -> Tensor | None:
        """Return the largest changes."""
        if self.fraction == 1.0 and self.bits == WHOLE:
            return None
        change = (value.float() - base.float()).reshape(-1)
        places = largest_places(change, number_of(self.fraction, len(change)))
        numbers = write_numbers(change[torch.from_numpy(places)], self.bits, BUCKET, draws.rounding)
        return write_blob(Kind.CHOSEN, Form.of(value), [*write_places(places, len(change)), *numbers])

    def applied(self, wire: Tensor, base: Tensor, draws: Draws) -> Tensor:
        """Return the tensor with the changes."""
        form, body = read_blob(wire, Kind.CHOSEN, Form.of(base))
        places = read_places(body, form.numbers)
        change = read_numbers(body, len(places))
        body.end()
        return (base.float() + scattered(places, change, form.numbers).view(form.shape)).to(form.dtype)
