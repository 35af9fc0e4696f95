"""The contract of a splitter: it says which items of the data each client holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.holding import Holding

Held = TypeVar("Held", bound=Holding)


@dataclass(frozen=True)
class Splitter(ABC):
    """Cuts data into the parts of several clients: a graph by nodes, a link graph by links, a set by graphs.

    A subclass says who holds which items (`assign`). A client's graph is the one induced by its nodes, so edges between
    clients are lost (`split_with_cross_edges` tells which). A subclass may also change each client's part
    (`after_cut`), and says in `items` what it can divide.
    """

    items: ClassVar[tuple[str, ...]] = ("node", "link", "graph")

    @abstractmethod
    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return the positions of each client's items in `data`: int64, ascending, without repetition."""

    def after_cut(self, part: Held, rng: np.random.Generator) -> Held:
        """Return a client's part as the client shall hold it; here, unchanged."""
        return part

    def split(self, data: Held, num_clients: int, rng: np.random.Generator) -> list[Held]:
        """Return one part for each client; `item_ids` tell where its items come from."""
        if data.item not in self.items:
            raise self.refusal(data)
        if num_clients < 1:
            raise BadInput(f"num_clients is {num_clients!r}; at least 1 is needed")
        if num_clients > data.num_items:
            raise BadInput(
                f"num_clients is {num_clients}, but the dataset {data.name!r} has only {data.num_items} "
                f"{data.item}s; every client needs at least one"
            )
        parts = self.assign(data, num_clients, rng)
        if len(parts) != num_clients:
            raise BadInput(f"{self!r} made {len(parts)} parts for {num_clients} clients")
        empty = [client for client, items in enumerate(parts) if len(items) == 0]
        if empty:
            raise BadInput(f"{self!r} left clients {empty} of {num_clients} without a {data.item}; use fewer clients")
        return [self.after_cut(part, rng) for part in data.divide(parts)]

    def refusal(self, data: Holding) -> BadInput:
        """Return the error for data whose kind of items this splitter cannot divide."""
        from isthmus.data.splitters import SPLITTERS  # the table imports this file

        name = next((name for name, kind in SPLITTERS.items() if kind is type(self)), type(self).__name__)
        fitting = sorted(name for name, kind in SPLITTERS.items() if data.item in kind.items)
        return BadInput(
            f"splitter {name!r} divides {' or '.join(f'{item}s' for item in self.items)}, but the dataset "
            f"{data.name!r} holds {data.item}s; these would do: {', '.join(fitting)}"
        )
