"""Tables in Parquet or CSV, read so that everything wrong with them can be told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.core.errors import BadInput

# Rows told for each kind of problem; more would hide the other kinds.
ROWS_SHOWN = 5
FORMATS = ("parquet", "csv")


@dataclass
class Problems:
    """What is wrong with the files of one folder, collected to be told at once."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    num_found: int = 0

    def add(self, where: str, what: str) -> None:
        """Note a problem of a whole file."""
        self.lines.append(f"{where}: {what}")
        self.num_found += 1

    def add_rows(self, where: str, rows: Iterable[int], tell: Callable[[int], str]) -> None:
        """Note the same kind of problem for rows (from 0); `tell` says what is wrong with one of them."""
        numbers = list(rows)
        self.lines += [f"{where} row {row + 1}: {tell(row)}" for row in numbers[:ROWS_SHOWN]]
        if len(numbers) > ROWS_SHOWN:
            self.lines.append(f"{where}: {len(numbers) - ROWS_SHOWN} more rows like these")
        self.num_found += len(numbers)

    def raise_if_any(self) -> None:
        """Raise one error with all that was found."""
        if self.lines:
            count = "1 problem" if self.num_found == 1 else f"{self.num_found} problems"
            head = f"graph folder {self.folder}: {count} (rows count from 1, without the header)"
            raise BadInput("\n  ".join([head, *self.lines]))


@dataclass(frozen=True)
class Table:
    """A table of a graph folder: the name of its file, and its columns by name."""

    file: str
    columns: dict[str, Any]
    num_rows: int


def find_table(folder: Path, stem: str) -> list[Path]:
    """Return the files that may hold a table: `stem.parquet`, `stem.csv`."""
    return [path for path in (folder / f"{stem}.{ending}" for ending in FORMATS) if path.is_file()]


def read_table(folder: Path, stem: str, text_columns: tuple[str, ...], problems: Problems) -> Table | None:
    """Return a table, or None after noting why there is none; CSV columns in `text_columns` stay text."""
    found = find_table(folder, stem)
    if len(found) != 1:
        names = " or ".join(f"{stem}.{ending}" for ending in FORMATS)
        what = f"not found; {names} is needed" if not found else f"{names}: both are there; remove one"
        problems.add(stem, what)
        return None
    path = found[0]
    try:
        table = _read_csv(path, text_columns) if path.suffix == ".csv" else _read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are kinds of these
        problems.add(path.name, f"cannot be read: {' '.join(str(error).split())}")
        return None
    names = table.column_names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        problems.add(path.name, f"more than one column named {', '.join(map(repr, repeated))}")
        return None
    return Table(path.name, dict(zip(names, table.columns, strict=True)), table.num_rows)


def _read_csv(path: Path, text_columns: tuple[str, ...]) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    # Ids are text, or '007' in one table and 7 in another would differ, and an id 'NA' would be missing.
    types = {name: pa.string() for name in text_columns}
    return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=False))


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path).read()


def text(table: Table, name: str, problems: Problems) -> Any:
    """Return a column as Arrow strings, trimmed, '' where missing; None after noting why not."""
    import pyarrow as pa
    from pyarrow import compute

    column = table.columns.get(name)
    if column is None:
        problems.add(table.file, f"no column {name!r}; columns found: {', '.join(map(repr, table.columns))}")
        return None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        if pa.types.is_floating(column.type):
            # Whole numbers with gaps become floats in many tools; 7.0 stands for 7.
            column = compute.if_else(compute.is_nan(column), None, column).cast(pa.int64())
        strings = compute.fill_null(column.cast(pa.string()), "")
    except (ValueError, NotImplementedError):
        problems.add(table.file, f"column {name!r} is of type {column.type}; text or whole numbers are needed")
        return None
    return pa.array(compute.utf8_trim_whitespace(strings).to_pylist(), pa.string())


def is_numeric(column: Any) -> bool:
    """Return whether a column holds numbers, truth values, or nothing at all."""
    import pyarrow as pa

    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(kind(column.type) for kind in kinds)


def numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return a numeric column as float64, NaN where missing."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    return values


def stray_text(column: Any) -> list[int]:
    """Return the rows that are no number in a text column where most are; such a column is meant as numeric."""
    import pyarrow as pa

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return []
    stray = [row for row, value in enumerate(column.to_pylist()) if not _is_number(value)]
    return stray if 2 * len(stray) < len(column) else []


def _is_number(value: str | None) -> bool:
    try:
        float(value or "")
    except ValueError:
        return False
    return True
