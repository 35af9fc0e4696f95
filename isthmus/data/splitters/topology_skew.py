"""Clients whose nodes or graphs are differently connected: the skew of structure that FS-G (2022) sets apart."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.core.errors import nearest
from isthmus.data.splitters.instance_space import InstanceSpaceSplitter

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
        if self.by not in TOPOLOGY:
            raise ValueError(f"by is {self.by!r}; {nearest(self.by, TOPOLOGY)}")
