"""Clients from several domains (molecules, proteins, networks), as in FS-G (2022) and GCFL (Xie et al., 2021)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.data.holding import Holding
from isthmus.data.splitters.meta import MetaSplitter, groups_by
from isthmus.data.splitters.splitter import Splitter


@dataclass(frozen=True)
class CrossDomainSplitter(Splitter):
    """Gives each client items of one domain, where there are enough clients.

    With at least as many clients as domains, every domain gets one client, and each further client goes to the domain
    with the most items for each of its clients; a domain's items are divided among its clients at random, in parts that
    differ by at most one. With fewer clients, domains stay whole and are dealt out evenly, as by `meta`.

    Fields:
        attribute: the attribute that tells an item's domain
    """

    attribute: str = "dataset"

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's items."""
        domains = groups_by(data, self.attribute)
        if num_clients < len(domains):
            return MetaSplitter(self.attribute).assign(data, num_clients, rng)
        shared = _clients_for([len(items) for items in domains], num_clients)
        return [
            torch.from_numpy(np.sort(items))
            for domain, count in zip(domains, shared, strict=True)
            for items in np.array_split(rng.permutation(domain), count)
        ]


def _clients_for(sizes: list[int], num_clients: int) -> list[int]:
    """Return how many clients share each domain; never more than it has items."""
    counts = [1] * len(sizes)
    crowded = [(-float(size), domain) for domain, size in enumerate(sizes)]
    heapq.heapify(crowded)
    for _ in range(num_clients - len(sizes)):
        _, domain = heapq.heappop(crowded)
        counts[domain] += 1
        heapq.heappush(crowded, (-sizes[domain] / counts[domain], domain))
    return counts
