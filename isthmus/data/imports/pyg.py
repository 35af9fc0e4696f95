"""A graph from a file with a `torch_geometric.data.Data`, or a dict of its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.data.conventions import SPLITS
from isthmus.data.folders.tables.columns import EDGE_COLUMNS
from isthmus.data.folders.tables.reading import Problems, RawGraph, Table
from isthmus.data.on_demand import pa

# What files of torch.save begin with: an archive since 1.6, a pickle of protocol 2 before.
ZIP_START, PICKLE_START = b"PK\x03\x04", b"\x80\x02"
TAKEN = frozenset(
    {"x", "y", "edge_index", "edge_weight", "edge_attr", "node_id", "num_nodes", *(f"{s}_mask" for s in SPLITS)}
)
Note = Callable[[str], None]
SAFE = "save plain tensors instead: torch.save(data.to_dict(), 'graph.pt')"


def read_pyg(path: Path, problems: Problems) -> RawGraph | None:
    """Return the graph in a file, or None after noting why it cannot be read.

    Taken are x, y, edge_index, edge_weight (or edge_attr, if it is one number an edge) and the masks; a node's id is
    its number, or its entry in a list `node_id`. Only tensors, plain values and torch_geometric's own containers are
    loaded: code in the file is never run.
    """
    found = _load(path, problems)
    if found is None:
        return None
    before = problems.num_found
    note = partial(problems.add, str(path))
    edge_index = _matrix(found, "edge_index", "(2, edges)", note)
    x = _matrix(found, "x", "(nodes, features)", note)
    if x is None or edge_index is None:
        return None
    nodes = _nodes(found, x, note)
    edges = _edges(found, edge_index, note)
    if problems.num_found > before:
        return None
    others = sorted(str(key) for key in found if key not in TAKEN)
    notes = (f"left out: {', '.join(others)}",) if others else ()
    return RawGraph(
        Table(f"{path.name} nodes", nodes, x.shape[0], problems),
        Table(f"{path.name} edges", edges, edge_index.shape[1], problems),
        notes,
    )


# What torch raises for a file that needs more than `weights_only` allows: the error of a module we do not import.
_REFUSED: type[Exception] = torch._weights_only_unpickler.UnpicklingError  # type: ignore[attr-defined]


def _load(path: Path, problems: Problems) -> Mapping[str, Any] | None:
    from torch_geometric.data import Data

    found, wrong = _saved(path)
    if isinstance(found, tuple) and found and (len(found) == 1 or found[1] is None):
        found = found[0]  # a dataset in one file, with a single graph
    if isinstance(found, Data):
        found = found.to_dict()
    if not wrong and not isinstance(found, dict):
        wrong = f"holds a {type(found).__name__}; a Data with one graph is needed, or its to_dict()"
    if wrong:
        problems.add(str(path), wrong)
    return None if wrong else found


def _saved(path: Path) -> tuple[Any, str]:
    """Return what torch.save has written into a file, and what is wrong if that cannot be told."""
    # The containers of a Data that torch.load does not know as harmless by itself; none runs code when it is loaded.
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with path.open("rb") as content:
            start = content.read(len(ZIP_START))
        if start.startswith((ZIP_START, PICKLE_START)):
            with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
                return torch.load(path, map_location="cpu", weights_only=True), ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror or error}"
    except _REFUSED as error:
        needs = re.search(r"GLOBAL (\S+)", str(error))
        if needs:
            return None, f"is not loaded: it needs {needs[1]}, which could run code; {SAFE}"
        return None, f"is no file of torch.save, or a damaged one; {SAFE}"
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, AssertionError) as error:
        return None, f"is no file of torch.save: {' '.join(str(error).split())[:200]}"
    what = "is empty" if not start else f"begins with {start!r}, which torch.save writes in no version"
    return None, f"is no file of torch.save: it {what}; {SAFE}"


def _matrix(found: Mapping[str, Any], key: str, shape: str, note: Note) -> Tensor | None:
    value = found.get(key)
    if isinstance(value, Tensor) and value.ndim == 2 and (key == "x" or value.shape[0] == 2):
        return value
    note(f"{key} is {_shape(value)}; a tensor of shape {shape} is needed")
    return None


def _nodes(found: Mapping[str, Any], x: Tensor, note: Note) -> dict[str, Any]:
    num_nodes, size = x.shape
    names = _names(found)
    ids = [str(number) for number in range(num_nodes)] if names is None else names
    if len(ids) != num_nodes:
        note(f"node_id has {len(ids)} entries for {num_nodes} nodes")
        return {}
    columns = {"id": pa.array(ids)}
    label = _label(found, num_nodes, note)
    if label is not None:
        columns["label"] = pa.array(label.long().numpy())
    split = _split(found, num_nodes, note)
    if split is not None:
        columns["split"] = pa.array(split, pa.string())
    values = pa.array(np.ascontiguousarray((x.to_dense() if x.layout != torch.strided else x).double().numpy()).ravel())
    columns["x"] = pa.FixedSizeListArray.from_arrays(values, size)
    return {name: pa.chunked_array([column]) for name, column in columns.items()}


def _names(found: Mapping[str, Any]) -> list[str] | None:
    ids = found.get("node_id")
    if ids is None:
        return None
    return [str(name) for name in (ids.tolist() if isinstance(ids, Tensor) else list(ids))]


def _label(found: Mapping[str, Any], num_nodes: int, note: Note) -> Tensor | None:
    y = found.get("y")
    if y is None:
        return None
    label = y.squeeze(1) if isinstance(y, Tensor) and y.ndim == 2 and y.shape[1] == 1 else y
    if isinstance(label, Tensor) and label.shape == (num_nodes,) and not label.is_floating_point():
        return label
    note(f"y is {_shape(y)}; one whole number for each of {num_nodes} nodes is needed")
    return None


def _split(found: Mapping[str, Any], num_nodes: int, note: Note) -> Any:
    masks = {split: found[f"{split}_mask"] for split in SPLITS if found.get(f"{split}_mask") is not None}
    split = np.full(num_nodes, "", dtype=object)
    taken = np.zeros(num_nodes, dtype=np.int64)
    for name, mask in masks.items():
        if not isinstance(mask, Tensor) or mask.shape != (num_nodes,):
            more = isinstance(mask, Tensor) and mask.ndim == 2
            remedy = f"; choose one of its columns: data.{name}_mask = data.{name}_mask[:, 0]" if more else ""
            note(f"{name}_mask is {_shape(mask)}; one value for each of {num_nodes} nodes{remedy}")
            continue
        chosen = mask.bool().numpy()
        split[chosen] = name
        taken += chosen
    twice = np.flatnonzero(taken > 1)
    if len(twice):
        note(f"{len(twice)} nodes are in more than one mask, the first is node {twice[0]}")
    return split if masks else None


def _edges(found: Mapping[str, Any], edge_index: Tensor, note: Note) -> dict[str, Any]:
    names = _names(found)
    ends = edge_index.long().numpy().tolist()
    if names is None:
        spelled = [list(map(str, row)) for row in ends]
    else:
        spelled = [[names[i] if 0 <= i < len(names) else f"node {i}" for i in row] for row in ends]
    columns = {name: pa.array(row, pa.string()) for name, row in zip(EDGE_COLUMNS, spelled, strict=True)}
    weight = _weight(found, edge_index.shape[1], note)
    if weight is not None:
        columns["weight"] = pa.array(weight.double().numpy())
    return {name: pa.chunked_array([column]) for name, column in columns.items()}


def _weight(found: Mapping[str, Any], num_edges: int, note: Note) -> Tensor | None:
    weight, attr = found.get("edge_weight"), found.get("edge_attr")
    if weight is None and isinstance(attr, Tensor) and attr.numel() == num_edges and num_edges:
        return attr.reshape(-1)
    if weight is None or (isinstance(weight, Tensor) and weight.shape == (num_edges,)):
        return weight
    note(f"edge_weight is {_shape(weight)}; one number for each of {num_edges} edges is needed")
    return None


def _shape(value: Any) -> str:
    if value is None:
        return "missing"
    kind = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
    return f"{kind} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {kind}"
