"""SCAFFOLD (Karimireddy et al., 2020), bare, with option II for the control variates."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import isthmus as ist
from bare.nodes import STEPS, NodeClient, NodeLoop, Setting, Weights, as_ours

SGD_LR, DECAY = 0.25, 5e-4


class ScaffoldLoop(NodeLoop):
    """Steps of SGD whose gradients are corrected by c - c_i."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        super().__init__(scenario, start, setting)
        self.variate = self._zeros()
        self.own = [self._zeros() for _ in self.clients]

    def _zeros(self) -> Weights:
        return {name: torch.zeros_like(weight) for name, weight in self.weights.items()}

    def round(self) -> int:
        """Train every client, average models and changes of variates."""
        self.change = self._zeros()
        trained = super().round()
        for name, c in self.variate.items():
            c.add_(self.change[name])
        return trained

    def train(self, number: int, client: NodeClient) -> None:
        """Take the steps, and move the client's own variate."""
        own = self.own[number]
        optimizer = torch.optim.SGD(client.net.parameters(), lr=SGD_LR, weight_decay=DECAY)
        slots = dict(client.net.named_parameters())
        drift = {name: self.variate[name] - own[name] for name in slots}
        for _ in range(STEPS):
            optimizer.zero_grad()
            client.loss().backward()
            for name, weight in slots.items():
                weight.grad.add_(drift[name])
            optimizer.step()
        for name, weight in slots.items():
            # c_i+ - c_i = -c + (x - y) / (K lr)
            change = (self.weights[name] - weight.detach()).div_(STEPS * SGD_LR).sub_(self.variate[name])
            own[name].add_(change)
            self.change[name].add_(change, alpha=self.shares[number])

    def params(self) -> list[Weights]:
        """Return the model, the server's variate and the clients'."""
        return [as_ours(each) for each in (self.weights, self.variate, *self.own)]
