"""Node classification on sampled neighbourhoods by FedAvg, bare: a sampler in torch, torch_geometric's layers.

torch_geometric's own `NeighborLoader` needs pyg-lib or torch-sparse; where neither is installed, one writes this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv

import isthmus as ist
from bare.nodes import HIDDEN, STEPS, Setting, Weights

BATCH, FANOUTS = 128, (5, 5)


class SAGENet(torch.nn.Module):
    """Two layers of GraphSAGE with means."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(in_dim, HIDDEN), SAGEConv(HIDDEN, out_dim)
        self.dropout = dropout

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return the logits."""
        return self.second(F.relu(F.dropout(self.first(x, edges), self.dropout, self.training)), edges)


class Sampler:
    """Yields training nodes, and the nodes and edges of a sample of their neighbourhood."""

    def __init__(self, part: ist.Graph, batch_size: int | None, fanouts: Sequence[int]) -> None:
        self.train = part.mask("train").nonzero().flatten()
        self.size, self.fanouts = batch_size or len(self.train), fanouts
        order = part.edge_index[1].argsort(stable=True)
        self.source = part.edge_index[0][order]
        self.degree = torch.bincount(part.edge_index[1], minlength=part.num_nodes)
        self.first = self.degree.cumsum(0) - self.degree

    def batches(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield the nodes, the seeds first, the edges in their numbers, and the number of seeds."""
        for seeds in self.train[torch.randperm(len(self.train))].split(self.size):
            number = self.degree.new_full((len(self.degree),), -1)
            number[seeds] = torch.arange(len(seeds))
            nodes, edges, frontier = [seeds], [], seeds
            for fanout in self.fanouts:
                source, target = self._in_edges(frontier, fanout)
                frontier = source[number[source] < 0].unique()
                number[frontier] = torch.arange(len(frontier)) + sum(map(len, nodes))
                nodes.append(frontier)
                edges.append(torch.stack([source, target]))
            yield torch.cat(nodes), number[torch.cat(edges, dim=1)], len(seeds)

    def _in_edges(self, targets: Tensor, fanout: int) -> tuple[Tensor, Tensor]:
        """Return sources and targets of in-edges, at most `fanout` for each target, drawn without replacement."""
        degree = self.degree[targets]
        place = torch.arange(int(degree.max())).expand(len(targets), -1)  # (targets, most)
        if 0 <= fanout < place.shape[1]:
            keys = torch.rand(place.shape).masked_fill_(place >= degree.unsqueeze(1), 2.0)
            place = keys.topk(fanout, dim=1, largest=False, sorted=False).indices
        there = place < degree.unsqueeze(1)
        columns = (self.first[targets].unsqueeze(1) + place)[there]
        return self.source[columns], targets.repeat_interleave(there.sum(dim=1))


class NeighborLoop:
    """Every client takes some steps of Adam on batches of its own; then the mean is taken."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        self.setting, whole = setting, scenario.whole
        self.net = SAGENet(whole.num_features, whole.num_classes, setting.dropout).train()
        batch_size, fanouts = (BATCH, FANOUTS) if setting.sampled else (None, (-1, -1))
        self.clients = [(part, Sampler(part, batch_size, fanouts)) for part in scenario.parts.values()]
        sizes = [len(sampler.train) for _, sampler in self.clients]
        self.shares = [size / sum(sizes) for size in sizes]
        self.weights = {theirs: start[ours].t().clone() for ours, theirs in _NAMES.items()}

    def round(self) -> int:
        """Train every client and average."""
        mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        for (part, sampler), share in zip(self.clients, self.shares, strict=True):
            self.net.load_state_dict(self.weights)
            optimizer = self.setting.adam(self.net)
            steps = 0
            while steps < STEPS:
                for nodes, edges, seeds in sampler.batches():
                    optimizer.zero_grad()
                    logits = self.net(part.x[nodes], edges)[:seeds]
                    F.cross_entropy(logits, part.y[nodes[:seeds]]).backward()
                    optimizer.step()
                    steps += 1
                    if steps == STEPS:
                        break
            trained = self.net.state_dict()
            for name, weight in mean.items():
                weight.add_(trained[name], alpha=share)
        self.weights = mean
        return len(self.clients)

    def params(self) -> list[Weights]:
        """Return the global weights under the package's names."""
        return [{ours: self.weights[theirs].t() for ours, theirs in _NAMES.items()}]


_KINDS = {"neighbor_weight": "lin_l.weight", "own_weight": "lin_r.weight", "bias": "lin_l.bias"}
_NAMES = {
    f"gnn.layers.{layer}.{ours}": f"{name}.{theirs}"
    for layer, name in enumerate(("first", "second"))
    for ours, theirs in _KINDS.items()
}
