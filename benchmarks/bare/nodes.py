"""What the bare loops for node classification share: a network for each client, and the weighted mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCNConv

import isthmus as ist

HIDDEN, STEPS, LR = 64, 4, 0.01
Weights = dict[str, Tensor]


class Setting(NamedTuple):
    """What differs between rounds that are timed and rounds whose weights are compared.

    Fields:
        dropout: of both sides' networks
        eps:     Adam's
        sampled: whether each side draws what it learns from, neighbourhoods or negatives, or both have the same
        tuned:   whether the bare loop has what measuring taught: bags of words as sparse tensors, and Adam in one pass
                 over memory; otherwise features are dense, as torch_geometric's datasets give them, and Adam is
                 torch's by default
    """

    dropout: float = 0.5
    eps: float = 1e-8
    sampled: bool = True
    tuned: bool = False

    def features(self, x: Tensor) -> Tensor:
        """Return a client's features as the loop holds them."""
        dense = x if x.layout == torch.strided else x.to_dense()
        return dense.to_sparse() if self.tuned and x.layout != torch.strided else dense

    def adam(self, net: torch.nn.Module) -> torch.optim.Optimizer:
        """Return Adam; `fused` takes a fifth to a third off a round of these loops."""
        return torch.optim.Adam(net.parameters(), lr=LR, eps=self.eps, fused=True if self.tuned else None)


class Net(torch.nn.Module):
    """Two graph convolutions."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.first = GCNConv(in_dim, HIDDEN, cached=True)
        self.second = GCNConv(HIDDEN, out_dim, cached=True)
        self.dropout = dropout

    def hidden(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return what the second layer reads."""
        return F.relu(F.dropout(self.first(x, edges), self.dropout, self.training))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return the logits."""
        return self.second(self.hidden(x, edges), edges)


class NodeClient(NamedTuple):
    """What the loop keeps of a client: a network with its own cached adjacency, and its tensors."""

    net: Net
    x: Tensor
    edges: Tensor
    train: Tensor
    labels: Tensor

    def loss(self) -> Tensor:
        """Return the cross-entropy on the training nodes."""
        return F.cross_entropy(self.net(self.x, self.edges)[self.train], self.labels)


class NodeLoop:
    """Client after client trains, then the mean is taken; a method says how a client trains."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        self.setting = setting
        self.clients = []
        for part in scenario.parts.values():
            train = part.mask("train").nonzero().flatten()
            if len(train):
                net = Net(part.num_features, part.num_classes, setting.dropout).train()
                x = setting.features(part.x)
                self.clients.append(NodeClient(net, x, part.edge_index, train, part.y[train]))
        sizes = [len(client.train) for client in self.clients]
        self.shares = [size / sum(sizes) for size in sizes]
        self.weights = as_theirs(start)

    def round(self) -> int:
        """Train every client and average."""
        mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        for number, (client, share) in enumerate(zip(self.clients, self.shares, strict=True)):
            client.net.load_state_dict(self.weights)
            self.train(number, client)
            for name, weight in client.net.state_dict().items():
                mean[name].add_(weight, alpha=share)
        self.weights = mean
        return len(self.clients)

    def train(self, number: int, client: NodeClient) -> None:
        """Train a client's network, which holds the global weights."""
        raise NotImplementedError

    def params(self) -> list[Weights]:
        """Return all weights that the method has, the global ones first, under the package's names."""
        return [as_ours(self.weights)]


def copied(net: torch.nn.Module) -> Weights:
    """Return a copy of a network's weights."""
    return {name: weight.detach().clone() for name, weight in net.state_dict().items()}


_NAMES = {
    "gnn.layers.0.weight": "first.lin.weight",
    "gnn.layers.0.bias": "first.bias",
    "gnn.layers.1.weight": "second.lin.weight",
    "gnn.layers.1.bias": "second.bias",
}


def as_theirs(params: Mapping[str, Tensor]) -> Weights:
    """Return the package's weights under the names of `Net`, where matrices are transposed."""
    return {theirs: params[ours].t().clone() for ours, theirs in _NAMES.items()}


def as_ours(weights: Mapping[str, Tensor]) -> Weights:
    """Return weights of `Net` under the package's names."""
    return {ours: weights[theirs].t() for ours, theirs in _NAMES.items()}
