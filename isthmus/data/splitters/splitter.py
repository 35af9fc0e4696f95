"""The contract of a splitter: it says which nodes of one graph each client holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph


@dataclass(frozen=True)
class Splitter(ABC):
    """Cuts one graph into the graphs of several clients.

    A subclass says who holds which nodes (`assign`); a client's graph is the one induced by its nodes, so
    edges between clients are lost. A subclass may also change each client's graph (`after_cut`).
    """

    @abstractmethod
    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return the indices of each client's nodes in `graph`: int64, ascending, without repetition."""

    def after_cut(self, part: Graph, rng: np.random.Generator) -> Graph:
        """Return a client's graph as the client shall hold it; here, unchanged."""
        return part

    def split(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Graph]:
        """Return one graph for each client; `node_ids` tell where its nodes come from."""
        if num_clients < 1:
            raise BadInput(f"num_clients is {num_clients!r}; at least 1 is needed")
        if num_clients > graph.num_nodes:
            raise BadInput(
                f"num_clients is {num_clients}, but the dataset {graph.name!r} has only {graph.num_nodes} "
                "nodes; every client needs at least one"
            )
        parts = self.assign(graph, num_clients, rng)
        if len(parts) != num_clients:
            raise BadInput(f"{self!r} made {len(parts)} parts for {num_clients} clients")
        empty = [client for client, nodes in enumerate(parts) if len(nodes) == 0]
        if empty:
            raise BadInput(f"{self!r} left clients {empty} of {num_clients} without a node; use fewer clients")
        return [self.after_cut(part, rng) for part in graph.divide(parts)]
