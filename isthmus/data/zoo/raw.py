"""Raw files of datasets below the data root: found, compared with their digests, read into arrays."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import MissingData
from isthmus.data.features import sparse_rows
from isthmus.data.zoo.digests import damaged, digests, verified
from isthmus.data.zoo.locate import DATA_VARIABLE

# What numpy raises for an archive that is cut off, no archive, without a key, or of pickled objects.
UNREADABLE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)


def require(dataset: str, root: Path, names: Sequence[str], published: str) -> list[Path]:
    """Return the files `names` below `root`; raise `MissingData` with what is expected where when one is absent."""
    absent = [name for name in names if not (root / name).is_file()]
    if absent:
        raise MissingData(
            f"{dataset}: looked in {root} for {', '.join(names)}; not there: {', '.join(absent)}. Published at "
            f"{published}; put the files there, or set --data-root or {DATA_VARIABLE} to a folder that holds them"
        )
    return [root / name for name in names]


@dataclass(frozen=True)
class RawFolder:
    """Files of one dataset, all in one folder.

    Fields:
        dataset:   name of the dataset
        folder:    their folder below the data root
        names:     their names
        published: where they are to be had
    """

    dataset: str
    folder: str
    names: tuple[str, ...]
    published: str

    def present(self, root: Path) -> bool:
        """Return whether all files are there."""
        return all((root / name).is_file() for name in self._paths)

    def verified(self, root: Path) -> Path:
        """Return the folder, its files all there and compared with the digests that are known."""
        require(self.dataset, root, self._paths, self.published)
        for name in self._paths:
            verified(root, name)
        return root / self.folder

    @property
    def _paths(self) -> list[str]:
        return [f"{self.folder}/{name}" for name in self.names]


def read_arrays(path: Path, keys: Sequence[str], sha256: str | None = None) -> dict[str, np.ndarray]:
    """Return arrays of an npz archive, none of them pickled; a file that is no such archive is named."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in keys}
    except UNREADABLE as error:
        raise damaged(path, sha256, f"it is no npz archive with {', '.join(keys)} ({error})") from error


def known_digest(path: Path, root: Path) -> str | None:
    """Return the digest that the table has for a file below `root`, or None."""
    return digests().get(path.relative_to(root).as_posix())


def matrix(rows: np.ndarray, columns: np.ndarray, values: np.ndarray | None, shape: tuple[int, int]) -> Tensor:
    """Return a CSR matrix from coordinates in any order, float32.

    Entries of one place are added up; without `values` the place is 1, however often it is named.
    """
    key = rows.astype(np.int64) * shape[1] + columns
    if len(key) and (int(rows.min()) < 0 or int(columns.min()) < 0 or int(columns.max()) >= shape[1]):
        raise ValueError(f"columns go from {int(columns.min())} to {int(columns.max())}, but there are {shape[1]}")
    if len(key) and int(rows.max()) >= shape[0]:
        raise ValueError(f"rows go up to {int(rows.max())}, but there are {shape[0]}")
    if values is None:
        places = np.unique(key)
        entries = np.ones(len(places), dtype=np.float32)
    elif bool((key[1:] > key[:-1]).all()):
        places, entries = key, values.astype(np.float32)
    else:
        places, entry_of = np.unique(key, return_inverse=True)
        entries = np.bincount(entry_of, values, len(places)).astype(np.float32)
    start = np.searchsorted(places, np.arange(shape[0] + 1, dtype=np.int64) * shape[1])
    columns = places % max(shape[1], 1)
    return sparse_rows(torch.from_numpy(start), torch.from_numpy(columns), torch.from_numpy(entries), shape)


def rows_of(indptr: np.ndarray) -> np.ndarray:
    """Return the row of each entry of a CSR matrix."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
