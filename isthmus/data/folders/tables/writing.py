"""Folders of tables, written as a whole or not at all, and the columns that they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.core.errors import BadInput
from isthmus.core.outside import new_folder
from isthmus.data.folders.schema.schema import SCHEMA_FILE, Schema, to_yaml
from isthmus.data.folders.tables.columns import CONSTANT, FEATURES_FILE
from isthmus.data.folders.tables.reading import FORMATS
from isthmus.data.on_demand import csv, pa, parquet, torch

if TYPE_CHECKING:
    from isthmus.data.dividing import Holding

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
                write = csv.write_csv if format == "csv" else parquet.write_table
                write(table, temporary / f"{stem}.{format}")
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
    """Return dense features as columns, of the names given or x0, x1, ...; sparse ones go into an archive."""
    if x.is_sparse_csr:
        return {}
    if len(names) != x.shape[1]:
        names = [f"{letter}{number}" for number in range(x.shape[1])]
    if tuple(names) == (CONSTANT,):
        return {}  # a folder without features is read so
    return {name: pa.array(column) for name, column in zip(names, x.t().numpy(), strict=True)}


def write_holding(data: Holding, path: str | Path, tables: Mapping[str, Any], format: str) -> None:
    """Write the folder of some data; sparse features go to features.npz, dense ones are columns of the tables."""
    from isthmus.data.features import scipy_rows

    archive = scipy_rows(data.x) if data.x.is_sparse_csr else None
    write_folder(path, tables, archive, format=format, feature_names=data.feature_names)


def _write_features(features: Any, path: Path, names: Sequence[str]) -> None:
    parts: dict[str, Any] = {"x": features}
    if not isinstance(features, np.ndarray):  # as scipy.sparse.save_npz has it, which takes no names beside it
        parts = {"indices": features.indices, "indptr": features.indptr, "format": np.array(b"csr")}
        parts |= {"shape": np.array(features.shape), "data": features.data}
    if len(names) == features.shape[1]:
        parts["names"] = np.asarray(names, dtype=np.str_)
    compressed = features.size <= MOST_COMPRESSED
    (np.savez_compressed if compressed else np.savez)(path, **parts)
