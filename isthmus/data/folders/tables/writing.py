"""Folders of tables, written as a whole or not at all, and the columns that they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.core.errors import BadInput
from isthmus.core.outside import new_folder
from isthmus.data.folders.schema.schema import SCHEMA_FILE, Schema, to_yaml
from isthmus.data.folders.tables.columns import CONSTANT, FEATURES_FILE
from isthmus.data.folders.tables.reading import FORMATS
from isthmus.data.on_demand import csv, pa, parquet, sparse, torch

# More numbers than this are written as they are: to compress them takes longer than all the rest.
MOST_COMPRESSED = 2_000_000


def write_folder(
    path: str | Path,
    tables: Mapping[str, Any],
    features: Any = None,
    schema: Schema | None = None,
    format: str = "parquet",
    feature_names: Sequence[str] = (),
) -> None:
    """Write a folder of Arrow tables, given by the stems of their files; all of it or nothing.

    `features` is a scipy matrix or a numpy array that goes into features.npz, or None if the table of nodes has them;
    `feature_names` go there beside it.
    """
    path = Path(path)
    check_new_folder(path, format)
    try:
        with new_folder(path) as temporary:
            for stem, table in tables.items():
                _write_table(table, temporary / f"{stem}.{format}")
            if features is not None:
                _write_features(features, temporary / FEATURES_FILE, feature_names)
            if schema is not None:
                (temporary / SCHEMA_FILE).write_text(to_yaml(schema), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be written: {error}") from error


def check_new_folder(path: Path, format: str = "parquet") -> None:
    """Refuse a format that is not known and a place where something is already."""
    if format not in FORMATS:
        raise BadInput(f"format is {format!r}; known: {', '.join(sorted(FORMATS))}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput(f"{str(path)!r} is there already and not an empty folder; give another path")


def label_column(labels: torch.Tensor, class_names: Sequence[str]) -> Any:
    """Return classes as a column of names, or of numbers where they have no names; nothing where there is none."""
    if class_names:
        return pa.array([class_names[c] if c >= 0 else None for c in labels.tolist()], pa.string())
    return pa.array(labels.numpy(), mask=(labels < 0).numpy())


def split_column(masks: Mapping[str, torch.Tensor], item: str) -> dict[str, Any]:
    """Return masks as a column `split`, or no column without masks; an item may be in one of them only."""
    if not masks:
        return {}
    stacked = np.stack([mask.numpy() for mask in masks.values()])  # (splits, items)
    if stacked.size and int(stacked.sum(axis=0).max()) > 1:
        raise BadInput(f"a {item} is in more than one of the masks; a folder has one split for each {item}")
    split = np.full(stacked.shape[1], "", dtype=object)
    for name, mask in zip(masks, stacked, strict=True):
        split[mask] = name
    return {"split": pa.array(split, pa.string())}


def feature_columns(x: torch.Tensor, letter: str = "x", names: Sequence[str] = ()) -> dict[str, Any]:
    """Return dense features as columns, of the names given or x0, x1, ...; sparse ones go into `features_archive`."""
    if x.is_sparse_csr:
        return {}
    if len(names) != x.shape[1]:
        names = [f"{letter}{number}" for number in range(x.shape[1])]
    if tuple(names) == (CONSTANT,):
        return {}  # a folder without features is read so
    return {name: pa.array(column) for name, column in zip(names, x.t().numpy(), strict=True)}


def features_archive(x: torch.Tensor) -> Any:
    """Return sparse features as a scipy matrix for features.npz; None for dense ones, which are columns."""
    from isthmus.data.features import scipy_rows

    return scipy_rows(x) if x.is_sparse_csr else None


def _write_table(table: Any, path: Path) -> None:
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)


def _write_features(features: Any, path: Path, names: Sequence[str] = ()) -> None:
    named: dict[str, Any] = {"names": np.asarray(names, dtype=np.str_)} if len(names) == features.shape[1] else {}
    is_sparse = not isinstance(features, np.ndarray)
    compressed = (features.nnz if is_sparse else features.size) <= MOST_COMPRESSED
    if is_sparse and not named:
        sparse.save_npz(path, features, compressed)
        return
    parts: dict[str, Any] = {"x": features}
    if is_sparse:  # as save_npz has it, with the names beside it
        parts = {"indices": features.indices, "indptr": features.indptr, "data": features.data}
        parts |= {"format": np.array(b"csr"), "shape": np.array(features.shape)}
    (np.savez_compressed if compressed else np.savez)(path, **parts, **named)
