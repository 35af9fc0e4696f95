"""Text files of numbers, read fast and checked: columns, ranges, and as many lines as the file beside."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.core.errors import BadInput


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
    if not np.isfinite(table).all():
        raise BadInput(f"the file {path} has a number that is not finite in line {_first_bad(table) + skip + 1}")
    return table if table.size else np.empty((0, columns or 1), dtype=dtype)


def check_range(path: Path, numbers: npt.NDArray[Any], low: int, high: int, what: str) -> None:
    """Raise `BadInput` unless all `numbers` lie in low..high."""
    outside = (numbers < low) | (numbers > high)
    if outside.any():
        raise BadInput(
            f"the file {path} names {what} {int(numbers[outside][0])}; {low} to {high} are known. Files of two "
            "editions may be mixed: fetch all of them again"
        )


def check_lengths(folder: Path, lengths: Sequence[tuple[str, int]]) -> None:
    """Raise `BadInput` unless all files, given with their numbers of lines, have as many as the first."""
    (first, expected), *others = lengths
    for name, length in others:
        if length != expected:
            raise BadInput(
                f"in {folder}, {name} has {length} lines and {first} has {expected}; they should have as many. One of "
                "them is cut short: fetch both again"
            )


def _first_bad(table: npt.NDArray[Any]) -> int:
    return int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
