"""Ditto (Li, Hu, Beirami and Smith, 2021), bare."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

import isthmus as ist
from bare.nodes import STEPS, NodeClient, NodeLoop, Setting, Weights, as_ours, copied

STRENGTH = 0.1


class DittoLoop(NodeLoop):
    """FedAvg, and beside it a model of each client's own that is drawn towards the global one."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        super().__init__(scenario, start, setting)
        self.own = [dict(self.weights) for _ in self.clients]

    def train(self, number: int, client: NodeClient) -> None:
        """Train the client's own model, then the global one, which stays in the network."""
        net = client.net
        net.load_state_dict(self.own[number])
        self._steps(client, STRENGTH)
        self.own[number] = copied(net)
        net.load_state_dict(self.weights)
        self._steps(client, 0.0)

    def _steps(self, client: NodeClient, strength: float) -> None:
        optimizer = self.setting.adam(client.net)
        for _ in range(STEPS):
            optimizer.zero_grad()
            client.loss().backward()
            if strength:
                for name, weight in client.net.named_parameters():
                    weight.grad.add_(weight.detach() - self.weights[name], alpha=strength)
            optimizer.step()

    def params(self) -> list[Weights]:
        """Return the global model, and the clients' own."""
        return [as_ours(each) for each in (self.weights, *self.own)]
