"""The user's own links as a dataset: a folder of tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from isthmus.data.folders.link_tables import read_link_folder, write_link_folder
from isthmus.data.folders.own_data import OwnData
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.tables.link_truth import doubtful_class
from isthmus.data.link_graph import LinkGraph


@dataclass(frozen=True)
class LinkFolder(OwnFolder):
    """Your own links: a folder with tables of nodes and of labelled links.

    `isthmus.data.folders.link_tables.read_link_folder` says what they hold.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the relations or classes in the order of their numbers; silos of one federation must give the same
        undirected:  whether a link means the same in both directions (user and item), or not (a relation)
        negatives:   the label of pairs that are no links (0, false, no): link_prediction learns from them and is
                     measured on them, and nothing counts them as links; empty where all rows are links
        all_links:   says that every row is a link, where labels such as 0 and 1 leave it in doubt
    """

    task: ClassVar[str] = "link"
    summary: ClassVar[str] = "your own links: a folder with nodes.parquet (or .csv) and links.parquet (or .csv)"
    called: ClassVar[str] = "link folder"
    data_type: ClassVar[type[Any]] = LinkGraph
    tables: ClassVar[tuple[str, ...]] = ("nodes", "links")

    undirected: bool = False
    negatives: str | int | bool = ""
    all_links: bool = False

    def __post_init__(self) -> None:
        if self.all_links and self.negative_class:
            raise ValueError(
                f"negatives is {self.negatives!r}, so not all rows are links, but all_links is true; set one of them"
            )

    @property
    def negative_class(self) -> str:
        """The label of pairs that are no links, as text; 0 and false are read as such by YAML."""
        return str(self.negatives).lower() if isinstance(self.negatives, bool) else str(self.negatives).strip()

    def read_from(self, path: Path) -> OwnData[LinkGraph]:
        """Return the links with the ids of their nodes."""
        return read_link_folder(path, self.class_names, self.undirected, self.negative_class, self.all_links)

    @classmethod
    def like(cls, data: LinkGraph) -> Self:
        """Return how folders of parts of a graph of links are read."""
        doubtful = doubtful_class(data.class_names, data.num_classes)
        sure = bool(doubtful) and data.linked is None and not data.doubtful
        return cls(class_names=data.class_names, undirected=data.undirected, negatives=data.negatives, all_links=sure)

    @staticmethod
    def write(data: LinkGraph, path: Path) -> None:
        """Write a link folder."""
        write_link_folder(data, path)

    @staticmethod
    def describe(data: LinkGraph, directed: bool = False) -> str:
        """Return the numbers of nodes, links and features, and the classes."""
        wrong = f" and {int(data.is_negative.sum())} pairs that are none" if data.linked is not None else ""
        return (
            f"{data.num_nodes} nodes, {int(data.is_link.sum())} links{wrong}, {data.num_features} features, "
            f"classes: {', '.join(data.class_names) or data.num_classes or 'none'}"
        )
