"""Clients hold items that are alike, by a value, by their edges, by their features: FS-G (Wang et al., 2022)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse_unknown
from isthmus.data.dividing import Holding, Splitter, parts_by_owner
from isthmus.data.splitters.facts import item_values, principal_directions


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


TOPOLOGY = ("degree", "density", "homophily", "size")


@dataclass(frozen=True)
class TopologySkewSplitter(InstanceSpaceSplitter):
    """Sorts the items by how they are connected and gives each client a segment; see `instance_space`.

    Fields:
        by: "degree" (of a node, of a link's ends, of a graph's nodes on average), "density" (among a node's
            neighbours, or in a graph), "homophily" (nodes), "size" (graphs)
    """

    by: str = "degree"

    def __post_init__(self) -> None:
        refuse_unknown(self, "by", TOPOLOGY)


METHODS = ("direction", "cluster")
NUM_DIRECTIONS = 16


@dataclass(frozen=True)
class FeatureSkewSplitter(Splitter):
    """Gives each client items of similar features.

    "direction": items sorted along the direction in which their features differ most, in segments of equal size.
    "cluster": as many clusters as clients (k-means on the first principal directions); sizes differ.
    Features are those of a node, the mean over both ends of a link, the mean over the nodes of a graph.

    Fields:
        method: "direction" or "cluster"
    """

    method: str = "direction"

    def __post_init__(self) -> None:
        refuse_unknown(self, "method", METHODS)

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's items."""
        if self.method == "direction":
            return InstanceSpaceSplitter("principal").assign(data, num_clients, rng)
        from sklearn.cluster import KMeans

        places = principal_directions(data, NUM_DIRECTIONS)  # (items, directions)
        means = KMeans(num_clients, n_init=1, random_state=int(rng.integers(2**31)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of too few clusters, which are counted below
            owner = means.fit_predict(places).astype(np.int64)
        num_clusters = len(np.unique(owner))
        if num_clusters < num_clients:
            raise BadInput(
                f"splitter 'feature_skew': num_clients is {num_clients}, but the features of the {data.item}s of "
                f"{data.name!r} fall into only {num_clusters} clusters; use fewer clients, or method 'direction'"
            )
        return parts_by_owner(owner, num_clients)
