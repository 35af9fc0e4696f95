"""The user's own graph as a dataset: a folder of tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_tables import GraphFolder, read_graph_folder, write_graph_folder
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.schema.schema import SCHEMA_FILE
from isthmus.data.graph import Graph


@dataclass(frozen=True)
class Folder(OwnFolder):
    """Your own graph: a folder with tables of nodes and edges.

    `isthmus.data.folders.graph_tables.read_graph_folder` says what they hold.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the classes in the order of their numbers; silos of one federation must give the same, or follow
                     the same schema
        undirected:  whether an edge counts in both directions
        schema_digest: what `isthmus data check` tells of the schema that the folder must follow; "" for any or none
    """

    summary: ClassVar[str] = "your own graph: a folder with nodes.parquet (or .csv) and edges.parquet (or .csv)"
    called: ClassVar[str] = "graph folder"
    data_type: ClassVar[type[Any]] = Graph
    tables: ClassVar[tuple[str, ...]] = ("nodes", "edges")

    schema_digest: str = ""

    def read_from(self, path: Path) -> GraphFolder:
        """Return the graph with what the folder says beside it; refuses one that follows another schema."""
        read = read_graph_folder(path, self.class_names, self.undirected)
        own = read.schema.digest if read.schema else ""
        if self.schema_digest not in ("", own):
            found = f"has a schema with the digest {own}" if own else f"has no {SCHEMA_FILE}"
            raise BadInput(
                f"graph folder {path} {found}; the course asks for {self.schema_digest}: "
                "make the folder again with isthmus data import --schema and the schema of the others"
            )
        return read

    @classmethod
    def like(cls, data: Graph) -> Self:
        """Return how folders of parts of a graph are read."""
        return cls(class_names=data.class_names)

    @staticmethod
    def write(data: Graph, path: Path) -> None:
        """Write a graph folder."""
        write_graph_folder(data, path)

    @staticmethod
    def describe(data: Graph, directed: bool = False) -> str:
        """Return the numbers of nodes, edges and features, and the classes."""
        edges = f"{data.num_edges} directed edges" if directed else f"{data.num_edges // 2} edges"
        return (
            f"{data.num_nodes} nodes, {edges}, "
            f"{data.num_features} features, classes: {', '.join(data.class_names) or 'none'}"
        )
