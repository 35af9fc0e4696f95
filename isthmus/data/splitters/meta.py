"""Clients hold what belongs together by an attribute (venue, country, category), as in FS-G (Wang et al., 2022)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse_unknown
from isthmus.data.dividing import Held, Holding, Items, Splitter, deal_evenly, groups_of, part_of
from isthmus.data.splitters.facts import attribute, only_attribute, value_names

DEALS = ("balanced", "one_each")
NUM_NAMED = 8


@dataclass(frozen=True)
class MetaSplitter(Splitter):
    """Keeps the items of each value of an attribute together, and deals the values out to clients.

    "balanced": values, those of most items first and equal ones in random order, go each to the client with the fewest
    items so far. "one_each": there must be as many values as clients; client k has the k-th value in ascending order.
    More clients than values are refused either way. An item without a value (NaN, or -1) counts as a value of its own.

    Fields:
        attribute: an attribute of the items; of a link's ends, `head.<name>` or `tail.<name>`, with the name `id` for
                   which node that is: one user each, where heads are users; null for the only one
        deal:      "balanced" or "one_each"
        own_classes: whether each client numbers the classes of its own items from 0 and does not know the others'; its
                   model then needs a head of its own
    """

    attribute: str | None = None
    deal: str = "balanced"
    own_classes: bool = False

    def __post_init__(self) -> None:
        refuse_unknown(self, "deal", DEALS)

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's items."""
        name = self.attribute if self.attribute is not None else only_attribute(data)
        groups = groups_by(data, name)
        if num_clients > len(groups) or (self.deal == "one_each" and num_clients < len(groups)):
            remedy = "deal: balanced" if num_clients < len(groups) else "'cross_domain', where clients share a value"
            raise BadInput(
                f"num_clients is {num_clients}, but the attribute {name!r} of {data.name!r} has "
                f"{_named(data, name)}; use {len(groups)} clients, or {remedy}"
            )
        if self.deal == "one_each":
            return [part_of([items]) for items in groups]
        order = rng.permutation(len(groups))
        return [part_of(held) for held in deal_evenly([groups[number] for number in order], num_clients)]

    def after_cut(self, part: Held, rng: np.random.Generator) -> Held:
        """Return a client's part, with its own classes only where that is asked for."""
        return with_own_classes(part) if self.own_classes else part


def with_own_classes(part: Held) -> Held:
    """Return the same items with the classes that occur among them, numbered from 0 in their order."""
    y = part.labels
    if y.dim() != 1 or y.dtype != torch.int64 or part.item == "link":
        raise BadInput(
            f"splitter.own_classes is true, but the {part.item}s of {part.name!r} do not have one class each"
        )
    present = torch.unique(y[y >= 0])
    number = torch.searchsorted(present, y.clamp(min=0)).clamp(max=max(len(present) - 1, 0))
    names = tuple(part.class_names[c] for c in present.tolist()) if part.class_names else ()
    own: dict[str, Any] = {
        part.label_field: torch.where(y >= 0, number, -1),
        "num_classes": len(present),
        "class_names": names,
    }
    return replace(part, **own)


def groups_by(data: Holding, name: str) -> list[Items]:
    """Return the items of each value of an attribute, values ascending."""
    _, number = np.unique(attribute(data, name, "splitter.attribute"), return_inverse=True)
    return groups_of(number)


def _named(data: Holding, name: str) -> str:
    values = np.unique(attribute(data, name, "splitter.attribute"))
    names = value_names(data, name, values[:NUM_NAMED])
    more = ", ..." if len(values) > NUM_NAMED else ""
    return f"{len(values)} value{'s' if len(values) != 1 else ''} ({', '.join(names)}{more})"


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
