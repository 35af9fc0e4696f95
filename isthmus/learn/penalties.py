"""Terms that are added to a client's loss, whatever its task."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from isthmus.core.record import Params
from isthmus.learn.fit import Penalty


def proximal(strength: float, anchor: Params) -> Penalty | None:
    """Return strength/2 |w - anchor|^2 over the trained parameters that are in `anchor`; None without strength."""
    if strength == 0:
        return None

    def penalty(live: Mapping[str, Tensor]) -> Tensor:
        squares = [(w - anchor[name]).square().sum() for name, w in live.items() if name in anchor]
        return 0.5 * strength * torch.stack(squares).sum()

    return penalty
