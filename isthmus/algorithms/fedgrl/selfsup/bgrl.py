"""BGRL: an encoder predicts what a slower copy of itself says of another view. Thakoor et al. (2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedgrl.selfsup.objective import SelfSupervision
from isthmus.core.record import Params
from isthmus.learn.augment import Augmentation
from isthmus.learn.contrast import directions
from isthmus.learn.together.layouts import replaced
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.parts import Perceptron, require_count


@dataclass(frozen=True)
class BGRL(SelfSupervision):
    """L = -2/N sum_i cos(Z_i, H_i) with Z = s(omega(G1)), H = tau(G2), G1 and G2 two random views of the graph.

    omega is the encoder that is trained, s a perceptron that is trained with it, tau the target: a copy that only this
    client has. No gradient flows into it; after every step its parameters become decay * tau + (1 - decay) * omega.
    decay rises from its start to 1 as half a cosine: 1 - (1 - start) (1 + cos(pi t / rounds)) / 2 in round t. Both
    encoders run as in training: batch norm takes the view's own statistics, which the target keeps apart. A row of
    zeros has no direction, and its cosine is 0.

    Fields:
        first:     the view that the encoder sees
        second:    the view that the target sees
        hidden:    width of s between its two maps
        decay:     share of the target that stays, at the start
        rounds:    round at which it stands still; give it the rounds of the course
        symmetric: whether the loss with the two views exchanged is added, and the sum halved
    """

    first: Augmentation = Augmentation(edges=0.2, features=0.2)
    second: Augmentation = Augmentation(edges=0.2, features=0.1)
    hidden: int = 512
    decay: float = 0.99
    rounds: int = 1000
    symmetric: bool = False

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        require_count("rounds", self.rounds)
        if not 0.0 <= self.decay <= 1.0:
            raise ValueError(f"decay is {self.decay!r}; it must be in [0, 1]")

    def build(self, width: int) -> nn.Module:
        """Return s."""
        return nn.ModuleDict({"predictor": Perceptron([width, self.hidden, width])})

    def memory(self, model: nn.Module) -> Params:
        """Return the target as it begins: a copy of the encoder."""
        return {name: slot.detach().clone() for name, slot in _encoder(model).items()}

    def loss(
        self, model: Model, own: nn.Module, graph: GraphInput, memory: Params, generator: torch.Generator
    ) -> Tensor:
        """Return the loss, scaled as in equation 5 of FedGRL (Suresh et al., 2022)."""
        first, second = self.first.view(graph, generator), self.second.view(graph, generator)
        found = self._one_way(model, own, first, second, memory, generator)
        if not self.symmetric:
            return found
        return 0.5 * (found + self._one_way(model, own, second, first, memory, generator))

    def remember(self, memory: Params, model: nn.Module, round: int) -> Params:
        """Return the target a little nearer to the encoder; its running statistics are its own."""
        share = 1.0 - self.decay_at(round)
        learned = dict(model.named_parameters())
        with torch.no_grad():
            return {n: t.lerp(learned[n].detach(), share) if n in learned else t for n, t in memory.items()}

    def decay_at(self, round: int) -> float:
        """Return the decay of a round."""
        progress = min(1.0, round / self.rounds)
        return 1.0 - (1.0 - self.decay) * (1.0 + math.cos(math.pi * progress)) / 2.0

    def _one_way(
        self,
        model: Model,
        own: nn.Module,
        seen: GraphInput,
        other: GraphInput,
        memory: Params,
        generator: torch.Generator,
    ) -> Tensor:
        assert isinstance(own, nn.ModuleDict)
        h = model.embed(seen, generator)  # (nodes, width)
        z = own["predictor"](seen, h, generator)
        with torch.no_grad(), replaced(model, memory):
            target = model.embed(other, generator)
        return -2.0 * (directions(z) * directions(target)).sum(dim=1).mean()


def _encoder(model: nn.Module) -> Params:
    return {name: slot for name, slot in model.state_dict().items() if not name.startswith("decoder.")}
