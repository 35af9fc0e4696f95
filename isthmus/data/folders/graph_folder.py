"""Bring your own graph: a folder with a table of nodes and a table of edges.

nodes.parquet or nodes.csv    id; label and split if known; every other numeric column is a feature; columns of text are
                              attributes, which splitters may go by; a number is one in `attribute.<name>`
edges.parquet or edges.csv    source, target; weight if wanted
features.npz                  in place of feature columns: `x` (dense), or a matrix saved by scipy.sparse; if wanted,
                              `names` of its columns
neighbors.parquet or .csv     if wanted: id, neighbor; weight: edges to nodes that other silos hold (`data.foreign`)
schema.yaml                   if wanted: what the feature columns mean, and the names of the classes
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.features import compact
from isthmus.data.folders.own_folder import OwnData, OwnFolder
from isthmus.data.folders.schema.schema import SCHEMA_FILE, Schema, compare_columns, compare_schemas, read_schema
from isthmus.data.folders.tables import columns, writing
from isthmus.data.folders.tables.columns import attribute_columns, read_attributes
from isthmus.data.folders.tables.reading import Problems, Table, find_table, problems_of, read_table
from isthmus.data.graph import Graph, directed, undirected_pairs
from isthmus.data.graph import undirected as both_directions
from isthmus.data.on_demand import pa


@dataclass(frozen=True)
class GraphFolder(OwnData[Graph]):
    """A graph read from a folder, and what a `Graph` does not hold.

    Fields: those of `OwnData`, and
        schema:  the schema in the folder, if there is one
        foreign: edges to nodes that others hold, if the folder has a table of them
    """

    schema: Schema | None = None
    foreign: ForeignNeighbors | None = None

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.data

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the feature columns; empty where features.npz says none and comes without a schema."""
        return self.data.feature_names

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its nodes as text, in the order of the nodes."""
        return self.node_ids or ()


def read_graph_folder(path: str | Path, class_names: tuple[str, ...] = (), undirected: bool = True) -> GraphFolder:
    """Return the graph of a folder, or raise one BadInput that tells all problems by row.

    Ids are compared as text: 7 and '7' are the same. Labels are names out of `class_names`, or numbers from 0; an empty
    label (or -1) means none. A number that the folder's schema has among its classes is a name, too. Without
    `class_names`, those of the folder's schema count; without a schema, names get numbers in alphabetical order, so
    silos of one federation must give them. Self-loops are dropped; an edge told twice counts once. A table of edges may
    be empty, a table of nodes may not.
    """
    path = Path(path)
    problems = problems_of(path, "graph folder", "nodes.(parquet|csv) and edges.(parquet|csv)")
    nodes = read_table(path, "nodes", columns.NODE_COLUMNS, problems)
    links = read_table(path, "edges", columns.EDGE_COLUMNS, problems)
    if nodes is not None and nodes.num_rows == 0:
        nodes.note("the table is empty; at least one node is needed")
        nodes = None
    schema = _schema(path, problems)
    ids: Any = None
    x = ends = weight = foreign = None
    if nodes is not None:
        ids = columns.node_ids(nodes)
        x, names = columns.features(path, nodes)
        names = _feature_names(names, schema, x, problems)
        facts, numbered = _facts(nodes, class_names, schema)
        foreign = read_neighbors(path, ids, nodes.file, problems)
    if links is not None:
        ends = columns.end_places(links, ids, nodes.file if nodes else "nodes")
        weight = columns.weights_of(links, ends, undirected)
    problems.raise_if_any()
    assert x is not None and ends is not None  # or a problem has been noted
    make = both_directions if undirected else directed
    edge_index, edge_weight = make(torch.from_numpy(ends), len(ids), _tensor(weight))
    graph = Graph(
        x=compact(x),
        edge_index=edge_index,
        edge_weight=edge_weight,
        node_ids=torch.arange(len(ids)),
        name=path.resolve().name,
        feature_names=names,
        **facts,
    )
    named = tuple(ids.to_pylist())
    return GraphFolder(graph, {"id": named}, named, numbered, schema=schema, foreign=foreign)


def _facts(nodes: Table, class_names: tuple[str, ...], schema: Schema | None) -> tuple[dict[str, Any], bool]:
    """Return classes, splits and attributes as a `Graph` has them, and whether labels are numbers of classes."""
    own_names = schema.classes if schema else ()
    y, class_names = columns.labels(nodes, class_names or own_names, own_names)
    facts = {"y": torch.from_numpy(y), "masks": columns.split_masks(nodes, y)}
    facts |= columns.class_facts(y, class_names) | read_attributes(nodes, columns.NODE_COLUMNS, False)
    return facts, columns.are_numbered(nodes, (*class_names, *own_names))


def _schema(path: Path, problems: Problems) -> Schema | None:
    if not (path / SCHEMA_FILE).is_file():
        return None
    try:
        return read_schema(path / SCHEMA_FILE)
    except BadInput as error:
        problems.add(SCHEMA_FILE, " ".join(str(error).removeprefix(f"{path / SCHEMA_FILE}: ").split()))
        return None


def _feature_names(named: tuple[str, ...], schema: Schema | None, x: Any, problems: Problems) -> tuple[str, ...]:
    """Return the names of the feature columns, after noting where they are not those of the folder's schema."""
    if schema is None or x is None:
        return named
    if named:
        compare_columns(named, schema.columns, SCHEMA_FILE, problems)
    elif x.shape[1] != len(schema.columns):
        problems.add(
            SCHEMA_FILE, f"has {len(schema.columns)} feature columns, {columns.FEATURES_FILE} has {x.shape[1]}"
        )
    return schema.columns


def write_graph_folder(
    graph: Graph, path: str | Path, format: str = "parquet", ids: Sequence[str | int] | None = None
) -> None:
    """Write a graph as a folder that `read_graph_folder` reads; all of it or nothing.

    Ids are `graph.node_ids` unless given. Sparse features go to features.npz, dense ones into columns. An edge
    stored in both directions with one weight is written once; a graph where that is not so is written edge by
    edge, to be read with `undirected=False`. Attributes of several values for each node are not written, but for the
    neighbours with other clients that a part lists (splitter `node_hosts`), where ids are not given.
    """
    names = list(graph.node_ids.tolist() if ids is None else ids)
    if len(names) != graph.num_nodes or len(set(map(str, names))) != len(names):
        raise BadInput(f"{len(names)} ids, {len(set(map(str, names)))} distinct, for {graph.num_nodes} nodes")
    nodes: dict[str, Any] = {"id": pa.array(names), "label": writing.label_column(graph.y, graph.class_names)}
    nodes |= writing.split_column(graph.masks, graph.item) | attribute_columns(graph.attributes, graph.attribute_names)
    nodes |= writing.feature_columns(graph.x, names=graph.feature_names)
    tables = {"nodes": pa.table(nodes), "edges": _edges_table(graph, names)}
    neighbors = neighbors_table(graph) if ids is None else None
    if neighbors is not None:
        tables[STEM] = neighbors
    writing.write_holding(graph, path, tables, format)


def _edges_table(graph: Graph, names: list[str | int]) -> Any:
    ends, weight = undirected_pairs(graph.edge_index, graph.num_nodes, graph.edge_weight)
    both, both_weight = both_directions(ends, graph.num_nodes, weight)
    same_weight = graph.edge_weight is None or (
        both_weight is not None
        and len(both_weight) == len(graph.edge_weight)
        and bool((both_weight == graph.edge_weight).all())
    )
    if not (torch.equal(both, graph.edge_index) and same_weight):
        ends, weight = graph.edge_index, graph.edge_weight
    all_ids = pa.array(names)
    table = {name: all_ids.take(pa.array(end.numpy())) for name, end in zip(columns.EDGE_COLUMNS, ends, strict=True)}
    return pa.table(table if weight is None else table | {"weight": pa.array(weight.numpy())})


STEM = "neighbors"
NEIGHBOR_COLUMNS = ("id", "neighbor")


@dataclass(frozen=True, eq=False)
class ForeignNeighbors:
    """The edges of a folder's nodes to nodes that are not in it.

    Fields:
        node:   (edges,), int64; the place of the folder's own node
        ids:    the id of the other end of each, as text
        weight: (edges,), float32; None where all are one
    """

    node: Tensor
    ids: tuple[str, ...]
    weight: Tensor | None


def read_neighbors(folder: Path, ids: Any, nodes_file: str, problems: Problems) -> ForeignNeighbors | None:
    """Return the table of neighbours, or None where there is none, after noting all that is wrong with it by row.

    `ids` are those of the folder's own nodes, as Arrow strings; where they are None, nothing is read. A pair told
    twice counts once.
    """
    if ids is None or not find_table(folder, STEM):
        return None
    table = read_table(folder, STEM, NEIGHBOR_COLUMNS, problems)
    if table is None:
        return None
    node = columns.places(table, "id", ids, nodes_file)
    column = table.text("neighbor")
    if node is None or column is None:
        return None
    named: list[str] = column.to_pylist()
    composed = list(map(_composed, named))
    own = set(map(_composed, ids.to_pylist())) - {""}
    table.note_rows((row for row, name in enumerate(named) if not name), lambda row: "neighbor is empty")
    table.note_rows(
        (row for row, name in enumerate(composed) if name in own),
        lambda row: f"neighbor {named[row]!r} is an id of {nodes_file}; an edge between own nodes goes into edges",
    )
    _, other = np.unique(np.array(composed, dtype=object).astype(str), return_inverse=True)
    weight = columns.weights_of(table, np.stack([node, other.reshape(-1)]), False)
    return ForeignNeighbors(torch.from_numpy(node), tuple(named), _tensor(weight))


def neighbors_table(graph: Graph) -> Any:
    """Return the table of neighbours of a part that lists them (splitter `node_hosts`); None where there are none."""
    listed = graph.attributes.get("neighbors")
    if listed is None:
        return None
    foreign = (listed >= 0) & ~torch.isin(listed, graph.node_ids)
    if not bool(foreign.any()):
        return None
    found = {"id": graph.node_ids[:, None].expand_as(listed)[foreign].numpy(), "neighbor": listed[foreign].numpy()}
    weights = graph.attributes.get("neighbor_weights")
    return pa.table(found if weights is None else found | {"weight": weights[foreign].numpy()})


def _tensor(values: np.ndarray | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values)


def _composed(id: str) -> str:
    """Return an id in the Unicode spelling in which ids of silos are compared."""
    return unicodedata.normalize("NFC", id)


@dataclass(frozen=True)
class Folder(OwnFolder):
    """Your own graph: a folder with tables of nodes and edges.

    `isthmus.data.folders.graph_folder.read_graph_folder` says what they hold.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the classes in the order of their numbers; silos of one federation must give the same, or follow
                     the same schema
        undirected:  whether an edge counts in both directions
        schema_digest: what `isthmus data check` tells of the schema that the folder must follow; "" for any or none
    """

    called = "graph folder"
    data_type = Graph
    tables = ("nodes", "edges")
    write = staticmethod(write_graph_folder)

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
    def describe(data: Graph, directed: bool = False) -> str:
        """Return the numbers of nodes, edges and features, and the classes."""
        edges = f"{data.num_edges} directed edges" if directed else f"{data.num_edges // 2} edges"
        return (
            f"{data.num_nodes} nodes, {edges}, "
            f"{data.num_features} features, classes: {', '.join(data.class_names) or 'none'}"
        )


def read_following(
    path: Path, schema: Path | None, classes: tuple[str, ...] = (), undirected: bool = True
) -> GraphFolder:
    """Return a graph folder, or raise one BadInput with all that is wrong with it or differs from a schema's file."""
    if schema is None:
        return read_graph_folder(path, classes, undirected)
    wanted = read_schema(schema)
    if not classes and not (path / SCHEMA_FILE).is_file():
        classes = wanted.classes
    read = read_graph_folder(path, classes, undirected)
    problems = Problems(f"{path} does not follow {schema}")
    if read.schema is not None:
        compare_schemas(read.schema, wanted, SCHEMA_FILE, problems)
    elif read.feature_names:
        compare_columns(read.feature_names, wanted.columns, "nodes", problems)
    elif read.graph.num_features != len(wanted.columns):
        problems.add("features.npz", f"has {read.graph.num_features} columns, {len(wanted.columns)} in the schema")
    problems.raise_if_any()
    return read
