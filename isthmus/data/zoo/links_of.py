"""Datasets of links that are made of others: the edges of a graph of nodes, and users and items by their hashed ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from isthmus.core.errors import BadInput, refuse
from isthmus.data.dataset import Dataset
from isthmus.data.graph import Graph, sparse_rows, undirected_pairs
from isthmus.data.link_graph import LinkGraph
from isthmus.data.zoo.cora import Cora
from isthmus.data.zoo.cross_scenario import CSR


@dataclass(frozen=True)
class LinksOf(Dataset):
    """Another dataset of nodes, whose edges are links: undirected, each pair once, all of one class.

    Features and ids of nodes are those of the dataset, its attributes become node attributes. Classes and masks of
    nodes, and weights of edges, are left out: which links are held out is for the course's `masks` to say, and no
    held-out link is an edge that a model reads.

    Fields:
        dataset: the dataset of nodes
    """

    task = "link"
    licence = "that of the dataset"

    dataset: Dataset = Cora()

    def __post_init__(self) -> None:
        if self.dataset.task != "node":
            raise ValueError(
                f"dataset is {type(self.dataset).__name__}, a dataset of {self.dataset.task}s; "
                "name one of nodes, such as cora"
            )

    def load(self, root: Path) -> LinkGraph:
        """Return the links."""
        wanted = self.normalize_features or self.dataset.normalize_features
        graph = replace(self.dataset, normalize_features=wanted).load(root)
        if not isinstance(graph, Graph):
            raise BadInput(f"dataset.dataset is {graph.name!r}, which has no edges between its {graph.item}s to learn")
        links = undirected_pairs(graph.edge_index, graph.num_nodes)[0]
        return LinkGraph(
            x=graph.x,
            links=links,
            label=torch.zeros(links.shape[1], dtype=torch.int64),
            num_classes=1,
            node_ids=graph.node_ids,
            link_ids=torch.arange(links.shape[1]),
            node_attributes=dict(graph.attributes),
            node_attribute_names=dict(graph.attribute_names),
            undirected=True,
            name=f"links of {graph.name}",
        )

    def present(self, root: Path) -> bool:
        """Return whether the dataset is there."""
        return self.dataset.present(root)


@dataclass(frozen=True)
class HashedIds(Dataset):
    """Another dataset of links, with one feature for each node: the bucket of its id, one-hot and sparse.

    Users and items (node attribute "side", 0 and 1) have buckets of their own: a user's column is one of the first
    `user_buckets`, an item's one of the `item_buckets` behind them. A node's bucket is a hash of its number in the
    dataset and of `seed`, so nodes that share a bucket do so by chance. With the encoder "categorical", the columns are
    rows of a table of embeddings, which is as large as these fields say and not as the dataset.

    Fields:
        dataset:      the dataset; its own features are left out
        user_buckets: columns of users
        item_buckets: columns of items
        seed:         what the hash depends on
    """

    task = "link"
    licence = "that of the dataset"

    dataset: Dataset = CSR()
    user_buckets: int = 1024
    item_buckets: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("user_buckets", "item_buckets"):
            refuse(getattr(self, name) < 1, self, name, "it must be at least 1")

    def load(self, root: Path) -> LinkGraph:
        """Return the dataset with hashed ids as features."""
        data = self.dataset.load(root)
        if not isinstance(data, LinkGraph) or "side" not in data.node_attributes:
            raise BadInput(
                f"dataset.dataset is {data.name!r}, whose nodes are no users and items (node attribute 'side'); "
                "use one of links between them (ciao, epinions, csr)"
            )
        is_item = data.node_attributes["side"].numpy() != 0
        bits = mixed_bits(data.node_ids.numpy(), self.seed)
        sizes = np.where(is_item, self.item_buckets, self.user_buckets).astype(np.uint64)
        column = (bits % sizes).astype(np.int64) + np.where(is_item, self.user_buckets, 0)
        shape = (data.num_nodes, self.user_buckets + self.item_buckets)
        start = torch.arange(data.num_nodes + 1)
        return replace(data, x=sparse_rows(start, torch.from_numpy(column), torch.ones(data.num_nodes), shape))

    def present(self, root: Path) -> bool:
        """Return whether the dataset is there."""
        return self.dataset.present(root)


def mixed_bits(numbers: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each number that look random, by the mixing function of SplitMix64 (Steele et al., 2014)."""
    step = 0x9E3779B97F4A7C15
    bits = numbers.astype(np.uint64) * np.uint64(step) + np.uint64((seed + 1) * step % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
