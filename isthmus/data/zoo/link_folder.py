"""The user's own links as a dataset: a folder of tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from isthmus.data.link_source import read_link_folder, write_link_folder
from isthmus.data.links import LinkGraph
from isthmus.data.own_data import OwnData
from isthmus.data.zoo.own_folder import OwnFolder


@dataclass(frozen=True)
class LinkFolder(OwnFolder):
    """Your own links: a folder with tables of nodes and of labelled links.

    `isthmus.data.link_source.read_link_folder` says what they hold.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the relations or classes in the order of their numbers; silos of one federation must give the same
        undirected:  whether a link means the same in both directions (user and item), or not (a relation)
    """

    task: ClassVar[str] = "link"
    summary: ClassVar[str] = "your own links: a folder with nodes.parquet (or .csv) and links.parquet (or .csv)"
    called: ClassVar[str] = "link folder"
    data_type: ClassVar[type[Any]] = LinkGraph
    tables: ClassVar[tuple[str, ...]] = ("nodes", "links")

    undirected: bool = False

    def read_from(self, path: Path) -> OwnData[LinkGraph]:
        """Return the links with the ids of their nodes."""
        return read_link_folder(path, self.class_names, self.undirected)

    @classmethod
    def like(cls, data: LinkGraph) -> Self:
        """Return how folders of parts of a graph of links are read."""
        return cls(class_names=data.class_names, undirected=data.undirected)

    @staticmethod
    def write(data: LinkGraph, path: Path) -> None:
        """Write a link folder."""
        write_link_folder(data, path)

    @staticmethod
    def describe(data: LinkGraph) -> str:
        """Return the numbers of nodes, links and features, and the classes."""
        return (
            f"{data.num_nodes} nodes, {data.num_items} links, {data.num_features} features, "
            f"classes: {', '.join(data.class_names) or data.num_classes or 'none'}"
        )
