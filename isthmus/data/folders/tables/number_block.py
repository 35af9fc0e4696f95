"""Columns of numbers side by side in one matrix, so that thousands of them take no more than their numbers do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.data.on_demand import compute, pa, sparse

Matrix = npt.NDArray[np.float32]

# So many columns are turned into rows in one go, so many rows of them at a time: what a processor's cache holds.
COLUMNS_AT_ONCE = 64
ROWS_AT_ONCE = 512
# So many numbers of a matrix are looked at in one go; what is found of them stays in the cache too.
NUMBERS_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class BlockColumn:
    """A column of a table whose numbers are a column of a matrix.

    Fields:
        matrix:     (rows, columns), float32, NaN where a number is missing
        place:      which of the columns
        null_count: how many numbers are missing
    """

    matrix: Matrix
    place: int
    null_count: int = 0

    @property
    def type(self) -> Any:
        """The Arrow type of its numbers."""
        return pa.float32()

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, row: int) -> Any:
        return self.to_arrow()[row]

    def to_pylist(self) -> list[float]:
        """Return the numbers as Python has them."""
        numbers: list[float] = self.matrix[:, self.place].tolist()
        return numbers

    def to_arrow(self) -> Any:
        """Return the column by itself, as Arrow has it."""
        return pa.chunked_array([pa.array(self.matrix[:, self.place])])


def read_only_numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return an Arrow column of numbers as float64, NaN where missing; it may be the column's own memory."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    column = column if pa.types.is_float64(column.type) else column.cast(pa.float64(), safe=False)
    whole = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    values: npt.NDArray[np.float64] = whole.astype(np.float64, copy=False)
    return values


class BlockWriter:
    """Fills a matrix from columns in double precision, rounding them to single; -0 becomes a plain 0."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self._matrix: Matrix = np.empty((num_rows, num_columns), dtype=np.float32)
        self._num_null = np.zeros(num_columns, dtype=np.int64)
        # Columns on their way into rows; kept, for fresh memory costs more time than the numbers in it.
        self._across = np.empty((0, 0), dtype=np.float32)

    def write(self, columns: Sequence[Any], row: int = 0, place: int = 0) -> None:
        """Write Arrow columns of one length next to each other; the first number goes to `row` and `place`."""
        for start in range(0, len(columns), COLUMNS_AT_ONCE):
            some = columns[start : start + COLUMNS_AT_ONCE]
            first = place + start
            self._num_null[first : first + len(some)] += [column.null_count for column in some]
            rows = self.rows(row, len(some[0]))
            self._write_some(some, rows[:, first : first + len(some)])

    def rows(self, row: int, number: int) -> Matrix:
        """Return where so many rows go of which the first is `row`; who writes there counts what is missing."""
        lacking = row + number - len(self._matrix)
        if lacking > 0:  # lines that end in a carriage return alone are not counted beforehand
            more = np.empty((max(lacking, row), self._matrix.shape[1]), dtype=np.float32)
            self._matrix = np.concatenate([self._matrix, more])
        return self._matrix[row : row + number]

    def count_null(self, num_null: npt.NDArray[np.int64]) -> None:
        """Count so many missing numbers in each column."""
        self._num_null += num_null

    def columns(self, num_rows: int) -> list[BlockColumn]:
        """Return the columns of the first rows, which must have been written."""
        matrix = self._matrix[:num_rows]
        return [BlockColumn(matrix, place, number) for place, number in enumerate(self._num_null.tolist())]

    def _write_some(self, columns: Sequence[Any], into: Matrix) -> None:
        if self._across.shape[1] < len(into):
            self._across = np.empty((COLUMNS_AT_ONCE, len(into)), dtype=np.float32)
        across = self._across[: len(columns), : len(into)]
        with np.errstate(over="ignore"):
            for line, column in zip(across, columns, strict=True):
                line[:] = read_only_numbers(column)
        for start in range(0, len(into), ROWS_AT_ONCE):
            np.add(across[:, start : start + ROWS_AT_ONCE].T, 0, out=into[start : start + ROWS_AT_ONCE])


def single_lists(columns: Iterable[Any], num_values: int) -> Any:
    """Return Arrow columns of lists of numbers as one, in single precision, NaN where a number is missing.

    `num_values` is how many numbers there are at most. All of them go one after the other into one piece of memory.
    """
    values = np.empty(num_values, dtype=np.float32)
    ends = [np.zeros(1, dtype=np.int64)]
    missing = [np.zeros(0, dtype=np.bool_)]
    for column in columns:
        flat = column.flatten()
        start = ends[-1][-1]
        with np.errstate(over="ignore"):
            values[start : start + len(flat)] = read_only_numbers(flat)
        lengths = compute.fill_null(compute.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        ends.append(start + np.cumsum(lengths, dtype=np.int64))
        missing.append(column.is_null().to_numpy(zero_copy_only=False))
    found = pa.ListArray if ends[-1][-1] < 1 << 31 else pa.LargeListArray
    offsets = np.concatenate(ends).astype(np.int32 if found is pa.ListArray else np.int64)
    is_null = pa.array(np.concatenate(missing))
    return pa.chunked_array([found.from_arrays(pa.array(offsets), pa.array(values[: offsets[-1]]), mask=is_null)])


def pieces(matrix: Matrix) -> Iterator[Matrix]:
    """Yield a matrix some rows at a time."""
    step = max(1, NUMBERS_AT_ONCE // max(matrix.shape[1], 1))
    return (matrix[start : start + step] for start in range(0, len(matrix), step))


def num_set(matrix: Matrix) -> int:
    """Return how many numbers are not 0."""
    return sum(int(np.count_nonzero(piece != 0)) for piece in pieces(matrix))


def not_finite(matrix: Matrix) -> list[int]:
    """Return the columns that hold a number that is missing or infinite."""
    finite = np.ones(matrix.shape[1], dtype=np.bool_)
    for piece in pieces(matrix):
        finite &= np.isfinite(piece).all(axis=0)
    return np.flatnonzero(~finite).tolist()


def sparse_rows_of(matrix: Matrix) -> Any:
    """Return a matrix as a scipy CSR matrix of the numbers that are not 0."""
    values, places, counts = [matrix[:0, 0]], [np.zeros(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
    for piece in pieces(matrix):
        is_set = piece != 0
        places.append((np.flatnonzero(is_set) % matrix.shape[1]).astype(np.int32))
        values.append(piece[is_set])
        counts.append(np.count_nonzero(is_set, axis=1))
    start = np.cumsum(np.concatenate(counts))
    parts = (
        np.concatenate(values),
        np.concatenate(places),
        start.astype(np.int32 if start[-1] < 1 << 31 else np.int64),
    )
    return sparse.csr_matrix(parts, shape=matrix.shape)
