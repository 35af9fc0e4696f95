"""Graph classification by FedAvg, bare: GIN layers of torch_geometric, batches by its loader, client after client."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

import isthmus as ist
from bare.nodes import HIDDEN, Setting, Weights

BATCH = 128


class GraphNet(torch.nn.Module):
    """Two GIN layers, the sum over each graph's nodes, and a perceptron of two maps."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = GINConv(_mlp(in_dim, HIDDEN)), GINConv(_mlp(HIDDEN, HIDDEN))
        self.head = _mlp(HIDDEN, out_dim)
        self.dropout = dropout

    def forward(self, data: Data) -> Tensor:
        """Return the logits of each graph."""
        h = F.relu(F.dropout(self.first(data.x, data.edge_index), self.dropout, self.training))
        h = global_add_pool(self.second(h, data.edge_index), data.batch, data.num_graphs)
        hidden = F.relu(F.dropout(self.head[0](h), self.dropout, self.training))
        return self.head[2](hidden)


def _mlp(in_dim: int, out_dim: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(in_dim, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, out_dim))


class GraphLoop:
    """Every client goes once through its training graphs with Adam; then the mean is taken."""

    def __init__(self, scenario: ist.Scenario, start: Mapping[str, Tensor], setting: Setting) -> None:
        self.setting, whole = setting, scenario.whole
        self.net = GraphNet(whole.num_features, whole.num_classes, setting.dropout).train()
        self.loaders = [DataLoader(_training_graphs(part), BATCH, shuffle=True) for part in scenario.parts.values()]
        sizes = [len(loader.dataset) for loader in self.loaders]
        self.shares = [size / sum(sizes) for size in sizes]
        self.weights = {theirs: start[ours].t().clone() for ours, theirs in _NAMES.items()}

    def round(self) -> int:
        """Train every client and average."""
        mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        for loader, share in zip(self.loaders, self.shares, strict=True):
            self.net.load_state_dict(self.weights, strict=False)  # GINConv keeps its eps, 0, among the buffers
            optimizer = self.setting.adam(self.net)
            for batch in loader:
                optimizer.zero_grad()
                F.cross_entropy(self.net(batch), batch.y).backward()
                optimizer.step()
            trained = self.net.state_dict()
            for name, weight in mean.items():
                weight.add_(trained[name], alpha=share)
        self.weights = mean
        return len(self.loaders)

    def params(self) -> list[Weights]:
        """Return the global weights under the package's names."""
        return [{ours: self.weights[theirs].t() for ours, theirs in _NAMES.items()}]


def _training_graphs(part: ist.GraphSet) -> list[Data]:
    found = []
    for i in part.mask("train").nonzero().flatten().tolist():
        first, last = part.node_start[i : i + 2].tolist()
        edges = part.edge_index[:, part.edge_start[i] : part.edge_start[i + 1]] - first
        found.append(Data(x=part.x[first:last], edge_index=edges, y=part.y[i : i + 1]))
    return found


_LAYERS = {"gnn.layers.0": "first.nn", "gnn.layers.1": "second.nn"}
_NAMES = {
    **{f"{ours}.{kind}": f"{theirs}.0.{kind}" for ours, theirs in _LAYERS.items() for kind in ("weight", "bias")},
    **{
        f"{ours}.second.{kind}": f"{theirs}.2.{kind}" for ours, theirs in _LAYERS.items() for kind in ("weight", "bias")
    },
    **{f"decoder.layers.{i}.{kind}": f"head.{2 * i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")},
}
