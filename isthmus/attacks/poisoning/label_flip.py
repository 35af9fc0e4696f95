"""Clients that learn wrong labels. Tolpegin et al., "Data poisoning attacks against federated learning", 2020."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True)
class LabelFlip(Poisoning):
    """Their training nodes are of another class than they say: of the class `by` after theirs.

    Fields:
        clients: who does so
        by:      how many classes on
    """

    by: int = 1

    def of_data(self, scenario: Scenario) -> Scenario:
        """Return a scenario in which their labels are wrong."""
        parts = {name: self._flipped(part) if name in self.clients else part for name, part in scenario.parts.items()}
        return replace(scenario, parts=parts)

    def _flipped(self, graph: Graph) -> Graph:
        if not isinstance(graph, Graph):
            raise BadInput(f"LabelFlip turns the labels of nodes, and {graph.name!r} consists of {graph.item}s")
        moved = graph.mask("train") & (graph.y >= 0)
        return replace(graph, y=torch.where(moved, (graph.y + self.by) % graph.num_classes, graph.y))
