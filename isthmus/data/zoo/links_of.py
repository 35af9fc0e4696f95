"""The edges of a graph of nodes as links: what link prediction learns from on citation graphs and their like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from isthmus.core.errors import BadInput
from isthmus.data.dataset import Dataset
from isthmus.data.graph import Graph, undirected_pairs
from isthmus.data.link_graph import LinkGraph
from isthmus.data.zoo.cora import Cora


@dataclass(frozen=True)
class LinksOf(Dataset):
    """Another dataset of nodes, whose edges are links: undirected, each pair once, all of one class.

    Features and ids of nodes are those of the dataset, its attributes become node attributes. Classes and masks of
    nodes, and weights of edges, are left out: which links are held out is for the course's `masks` to say, and no
    held-out link is an edge that a model reads.

    Fields:
        dataset: the dataset of nodes
    """

    task: ClassVar[str] = "link"
    summary: ClassVar[str] = "the edges of a node dataset as links, for link prediction"
    licence: ClassVar[str] = "that of the dataset"

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
