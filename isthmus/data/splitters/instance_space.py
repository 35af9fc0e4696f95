"""Clients hold segments of the sorted items, as in FS-G (Wang et al., 2022): covariate shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.data.holding import Holding
from isthmus.data.splitters.facts import item_values
from isthmus.data.splitters.splitter import Splitter


@dataclass(frozen=True)
class InstanceSpaceSplitter(Splitter):
    """Sorts the items by a value and gives each client a segment; sizes differ by at most one.

    The first client has the smallest values, the last one the largest and those that are not known (NaN). Items of
    equal value are in random order; where all values differ, the seed plays no part.

    Fields:
        by: an attribute of the items ("scaffold"); or "degree", "density", "homophily" (nodes), "size" (graphs);
            "principal", along which the features differ most; or "feature.<column>". An attribute comes first.
    """

    by: str = "principal"

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's items."""
        values = item_values(data, self.by, "splitter.by")
        shuffled = rng.permutation(data.num_items)
        order = shuffled[np.argsort(values[shuffled], kind="stable")]
        return [torch.from_numpy(np.sort(items)) for items in np.array_split(order, num_clients)]
