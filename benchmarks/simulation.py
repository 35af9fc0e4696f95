"""Isthmus against a bare loop of torch_geometric layers: the same FedAvg rounds, interleaved in one process.

    python benchmarks/simulation.py [--clients 5 50] [--rounds 5] [--repeats 5]

The bare loop is what an expert writes in sixty lines: one module of two `GCNConv(cached=True)` per client, dense
features, `torch.optim.SGD`, a weighted mean. Both do the same work: Cora, hidden 64, four local steps, every client in
every round. Times are milliseconds per round without evaluation, medians over repeats that alternate between the two;
the ratio is what counts, the machine is noisy. With dropout 0 both must end with the same weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

import isthmus as ist
from isthmus.core.federation import ExchangeRules, Federation
from isthmus.models import GCN
from isthmus.simulation import Scenario, Simulation, load_scenario

LR, DECAY, STEPS = 0.25, 5e-4, 4


class Net(torch.nn.Module):
    """Two graph convolutions."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = GCNConv(in_dim, 64, cached=True), GCNConv(64, out_dim, cached=True)
        self.dropout = dropout

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.second(F.relu(F.dropout(self.first(x, edges), self.dropout, self.training)), edges)


class BareLoop:
    """FedAvg as a plain loop over clients."""

    def __init__(self, scenario: Scenario, start: ist.Params, dropout: float) -> None:
        self.clients = []
        for part in scenario.parts.values():
            train = part.mask("train").nonzero().flatten()
            if len(train):
                net = Net(part.num_features, part.num_classes, dropout).train()
                self.clients.append((net, part.x.to_dense(), part.edge_index, train, part.y[train]))
        self.weights = {
            "first.lin.weight": start["gnn.layers.0.weight"].t().clone(),
            "first.bias": start["gnn.layers.0.bias"].clone(),
            "second.lin.weight": start["gnn.layers.1.weight"].t().clone(),
            "second.bias": start["gnn.layers.1.bias"].clone(),
        }

    def round(self) -> None:
        """Train every client and average."""
        total = sum(len(train) for *_, train, _ in self.clients)
        mean = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        for net, x, edges, train, labels in self.clients:
            net.load_state_dict(self.weights)
            optimizer = torch.optim.SGD(net.parameters(), lr=LR, weight_decay=DECAY)
            for _ in range(STEPS):
                optimizer.zero_grad()
                F.cross_entropy(net(x, edges)[train], labels).backward()
                optimizer.step()
            for name, weight in net.state_dict().items():
                mean[name].add_(weight, alpha=len(train) / total)
        self.weights = mean

    def params(self) -> ist.Params:
        """Return the weights under our names."""
        return {
            "gnn.layers.0.weight": self.weights["first.lin.weight"].t(),
            "gnn.layers.0.bias": self.weights["first.bias"],
            "gnn.layers.1.weight": self.weights["second.lin.weight"].t(),
            "gnn.layers.1.bias": self.weights["second.bias"],
        }


class Ours:
    """The same rounds by the package: federation, runtime, handlers, fold."""

    def __init__(self, course: ist.Course, scenario: Scenario) -> None:
        self.simulation = Simulation(course, scenario)
        self.algorithm = course.algorithm
        self.state = ist.ModelState(self.simulation.initial.params)
        self.rounds = 0

    def round(self) -> None:
        """Do one round of the algorithm."""
        self.rounds += 1
        fed = Federation(
            self.simulation.runtime,
            seed=0,
            round=self.rounds,
            cohort=self.simulation.runtime.clients,
            model=self.simulation.initial,
            rules=ExchangeRules(),
            report=lambda report: None,
        )
        self.state = self.algorithm.round(self.state, fed)


def milliseconds(rounds: int, side: BareLoop | Ours) -> float:
    started = time.perf_counter()
    for _ in range(rounds):
        side.round()
    return 1e3 * (time.perf_counter() - started) / rounds


def measure(num_clients: int, rounds: int, repeats: int) -> None:
    algorithm = ist.FedAvg(local_steps=STEPS, optimizer=ist.SGD(lr=LR, weight_decay=DECAY))
    course = ist.Course(num_clients=num_clients, algorithm=algorithm)
    scenario = load_scenario(course, Path())
    still = replace(course, model=ist.ModelSpec(GCN(dropout=0.0)))
    ours, bare = Ours(still, scenario), None
    bare = BareLoop(scenario, ours.state.params, 0.0)
    for _ in range(3):
        ours.round()
        bare.round()
    theirs = bare.params()
    apart = max(float((ours.state.params[name] - theirs[name]).abs().max()) for name in theirs)
    ours = Ours(course, scenario)
    bare = BareLoop(scenario, ours.state.params, 0.5)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(repeats + 1):
        for side, kept in zip((ours, bare), times, strict=True):
            took = milliseconds(rounds, side)
            if number:  # the first one warms up
                kept.append(took)
    us, them = statistics.median(times[0]), statistics.median(times[1])
    print(f"| {num_clients} | {us:.1f} | {them:.1f} | {them / us:.1f} | {apart:.1e} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print("| clients | isthmus ms per round | bare loop ms per round | ratio | weights apart after 3 rounds |")
    print("| --- | --- | --- | --- | --- |")
    for number in chosen.clients:
        measure(number, chosen.rounds, chosen.repeats)


if __name__ == "__main__":
    main()
