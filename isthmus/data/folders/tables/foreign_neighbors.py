"""Edges to nodes that others hold: the optional table of neighbours in a graph folder.

neighbors.parquet or neighbors.csv    id (a node of the folder), neighbor (the id of one elsewhere); weight if wanted

Nothing is known of such a neighbour but its id, so it is no node of the graph. Methods that mix what several silos say
of their nodes (GFL-APPNP) match the ids by keys that the silos make with a secret (`isthmus.sites.silo.identities`).
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.data.folders.tables import columns
from isthmus.data.folders.tables.reading import Problems, find_table, read_table, text
from isthmus.data.graph import Graph

STEM = "neighbors"
COLUMNS = ("id", "neighbor")


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
    table = read_table(folder, STEM, COLUMNS, problems)
    if table is None:
        return None
    node = columns.node_places(table, "id", ids, nodes_file, problems)
    column = text(table, "neighbor", problems)
    if node is None or column is None:
        return None
    named: list[str] = column.to_pylist()
    composed = list(map(_composed, named))
    own = set(map(_composed, ids.to_pylist())) - {""}
    problems.add_rows(table.file, (row for row, name in enumerate(named) if not name), lambda row: "neighbor is empty")
    problems.add_rows(
        table.file,
        (row for row, name in enumerate(composed) if name in own),
        lambda row: f"neighbor {named[row]!r} is an id of {nodes_file}; an edge between own nodes goes into edges",
    )
    _, other = np.unique(np.array(composed, dtype=object).astype(str), return_inverse=True)
    ends = torch.stack([node, torch.from_numpy(other.reshape(-1).astype(np.int64))])
    weight = columns.edge_weights(table, ends, False, problems)
    return ForeignNeighbors(node, tuple(named), weight)


def neighbors_table(graph: Graph) -> Any:
    """Return the table of neighbours of a part that lists them (splitter `node_hosts`); None where there are none."""
    import pyarrow as pa

    listed = graph.attributes.get("neighbors")
    if listed is None:
        return None
    foreign = (listed >= 0) & ~torch.isin(listed, graph.node_ids)
    if not bool(foreign.any()):
        return None
    found = {"id": graph.node_ids[:, None].expand_as(listed)[foreign].numpy(), "neighbor": listed[foreign].numpy()}
    weights = graph.attributes.get("neighbor_weights")
    return pa.table(found if weights is None else found | {"weight": weights[foreign].numpy()})


def _composed(id: str) -> str:
    """Return an id in the Unicode spelling in which ids of silos are compared."""
    return unicodedata.normalize("NFC", id)
