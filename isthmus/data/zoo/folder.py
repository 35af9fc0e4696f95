"""The user's own graph as a dataset: a folder of tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from isthmus.core.errors import BadInput
from isthmus.data.features import normalized_rows
from isthmus.data.graph import Graph
from isthmus.data.sources import is_graph_folder, read_graph_folder
from isthmus.data.zoo.dataset import Dataset


@dataclass(frozen=True)
class Folder(Dataset):
    """A graph folder, as `isthmus.data.sources.read_graph_folder` reads it.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the classes in the order of their numbers; silos of one federation must give the same
        undirected:  whether an edge counts in both directions
    """

    summary: ClassVar[str] = "your own graph: a folder with nodes.parquet (or .csv) and edges.parquet (or .csv)"
    licence: ClassVar[str] = "your own"

    path: str = ""
    class_names: tuple[str, ...] = ()
    undirected: bool = True

    def load(self, root: Path) -> Graph:
        """Return the graph; nothing is read from `root`."""
        if not self.path:
            raise BadInput("dataset.path is missing; give the folder of your graph: dataset.path=my_graph")
        graph = read_graph_folder(Path(self.path), self.class_names, self.undirected).graph
        return replace(graph, x=normalized_rows(graph.x)) if self.normalize_features else graph

    def present(self, root: Path) -> bool:
        """Return whether the folder holds the tables of nodes and edges."""
        return is_graph_folder(Path(self.path))
