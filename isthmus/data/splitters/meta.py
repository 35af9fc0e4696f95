"""Clients hold what belongs together by an attribute (venue, country, category), as in FS-G (Wang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from isthmus.core.errors import BadInput, nearest
from isthmus.data.holding import Holding
from isthmus.data.splitters.dealing import Items, deal_evenly, groups_of, part_of
from isthmus.data.splitters.facts import attribute, only_attribute, value_names
from isthmus.data.splitters.splitter import Splitter

DEALS = ("balanced", "one_each")
NUM_NAMED = 8


@dataclass(frozen=True)
class MetaSplitter(Splitter):
    """Keeps the items of each value of an attribute together, and deals the values out to clients.

    "balanced": values, those of most items first and equal ones in random order, go each to the client with the fewest
    items so far. "one_each": there must be as many values as clients; client k has the k-th value in ascending order.
    More clients than values are refused either way. An item without a value (NaN, or -1) counts as a value of its own.

    Fields:
        attribute: an attribute of the items; of a link's ends, `head.<name>` or `tail.<name>`; null for the only one
        deal:      "balanced" or "one_each"
    """

    attribute: str | None = None
    deal: str = "balanced"

    def __post_init__(self) -> None:
        if self.deal not in DEALS:
            raise ValueError(f"deal is {self.deal!r}; {nearest(self.deal, DEALS)}")

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


def groups_by(data: Holding, name: str) -> list[Items]:
    """Return the items of each value of an attribute, values ascending."""
    _, number = np.unique(attribute(data, name, "splitter.attribute"), return_inverse=True)
    return groups_of(number)


def _named(data: Holding, name: str) -> str:
    values = np.unique(attribute(data, name, "splitter.attribute"))
    names = value_names(data, name, values[:NUM_NAMED])
    more = ", ..." if len(values) > NUM_NAMED else ""
    return f"{len(values)} value{'s' if len(values) != 1 else ''} ({', '.join(names)}{more})"
