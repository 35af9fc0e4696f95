"""The user's own set of graphs as a dataset: a folder of tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from isthmus.data.folders.graph_set_tables import GRAPH_COLUMNS, read_graph_set_folder, write_graph_set_folder
from isthmus.data.folders.own_data import OwnData
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.tables.graph_targets import TARGETS, likely_target
from isthmus.data.folders.tables.reading import Problems, read_table
from isthmus.data.graph_set import GraphSet


@dataclass(frozen=True)
class GraphSetFolder(OwnFolder):
    """Your own set of graphs: a folder with tables of graphs, nodes and edges.

    `isthmus.data.folders.graph_set_tables.read_graph_set_folder` says what they hold.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the classes in the order of their numbers, or the columns of the tasks; silos of one federation
                     must give the same
        undirected:  whether an edge counts in both directions
        target:      "class" (the column `label`), "binary" (a column of 0 and 1 for each task) or "value" (a column of
                     numbers for each task)
        x_sizes:     where every feature column of nodes is a number of a category: how many each has; else empty
        edge_sizes:  the same for the feature columns of edges
    """

    task: ClassVar[str] = "graph"
    summary: ClassVar[str] = (
        "your own set of graphs: a folder with graphs.parquet, nodes.parquet, edges.parquet (or .csv)"
    )
    called: ClassVar[str] = "graph set folder"
    data_type: ClassVar[type[Any]] = GraphSet
    tables: ClassVar[tuple[str, ...]] = ("nodes", "edges", "graphs")

    target: str = "class"
    x_sizes: tuple[int, ...] = ()
    edge_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(f"target is {self.target!r}; choose from {', '.join(TARGETS)}")
        for name in ("x_sizes", "edge_sizes"):
            if any(size < 1 for size in getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)!r}; every column needs at least one category")
        if self.x_sizes and self.normalize_features:
            raise ValueError("x_sizes says that features are numbers of categories; set normalize_features to false")

    def read_from(self, path: Path) -> OwnData[GraphSet]:
        """Return the graphs with their ids."""
        return read_graph_set_folder(
            path, self.class_names, self.target, self.undirected, self.x_sizes, self.edge_sizes
        )

    @classmethod
    def at(cls, path: Path) -> Self:
        """Return the dataset of a folder, with the kind of labels that it seems to have."""
        graphs = read_table(path, "graphs", GRAPH_COLUMNS, Problems(str(path)))
        return cls(path=str(path), target="class" if graphs is None else likely_target(graphs))

    @classmethod
    def like(cls, data: GraphSet) -> Self:
        """Return how folders of parts of a set are read: every stored edge is in them."""
        return cls(
            class_names=data.class_names,
            target=data.target,
            undirected=False,
            x_sizes=data.x_sizes,
            edge_sizes=data.edge_sizes,
        )

    @staticmethod
    def write(data: GraphSet, path: Path) -> None:
        """Write a graph set folder."""
        write_graph_set_folder(data, path)

    @staticmethod
    def describe(data: GraphSet, directed: bool = False) -> str:
        """Return the numbers of graphs, nodes, edges and features, and the classes or tasks."""
        of_edges = 0 if data.edge_attr is None else data.edge_attr.shape[1]
        kind = "classes" if data.target == "class" else f"{data.target} tasks"
        names = ", ".join(data.class_names) or data.num_classes or "none"
        edges = f"{data.num_edges} directed edges" if directed else f"{data.num_edges // 2} edges"
        return (
            f"{data.num_items} graphs, {data.num_nodes} nodes, {edges}, {data.num_features} features of nodes, "
            f"{of_edges} of edges, {kind}: {names}"
        )
