"""Random-k: some changes cross, in places that both sides draw. Konečný et al., 2016; Stich et al., 2018."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.core.errors import BadMessage, refuse
from isthmus.core.record import State
from isthmus.privacy.compression.blob import Form
from isthmus.privacy.compression.choosing import drawn_places, number_of, scattered
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.draws import Draws


@dataclass(frozen=True)
class RandomK(Coder):
    """Changes in places that the course's seed draws cross as floats, without the places.

    All clients of an exchange have the same places, so replies can be added up as they are: it may stand before a
    secure sum. What crosses of a reply is larger by the inverse of its chance, so that the change is right on average,
    and its variance grows as much. With error feedback what does not cross waits, on average 1 / `fraction` exchanges;
    what comes so late may harm more than the variance does.

    Fields:
        fraction:       the share of a tensor's numbers that cross; 1 leaves all as it is
        direction:      which messages are coded
        error_feedback: whether a client adds what its last reply lacked to its next
        max_drift:      a client whose model would be off by more than this share of its length is sent all of it
        min_numbers:    tensors of fewer numbers cross as they are
    """

    linear: ClassVar[bool] = True

    fraction: float = 0.05
    error_feedback: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 < self.fraction <= 1.0, self, "fraction", "it must be in (0, 1]")

    def coded(self, value: Tensor, base: Tensor, draws: Draws, kept: State) -> Tensor | None:
        """Return the changes in the places of this exchange."""
        if self.fraction == 1.0:
            return None
        change = (value.float() - base.float()).reshape(-1)
        places, lengths = drawn_places(draws.shared, number_of(self.fraction, len(change)), len(change))
        chosen = change[torch.from_numpy(places)]
        return chosen if draws.made_up else chosen * torch.from_numpy(lengths)

    def applied(self, wire: Tensor, base: Tensor, draws: Draws) -> Tensor:
        """Return the tensor with the changes."""
        form = Form.of(base)
        if not self.is_wire(wire, form):
            number = number_of(self.fraction, form.numbers)
            raise BadMessage(
                f"found {Form.of(wire)}, expected {number} numbers of float32 in the places that are drawn"
            )
        places, _ = drawn_places(draws.shared, len(wire), form.numbers)
        return (base.float() + scattered(places, wire, form.numbers).view(form.shape)).to(form.dtype)

    def is_wire(self, found: Tensor, form: Form) -> bool:
        """Whether these are the numbers of the places."""
        return self.fraction < 1.0 and Form.of(found) == Form(torch.float32, (number_of(self.fraction, form.numbers),))
