"""The user's own graph as a dataset: a folder of tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from isthmus.core.errors import BadInput
from isthmus.data.features import normalized_rows
from isthmus.data.graph import Graph
from isthmus.data.schema import SCHEMA_FILE
from isthmus.data.sources import GraphFolder, is_graph_folder, read_graph_folder
from isthmus.data.zoo.dataset import Dataset


@dataclass(frozen=True)
class Folder(Dataset):
    """A graph folder, as `isthmus.data.sources.read_graph_folder` reads it.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the classes in the order of their numbers; silos of one federation must give the same, or follow
                     the same schema
        undirected:  whether an edge counts in both directions
        schema_digest: what `isthmus data check` tells of the schema that the folder must follow; "" for any or none
    """

    summary: ClassVar[str] = "your own graph: a folder with nodes.parquet (or .csv) and edges.parquet (or .csv)"
    licence: ClassVar[str] = "your own"

    path: str = ""
    class_names: tuple[str, ...] = ()
    undirected: bool = True
    schema_digest: str = ""

    def load(self, root: Path) -> Graph:
        """Return the graph; nothing is read from `root`."""
        return self.read().graph

    def read(self) -> GraphFolder:
        """Return the graph with what the folder says beside it, such as the ids of the nodes."""
        if not self.path:
            raise BadInput("dataset.path is missing; give the folder of your graph: dataset.path=my_graph")
        read = read_graph_folder(Path(self.path), self.class_names, self.undirected)
        own = read.schema.digest if read.schema else ""
        if self.schema_digest not in ("", own):
            found = f"has a schema with the digest {own}" if own else f"has no {SCHEMA_FILE}"
            raise BadInput(
                f"graph folder {self.path} {found}; the course asks for {self.schema_digest}: "
                "make the folder again with isthmus data import --schema and the schema of the others"
            )
        if not self.normalize_features:
            return read
        return replace(read, graph=replace(read.graph, x=normalized_rows(read.graph.x)))

    def present(self, root: Path) -> bool:
        """Return whether the folder holds the tables of nodes and edges."""
        return is_graph_folder(Path(self.path))
