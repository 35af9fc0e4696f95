"""A graph from two tables in CSV or Parquet, with any names of columns; wide ones are read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from isthmus.data.folders.tables.columns import PREFIX
from isthmus.data.folders.tables.number_block import BlockColumn, BlockWriter, single_lists
from isthmus.data.folders.tables.reading import NO_NUMBER, Problems, RawGraph, Table, as_table, is_numeric
from isthmus.data.imports.wide_text import is_wide, num_line_ends, places, read_wide_text
from isthmus.data.on_demand import csv, pa, parquet

# Ending -> what separates the values of a text file; Parquet has no such thing.
DELIMITERS = {".csv": ",", ".tsv": "\t", ".parquet": "", ".pq": ""}
# So many bytes of a text file, or numbers of a Parquet file, are looked at in one go.
BLOCK_BYTES = 16 << 20
MOST_BLOCKS = 16
BLOCK_NUMBERS = 1 << 19
COLUMNS_AT_ONCE = 256
SCANNED_BYTES = 1 << 20
# So many columns may turn from numbers to words in their middle before all are read as text.
MOST_TURNS = 3
# Arrow knows words for "no number" by their spelling only.
MISSING = sorted({spelt for word in NO_NUMBER for spelt in (word, word.upper(), word.title(), word.capitalize())})


@dataclass(frozen=True)
class Reading:
    """How the columns of a table are read.

    Fields:
        as_told: columns whose values stay as they are told: text of a text file; None for all
        single:  whether the numbers of the others are rounded to single precision at once, as features will be
    """

    as_told: frozenset[str] | None = field(default=None)
    single: bool = False

    def may_be_number(self, name: str) -> bool:
        """Return whether a column of numbers may be read as such."""
        return self.as_told is not None and name not in self.as_told and not name.startswith(PREFIX)


AS_TOLD = Reading()


def read_tables(
    nodes: Path, edges: Path, delimiter: str, problems: Problems, reading: Reading = AS_TOLD
) -> RawGraph | None:
    """Return the graph in two files, or None after noting why they cannot be read; `reading` is that of the nodes."""
    tables = [read_file(path, delimiter, problems, how) for path, how in ((nodes, reading), (edges, AS_TOLD))]
    return RawGraph(tables[0], tables[1]) if tables[0] is not None and tables[1] is not None else None


def read_file(path: Path, delimiter: str, problems: Problems, reading: Reading = AS_TOLD) -> Table | None:
    """Return the table in a file, or None after noting why there is none. `reading` says what stays text.

    In a text file, the first row has the names of the columns, and the encoding is UTF-8.
    """
    file, ending = path.name, path.suffix.lower()
    if ending not in DELIMITERS:
        problems.add(str(path), f"its name ends in {ending!r}; known: {', '.join(sorted(DELIMITERS))}")
        return None
    try:
        with path.open("rb") as content:
            start = content.read(4)
        if (start == b"PAR1") == bool(DELIMITERS[ending]):
            kind = "is a Parquet file, not text" if DELIMITERS[ending] else "is no Parquet file"
            problems.add(str(path), f"by its content it {kind}; its name must end accordingly")
            return None
        if DELIMITERS[ending]:
            names, columns, num_rows = _read_text(path, delimiter or DELIMITERS[ending], reading)
        else:
            names, columns, num_rows = _read_parquet(path, reading)
    except (OSError, ValueError) as error:  # pyarrow's errors are kinds of these
        problems.add(str(path), f"cannot be read: {' '.join((getattr(error, 'strerror', '') or str(error)).split())}")
        return None
    other = _delimiter_in(names[0]) if len(names) == 1 else ""
    if other:
        problems.add(file, f"has the one column {names[0]!r}; add --delimiter {other!r}")
        return None
    return as_table(file, names, columns, num_rows, problems)


def _delimiter_in(name: str) -> str:
    return next((mark for mark in (";", "\t", "|", ",") if mark in name), "")


Columns = tuple[list[str], list[Any], int]
Made = TypeVar("Made")


def _read_text(path: Path, delimiter: str, reading: Reading) -> Columns:
    names, number = _names_and_numbers(path, delimiter, reading)
    if reading.single and is_wide(len(number), len(names) - len(number)):
        wide = read_wide_text(path, delimiter, names, number, MISSING)
        if wide is not None:
            return names, *wide
    num_lines, quotes = _scanned(path)
    # Where no value has quotes, no line ends within one: Arrow need not look for such before it parses.
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=quotes)
    options = csv.ReadOptions(block_size=max(BLOCK_BYTES, path.stat().st_size // MOST_BLOCKS), use_threads=False)

    def read(types: dict[str, Any]) -> Columns:
        convert = csv.ConvertOptions(column_types=types, null_values=MISSING, strings_can_be_null=False)
        with csv.open_csv(path, read_options=options, parse_options=parse, convert_options=convert) as reader:
            return _gathered(names, reader, number if reading.single else set(), num_lines)

    found = _by_types(read, names, number)
    if found is not None:
        return found
    convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    table = csv.read_csv(path, parse_options=parse, convert_options=convert)
    return names, table.columns, table.num_rows


def _names_and_numbers(path: Path, delimiter: str, reading: Reading) -> tuple[list[str], set[str]]:
    """Return the names of the columns, and of those that begin with numbers and may be read as such.

    One that turns to words in its middle is read again, as text.
    """
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    if reading.single and (wide := _wide_names_and_numbers(path, parse, reading)):
        return wide
    with csv.open_csv(path, read_options=csv.ReadOptions(use_threads=False), parse_options=parse) as reader:
        found = reader.schema
    numbers = [field.name for field in found if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)]
    return found.names, set(filter(reading.may_be_number, numbers))


def _wide_names_and_numbers(path: Path, parse: Any, reading: Reading) -> tuple[list[str], set[str]] | None:
    """Return the same of a wide table, by trying all columns as numbers; None for one that is not wide.

    Arrow tries seven kinds of values in each column before it knows one, which takes longer than to read them.
    """
    with path.open("rb") as content:
        names = csv.read_csv(pa.BufferReader(content.readline()), parse_options=parse).column_names
    numbers = set(filter(reading.may_be_number, names))
    options = csv.ReadOptions(use_threads=False)

    def read(types: dict[str, Any]) -> Any:
        if not is_wide(len(numbers), len(names) - len(numbers)) or len(set(names)) < len(names):
            return None
        with csv.open_csv(path, options, parse, csv.ConvertOptions(column_types=types)) as reader:
            return reader.read_next_batch()

    try:
        first = _by_types(read, names, numbers)
    except (pa.ArrowInvalid, StopIteration):  # no numbers, or no rows
        return None
    if first is None or first.schema.names != names:
        return None
    empty = {name for name, column in zip(names, first.columns, strict=True) if column.null_count == len(first)}
    return names, numbers - empty


def _by_types(read: Callable[[dict[str, Any]], Made], names: list[str], numbers: set[str]) -> Made | None:
    """Return what is read by the types of the columns; one of `numbers` that turns to words is taken out, to be text.

    None where too many do.
    """
    for _ in range(MOST_TURNS):
        try:
            return read({name: pa.float64() if name in numbers else pa.string() for name in names})
        except pa.ArrowInvalid as error:
            turned = {name for place, name in enumerate(names) if f"CSV column #{place}:" in str(error)} & numbers
            if not turned:
                raise
            numbers -= turned
    return None


def _read_parquet(path: Path, reading: Reading) -> Columns:
    file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    names, num_rows = file.schema_arrow.names, file.metadata.num_rows
    flat, lists = _to_be_rounded(file.schema_arrow, reading)
    taken = {*flat, *lists}
    if len(set(names)) < len(names) or not taken:
        table = file.read()
        return table.column_names, table.columns, table.num_rows
    rest = file.read(columns=[name for name in names if name not in taken])
    found = dict(zip(rest.column_names, rest.columns, strict=True))
    found |= zip(flat, _side_by_side(file, flat), strict=True)
    found |= {name: _single_lists(file, name) for name in lists}
    return names, [found[name] for name in names], num_rows


def _to_be_rounded(schema: Any, reading: Reading) -> tuple[list[str], list[str]]:
    """Return the columns of numbers that are read in single precision, and those of lists of numbers."""
    rounded = [kind for kind in schema if reading.single and reading.may_be_number(kind.name)]
    flat = [kind.name for kind in rounded if is_numeric(kind)]
    return flat, [kind.name for kind in rounded if _holds_doubles(kind.type)]


def _side_by_side(file: Any, names: list[str]) -> list[BlockColumn]:
    """Return columns of numbers of a Parquet file as those of a matrix, read some at a time."""
    num_rows = file.metadata.num_rows
    block = BlockWriter(num_rows, len(names))
    for start in range(0, len(names), COLUMNS_AT_ONCE):
        some = names[start : start + COLUMNS_AT_ONCE]
        table = file.read(columns=some)
        block.write([table.column(name) for name in some], place=start)
    return block.columns(num_rows)


def _single_lists(file: Any, name: str) -> Any:
    """Return a column of lists of a Parquet file in single precision, read some rows at a time."""
    num_rows = file.metadata.num_rows
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    chunks = (group.column(column) for group in groups for column in range(group.num_columns))
    num_values = sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.split(".")[0] == name)
    size = max(1, BLOCK_NUMBERS * max(num_rows, 1) // max(num_values, 1))
    batches = file.iter_batches(batch_size=min(size, 1 << 16), columns=[name], use_threads=False)
    return single_lists((batch.column(0) for batch in batches), num_values)


def _scanned(path: Path) -> tuple[int, bool]:
    """Return how many lines a text file has, and whether there is a quotation mark after the first."""
    num_lines, quotes = 0, False
    with path.open("rb") as content:
        content.readline()
        while piece := content.read(SCANNED_BYTES):
            num_lines += num_line_ends(piece)
            quotes = quotes or b'"' in piece
    return num_lines + 1, quotes


def _gathered(names: list[str], batches: Iterable[Any], side_by_side: set[str], num_rows: int) -> Columns:
    """Return the columns of record batches; those of numbers go side by side, in single precision, batch by batch.

    `num_rows` is how many rows to expect.
    """
    inside, outside = places(names, side_by_side)
    block = BlockWriter(num_rows, len(inside))
    parts: dict[int, list[Any]] = {place: [] for place in outside}
    row = 0
    for batch in batches:
        columns = batch.columns
        block.write([columns[place] for place in inside], row)
        for place in outside:
            parts[place].append(columns[place])
        row += batch.num_rows
    pa.default_memory_pool().release_unused()  # what the batches needed
    found: dict[int, Any] = dict(zip(inside, block.columns(row), strict=True))
    found |= {place: pa.chunked_array(part, None if part else pa.string()) for place, part in parts.items()}
    return names, [found[place] for place in range(len(names))], row


def _holds_doubles(kind: Any) -> bool:
    return bool((pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)) and pa.types.is_float64(kind.value_type))
