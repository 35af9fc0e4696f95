"""Raw files of datasets: found below the data root, compared with their digests, read into arrays."""

from __future__ import annotations

import gzip
import hashlib
import json
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from torch import Tensor

from isthmus.core.errors import BadInput, MissingData
from isthmus.core.outside import DATA_VARIABLE
from isthmus.data.dataset import Dataset
from isthmus.data.features import from_scipy
from isthmus.data.graph import Graph
from isthmus.data.on_demand import sparse


@cache
def digests() -> dict[str, str]:
    """Return the digest of each known raw file by its path below the data root, as in `amazon/Photo/raw/x.npz`.

    The table is `files/SHA256SUMS`, in the format of `sha256sum`. A file that is not in it is not checked.
    """
    table = (files("isthmus.data.zoo") / "files" / "SHA256SUMS").read_text(encoding="ascii")
    lines = (line.split(maxsplit=1) for line in table.splitlines() if line)
    return {name: sha256 for sha256, name in lines}


def sha256_of(path: Path) -> str:
    """Return the digest of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified(root: Path, name: str) -> Path:
    """Return the file `name` below `root`, compared with its digest when that is known."""
    path = root / name
    sha256 = digests().get(name)
    if sha256 is not None and sha256_of(path) != sha256:
        raise damaged(path, sha256)
    return path


def damaged(path: Path, sha256: str | None, reason: str = "") -> BadInput:
    """Return the error for a file that is not what it should be: what was found, what was expected, what to do."""
    expected = "" if sha256 is None else f", expected {sha256}"
    return BadInput(
        f"the file {path} is damaged or another edition: found {path.stat().st_size:,} bytes with SHA-256 "
        f"{sha256_of(path)}{expected}{'; ' + reason if reason else ''}. Delete it and fetch it again"
    )


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
class RawDataset(Dataset):
    """A dataset in raw files below the data root, which `needs` names.

    name:      what errors call it: as its class, unless it says otherwise
    published: where its files are to be had, with {name} for its name
    """

    name: ClassVar[str]
    published: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__dict__.get("name", cls.__name__)

    def required(self, root: Path) -> list[Path]:
        """Return its files; raise `MissingData` when one is absent."""
        return require(self.name, root, self.needs, self.published.format(name=self.name))

    def verified(self, root: Path) -> list[Path]:
        """Return its files, compared with the digests that are known."""
        self.required(root)
        return [verified(root, file) for file in self.needs]


def check_edition(graph: Graph, counts: tuple[int, ...], paths: Sequence[Path], root: Path, told: str) -> None:
    """Raise for a file without its known digest, unless it makes up the known graph all the same.

    `counts` are the known graph's nodes, undirected edges, features and classes; `told` says in errors how many there
    are instead.
    """
    found = (graph.num_nodes, graph.num_edges // 2, graph.num_features, graph.num_classes)
    for path in paths:
        sha256 = known_digest(path, root)
        if sha256 is not None and found != counts and sha256_of(path) != sha256:
            reason = f"(nodes, edges, features, classes) {told.format(found)}, {counts} in {graph.name}"
            raise damaged(path, sha256, reason)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a place to write to; others, threads among them, see the file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
    if len(rows) and (int(rows.min()) < 0 or int(columns.min()) < 0 or int(columns.max()) >= shape[1]):
        raise ValueError(f"columns go from {int(columns.min())} to {int(columns.max())}, but there are {shape[1]}")
    if len(rows) and int(rows.max()) >= shape[0]:
        raise ValueError(f"rows go up to {int(rows.max())}, but there are {shape[0]}")
    entries = np.ones(len(rows)) if values is None else values.astype(np.float64)
    added_up = sparse.coo_matrix((entries, (rows, columns)), shape).tocsr()
    if values is None:
        added_up.data[:] = 1.0
    return from_scipy(added_up.astype(np.float32))


def rows_of(indptr: np.ndarray) -> np.ndarray:
    """Return the row of each entry of a CSR matrix."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def links_among(named: Mapping[str, Sequence[str]]) -> npt.NDArray[np.int64]:
    """Return (2, links): who names whom, by their places, among those that are given with the names they list."""
    place = {name: number for number, name in enumerate(named)}
    lengths = np.array([len(others) for others in named.values()], dtype=np.int64)
    others = map(place.get, chain.from_iterable(named.values()), repeat(-1))
    target = np.fromiter(others, dtype=np.int64, count=int(lengths.sum()))
    source = np.repeat(np.arange(len(lengths)), lengths)
    return np.stack([source, target])[:, target >= 0]


def read_numbers(
    path: Path, dtype: npt.DTypeLike, delimiter: str | None = ",", columns: int | None = None, skip: int = 0
) -> npt.NDArray[Any]:
    """Return the numbers of a text file, (lines, columns); `delimiter` None is white space."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            table = np.loadtxt(path, dtype=dtype, delimiter=delimiter, comments=None, skiprows=skip, ndmin=2)
    except (ValueError, OverflowError) as error:  # numpy names the row
        raise BadInput(f"the file {path} cannot be read ({error}); fetch it again") from error
    if table.size and columns is not None and table.shape[1] != columns:
        raise BadInput(f"the file {path} has {table.shape[1]} columns; {columns} are expected")
    odd = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(odd):
        raise BadInput(f"the file {path} has a number that is not finite in line {odd[0] + skip + 1}")
    return table if table.size else np.empty((0, columns or 1), dtype=dtype)


def read_pairs(path: Path, delimiter: str | None = None, skip: int = 0) -> npt.NDArray[np.int64]:
    """Return the pairs of whole numbers in a text file, (lines, 2); `delimiter` None is white space."""
    try:
        return np.loadtxt(path, dtype=np.int64, delimiter=delimiter, skiprows=skip, ndmin=2).reshape(-1, 2)
    except ValueError as error:
        raise damaged(path, None, f"a line is not two whole numbers ({error})") from error


def check_range(path: Path, numbers: npt.NDArray[Any], low: int, high: int, what: str) -> None:
    """Raise `BadInput` unless all `numbers` lie in low..high."""
    outside = (numbers < low) | (numbers > high)
    if outside.any():
        raise BadInput(
            f"the file {path} names {what} {int(numbers[outside][0])}; {low} to {high} are known. Files of two "
            "editions may be mixed: fetch all of them again"
        )


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file; a JSON array with one object to a line is read as well.

    A file that ends amid an object, or amid its compressed data, is named with the line.
    """
    number = 0  # told by the errors below
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                number += 1
                text = line.strip().strip(b",")
                if text in (b"", b"[", b"]"):
                    continue
                entry = json.loads(text)
                if not isinstance(entry, dict):
                    raise ValueError(f"it is a {type(entry).__name__}")
                yield entry
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(
            f"the file {path} is damaged after line {number} ({error}): found {path.stat().st_size:,} bytes. Delete it "
            "and fetch it again"
        ) from error
    except ValueError as error:
        raise BadInput(
            f"{path}, line {number}: not a JSON object ({error}); the file should have one on each line. If it was cut "
            "short, delete it and fetch it again"
        ) from error
