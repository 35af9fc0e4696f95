"""Tables in Parquet or CSV, read so that everything wrong with them can be told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from isthmus.core.errors import BadInput
from isthmus.data.folders.tables.number_block import BlockColumn, read_only_numbers
from isthmus.data.on_demand import compute, csv, pa, parquet

# Rows told for each kind of problem; more would hide the other kinds.
ROWS_SHOWN = 5
Rows = Iterable[int] | npt.NDArray[np.bool_]
FORMATS = ("parquet", "csv")
# What stands for a number that is not there, in small letters.
NO_NUMBER = ("", "na", "n/a", "nan", "null", "none")


@dataclass
class Problems:
    """What is wrong with `subject` (a folder, an import, a file), collected to be told at once."""

    subject: str
    lines: list[str] = field(default_factory=list)
    num_found: int = 0
    has_rows: bool = False

    def add(self, where: str, what: str) -> None:
        """Note a problem of a whole file."""
        self.lines.append(f"{where}: {what}")
        self.num_found += 1

    def add_rows(self, where: str, rows: Rows, tell: Callable[[int], str]) -> None:
        """Note the same kind of problem for rows (from 0, or by a mask); `tell` says what is wrong with one of them."""
        numbers = np.flatnonzero(rows).tolist() if isinstance(rows, np.ndarray) else list(rows)
        self.has_rows |= bool(numbers)
        self.lines += [f"{where} row {row + 1}: {tell(row)}" for row in numbers[:ROWS_SHOWN]]
        if len(numbers) > ROWS_SHOWN:
            self.lines.append(f"{where}: {len(numbers) - ROWS_SHOWN} more rows like these")
        self.num_found += len(numbers)

    def raise_if_any(self) -> None:
        """Raise one error with all that was found."""
        if self.lines:
            head = f"{self.subject}: {counted(self.num_found, 'problem')}"
            head += " (rows count from 1, without the header)" if self.has_rows else ""
            raise BadInput("\n  ".join([head, *self.lines]))


def problems_of(path: Path, called: str, holds: str) -> Problems:
    """Return where problems of a folder go; raise BadInput where there is no such folder, with what it should hold."""
    if not path.is_dir():
        raise BadInput(f"no folder {str(path)!r}; a {called} holds {holds}")
    return Problems(f"{called} {path}")


@dataclass(frozen=True)
class Table:
    """A table: its file's name, its columns by name, and what its maker calls those that have another name here.

    What is wrong with it goes to `problems`.
    """

    file: str
    columns: dict[str, Any]
    num_rows: int
    problems: Problems
    called: Mapping[str, str] = field(default_factory=dict)

    def name(self, column: str) -> str:
        """Return what the table's maker calls a column."""
        return self.called.get(column, column)

    def note(self, what: str) -> None:
        """Note a problem of the whole table."""
        self.problems.add(self.file, what)

    def note_rows(self, rows: Rows, tell: Callable[[int], str]) -> None:
        """Note the same kind of problem for rows, as `Problems.add_rows` does."""
        self.problems.add_rows(self.file, rows, tell)

    def text(self, name: str) -> Any:
        """Return a column as Arrow strings, trimmed, '' where missing; None after noting why not."""
        column = self.columns.get(name)
        if column is None:
            self.note(f"no column {self.name(name)!r}; columns found: {listed(self.columns)}")
            return None
        if isinstance(column, BlockColumn):
            column = column.to_arrow()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            if pa.types.is_floating(column.type):
                # Whole numbers with gaps become floats in many tools; 7.0 stands for 7.
                column = compute.if_else(compute.is_nan(column), None, column).cast(pa.int64())
            strings = compute.fill_null(column.cast(pa.string()), "")
        except (ValueError, NotImplementedError):
            self.note(f"column {self.name(name)!r} is of type {column.type}; text or whole numbers are needed")
            return None
        return pa.array(compute.utf8_trim_whitespace(strings).to_pylist(), pa.string())

    def text_if_any(self, name: str) -> Any:
        """Return a column as `text` does, None without noting anything where there is no such column."""
        return self.text(name) if name in self.columns else None


@dataclass(frozen=True)
class RawGraph:
    """A graph as its owner keeps it, with names of columns that are the owner's; `notes` say what was left behind."""

    nodes: Table
    edges: Table
    notes: tuple[str, ...] = ()


def as_column(values: Sequence[Any]) -> Any:
    """Return Python values as an Arrow column: numbers if they all are, text if they are of several kinds."""
    plain = [_plain(value) for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if kinds == {int, float}:
        return pa.chunked_array([pa.array(plain, pa.float64())])
    if len(kinds) <= 1:
        try:
            return pa.chunked_array([pa.array(plain)])
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass  # such as whole numbers beyond 64 bits
    return pa.chunked_array([pa.array([None if value is None else str(value) for value in plain], pa.string())])


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.is_finite() else float(value)
    return str(value) if isinstance(value, UUID) else value


def find_table(folder: Path, stem: str) -> list[Path]:
    """Return the files that may hold a table: `stem.parquet`, `stem.csv`."""
    return [path for path in (folder / f"{stem}.{ending}" for ending in FORMATS) if path.is_file()]


def read_table(folder: Path, stem: str, text_columns: tuple[str, ...], problems: Problems) -> Table | None:
    """Return a table, or None after noting why there is none; CSV columns in `text_columns` stay text."""
    found = find_table(folder, stem)
    if len(found) != 1:
        names = " or ".join(f"{stem}.{ending}" for ending in FORMATS)
        problems.add(stem, f"{names}: both are there; remove one" if found else f"not found; {names} is needed")
        return None
    path = found[0]
    # Ids are text, or '007' in one table and 7 in another would differ, and an id 'NA' would be missing.
    types = {name: pa.string() for name in text_columns}
    try:
        if path.suffix == ".csv":
            as_told = csv.ConvertOptions(column_types=types, strings_can_be_null=False)
            table = csv.read_csv(path, convert_options=as_told)
        else:
            table = parquet.ParquetFile(path).read()
    except (OSError, ValueError) as error:  # pyarrow's errors are kinds of these
        problems.add(path.name, f"cannot be read: {' '.join(str(error).split())}")
        return None
    return as_table(path.name, table.column_names, table.columns, table.num_rows, problems)


def as_table(
    file: str, names: Sequence[str], columns: Iterable[Any], num_rows: int, problems: Problems
) -> Table | None:
    """Return a table of columns that differ in name, or None after noting which do not."""
    repeated = sorted({name for name, count in Counter(names).items() if count > 1})
    if repeated:
        problems.add(file, f"more than one column named {', '.join(map(repr, repeated))}")
        return None
    return Table(file, dict(zip(names, columns, strict=True)), num_rows, problems)


def is_numeric(column: Any) -> bool:
    """Return whether a column holds numbers, truth values, or nothing at all."""
    types = pa.types
    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(kind(column.type) for kind in kinds)


def has_vectors(column: Any) -> bool:
    """Return whether a column holds lists of numbers."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(kind(column.type) for kind in kinds) and is_numeric(pa.array([], column.type.value_type))


def numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return a numeric column as float64, NaN where missing, for the caller to change."""
    if isinstance(column, BlockColumn):
        return column.matrix[:, column.place].astype(np.float64)
    return read_only_numbers(column).astype(np.float64)


def is_text(column: Any) -> bool:
    """Return whether a column holds text."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def parsed_numbers(column: Any) -> tuple[npt.NDArray[np.float64], list[int]]:
    """Return a numeric or text column as float64, NaN where missing, and the rows that hold no number."""
    if is_numeric(column):
        return numbers(column), []
    values = np.full(len(column), np.nan)
    stray = []
    for row, value in enumerate(column.to_pylist()):
        try:
            values[row] = np.nan if value is None or str(value).strip().lower() in NO_NUMBER else float(value)
        except (TypeError, ValueError):
            stray.append(row)
    return values, stray


def stray_text(column: Any) -> list[int]:
    """Return the rows that are no number in a text column where most are; such a column is meant as numeric."""
    if not is_text(column):
        return []
    stray = [row for row, value in enumerate(column.to_pylist()) if not _is_number(value)]
    return stray if 2 * len(stray) < len(column) else []


def _is_number(value: str | None) -> bool:
    try:
        float(value or "")
    except ValueError:
        return False
    return True


def counted(number: int, what: str) -> str:
    """Return a number with the word for what is counted, in the plural but for one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return names for an error, not too many of them."""
    every = list(names)
    shown = ", ".join(map(repr, every[:most]))
    return f"{shown}, ... ({len(every)} in all)" if len(every) > most else shown
