"""A representative of each class by model inversion: features that the model is surest of.

Fredrikson, Jha and Ristenpart, "Model inversion attacks that exploit confidence information" (CCS 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.attacks.attack import Seen
from isthmus.attacks.inputs.class_means import ClassRepresentative, Features, asked, log_odds
from isthmus.attacks.membership.candidates import the_model
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request


@dataclass(frozen=True)
class ClassInversion(ClassRepresentative):
    """Climbs from the mean features of all to those of a node without edges whose class the last model is sure of.

        x <- clip(x + rate (high - low) g / |g|),   g the gradient of log p(class | x)

    Fields:
        steps: how many
        rate:  length of one, as a share of the range of features
    """

    steps: int = 10
    rate: float = 0.05

    def __post_init__(self) -> None:
        refuse(self.steps < 1, self, "steps", "it must be at least 1")
        refuse(not self.rate > 0.0, self, "rate", "it must be positive")

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that no message is needed but the last model."""
        return False

    def guess(self, seen: Seen, known: Features) -> Tensor:
        """Return the features at the top."""
        model = asked(seen.course, known, the_model(seen))
        x = known.mean.expand(known.classes, -1).clone()
        for _ in range(self.steps):
            x.requires_grad_()
            (slope,) = torch.autograd.grad(log_odds(model, x).diagonal().sum(), x)
            step = self.rate * known.width * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-30)
            x = (x.detach() + step).clamp(known.low, known.high)
        return x
