"""What the columns of a graph folder mean: ids, features, labels, splits, edges; what is wrong is noted by row."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.data.conventions import SPLITS
from isthmus.data.folders.schema.vocabulary import is_whole
from isthmus.data.folders.tables.attributes import PREFIX
from isthmus.data.folders.tables.reading import Problems, Table, is_numeric, listed, numbers, stray_text, text
from isthmus.data.on_demand import compute, sparse, torch

Integers = npt.NDArray[np.int64]

FEATURES_FILE = "features.npz"
# The name of the one feature that nodes have where a folder has none.
CONSTANT = "(constant)"
NODE_COLUMNS = ("id", "label", "split")
EDGE_COLUMNS = ("source", "target")


def node_ids(nodes: Table, problems: Problems) -> Any:
    """Return the ids as Arrow strings; each must be there and differ from all others."""
    ids = text(nodes, "id", problems)
    if ids is None:
        return None
    note_repeated(nodes, ids, ids, problems)
    return ids


def note_repeated(nodes: Table, ids: Any, unique: Any, problems: Problems, where: str = "") -> None:
    """Note the rows whose id is empty or taken; `unique` are names by which rows differ, null for a row not to judge.

    `where` says within what ids have to differ.
    """
    values, name = ids.to_pylist(), nodes.name("id")
    first = compute.index_in(unique, value_set=unique).to_numpy(zero_copy_only=False)
    again = (first != np.arange(len(values))) & unique.is_valid().to_numpy(zero_copy_only=False)
    problems.add_rows(
        nodes.file, (row for row, value in enumerate(values) if not value), lambda row: f"{name} is empty"
    )
    problems.add_rows(
        nodes.file,
        (row for row in np.flatnonzero(again).tolist() if values[row]),
        lambda row: f"{name} {values[row]!r} is taken by row {first[row] + 1}{where}",
    )


def feature_names(nodes: Table, reserved: tuple[str, ...] = NODE_COLUMNS) -> tuple[str, ...]:
    """Return the names of a table's numeric columns that are features: all but the attributes and the reserved ones."""
    return tuple(n for n, column in nodes.columns.items() if _may_be_feature(n, reserved) and is_numeric(column))


def _may_be_feature(name: str, reserved: tuple[str, ...]) -> bool:
    return name not in reserved and not name.startswith(PREFIX)


def features(
    folder: Path,
    nodes: Table,
    problems: Problems,
    reserved: tuple[str, ...] = NODE_COLUMNS,
    constant: bool = False,
) -> torch.Tensor | None:
    """Return the features, from numeric columns of the table of nodes or from `features.npz`.

    Where there are none, that is a problem, or with `constant` every node has one feature, 1.
    """
    numeric = feature_names(nodes, reserved)
    if (folder / FEATURES_FILE).is_file():
        if numeric:
            problems.add(
                nodes.file,
                f"has the feature columns {listed(numeric)}, but there is also {FEATURES_FILE}; remove one",
            )
        return _features_file(folder / FEATURES_FILE, nodes, problems)
    strays = problems.num_found
    note_stray_text(nodes, reserved, problems)
    if not numeric and constant and strays == problems.num_found:
        return torch.ones(nodes.num_rows, 1)
    if not numeric:
        found = listed(nodes.columns)
        problems.add(nodes.file, f"no numeric feature column (columns: {found}), and there is no {FEATURES_FILE}")
        return None
    return finite_numbers(nodes, numeric, problems)


def names_of_features(
    folder: Path, nodes: Table, problems: Problems, reserved: tuple[str, ...] = NODE_COLUMNS
) -> tuple[str, ...]:
    """Return what the columns that `features` makes are called; empty where an archive says nothing of it."""
    path = folder / FEATURES_FILE
    return _archived_names(path, problems) if path.is_file() else feature_names(nodes, reserved) or (CONSTANT,)


def _archived_names(path: Path, problems: Problems) -> tuple[str, ...]:
    """Return the names that an archive of features has beside them, as an array `names` of text."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "names" not in archive.files:
                return ()
            names, shape = archive["names"], archive["x" if "x" in archive.files else "shape"]
        width = shape.shape[1] if "x" in archive.files else int(shape[1])
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile):
        return ()  # what is wrong with it has been noted when the features were read
    if names.ndim != 1 or names.dtype.kind != "U" or len(names) != width or len(set(names.tolist())) != width:
        problems.add(path.name, f"the array 'names' is no list of {width} different names, one for each column")
        return ()
    return tuple(names.tolist())


def finite_numbers(table: Table, names: tuple[str, ...], problems: Problems) -> torch.Tensor:
    """Return numeric columns side by side, (rows, columns), after noting the rows where one is missing or infinite."""
    with np.errstate(over="ignore"):
        x = np.stack([numbers(table.columns[name]) for name in names], axis=1).astype(np.float32)
    first_wrong = (~np.isfinite(x)).argmax(axis=1)
    problems.add_rows(
        table.file,
        np.flatnonzero(~np.isfinite(x).all(axis=1)).tolist(),
        lambda row: f"{names[first_wrong[row]]} is {x[row][first_wrong[row]]}; a finite number is needed",
    )
    return torch.from_numpy(x)


def note_stray_text(table: Table, reserved: tuple[str, ...], problems: Problems) -> None:
    """Note the rows that hold no number in columns where most rows do, and which are therefore meant as features."""
    for name, column in table.columns.items():
        if _may_be_feature(name, reserved):
            _note_stray_text(table.file, name, column, problems)


def note_misplaced(table: Table, names: tuple[str, ...], belong: str, problems: Problems) -> None:
    """Note columns that are no features but belong into another table."""
    for name in names:
        if name in table.columns:
            problems.add(table.file, f"has a column {name!r}, which belongs into {belong}; move it there, or rename it")


def _note_stray_text(file: str, name: str, column: Any, problems: Problems) -> None:
    rows = stray_text(column)
    problems.add_rows(file, rows, lambda row: f"{name} is {column[row].as_py()!r}; a number is needed, as in most rows")


def _features_file(path: Path, nodes: Table, problems: Problems) -> torch.Tensor | None:
    from isthmus.data.features import from_scipy

    try:
        with np.load(path, allow_pickle=False) as archive:
            dense = archive["x"].astype(np.float32) if "x" in archive.files else None
        matrix: Any = sparse.load_npz(path).tocsr().astype(np.float32) if dense is None else dense
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        problems.add(path.name, f"neither an array 'x' nor a matrix saved by scipy.sparse.save_npz ({error})")
        return None
    if matrix.ndim != 2 or matrix.shape[0] != nodes.num_rows:
        problems.add(path.name, f"has shape {matrix.shape}; {nodes.file} has {nodes.num_rows} rows")
        return None
    x = torch.from_numpy(matrix) if dense is not None else from_scipy(matrix)
    wrong = np.nonzero(~np.isfinite(matrix if dense is not None else matrix.data))[0]
    rows = np.unique(wrong if dense is not None else matrix.tocoo().row[wrong])
    problems.add_rows(path.name, rows.tolist(), lambda row: "holds a value that is not finite")
    return x


def labels(
    nodes: Table, class_names: tuple[str, ...], problems: Problems, own_names: tuple[str, ...] = ()
) -> tuple[Integers, tuple[str, ...]]:
    """Return the class numbers, -1 where there is none, and the names of the classes.

    `own_names` are what the owner of the table calls the classes, where that is known: a number among them is a name.
    """
    column = text(nodes, "label", problems) if "label" in nodes.columns else None
    if column is None:
        return np.full(nodes.num_rows, -1, dtype=np.int64), class_names
    values = np.asarray(column.to_pylist(), dtype=object)
    given = values != ""
    distinct = sorted(set(values[given].tolist()))
    if _are_numbers(distinct, (*class_names, *own_names)):
        return _numbered(nodes, values, given, class_names, problems)
    class_names = class_names or tuple(distinct)
    number = {"": -1} | {name: position for position, name in enumerate(class_names)}
    y = np.asarray([number.get(value, -2) for value in values], dtype=np.int64)
    problems.add_rows(
        nodes.file,
        np.flatnonzero(y == -2).tolist(),
        lambda row: f"{nodes.name('label')} {values[row]!r} is none of the class names {listed(class_names)}",
    )
    return y, class_names


def are_numbered(table: Table, names: tuple[str, ...]) -> bool:
    """Return whether the labels of a table are numbers of classes and none of the `names`."""
    column = text(table, "label", Problems("")) if "label" in table.columns else None
    distinct = set() if column is None else set(column.to_pylist()) - {"", "-1"}
    return bool(distinct) and _are_numbers(distinct, names)


def _are_numbers(distinct: Iterable[str], names: Iterable[str]) -> bool:
    return all(is_whole(value) for value in distinct) and not set(distinct) & set(names)


def _numbered(
    nodes: Table,
    values: npt.NDArray[np.object_],
    given: npt.NDArray[np.bool_],
    class_names: tuple[str, ...],
    problems: Problems,
) -> tuple[Integers, tuple[str, ...]]:
    y = np.full(len(values), -1, dtype=np.int64)
    y[given] = values[given].astype(np.int64)
    highest = len(class_names) - 1 if class_names else np.iinfo(np.int64).max
    wanted = f"a class number from 0 to {highest}" if class_names else "a class number from 0"
    problems.add_rows(
        nodes.file,
        np.flatnonzero((y < -1) | (y > highest)).tolist(),
        lambda row: f"{nodes.name('label')} is {y[row]}; {wanted} is needed, or -1 or nothing for no label",
    )
    return y, class_names


def class_facts(y: Integers, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return how many classes there are and what they are called, by the names of a holding's fields."""
    return {"num_classes": len(class_names) or int(y.max(initial=-1)) + 1, "class_names": class_names}


def split_masks(nodes: Table, y: Integers | None, problems: Problems) -> dict[str, torch.Tensor]:
    """Return a mask for each split when there is a column of splits; with `y`, only what has a label may be in one."""
    values = split_names(nodes, y, problems)
    return {} if values is None else {split: torch.from_numpy(values == split) for split in SPLITS}


def split_names(nodes: Table, y: Integers | None, problems: Problems) -> npt.NDArray[np.object_] | None:
    """Return each row's split, '' for none, when there is a column of them; what `split_masks` notes is noted."""
    column = text(nodes, "split", problems) if "split" in nodes.columns else None
    if column is None:
        return None
    values = np.asarray(column.to_pylist(), dtype=object)
    name = nodes.name("split")
    known = np.isin(values.astype(str), SPLITS)
    problems.add_rows(
        nodes.file,
        np.flatnonzero(~known & (values != "")).tolist(),
        lambda row: f"{name} is {values[row]!r}; known: {', '.join(SPLITS)}, or nothing",
    )
    problems.add_rows(
        nodes.file,
        [] if y is None else np.flatnonzero(known & (y == -1)).tolist(),
        lambda row: f"{name} is {values[row]!r}, but there is no label",
    )
    return values


def end_places(
    edges: Table, ids: Any, nodes_file: str, problems: Problems, may_be_unknown: bool = False
) -> Integers | None:
    """Return the node indices of both ends of every edge, (2, edges), -1 where unknown."""
    ends = [places(edges, name, ids, nodes_file, problems, may_be_unknown) for name in EDGE_COLUMNS]
    known = [end for end in ends if end is not None]
    return np.stack(known) if len(known) == len(EDGE_COLUMNS) else None


def places(
    edges: Table, name: str, ids: Any, nodes_file: str, problems: Problems, may_be_unknown: bool = False
) -> Integers | None:
    """Return where among `ids`, those of `nodes_file`, the id in each row's column is, (rows,), -1 where unknown."""
    column = text(edges, name, problems)
    if column is None or ids is None:
        return None
    found = compute.index_in(column, value_set=ids)
    # A node without an id has been noted; it must not take in the edges that lack an end.
    found = compute.if_else(compute.equal(column, ""), None, found)
    nodes = compute.fill_null(found, -1).to_numpy(zero_copy_only=False)
    problems.add_rows(
        edges.file,
        [] if may_be_unknown else np.flatnonzero(nodes < 0).tolist(),
        lambda row: f"{edges.name(name)} {column[row].as_py()!r} is no id of {nodes_file}",
    )
    found_places: Integers = nodes.astype(np.int64)
    return found_places


def weights_of(
    edges: Table, ends: Integers | None, undirected: bool, problems: Problems
) -> npt.NDArray[np.float32] | None:
    """Return the weights, positive, and the same wherever an edge is told again; None without the column."""
    column = edges.columns.get("weight")
    if column is None:
        return None
    name = edges.name("weight")
    if not is_numeric(column):
        problems.add(edges.file, f"column {name!r} is of type {column.type}; numbers are needed")
        return None
    weight = numbers(column).astype(np.float32)
    problems.add_rows(
        edges.file,
        np.flatnonzero(~(np.isfinite(weight) & (weight > 0))).tolist(),
        lambda row: f"{name} is {weight[row]}; a finite number above 0 is needed",
    )
    if ends is None or len(weight) == 0:
        return weight
    earlier, known = first_told(ends, undirected)  # what else is wrong with the others has been noted
    problems.add_rows(
        edges.file,
        np.flatnonzero(known & (weight != weight[earlier]) & np.isfinite(weight + weight[earlier])).tolist(),
        lambda row: (
            f"{name} is {weight[row]}, but row {earlier[row] + 1} tells the same edge with {weight[earlier[row]]}"
        ),
    )
    return weight


def first_told(ends: Integers, undirected: bool) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return for each edge the first row that tells the same one, and whether both of its ends are known."""
    num_ids = int(ends.max()) + 2  # an unknown end is -1
    _, first, edge_of = np.unique(edge_keys(ends + 1, num_ids, undirected), return_index=True, return_inverse=True)
    return first[edge_of], (ends[0] >= 0) & (ends[1] >= 0)


def edge_keys(ends: Integers, num_ids: int, undirected: bool) -> Integers:
    """Return one number for each edge, (edges,); if undirected, one for both directions. Ids are below `num_ids`."""
    keys: Integers = ends.min(axis=0) * num_ids + ends.max(axis=0) if undirected else ends[0] * num_ids + ends[1]
    return keys
