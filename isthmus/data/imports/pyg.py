"""A graph from a file with a `torch_geometric.data.Data`, or a dict of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.data.conventions import SPLITS
from isthmus.data.folders.tables.reading import Problems, RawGraph, Table

# What files of torch.save begin with: an archive since 1.6, a pickle of protocol 2 before.
ZIP_START, PICKLE_START = b"PK\x03\x04", b"\x80\x02"
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
    edge_index = found.get("edge_index")
    if not isinstance(edge_index, Tensor) or edge_index.ndim != 2 or edge_index.shape[0] != 2:
        problems.add(str(path), f"edge_index is {_shape(edge_index)}; a tensor of shape (2, edges) is needed")
    x = found.get("x")
    if not isinstance(x, Tensor) or x.ndim != 2:
        problems.add(str(path), f"x is {_shape(x)}; a tensor of shape (nodes, features) is needed")
    if not isinstance(x, Tensor) or not isinstance(edge_index, Tensor) or problems.num_found > before:
        return None
    nodes = _nodes(found, x, str(path), problems)
    edges = _edges(found, edge_index, str(path), problems)
    if problems.num_found > before:
        return None
    known = {"x", "y", "edge_index", "edge_weight", "edge_attr", "node_id", "num_nodes", *(f"{s}_mask" for s in SPLITS)}
    others = sorted(str(key) for key in found if key not in known)
    notes = (f"left out: {', '.join(others)}",) if others else ()
    return RawGraph(
        Table(f"{path.name} nodes", nodes, x.shape[0]), Table(f"{path.name} edges", edges, edge_index.shape[1]), notes
    )


# What torch raises for a file that needs more than `weights_only` allows: the error of a module we do not import.
_REFUSED: type[Exception] = torch._weights_only_unpickler.UnpicklingError  # type: ignore[attr-defined]


def _load(path: Path, problems: Problems) -> Mapping[str, Any] | None:
    # The containers of a Data that torch.load does not know as harmless by itself; none runs code when it is loaded.
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with path.open("rb") as content:
            start = content.read(len(ZIP_START))
        if not start.startswith((ZIP_START, PICKLE_START)):
            what = "is empty" if not start else f"begins with {start!r}, which torch.save writes in no version"
            problems.add(str(path), f"is no file of torch.save: it {what}; {SAFE}")
            return None
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        problems.add(str(path), f"cannot be read: {error.strerror or error}")
        return None
    except _REFUSED as error:
        needs = re.search(r"GLOBAL (\S+)", str(error))
        if needs:
            problems.add(str(path), f"is not loaded: it needs {needs[1]}, which could run code; {SAFE}")
        else:
            problems.add(str(path), f"is no file of torch.save, or a damaged one; {SAFE}")
        return None
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, AssertionError) as error:
        problems.add(str(path), f"is no file of torch.save: {' '.join(str(error).split())[:200]}")
        return None
    if isinstance(found, tuple) and found and (len(found) == 1 or found[1] is None):
        found = found[0]  # a dataset in one file, with a single graph
    if isinstance(found, Data):
        found = found.to_dict()
    if not isinstance(found, dict):
        problems.add(str(path), f"holds a {type(found).__name__}; a Data with one graph is needed, or its to_dict()")
        return None
    return found


def _nodes(found: Mapping[str, Any], x: Tensor, where: str, problems: Problems) -> dict[str, Any]:
    import pyarrow as pa

    num_nodes, size = x.shape
    ids = found.get("node_id")
    ids = list(range(num_nodes)) if ids is None else ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if len(ids) != num_nodes:
        problems.add(where, f"node_id has {len(ids)} entries for {num_nodes} nodes")
        return {}
    columns = {"id": pa.chunked_array([pa.array([str(name) for name in ids])])}
    y = found.get("y")
    if y is not None:
        label = y.squeeze(1) if isinstance(y, Tensor) and y.ndim == 2 and y.shape[1] == 1 else y
        if not isinstance(label, Tensor) or label.shape != (num_nodes,) or label.is_floating_point():
            problems.add(where, f"y is {_shape(y)}; one whole number for each of {num_nodes} nodes is needed")
        else:
            columns["label"] = pa.chunked_array([pa.array(label.long().numpy())])
    split = _split(found, num_nodes, where, problems)
    if split is not None:
        columns["split"] = pa.chunked_array([pa.array(split, pa.string())])
    values = pa.array(np.ascontiguousarray((x.to_dense() if x.layout != torch.strided else x).double().numpy()).ravel())
    columns["x"] = pa.chunked_array([pa.FixedSizeListArray.from_arrays(values, size)])
    return columns


def _split(found: Mapping[str, Any], num_nodes: int, where: str, problems: Problems) -> Any:
    masks = {split: found[f"{split}_mask"] for split in SPLITS if found.get(f"{split}_mask") is not None}
    split = np.full(num_nodes, "", dtype=object)
    taken = np.zeros(num_nodes, dtype=np.int64)
    for name, mask in masks.items():
        if not isinstance(mask, Tensor) or mask.shape != (num_nodes,):
            more = isinstance(mask, Tensor) and mask.ndim == 2
            remedy = f"; choose one of its columns: data.{name}_mask = data.{name}_mask[:, 0]" if more else ""
            problems.add(where, f"{name}_mask is {_shape(mask)}; one value for each of {num_nodes} nodes{remedy}")
            continue
        chosen = mask.bool().numpy()
        split[chosen] = name
        taken += chosen
    twice = np.flatnonzero(taken > 1)
    if len(twice):
        problems.add(where, f"{len(twice)} nodes are in more than one mask, the first is node {twice[0]}")
    return split if masks else None


def _edges(found: Mapping[str, Any], edge_index: Tensor, where: str, problems: Problems) -> dict[str, Any]:
    import pyarrow as pa

    num_edges = edge_index.shape[1]
    ids = found.get("node_id")
    ends = edge_index.long().numpy()
    if ids is not None:
        names = [str(name) for name in (ids.tolist() if isinstance(ids, Tensor) else list(ids))]
        spelled = [[names[i] if 0 <= i < len(names) else f"node {i}" for i in row] for row in ends.tolist()]
    else:
        spelled = [[str(i) for i in row] for row in ends.tolist()]
    columns = {name: pa.chunked_array([pa.array(row, pa.string())]) for name, row in zip(_ENDS, spelled, strict=True)}
    weight = found.get("edge_weight")
    attr = found.get("edge_attr")
    if weight is None and isinstance(attr, Tensor) and attr.numel() == num_edges and num_edges:
        weight = attr.reshape(-1)
    if weight is not None:
        if not isinstance(weight, Tensor) or weight.shape != (num_edges,):
            problems.add(where, f"edge_weight is {_shape(weight)}; one number for each of {num_edges} edges is needed")
        else:
            columns["weight"] = pa.chunked_array([pa.array(weight.double().numpy())])
    return columns


_ENDS = ("source", "target")


def _shape(value: Any) -> str:
    if value is None:
        return "missing"
    kind = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
    return f"{kind} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {kind}"
