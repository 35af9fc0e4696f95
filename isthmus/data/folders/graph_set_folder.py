"""Bring your own set of graphs: a folder with a table of graphs, one of their nodes and one of their edges.

graphs.parquet or graphs.csv    id; label (one class), or a column for each task; split if known; further columns are
                                attributes, to split by
nodes.parquet or nodes.csv      graph, id; every other numeric column is a feature
edges.parquet or edges.csv      graph, source, target; every other numeric column is a feature of the edge
features.npz                    in place of feature columns of nodes: `x` (dense), or a matrix saved by scipy.sparse

A node's id tells it from the other nodes of its graph. Without feature columns and without features.npz, every node
has one feature, 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.data.features import compact
from isthmus.data.folders.own_folder import OwnData, OwnFolder
from isthmus.data.folders.tables import columns, writing
from isthmus.data.folders.tables.columns import EDGE_COLUMNS, Integers, stated_attributes
from isthmus.data.folders.tables.reading import (
    Problems,
    Table,
    is_numeric,
    is_text,
    listed,
    parsed_numbers,
    problems_of,
    read_table,
)
from isthmus.data.graph import directed, select_rows
from isthmus.data.graph import undirected as both_directions
from isthmus.data.graph_set import GraphSet
from isthmus.data.on_demand import compute, pa

GRAPH_COLUMNS = ("id", "label", "split")
NODE_COLUMNS = ("graph", "id")
EDGE_TABLE_COLUMNS = ("graph", *EDGE_COLUMNS)
ELSEWHERE = ("label", "split")
TARGETS = ("class", "binary", "value")
NO_TASKS = ("id", "split")
# Returns the position of the graph of each row of a table, -1 where it is not known; None without a column of graphs.
Find = Callable[[Table], Integers | None]


def read_targets(graphs: Table, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the labels and splits of a table of graphs, as a `GraphSet` has them.

    `names` are those of the classes or tasks, where they are stated.
    """
    if kind == "class":
        y, names = columns.labels(graphs, names)
        masks = columns.split_masks(graphs, y)
        return {"y": torch.from_numpy(y), "masks": masks, **columns.class_facts(y, names)}
    tasks = _task_columns(graphs, kind, names)
    values = np.full((graphs.num_rows, len(tasks)), np.nan)
    for number, name in enumerate(tasks):
        if name in graphs.columns:
            values[:, number] = _task_values(graphs, name, kind)
    known = np.where(np.isnan(values).all(axis=1), -1, 0)
    masks = columns.split_masks(graphs, known)
    labels = torch.from_numpy(values.astype(np.float32))
    return {"y": labels, "num_classes": len(tasks), "class_names": tasks, "masks": masks}


def _task_columns(graphs: Table, kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the tasks: those stated, or else all columns that hold numbers."""
    if names:
        missing = [name for name in names if name not in graphs.columns]
        if 0 < len(missing) < len(names):  # without any of them, nothing is known of the graphs
            graphs.note(f"no column {listed(missing)} for a task; columns found: {listed(graphs.columns)}")
        return names
    others = (*NO_TASKS, *stated_attributes(graphs))
    found = tuple(n for n, c in graphs.columns.items() if n not in others and (is_numeric(c) or _mostly_numbers(c)))
    if not found:
        graphs.note(f"no column of numbers for a task of the target {kind!r}; columns found: {listed(graphs.columns)}")
    return found


def _mostly_numbers(column: Any) -> bool:
    return is_text(column) and 2 * len(parsed_numbers(column)[1]) < len(column) and any(column.to_pylist())


def _task_values(graphs: Table, name: str, kind: str) -> npt.NDArray[np.float64]:
    """Return a task's labels, NaN where there is none."""
    column = graphs.columns[name]
    values, stray = parsed_numbers(column)
    wanted = "0 or 1 is needed, or nothing" if kind == "binary" else "a finite number is needed, or nothing"
    graphs.note_rows(stray, lambda row: f"{name} is {column[row].as_py()!r}; {wanted}")
    with np.errstate(over="ignore"):
        fits = np.isin(values, (0, 1)) if kind == "binary" else np.isfinite(values.astype(np.float32))
    graphs.note_rows(~fits & ~np.isnan(values), lambda row: f"{name} is {values[row]:g}; {wanted}")
    return values


def likely_target(graphs: Table) -> str:
    """Return what the labels of a table seem to be, where nobody says so."""
    label = graphs.columns.get("label")
    if label is not None and not _fractions(label):
        return "class"
    no_tasks = (*NO_TASKS, *stated_attributes(graphs))
    tasks = [c for n, c in graphs.columns.items() if n not in no_tasks and (is_numeric(c) or n == "label")]
    if not tasks:
        return "class"
    values = np.concatenate([parsed_numbers(column)[0] for column in tasks])
    return "binary" if np.isin(values[~np.isnan(values)], (0, 1)).all() else "value"


def _fractions(column: Any) -> bool:
    """Return whether a column holds numbers that are not all whole, and so no classes."""
    values, stray = parsed_numbers(column)
    given = values[~np.isnan(values)]
    return not stray and bool((given != np.floor(given)).any())


class _Members(NamedTuple):
    """Nodes as their table has them: the graph of each, by position; their names, unique over all graphs; features."""

    graph_of: Integers
    names: Any
    x: Tensor
    feature_names: tuple[str, ...]


class _Joined(NamedTuple):
    """Edges as their table has them: both ends, by rows of the table of nodes, (2, edges); their features, if any."""

    ends: Integers
    attr: Tensor | None
    feature_names: tuple[str, ...]


def read_graph_set_folder(
    path: str | Path,
    class_names: tuple[str, ...] = (),
    target: str = "class",
    undirected: bool = True,
    x_sizes: tuple[int, ...] = (),
    edge_sizes: tuple[int, ...] = (),
) -> OwnData[GraphSet]:
    """Return the graphs of a folder, or raise one BadInput that tells all problems by row.

    Ids are compared as text. With the target "class", labels are names out of `class_names`, or numbers from 0; an
    empty label (or -1) means none. With "binary" (0 or 1) and "value" (numbers), `class_names` are the columns of the
    tasks; without it, all numeric columns are, but for those called `attribute.<name>`. An empty cell means none.
    Further columns are attributes. Self-loops are dropped; an edge told twice counts once. `x_sizes` and `edge_sizes`
    say how many categories each feature column has, where all columns of nodes or edges are numbers of categories, from
    0. A graph may have no edges, or no nodes.
    """
    path = Path(path)
    problems = problems_of(
        path, "graph set folder", "graphs.(parquet|csv), nodes.(parquet|csv) and edges.(parquet|csv)"
    )
    table = read_table(path, "graphs", GRAPH_COLUMNS, problems)
    nodes = read_table(path, "nodes", NODE_COLUMNS, problems)
    links = read_table(path, "edges", EDGE_TABLE_COLUMNS, problems)
    members = joined = None
    if table is not None:
        ids, facts = _graphs(table, target, class_names)
        find = partial(columns.places, name="graph", ids=ids, nodes_file=table.file)
        members = None if nodes is None else _members(path, nodes, find, x_sizes)
        joined = None if links is None else _joined(links, find, members, undirected, edge_sizes)
    problems.raise_if_any()
    assert members is not None and joined is not None and table is not None  # or a problem has been noted
    facts |= {"target": target, "x_sizes": x_sizes, "edge_sizes": edge_sizes, "name": path.resolve().name}
    data = _assembled(members, joined, undirected, len(ids), facts)
    numbered = target == "class" and columns.are_numbered(table, data.class_names)
    return OwnData(data, {"id": tuple(ids.to_pylist())}, None, numbered)


def _graphs(table: Table, target: str, class_names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """Return the ids of the graphs, and what their table says of them, as a `GraphSet` has it."""
    if table.num_rows == 0:
        table.note("the table is empty; at least one graph is needed")
    ids = columns.node_ids(table)
    facts = read_targets(table, target, class_names)
    reserved = GRAPH_COLUMNS if target == "class" else (*NO_TASKS, *facts["class_names"])
    return ids, facts | columns.read_attributes(table, reserved, True)


def _assembled(
    members: _Members, joined: _Joined, undirected: bool, num_graphs: int, facts: dict[str, Any]
) -> GraphSet:
    """Return the set: nodes graph after graph, in the order of the table of graphs, and edges sorted."""
    order = np.argsort(members.graph_of, kind="stable")
    position = torch.empty(len(order), dtype=torch.int64)
    position[torch.from_numpy(order)] = torch.arange(len(order))
    make = both_directions if undirected else directed
    edge_index, edge_attr = make(position[torch.from_numpy(joined.ends)], len(order), joined.attr)
    x = select_rows(members.x, torch.from_numpy(order))
    sizes = np.bincount(members.graph_of, minlength=num_graphs)
    return GraphSet(
        x=x if facts["x_sizes"] else compact(x),
        edge_index=edge_index,
        node_start=torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])),
        graph_ids=torch.arange(num_graphs),
        edge_attr=edge_attr,
        feature_names=members.feature_names,
        edge_feature_names=joined.feature_names,
        **facts,
    )


def _members(path: Path, nodes: Table, find: Find, x_sizes: tuple[int, ...]) -> _Members | None:
    columns.note_misplaced(nodes, (*ELSEWHERE, *stated_attributes(nodes)), "the table of graphs")
    graph_of = find(nodes)
    ids = nodes.text("id")
    x, feature_names = columns.features(path, nodes, (*NODE_COLUMNS, *ELSEWHERE), constant=True)
    if x is not None:
        _check_categories(nodes, x, x_sizes, "x_sizes")
    if graph_of is None or ids is None or x is None:
        return None
    names = _within(graph_of, ids)
    columns.note_repeated(nodes, ids, names, " of the same graph")
    return _Members(graph_of, names, x, feature_names)


def _joined(
    links: Table, find: Find, members: _Members | None, undirected: bool, edge_sizes: tuple[int, ...]
) -> _Joined | None:
    columns.note_misplaced(links, stated_attributes(links), "the table of graphs")
    graph_of = find(links)
    found = [_ends(links, name, graph_of, members) for name in EDGE_COLUMNS]
    names = columns.feature_names(links, EDGE_TABLE_COLUMNS)
    columns.note_stray_text(links, EDGE_TABLE_COLUMNS)
    attr = columns.finite_numbers(links, names) if names else None
    _check_categories(links, torch.empty(0, 0) if attr is None else attr, edge_sizes, "edge_sizes")
    known = [end for end in found if end is not None]
    if len(known) < len(EDGE_COLUMNS):
        return None
    ends = np.stack(known)
    if attr is not None and len(attr):
        earlier, known_ends = columns.first_told(ends, undirected)
        differ = (attr != attr[torch.from_numpy(earlier)]).any(dim=1).numpy() & attr.isfinite().all(dim=1).numpy()
        links.note_rows(
            known_ends & differ, lambda row: f"tells the same edge as row {earlier[row] + 1}, but with other features"
        )
    return _Joined(ends, attr, names)


def _ends(links: Table, name: str, graph_of: Integers | None, members: _Members | None) -> Integers | None:
    """Return the rows of the table of nodes that one end of each edge is, -1 where there is none."""
    column = links.text(name)
    if column is None or graph_of is None or members is None:
        return None
    found = compute.fill_null(compute.index_in(_within(graph_of, column), members.names, skip_nulls=True), -1)
    rows: Integers = found.to_numpy(zero_copy_only=False).astype(np.int64)
    links.note_rows(
        (rows < 0) & (graph_of >= 0),  # an unknown graph has been noted
        lambda row: f"{name} {column[row].as_py()!r} is no id of a node of its graph",
    )
    return rows


def _within(graph_of: Integers, ids: Any) -> Any:
    """Return names of nodes that differ between graphs: the graph's position and the node's id; null for no graph."""
    return compute.binary_join_element_wise(pa.array(graph_of, mask=graph_of < 0).cast(pa.string()), ids, " ")


def _check_categories(table: Table, x: Tensor, sizes: tuple[int, ...], field: str) -> None:
    """Note where columns are to be numbers of categories and are not."""
    if not sizes:
        return
    if x.shape[1] != len(sizes):
        table.note(f"has {x.shape[1]} feature columns; dataset.{field} has {len(sizes)} numbers of categories")
        return
    dense = x.to_dense()
    wrong = ~((dense >= 0) & (dense < torch.tensor(sizes)) & (dense == dense.floor()))
    column = wrong.int().argmax(dim=1)
    table.note_rows(
        wrong.any(dim=1).numpy(),
        lambda row: (
            f"feature {int(column[row])} is {float(dense[row, column[row]]):g}; a category from 0 to "
            f"{sizes[int(column[row])] - 1} is needed"
        ),
    )


def write_graph_set_folder(data: GraphSet, path: str | Path, format: str = "parquet") -> None:
    """Write a set of graphs as a folder that `read_graph_set_folder` reads; all of it or nothing.

    Ids are `data.graph_ids`, and the positions of nodes within their graph. Every stored edge is written, an undirected
    one in both directions. Sparse features go to features.npz, dense ones into columns. A graph without a label is in
    no split. Attributes of several values for each graph are not written.
    """
    ids, start = data.graph_ids.numpy(), data.node_start.numpy()
    graph_of = np.repeat(np.arange(data.num_items), np.diff(start))
    within = np.arange(data.num_nodes) - start[graph_of]
    known = data.y >= 0 if data.target == "class" else ~data.y.isnan().all(dim=1)
    masks = {split: mask & known for split, mask in data.masks.items()}
    graphs = {"id": pa.array(ids), **_target_columns(data), **writing.split_column(masks, data.item)}
    graphs |= columns.attribute_columns(data.attributes, data.attribute_names)
    nodes = {
        "graph": pa.array(ids[graph_of]),
        "id": pa.array(within),
        **writing.feature_columns(data.x, names=data.feature_names),
    }
    ends = data.edge_index.numpy()
    links = {"graph": pa.array(ids[graph_of[ends[0]]])}
    links |= {name: pa.array(within[end]) for name, end in zip(EDGE_COLUMNS, ends, strict=True)}
    if data.edge_attr is not None:
        links |= writing.feature_columns(data.edge_attr, "e", data.edge_feature_names)
    tables = {"graphs": pa.table(graphs), "nodes": pa.table(nodes), "edges": pa.table(links)}
    writing.write_holding(data, path, tables, format)


def _target_columns(data: GraphSet) -> dict[str, Any]:
    if data.target == "class":
        return {"label": writing.label_column(data.y, data.class_names)}
    names = data.class_names or tuple(f"task {number}" for number in range(data.num_classes))
    return {
        name: pa.array(column, mask=np.isnan(column)) for name, column in zip(names, data.y.t().numpy(), strict=True)
    }


@dataclass(frozen=True)
class GraphSetFolder(OwnFolder):
    """Your own set of graphs: a folder with tables of graphs, nodes and edges.

    `isthmus.data.folders.graph_set_folder.read_graph_set_folder` says what they hold.

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

    task = "graph"
    called = "graph set folder"
    data_type = GraphSet
    tables = ("nodes", "edges", "graphs")
    write = staticmethod(write_graph_set_folder)

    target: str = "class"
    x_sizes: tuple[int, ...] = ()
    edge_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.target not in TARGETS, self, "target", f"choose from {', '.join(TARGETS)}")
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
