"""The contract of a splitter, which says what items of the data each client holds, and the dealing of groups."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
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


Items = npt.NDArray[np.int64]


def groups_of(membership: Items) -> list[Items]:
    """Return the items of each group, ascending; groups are numbered from 0 and none is empty."""
    order = np.argsort(membership, kind="stable")
    return np.split(order, np.cumsum(np.bincount(membership))[:-1])


def deal_evenly(groups: Sequence[Items], num_clients: int) -> list[list[Items]]:
    """Give groups, largest first, each to the client with the fewest items so far."""
    clients: list[list[Items]] = [[] for _ in range(num_clients)]
    loads = [(0, client) for client in range(num_clients)]
    for items in sorted(groups, key=len, reverse=True):
        load, client = heapq.heappop(loads)
        clients[client].append(items)
        heapq.heappush(loads, (load + len(items), client))
    return clients


def deal_at_random(groups: Sequence[Items], num_clients: int, rng: np.random.Generator) -> list[list[Items]]:
    """Give groups in random order, the first ones one to each client, the others each to a random client."""
    order = rng.permutation(len(groups))
    owners = np.concatenate([np.arange(num_clients), rng.integers(num_clients, size=len(groups) - num_clients)])
    clients: list[list[Items]] = [[] for _ in range(num_clients)]
    for number, owner in zip(order.tolist(), owners.tolist(), strict=True):
        clients[owner].append(groups[number])
    return clients


def part_of(items: Sequence[Items]) -> Tensor:
    """Return one client's items, ascending."""
    return torch.from_numpy(np.sort(np.concatenate(items)).astype(np.int64, copy=False))


def parts_by_owner(owner: Items, num_clients: int) -> list[Tensor]:
    """Return each client's items, ascending, from the owner of each item."""
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    return [torch.from_numpy(items) for items in np.split(order, ends)]
