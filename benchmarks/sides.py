"""The sides of the comparison: the package, a bare loop of torch_geometric layers, and a yardstick given by its path.

All do FedAvg with a graph convolutional network of two layers on the clients of one scenario: dropout between the
layers, `STEPS` full-batch steps of SGD for each client that has a training node, a mean weighted by training nodes.
All start from the same weights.
"""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCNConv

import isthmus as ist
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation
from isthmus.runs.folder import Journal
from isthmus.runs.simulation import Scenario, Simulation

HIDDEN, STEPS, LR, DECAY = 64, 4, 0.25, 5e-4
# Our names of W1 (features, hidden), b1, W2 (hidden, classes), b2.
NAMES = ("gnn.layers.0.weight", "gnn.layers.0.bias", "gnn.layers.1.weight", "gnn.layers.1.bias")


def course_of(num_clients: int, **fields: Any) -> ist.Course:
    """Return the course that all sides are about."""
    fedavg = ist.FedAvg(local_steps=STEPS, optimizer=ist.SGD(lr=LR, weight_decay=DECAY))
    return ist.Course(num_clients=num_clients, **{"algorithm": fedavg, **fields})


class Ours:
    """Rounds by the package, as a course does them: federation, runtime, handlers, fold, journal in memory."""

    def __init__(self, course: ist.Course, scenario: Scenario) -> None:
        self.simulation = Simulation(course, scenario)
        self.runtime = self.simulation.runtime
        self.course, self.journal = course, Journal(None)
        self.rounds = self.trained = 0
        self.idle = sum(client.num_examples == 0 for client in self.simulation.clients.values())
        self.state = course.algorithm.setup(self._federation())

    def round(self) -> int:
        """Do one round of the algorithm."""
        self.rounds += 1
        self.trained = 0
        self.state = self.course.algorithm.round(self.state, self._federation())
        self.runtime.mark(self.rounds)
        return self.trained

    def _federation(self) -> Federation:
        return Federation(
            self.runtime,
            seed=self.course.seed,
            round=self.rounds,
            cohort=self.runtime.clients,
            model=self.simulation.initial,
            rules=ExchangeRules(),
            report=self._exchanged,
        )

    def _exchanged(self, report: ExchangeReport) -> None:
        self.journal.exchanged(report)
        # A client without training nodes answers too; it trains nothing and weighs nothing.
        self.trained += report.num_clients - len(report.failures) - self.idle

    def params(self) -> list[Tensor]:
        """Return W1, b1, W2, b2."""
        return [self.state.params[name] for name in NAMES]

    def accuracy(self) -> float:
        """Return the accuracy of the global model on all clients' own test nodes."""
        everyone = dict.fromkeys(self.simulation.clients, self.state.params)
        return self.simulation.on_local_graphs(everyone, "test")[0]["accuracy"]


class Net(torch.nn.Module):
    """Two graph convolutions."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float, cached: bool = True) -> None:
        super().__init__()
        self.first, self.second = GCNConv(in_dim, HIDDEN, cached=cached), GCNConv(HIDDEN, out_dim, cached=cached)
        self.dropout = dropout

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return the logits."""
        return self.second(F.relu(F.dropout(self.first(x, edges), self.dropout, self.training)), edges)


class BareLoop:
    """What an expert writes in an hour: a module with cached graph convolutions for each client, one after the other.

    Features are dense, the optimiser is `torch.optim.SGD`.
    """

    def __init__(self, scenario: Scenario, start: list[Tensor], dropout: float) -> None:
        self.parts = list(scenario.parts.values())
        self.clients = []
        for part in self.parts:
            train = part.mask("train").nonzero().flatten()
            if len(train):
                net = Net(part.num_features, part.num_classes, dropout).train()
                self.clients.append((net, part.x.to_dense(), part.edge_index, train, part.y[train]))
        w1, b1, w2, b2 = (tensor.clone() for tensor in start)
        self.weights = {"first.lin.weight": w1.t(), "first.bias": b1, "second.lin.weight": w2.t(), "second.bias": b2}

    def round(self) -> int:
        """Train every client and average."""
        total = sum(len(train) for *_, train, _ in self.clients)
        mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        trained = 0
        for net, x, edges, train, labels in self.clients:
            net.load_state_dict(self.weights)
            optimizer = torch.optim.SGD(net.parameters(), lr=LR, weight_decay=DECAY)
            for _ in range(STEPS):
                optimizer.zero_grad()
                F.cross_entropy(net(x, edges)[train], labels).backward()
                optimizer.step()
            for name, weight in net.state_dict().items():
                mean[name].add_(weight, alpha=len(train) / total)
            trained += 1
        self.weights = mean
        return trained

    def params(self) -> list[Tensor]:
        """Return W1, b1, W2, b2."""
        w1, b1, w2, b2 = (
            self.weights[n] for n in ("first.lin.weight", "first.bias", "second.lin.weight", "second.bias")
        )
        return [w1.t(), b1, w2.t(), b2]

    def accuracy(self) -> float:
        """Return the accuracy of the global model on all clients' own test nodes."""
        net = Net(self.parts[0].num_features, self.parts[0].num_classes, 0.0, cached=False).eval()
        net.load_state_dict(self.weights)
        right = count = 0
        with torch.no_grad():
            for part in self.parts:
                test = part.mask("test")
                right += int((net(part.x.to_dense(), part.edge_index).argmax(dim=1) == part.y)[test].sum())
                count += int(test.sum())
        return right / count


class Yardstick:
    """The `Compact` mode of a module of bare loops, on our clients.

    The module has a class `Compact(clients, num_features, num_classes, options)` with `w` (the weights), `k` (how many
    clients train), `round()` and `accuracy()`.
    """

    def __init__(self, module: ModuleType, scenario: Scenario, start: list[Tensor], dropout: float) -> None:
        options = Namespace(hidden=HIDDEN, seed=0, dropout=dropout, steps=STEPS, lr=LR, wd=DECAY)
        whole = scenario.whole
        clients = [as_yardstick_client(part) for part in scenario.parts.values()]
        self.mode = module.Compact(clients, whole.num_features, whole.num_classes, options)
        self.mode.w = [tensor.clone() for tensor in start]

    def round(self) -> int:
        """Train all clients at once and average."""
        self.mode.round()
        return int(self.mode.k)

    def params(self) -> list[Tensor]:
        """Return W1, b1, W2, b2."""
        return list(self.mode.w)

    def accuracy(self) -> float:
        """Return the accuracy of the global model on all clients' own test nodes."""
        return float(self.mode.accuracy())


def load_yardstick(path: Path) -> ModuleType:
    """Import a module by its path."""
    spec = importlib.util.spec_from_file_location("yardstick", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"--yardstick {path}: no Python file is there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def as_yardstick_client(part: ist.Graph) -> dict[str, Any]:
    """Return a client's graph for a yardstick: features, normalised adjacency, edges; role 0, 1, 2 for the splits."""
    n = part.num_nodes
    source, target = part.edge_index.numpy()
    raw = sp.csr_matrix((np.ones(part.num_edges, np.float32), (source, target)), (n, n))
    looped = (raw + sp.eye(n, dtype=np.float32, format="csr")).tocsr()
    scale = sp.diags(1 / np.sqrt(np.asarray(looped.sum(axis=1)).ravel()))
    role = np.full(n, -1)
    for number, split in enumerate(("train", "val", "test")):
        role[part.mask(split).numpy()] = number
    x = part.x if part.x.layout == torch.sparse_csr else part.x.to_sparse_csr()
    features = sp.csr_matrix((x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy()), tuple(x.shape))
    s = (scale @ looped @ scale).tocsr().astype(np.float32)
    return {"x": features, "s": s, "raw": raw, "y": part.y.numpy(), "role": role}
