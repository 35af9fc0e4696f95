"""Bring your own links: a folder with a table of nodes and a table of labelled links between them.

nodes.parquet or nodes.csv    id; side if nodes are users and items; every other numeric column is a feature
links.parquet or links.csv    source, target; label and split if known
features.npz                  in place of feature columns: `x` (dense), or a matrix saved by scipy.sparse

Without feature columns and without features.npz, every node has one feature, 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data import columns
from isthmus.data.columns import EDGE_COLUMNS, Integers
from isthmus.data.features import compact
from isthmus.data.links import LinkGraph
from isthmus.data.own_data import OwnData
from isthmus.data.tables import Problems, Table, read_table, text
from isthmus.data.writing import feature_columns, features_archive, label_column, split_column, write_folder

NODE_COLUMNS = ("id", "side")
LINK_COLUMNS = (*EDGE_COLUMNS, "label", "split")
SIDES = {"user": 0, "item": 1, "0": 0, "1": 1}


def read_link_folder(
    path: str | Path, class_names: tuple[str, ...] = (), undirected: bool = False
) -> OwnData[LinkGraph]:
    """Return the links of a folder, or raise one BadInput that tells all problems by row.

    Ids are compared as text. Every row of the table is a link, also one of a node with itself and one that is told
    again. Labels are names out of `class_names`, or numbers from 0; an empty label (or -1) means none. Without
    `class_names`, names get numbers in alphabetical order, so silos of one federation must give them. Without a column
    of labels, all links are of one class, 0; where `class_names` has several, none has a label. A link may be in a
    split without a label: the graph network reads it when it is for training.
    """
    path = Path(path)
    if not path.is_dir():
        raise BadInput(f"no folder {str(path)!r}; a link folder holds nodes.(parquet|csv) and links.(parquet|csv)")
    problems = Problems(f"link folder {path}")
    nodes = read_table(path, "nodes", NODE_COLUMNS, problems)
    links = read_table(path, "links", LINK_COLUMNS, problems)
    ids: Any = None
    x = ends = None
    if nodes is not None:
        columns.note_misplaced(nodes, ("label", "split"), "the table of links", problems)
        ids = columns.node_ids(nodes, problems)
        x = columns.features(path, nodes, problems, (*NODE_COLUMNS, "label", "split"), constant=True)
        sides = _sides(nodes, problems)
    if links is not None:
        if links.num_rows == 0:
            problems.add(links.file, "the table is empty; at least one link is needed")
        ends = columns.edge_ends(links, ids, "nodes" if nodes is None else nodes.file, problems)
        label, class_names = _labels(links, class_names, problems)
        masks = columns.split_masks(links, None, problems)
    problems.raise_if_any()
    if x is None or ends is None:
        raise AssertionError("whatever is absent has been noted as a problem")
    data = LinkGraph(
        x=compact(x),
        links=ends,
        label=torch.from_numpy(label),
        num_classes=len(class_names) if class_names else int(label.max()) + 1,
        node_ids=torch.arange(len(ids)),
        link_ids=torch.arange(ends.shape[1]),
        masks=masks,
        node_attributes=sides,
        class_names=class_names,
        undirected=undirected,
        name=path.resolve().name,
    )
    named = np.asarray(ids.to_pylist(), dtype=object)
    told = {name: tuple(named[end.numpy()].tolist()) for name, end in zip(EDGE_COLUMNS, ends, strict=True)}
    return OwnData(data, told, tuple(named.tolist()))


def _labels(links: Table, class_names: tuple[str, ...], problems: Problems) -> tuple[Integers, tuple[str, ...]]:
    if "label" in links.columns or len(class_names) > 1:
        return columns.labels(links, class_names, problems)
    return np.zeros(links.num_rows, dtype=np.int64), class_names


def _sides(nodes: Table, problems: Problems) -> dict[str, Tensor]:
    column = text(nodes, "side", problems) if "side" in nodes.columns else None
    if column is None:
        return {}
    values = column.to_pylist()
    problems.add_rows(
        nodes.file,
        (row for row, value in enumerate(values) if value not in SIDES),
        lambda row: f"side is {values[row]!r}; user (or 0) and item (or 1) are known",
    )
    return {"side": torch.tensor([SIDES.get(value, -1) for value in values])}


def write_link_folder(data: LinkGraph, path: str | Path, format: str = "parquet") -> None:
    """Write a graph of links as a folder that `read_link_folder` reads; all of it or nothing.

    Ids are `data.node_ids`. Sparse features go to features.npz, dense ones into columns; where there are none, the
    folder is read with one constant feature. Of the attributes, only the nodes' `side` is written.
    """
    import pyarrow as pa

    ids = data.node_ids.numpy()
    nodes = {"id": pa.array(ids), **feature_columns(data.x)}
    if "side" in data.node_attributes:
        nodes["side"] = pa.array(data.node_attributes["side"].numpy())
    links = {name: pa.array(ids[end.numpy()]) for name, end in zip(EDGE_COLUMNS, data.links, strict=True)}
    links |= {"label": label_column(data.label, data.class_names), **split_column(data.masks, data.item)}
    tables = {"nodes": pa.table(nodes), "links": pa.table(links)}
    write_folder(path, tables, features_archive(data.x), format=format)
