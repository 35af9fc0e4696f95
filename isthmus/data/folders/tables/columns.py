"""What the columns of a graph folder mean: ids, features, labels, splits, edges; what is wrong is noted by row."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.data.conventions import SPLITS
from isthmus.data.folders.schema.vocabulary import is_whole
from isthmus.data.folders.tables.reading import Problems, Table, is_numeric, is_text, listed, numbers, stray_text
from isthmus.data.on_demand import compute, pa, sparse, torch

Integers = npt.NDArray[np.int64]

FEATURES_FILE = "features.npz"
# The name of the one feature that nodes have where a folder has none.
CONSTANT = "(constant)"
NODE_COLUMNS = ("id", "label", "split")
EDGE_COLUMNS = ("source", "target")


def node_ids(nodes: Table) -> Any:
    """Return the ids as Arrow strings; each must be there and differ from all others."""
    ids = nodes.text("id")
    if ids is not None:
        note_repeated(nodes, ids, ids)
    return ids


def note_repeated(nodes: Table, ids: Any, unique: Any, where: str = "") -> None:
    """Note the rows whose id is empty or taken; `unique` are names by which rows differ, null for a row not to judge.

    `where` says within what ids have to differ.
    """
    values, name = ids.to_pylist(), nodes.name("id")
    first = compute.index_in(unique, value_set=unique).to_numpy(zero_copy_only=False)
    again = (first != np.arange(len(values))) & unique.is_valid().to_numpy(zero_copy_only=False)
    empty = np.array([not value for value in values], dtype=np.bool_)
    nodes.note_rows(empty, lambda row: f"{name} is empty")
    nodes.note_rows(again & ~empty, lambda row: f"{name} {values[row]!r} is taken by row {first[row] + 1}{where}")


def feature_names(nodes: Table, reserved: tuple[str, ...] = NODE_COLUMNS) -> tuple[str, ...]:
    """Return the names of a table's numeric columns that are features: all but the attributes and the reserved ones."""
    return tuple(n for n, column in nodes.columns.items() if _may_be_feature(n, reserved) and is_numeric(column))


def _may_be_feature(name: str, reserved: tuple[str, ...]) -> bool:
    return name not in reserved and not name.startswith(PREFIX)


def features(
    folder: Path, nodes: Table, reserved: tuple[str, ...] = NODE_COLUMNS, constant: bool = False
) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Return the features, from numeric columns of the table of nodes or from `features.npz`, and the columns' names.

    Where there are none, that is a problem, or with `constant` every node has one feature, 1. The names are empty where
    an archive says nothing of them.
    """
    numeric = feature_names(nodes, reserved)
    archive = folder / FEATURES_FILE
    if archive.is_file():
        if numeric:
            nodes.note(f"has the feature columns {listed(numeric)}, but there is also {FEATURES_FILE}; remove one")
        return _features_file(archive, nodes), _archived_names(archive, nodes.problems)
    strays = nodes.problems.num_found
    note_stray_text(nodes, reserved)
    if numeric:
        return finite_numbers(nodes, numeric), numeric
    if constant and strays == nodes.problems.num_found:
        return torch.ones(nodes.num_rows, 1), (CONSTANT,)
    nodes.note(f"no numeric feature column (columns: {listed(nodes.columns)}), and there is no {FEATURES_FILE}")
    return None, ()


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


def finite_numbers(table: Table, names: tuple[str, ...]) -> torch.Tensor:
    """Return numeric columns side by side, (rows, columns), after noting the rows where one is missing or infinite."""
    with np.errstate(over="ignore"):
        x = np.stack([numbers(table.columns[name]) for name in names], axis=1).astype(np.float32)
    first_wrong = (~np.isfinite(x)).argmax(axis=1)
    table.note_rows(
        np.asarray(~np.isfinite(x).all(axis=1)),
        lambda row: f"{names[first_wrong[row]]} is {x[row][first_wrong[row]]}; a finite number is needed",
    )
    return torch.from_numpy(x)


def note_stray_text(table: Table, reserved: tuple[str, ...]) -> None:
    """Note the rows that hold no number in columns where most rows do, and which are therefore meant as features."""

    def told(name: str) -> Callable[[int], str]:
        column = table.columns[name]
        return lambda row: f"{name} is {column[row].as_py()!r}; a number is needed, as in most rows"

    for name, column in table.columns.items():
        if _may_be_feature(name, reserved):
            table.note_rows(stray_text(column), told(name))


def note_misplaced(table: Table, names: tuple[str, ...], belong: str) -> None:
    """Note columns that are no features but belong into another table."""
    for name in names:
        if name in table.columns:
            table.note(f"has a column {name!r}, which belongs into {belong}; move it there, or rename it")


def _features_file(path: Path, nodes: Table) -> torch.Tensor | None:
    from isthmus.data.features import from_scipy

    try:
        with np.load(path, allow_pickle=False) as archive:
            dense = archive["x"].astype(np.float32) if "x" in archive.files else None
        matrix: Any = sparse.load_npz(path).tocsr().astype(np.float32) if dense is None else dense
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        nodes.problems.add(path.name, f"neither an array 'x' nor a matrix saved by scipy.sparse.save_npz ({error})")
        return None
    if matrix.ndim != 2 or matrix.shape[0] != nodes.num_rows:
        nodes.problems.add(path.name, f"has shape {matrix.shape}; {nodes.file} has {nodes.num_rows} rows")
        return None
    x = torch.from_numpy(matrix) if dense is not None else from_scipy(matrix)
    wrong = np.nonzero(~np.isfinite(matrix if dense is not None else matrix.data))[0]
    rows = np.unique(wrong if dense is not None else matrix.tocoo().row[wrong])
    nodes.problems.add_rows(path.name, rows.tolist(), lambda row: "holds a value that is not finite")
    return x


def labels(
    nodes: Table, class_names: tuple[str, ...], own_names: tuple[str, ...] = ()
) -> tuple[Integers, tuple[str, ...]]:
    """Return the class numbers, -1 where there is none, and the names of the classes.

    `own_names` are what the owner of the table calls the classes, where that is known: a number among them is a name.
    """
    column = nodes.text_if_any("label")
    if column is None:
        return np.full(nodes.num_rows, -1, dtype=np.int64), class_names
    values = np.asarray(column.to_pylist(), dtype=object)
    given = values != ""
    distinct = sorted(set(values[given].tolist()))
    if _are_numbers(distinct, (*class_names, *own_names)):
        return _numbered(nodes, values, given, class_names), class_names
    class_names = class_names or tuple(distinct)
    number = {"": -1} | {name: position for position, name in enumerate(class_names)}
    y = np.asarray([number.get(value, -2) for value in values], dtype=np.int64)
    nodes.note_rows(
        y == -2, lambda row: f"{nodes.name('label')} {values[row]!r} is none of the class names {listed(class_names)}"
    )
    return y, class_names


def are_numbered(table: Table, names: tuple[str, ...]) -> bool:
    """Return whether the labels of a table are numbers of classes and none of the `names`."""
    column = replace(table, problems=Problems("told before")).text_if_any("label")
    distinct = set() if column is None else set(column.to_pylist()) - {"", "-1"}
    return bool(distinct) and _are_numbers(distinct, names)


def _are_numbers(distinct: Iterable[str], names: Iterable[str]) -> bool:
    return all(is_whole(value) for value in distinct) and not set(distinct) & set(names)


def _numbered(
    nodes: Table, values: npt.NDArray[np.object_], given: npt.NDArray[np.bool_], class_names: tuple[str, ...]
) -> Integers:
    y = np.full(len(values), -1, dtype=np.int64)
    y[given] = values[given].astype(np.int64)
    highest = len(class_names) - 1 if class_names else np.iinfo(np.int64).max
    wanted = f"a class number from 0 to {highest}" if class_names else "a class number from 0"
    nodes.note_rows(
        (y < -1) | (y > highest),
        lambda row: f"{nodes.name('label')} is {y[row]}; {wanted} is needed, or -1 or nothing for no label",
    )
    return y


def class_facts(y: Integers, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return how many classes there are and what they are called, by the names of a holding's fields."""
    return {"num_classes": len(class_names) or int(y.max(initial=-1)) + 1, "class_names": class_names}


def split_masks(nodes: Table, y: Integers | None) -> dict[str, torch.Tensor]:
    """Return a mask for each split when there is a column of splits; with `y`, only what has a label may be in one."""
    values = split_names(nodes, y)
    return {} if values is None else {split: torch.from_numpy(values == split) for split in SPLITS}


def split_names(nodes: Table, y: Integers | None) -> npt.NDArray[np.object_] | None:
    """Return each row's split, '' for none, when there is a column of them; what `split_masks` notes is noted."""
    column = nodes.text_if_any("split")
    if column is None:
        return None
    values = np.asarray(column.to_pylist(), dtype=object)
    name = nodes.name("split")
    known = np.isin(values.astype(str), SPLITS)
    nodes.note_rows(
        ~known & (values != ""), lambda row: f"{name} is {values[row]!r}; known: {', '.join(SPLITS)}, or nothing"
    )
    if y is not None:
        nodes.note_rows(known & (y == -1), lambda row: f"{name} is {values[row]!r}, but there is no label")
    return values


def end_places(edges: Table, ids: Any, nodes_file: str, may_be_unknown: bool = False) -> Integers | None:
    """Return the node indices of both ends of every edge, (2, edges), -1 where unknown."""
    ends = [places(edges, name, ids, nodes_file, may_be_unknown) for name in EDGE_COLUMNS]
    known = [end for end in ends if end is not None]
    return np.stack(known) if len(known) == len(EDGE_COLUMNS) else None


def places(edges: Table, name: str, ids: Any, nodes_file: str, may_be_unknown: bool = False) -> Integers | None:
    """Return where among `ids`, those of `nodes_file`, the id in each row's column is, (rows,), -1 where unknown."""
    column = edges.text(name)
    if column is None or ids is None:
        return None
    found = compute.index_in(column, value_set=ids)
    # A node without an id has been noted; it must not take in the edges that lack an end.
    found = compute.if_else(compute.equal(column, ""), None, found)
    nodes: Integers = compute.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    if not may_be_unknown:
        edges.note_rows(nodes < 0, lambda row: f"{edges.name(name)} {column[row].as_py()!r} is no id of {nodes_file}")
    return nodes


def weights_of(edges: Table, ends: Integers | None, undirected: bool) -> npt.NDArray[np.float32] | None:
    """Return the weights, positive, and the same wherever an edge is told again; None without the column."""
    column = edges.columns.get("weight")
    if column is None:
        return None
    name = edges.name("weight")
    if not is_numeric(column):
        edges.note(f"column {name!r} is of type {column.type}; numbers are needed")
        return None
    weight = numbers(column).astype(np.float32)
    usable = np.isfinite(weight) & (weight > 0)
    edges.note_rows(~usable, lambda row: f"{name} is {weight[row]}; a finite number above 0 is needed")
    if ends is None or len(weight) == 0:
        return weight
    earlier, known = first_told(ends, undirected)  # what else is wrong with the others has been noted
    edges.note_rows(
        known & (weight != weight[earlier]) & np.isfinite(weight + weight[earlier]),
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


# ---- attributes: columns that are no features but facts to split by

# A column of text that has no other use is an attribute. One of numbers would be taken for a feature or a task, so it
# is called `attribute.<name>`; whatever such a column holds, it is the attribute `<name>`.
PREFIX = "attribute."


def stated_attributes(table: Table) -> tuple[str, ...]:
    """Return the columns of a table that are attributes by their names."""
    return tuple(name for name in table.columns if name.startswith(PREFIX))


def read_attributes(table: Table, reserved: tuple[str, ...], numeric: bool) -> dict[str, Any]:
    """Return the `attributes` in a table and, of those of text, the names of the categories, `attribute_names`.

    A column of text, days or times has a number for each distinct value, in alphabetical order, an empty one among
    them. Whole numbers are taken as such. Of columns that do not say in their names that they are attributes, numbers
    are taken where `numeric` says so, and columns of other kinds (lists) are not.
    """
    found: dict[str, torch.Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    for column_name, column in table.columns.items():
        if column_name in reserved or not _is_attribute(column_name, column, numeric):
            continue
        name = column_name.removeprefix(PREFIX)
        if name in found:
            table.note(f"has the attribute {name!r} twice, as {name!r} and {PREFIX + name!r}; remove one, or rename it")
        elif is_numeric(column):
            found[name] = _values_of(column)
        else:
            strings = table.text(column_name)
            told = [] if strings is None else strings.to_pylist()  # what is wrong with it has been noted
            values, codes = np.unique(np.asarray(told, dtype=str), return_inverse=True)
            found[name], names[name] = torch.from_numpy(codes.astype(np.int64)), tuple(values.tolist())
    return {"attributes": found, "attribute_names": names}


def _is_attribute(name: str, column: Any, numeric: bool) -> bool:
    if name.startswith(PREFIX):
        return True
    if is_numeric(column):
        return numeric
    days = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
    return is_text(column) or any(kind(column.type) for kind in days)


def _values_of(column: Any) -> torch.Tensor:
    """Return a column of numbers, as whole ones if they are."""
    if pa.types.is_signed_integer(column.type) and column.null_count == 0:
        return torch.from_numpy(column.to_numpy().astype(np.int64))  # floats would not hold large ones
    values = numbers(column)
    whole = len(values) > 0 and bool((np.isfinite(values) & (values == np.round(values))).all())
    return torch.from_numpy(values.astype(np.int64) if whole else values)


def attribute_columns(attributes: Mapping[str, torch.Tensor], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the attributes that have one value for each item as columns: names of categories, or numbers."""
    return {PREFIX + key: _told(value, names.get(key, ())) for key, value in attributes.items() if value.dim() == 1}


def _told(values: torch.Tensor, names: tuple[str, ...]) -> Any:
    if not names:
        return pa.array(values.numpy())
    return pa.array([names[code] if 0 <= code < len(names) else None for code in values.tolist()], pa.string())
