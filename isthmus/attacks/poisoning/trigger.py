"""Clients that plant a backdoor: nodes with a trigger in their features are of a class that they choose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.core.errors import BadInput, refuse
from isthmus.data.graph import Graph
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True)
class Trigger(Poisoning):
    """Some of their training nodes carry a trigger, a one in each of some columns, and are of the target class then.

    Fields:
        clients:  who does so
        columns:  of the features
        target:   the class
        fraction: the share of the training nodes that carries it, the first ones
    """

    columns: tuple[int, ...] = (0, 1, 2)
    target: int = 0
    fraction: float = 0.5

    def __post_init__(self) -> None:
        refuse(not self.columns, self, "columns", "name some")
        refuse(not 0.0 < self.fraction <= 1.0, self, "fraction", "it must be in (0, 1]")

    def of_data(self, scenario: Scenario) -> Scenario:
        """Return a scenario with the trigger in it."""
        parts = {name: self._planted(part) if name in self.clients else part for name, part in scenario.parts.items()}
        return replace(scenario, parts=parts)

    def _planted(self, graph: Graph) -> Graph:
        if not isinstance(graph, Graph):
            raise BadInput(f"Trigger marks nodes, and {graph.name!r} consists of {graph.item}s")
        nodes = graph.mask("train").nonzero().flatten()
        nodes = nodes[: max(1, round(self.fraction * len(nodes)))] if len(nodes) else nodes
        y = graph.y.clone()
        y[nodes] = self.target
        return replace(with_trigger(graph, nodes, self.columns), y=y)


def with_trigger(graph: Graph, nodes: Tensor, columns: Iterable[int]) -> Graph:
    """Return a graph some of whose nodes carry a trigger: ones in some columns of their features."""
    sparse = graph.x.layout != torch.strided
    x = graph.x.to_dense() if sparse else graph.x.clone()
    x[nodes.unsqueeze(1), torch.tensor(tuple(columns))] = 1.0
    return replace(graph, x=x.to_sparse_csr() if sparse else x)
