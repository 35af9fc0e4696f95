"""Items go to clients at random, as in FedGL (Chen et al., 2021) and FS-G (Wang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse
from isthmus.data.dividing import Held, Holding, Items, Splitter, part_of, parts_by_owner
from isthmus.data.graph import Graph, remove_pairs


@dataclass(frozen=True)
class RandomSplitter(Splitter):
    """Splits the nodes, links or graphs at random, with or without intersections.

    Of N items, round(overlap_fraction * N) drawn at random are held by every client; the others are divided
    at random without overlap, in parts whose sizes differ by at most one.

    With `shares`, each client instead draws max(1, round(share * N)) items without regard to the others; an
    item that nobody drew goes to one client at random, so that no item is lost. How many items all clients have in
    common is left to chance: in FedGL's [0.3, 0.4, 0.5, 0.5, 0.6, 0.7], the product, about 1 %.

    With both, as in FedGL's study of 5, 10 and 15 %, the shares stay and round(overlap_fraction * N) items, no more
    and no fewer, are held by all: each client has these and draws the rest of its share from the other items, of
    which each is withheld from one client.

    Fields:
        overlap_fraction:      share of all items that every client holds; 0 beside shares leaves it to chance
        removed_edge_fraction: share of each client's undirected edges that is removed at random; for graphs by nodes
        shares:                share of all items for each client
    """

    overlap_fraction: float = 0.0
    removed_edge_fraction: float = 0.0
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for field in ("overlap_fraction", "removed_edge_fraction"):
            refuse(not 0.0 <= getattr(self, field) <= 1.0, self, field, "a fraction lies between 0 and 1")
        if self.shares is None:
            return
        wrong = not self.shares or any(not 0.0 < share <= 1.0 for share in self.shares)
        refuse(wrong, self, "shares", "a share lies above 0 and is at most 1, one for each client")
        if self.overlap_fraction > min(self.shares):
            raise ValueError(
                f"overlap_fraction is {self.overlap_fraction!r} and shares is {self.shares!r}; what all clients hold "
                "cannot be more than the smallest share"
            )

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's items."""
        if self.removed_edge_fraction > 0.0 and not isinstance(data, Graph):
            raise BadInput(
                f"splitter 'random': removed_edge_fraction is {self.removed_edge_fraction!r}, but the dataset "
                f"{data.name!r} is divided by {data.item}s; only graphs divided by nodes can lose edges: set it to 0"
            )
        if self.shares is not None:
            return self._sample(self.shares, data.num_items, num_clients, rng)
        order = torch.from_numpy(rng.permutation(data.num_items))
        num_common = round(self.overlap_fraction * data.num_items)
        own = torch.tensor_split(order[num_common:], num_clients)
        return [torch.cat([order[:num_common], part]).sort().values for part in own]

    def after_cut(self, part: Held, rng: np.random.Generator) -> Held:
        """Return a client's graph without the share of edges that is removed."""
        if self.removed_edge_fraction > 0.0 and isinstance(part, Graph):
            return remove_pairs(part, self.removed_edge_fraction, rng)
        return part

    def _sample(
        self, shares: tuple[float, ...], num_items: int, num_clients: int, rng: np.random.Generator
    ) -> list[Tensor]:
        if len(shares) != num_clients:
            raise BadInput(
                f"splitter 'random': shares has {len(shares)} numbers, {shares!r}, but num_clients is "
                f"{num_clients}; give one share for each client"
            )
        sizes = [max(1, round(share * num_items)) for share in shares]
        num_common = round(self.overlap_fraction * num_items)
        if num_common == 0 or num_clients == 1:
            drawn = [rng.choice(num_items, size, replace=False) for size in sizes]
        else:
            drawn = self._overlapping(np.array(sizes), num_common, num_items, rng)
        left_over = np.ones(num_items, dtype=bool)
        for items in drawn:
            left_over[items] = False
        owner = rng.integers(num_clients, size=np.count_nonzero(left_over))
        extra = parts_by_owner(owner, num_clients)
        given = np.flatnonzero(left_over)
        return [part_of([items, given[more.numpy()]]) for items, more in zip(drawn, extra, strict=True)]

    def _overlapping(self, sizes: Items, num_common: int, num_items: int, rng: np.random.Generator) -> list[Items]:
        """Return as many items as `sizes` says for each client, `num_common` of them for all, no other for all."""
        order = rng.permutation(num_items)
        common, rest = order[:num_common], order[num_common:]
        spare = len(rest) - (sizes - num_common)  # how many of the rest a client can do without
        if spare.sum() < len(rest):
            raise BadInput(
                f"splitter 'random': with shares {self.shares!r}, more than overlap_fraction "
                f"{self.overlap_fraction!r} of the {num_items} items are held by all; raise it, or lower the shares"
            )
        # Of the rest, which is in random order, each item is withheld from one client, in proportion to `spare`.
        ends = np.cumsum(spare) * len(rest) // spare.sum()
        drawn = []
        for start, end, size in zip(np.concatenate([[0], ends[:-1]]), ends, sizes - num_common, strict=True):
            open_to = np.concatenate([rest[:start], rest[end:]])
            drawn.append(np.concatenate([common, rng.choice(open_to, size, replace=False)]))
        return drawn
