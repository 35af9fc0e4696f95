"""Link prediction by FedAvg, bare: graph convolutions of torch_geometric, scalar products, client after client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import negative_sampling

import isthmus as ist
from bare.nodes import HIDDEN, STEPS, Net, Setting, Weights, as_ours, as_theirs


class LinkClient(NamedTuple):
    """What the loop keeps of a client; `given` are pairs that the data tells to be no links, if it tells any."""

    net: Net
    x: Tensor
    messages: Tensor  # (2, edges): the training links, in both directions
    links: Tensor  # (2, training links)
    all_links: Tensor  # (2, edges): those of validation and test too, which are no negatives
    given: Tensor | None

    def loss(self) -> Tensor:
        """Return the binary cross-entropy of links and of as many negatives, or of the given ones."""
        h = self.net(self.x, self.messages)
        wrong = self.given
        if wrong is None:
            wrong = negative_sampling(self.all_links, len(h), num_neg_samples=self.links.shape[1])
        head, tail = torch.cat([self.links, wrong], dim=1)
        target = torch.cat([h.new_ones(self.links.shape[1]), h.new_zeros(wrong.shape[1])])
        return F.binary_cross_entropy_with_logits((h[head] * h[tail]).sum(dim=1), target)


class LinkLoop:
    """Every client takes some steps of Adam on all its training links; then the mean is taken."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        self.setting = setting
        self.clients = [_client(part, setting) for part in scenario.parts.values()]
        sizes = [int(part.mask("train").sum()) for part in scenario.parts.values()]
        self.shares = [size / sum(sizes) for size in sizes]
        self.weights = as_theirs(start)

    def round(self) -> int:
        """Train every client and average."""
        mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        for client, share in zip(self.clients, self.shares, strict=True):
            client.net.load_state_dict(self.weights)
            optimizer = self.setting.adam(client.net)
            for _ in range(STEPS):
                optimizer.zero_grad()
                client.loss().backward()
                optimizer.step()
            for name, weight in client.net.state_dict().items():
                mean[name].add_(weight, alpha=share)
        self.weights = mean
        return len(self.clients)

    def params(self) -> list[Weights]:
        """Return the global weights under the package's names."""
        return [as_ours(self.weights)]


def _client(part: ist.LinkGraph, setting: Setting) -> LinkClient:
    train, real = part.mask("train"), part.is_link
    links = part.links[:, train & real]
    given = part.links[:, train & ~real] if part.linked is not None else None
    both = [torch.cat([ends, ends.flip(0)], dim=1) for ends in (links, part.links[:, real])]
    net = Net(part.num_features, HIDDEN, setting.dropout).train()
    return LinkClient(net, setting.features(part.x), both[0], links, both[1], given)
