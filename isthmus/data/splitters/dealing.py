"""Who gets which group of items: dealing groups out to clients."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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
