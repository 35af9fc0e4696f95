"""A graph whose links are what is learned: relations of a knowledge graph, ratings of items by users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from isthmus.data.dividing import Holding
from isthmus.data.graph import select_rows


@dataclass(frozen=True, eq=False)
class LinkGraph(Holding):
    """Nodes with features, and labelled links between them, each stored once, in the direction it has.

    Fields: those of `Holding`, where links are the items and classes may be relations, and
        links:           (2, links), int64: head and tail
        label:           (links,), int64: relation or class of each link; -1 where there is none
        node_ids:        (nodes,), int64; index of each node in the graph this one was cut from
        link_ids:        (links,), int64; index of each link there
        node_attributes: further facts for each node, (nodes,) or (nodes, ...)
        node_attribute_names: names of the categories of those that are numbers of categories
        linked:          (links,), int64: 1 for a link, 0 for a pair that is told to be none, -1 for one of which
                         that is not known; None where all are links, as they are unless a dataset says otherwise
        negatives:       what the class of pairs that are told to be no links is called; empty where there is none
        doubtful:        a class that sounds as if its pairs were no links, of which nobody has said whether they are
        undirected:      whether a link means the same in both directions (user and item), or not (a relation)
    """

    item = "link"
    id_field = "link_ids"
    label_field = "label"

    x: Tensor
    links: Tensor
    label: Tensor
    num_classes: int
    node_ids: Tensor
    link_ids: Tensor
    node_attributes: Mapping[str, Tensor] = field(default_factory=dict)
    node_attribute_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    linked: Tensor | None = None
    negatives: str = ""
    doubtful: str = ""
    undirected: bool = False

    @property
    def is_link(self) -> Tensor:
        """Which pairs are links, (links,), bool: what the graph consists of."""
        return self.links.new_ones(self.num_items, dtype=torch.bool) if self.linked is None else self.linked == 1

    @property
    def is_negative(self) -> Tensor:
        """Which pairs are told to be no links, (links,), bool."""
        return self.links.new_zeros(self.num_items, dtype=torch.bool) if self.linked is None else self.linked == 0

    def divide(self, parts: Sequence[Tensor]) -> list[LinkGraph]:
        """Return the graph of each part's links, in their order, with the nodes that are an end of one, ascending."""
        return [self._part(links) for links in parts]

    def _part(self, chosen: Tensor) -> LinkGraph:
        nodes, ends = torch.unique(self.links[:, chosen], return_inverse=True)
        return replace(
            self,
            x=select_rows(self.x, nodes),
            links=ends,
            node_ids=self.node_ids[nodes],
            linked=None if self.linked is None else self.linked[chosen],
            node_attributes={key: value[nodes] for key, value in self.node_attributes.items()},
            **self._facts_of(chosen),
        )

    def __repr__(self) -> str:
        size = f"{self.num_nodes} nodes, {self.num_items} links"
        return self._told(size, f"{self.num_features} features", f"{self.num_classes} classes")


def item_word(data: Holding) -> str:
    """Return what an item is called where items are counted: a pair that may be no link is a pair."""
    return "pair" if isinstance(data, LinkGraph) and data.linked is not None else data.item
