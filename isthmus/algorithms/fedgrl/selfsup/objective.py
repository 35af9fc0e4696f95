"""What a self-supervised objective is: a loss of an encoder on a graph, with parts and a memory of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus.core.record import Params
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model


@dataclass(frozen=True)
class SelfSupervision(ABC):
    """Scores an encoder on a graph without its labels.

    An objective is frozen. What it learns besides the encoder (`build`) is shared and averaged like the encoder; what
    it has to remember (`memory`) stays with the client.
    """

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """Return the objective's own parts for representations of this width, drawn from torch's global generator."""

    @abstractmethod
    def loss(
        self, model: Model, own: nn.Module, graph: GraphInput, memory: Params, generator: torch.Generator
    ) -> Tensor:
        """Return the loss, as a scalar with a gradient into `model` and `own`.

        `memory` may be changed in place: it is a copy.
        """

    def memory(self, model: nn.Module) -> Params:
        """Return what a client remembers from the start; here nothing."""
        return {}

    def remember(self, memory: Params, model: nn.Module, round: int) -> Params:
        """Return what a client remembers after a step in a round; here the same."""
        return memory
