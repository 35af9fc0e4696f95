"""Clients whose graph has wrong edges: nodes of other classes are connected, or those of one class no more."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.attacks.poisoning.subgraph_trigger import with_edges
from isthmus.core.errors import BadInput, refuse, refuse_unknown
from isthmus.core.random import torch_generator
from isthmus.data.graph import Graph, pair_keys
from isthmus.runs.simulation import Scenario

RANDOM, CONNECT, REMOVE = HOW = ("random", "connect", "remove")


@dataclass(frozen=True)
class WrongEdges(Poisoning):
    """Their graphs have other edges than they should, in proportion to the pairs of nodes that are connected.

    "random":  so many pairs of any nodes are connected as well
    "connect": so many pairs of nodes of different classes are
    "remove":  so many of the edges within a class are taken away, all of them at most

    Fields:
        clients:   who does so
        malicious: so many, in the place of names
        how:       "random", "connect" or "remove"
        share:     of the number of connected pairs
    """

    how: str = CONNECT
    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unknown(self, "how", HOW)
        refuse(not 0.0 < self.share <= 100.0, self, "share", "it must be in (0, 100]")

    def of_data(self, scenario: Scenario) -> Scenario:
        """Return a scenario in which their edges are wrong."""
        wrong = {name: self._changed(scenario.parts[name], name) for name in self.clients}
        return replace(scenario, parts={**scenario.parts, **wrong})

    def _changed(self, graph: Graph, client: str) -> Graph:
        if not isinstance(graph, Graph):
            raise BadInput(f"WrongEdges connects nodes with a class, and {graph.name!r} consists of {graph.item}s")
        draw = torch_generator("wrong edges", client)
        keys = pair_keys(graph.edge_index[0], graph.edge_index[1], graph.num_nodes)
        pairs, pair_of = torch.unique(keys, return_inverse=True)
        number = round(self.share * len(pairs))
        kept = torch.ones(graph.num_edges, dtype=torch.bool)
        new = torch.zeros(2, 0, dtype=torch.long)
        if self.how == REMOVE:
            first, second = pairs // graph.num_nodes, pairs % graph.num_nodes
            within = ((graph.y[first] == graph.y[second]) & (graph.y[first] >= 0)).nonzero().flatten()
            away = torch.zeros(len(pairs), dtype=torch.bool)
            away[within[torch.randperm(len(within), generator=draw)[:number]]] = True
            kept = ~away[pair_of]
        else:
            new = self._drawn(graph, number, draw)
        found: Graph = with_edges(graph, kept, new)
        return found

    def _drawn(self, graph: Graph, number: int, draw: torch.Generator) -> Tensor:
        """Return pairs that may be connected, (2, at most `number`); some may be there already."""
        ends = torch.randint(max(1, graph.num_nodes), (2, 20 * number), generator=draw)
        labels = graph.y[ends]
        able = ends[0] != ends[1]
        if self.how == CONNECT:
            able &= (labels[0] != labels[1]) & (labels >= 0).all(dim=0)
        return ends[:, able][:, :number]
