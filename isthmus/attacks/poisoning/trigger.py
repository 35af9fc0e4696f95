"""Clients that plant a backdoor: nodes with a trigger in their features are of a class that they choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isthmus.attacks.poisoning.backdoor import Backdoor, require_columns, with_ones
from isthmus.core.errors import BadInput, refuse
from isthmus.data.graph import Graph


@dataclass(frozen=True)
class Trigger(Backdoor):
    """Some of their training nodes carry a trigger, a one in each of some columns, and are of the target class then.

    Fields:
        clients:     who does so
        malicious:   so many, in the place of names
        target:      the class
        fraction:    the share of the training nodes that carries it, the first ones
        distributed: whether the columns are divided among the clients
        scale:       what they learned is sent so many times over
        columns:     of the features
    """

    columns: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not self.columns, self, "columns", "name some")

    def require_fitting(self, whole: Any) -> None:
        """Raise BadInput where there are no such nodes, columns or classes."""
        if not isinstance(whole, Graph):
            raise BadInput(f"Trigger marks nodes, and {whole.name!r} consists of {whole.item}s; take subgraph_trigger")
        super().require_fitting(whole)
        require_columns("Trigger", self.columns, whole)
        if self.distributed and len(self.columns) < len(self.clients):
            raise BadInput(
                f"Trigger.columns has {len(self.columns)} to divide among {len(self.clients)} clients; name as many"
            )

    def planted(self, data: Any, items: Tensor, places: Sequence[int]) -> Any:
        """Return a graph with ones in the columns of these places."""
        number = len(self.clients)
        own = [column for at, column in enumerate(self.columns) if at % number in places]
        return with_trigger(data, items, own)


def with_trigger(graph: Graph, nodes: Tensor, columns: Iterable[int]) -> Graph:
    """Return a graph some of whose nodes carry a trigger: ones in some columns of their features."""
    return replace(graph, x=with_ones(graph.x, nodes, tuple(columns)))
