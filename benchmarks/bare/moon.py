"""MOON (Li, He and Song, 2021), bare."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

import isthmus as ist
from bare.nodes import STEPS, NodeClient, NodeLoop, Setting, Weights, as_ours, copied

MU, TAU = 1.0, 0.5


class MoonLoop(NodeLoop):
    """A contrast between the received model's representations and those of the client's own last one."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        super().__init__(scenario, start, setting)
        self.previous: list[Weights | None] = [None] * len(self.clients)

    def train(self, number: int, client: NodeClient) -> None:
        """Take the steps; in a client's first round there is nothing to contrast."""
        net, previous, train = client.net, self.previous[number], client.train
        if previous is not None:
            toward = self._seen(client)
            net.load_state_dict(previous)
            away = self._seen(client)
            net.load_state_dict(self.weights)
        optimizer = self.setting.adam(net)
        for _ in range(STEPS):
            optimizer.zero_grad()
            hidden = net.hidden(client.x, client.edges)
            loss = F.cross_entropy(net.second(hidden, client.edges)[train], client.labels)
            if previous is not None:
                z = hidden[train]
                gap = F.cosine_similarity(z, away) - F.cosine_similarity(z, toward)
                loss = loss + MU * F.softplus(gap / TAU).mean()
            loss.backward()
            optimizer.step()
        self.previous[number] = copied(net)

    @torch.no_grad()
    def _seen(self, client: NodeClient) -> Tensor:
        """Return the training nodes' representations by the weights that the network holds now, without dropout."""
        client.net.eval()
        seen = client.net.hidden(client.x, client.edges)[client.train]
        client.net.train()
        return seen

    def params(self) -> list[Weights]:
        """Return the global model, and the clients' last ones."""
        return [as_ours(each) for each in (self.weights, *self.previous) if each is not None]
