"""FedGL (Chen et al., 2021), bare: equations 8 to 14 on dense matrices at the server, edge lists at the clients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import isthmus as ist
from bare.nodes import STEPS, NodeLoop, Setting, Weights

ALPHA, BETA, THRESHOLD, NEIGHBORS = 0.2, 1.0, 0.5, 100


class FedGLLoop(NodeLoop):
    """Clients train on their graphs, complemented by pseudo labels and a pseudo graph that the server finds."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        super().__init__(scenario, start, setting)
        parts = [part for part in scenario.parts.values() if part.mask("train").any()]
        self.nodes = [part.node_ids for part in parts]
        self.num_nodes = scenario.whole.num_nodes
        self.normed = [gcn_norm(part.edge_index, None, part.num_nodes) for part in parts]
        sizes = [part.num_nodes for part in parts]
        self.shares = [size / sum(sizes) for size in sizes]
        for client in self.clients:  # edges come normalised, with the complement among them
            for layer in (client.net.first, client.net.second):
                layer.normalize, layer.cached = False, False
        self.labels: Tensor | None = None
        self.graph: Tensor | None = None

    def round(self) -> int:
        """Train every client with guidance; average models; make pseudo labels and the pseudo graph of the views."""
        mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        classes = len(self.weights["second.bias"])
        probable, embedded = torch.zeros(self.num_nodes, classes), torch.zeros(self.num_nodes, classes)
        for number, share in enumerate(self.shares):
            trained, logits = self._guided(number)
            for name, weight in trained.items():
                mean[name].add_(weight, alpha=share)
            probable.index_add_(0, self.nodes[number], logits.softmax(dim=1), alpha=share)  # eq. 11
            embedded.index_add_(0, self.nodes[number], logits, alpha=share)  # eq. 13
        self.weights = mean
        largest, label = probable.max(dim=1)
        self.labels = torch.where(largest > THRESHOLD, label, -1)  # eq. 12
        products, column = (embedded @ embedded.t()).relu_().topk(min(NEIGHBORS, self.num_nodes), dim=1)  # eq. 14
        weights = products / products.sum(dim=1, keepdim=True).clamp(min=torch.finfo(products.dtype).tiny)
        self.graph = torch.zeros(self.num_nodes, self.num_nodes).scatter_(1, column, weights)
        return len(self.clients)

    def _guided(self, number: int) -> tuple[Weights, Tensor]:
        """Train a client on its complemented graph; return its weights and logits."""
        client, nodes = self.clients[number], self.nodes[number]
        net, train, labels = client.net, client.train, client.labels
        edges, values = self.normed[number]
        pseudo = train[:0]
        if self.labels is not None and self.graph is not None:
            guess = self.labels[nodes]
            guess[train] = -1
            pseudo = (guess >= 0).nonzero().flatten()
            edges, values = self._complemented(number)
        net.load_state_dict(self.weights)
        optimizer = self.setting.adam(net)
        for _ in range(STEPS):
            optimizer.zero_grad()
            logits = self._logits(number, edges, values)
            loss = F.cross_entropy(logits[train], labels)
            if len(pseudo):
                loss = loss + ALPHA * F.cross_entropy(logits[pseudo], guess[pseudo])  # eq. 8
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            logits = self._logits(number, edges, values)
        net.train()
        return net.state_dict(), logits

    def _complemented(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the edges of A_k + beta D^-1/2 A^(k) D^-1/2 (eq. 9), D counting neighbours."""
        nodes = self.nodes[number]
        part = self.graph[nodes][:, nodes]  # row i: what node i takes from others
        target, source = part.nonzero(as_tuple=True)
        degree = torch.bincount(target, minlength=len(nodes))
        scale = degree.clamp(min=1).rsqrt() * (degree > 0)
        added = BETA * scale[target] * part[target, source] * scale[source]
        edges, values = self.normed[number]
        return torch.cat([edges, torch.stack([source, target])], dim=1), torch.cat([values, added])

    def _logits(self, number: int, edges: Tensor, values: Tensor) -> Tensor:
        client = self.clients[number]
        net = client.net
        hidden = F.relu(F.dropout(net.first(client.x, edges, values), net.dropout, net.training))
        return net.second(hidden, edges, values)
