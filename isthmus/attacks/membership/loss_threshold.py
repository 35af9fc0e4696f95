"""Membership by a threshold on the loss: what a model learned by heart it is surer of than of anything else."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isthmus.attacks.attack import Seen
from isthmus.attacks.membership.candidates import Candidates, Membership, the_model


@dataclass(frozen=True)
class LossThreshold(Membership):
    """Takes the items whose label the global model is surest of for those that were trained on.

    Yeom et al., "Privacy Risk in Machine Learning" (2018).
    """

    def guess(self, seen: Seen, known: Candidates) -> Tensor:
        """Return how sure the model is."""
        return known.confidences(the_model(seen))
