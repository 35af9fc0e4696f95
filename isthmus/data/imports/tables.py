"""A graph from two tables in CSV or Parquet, with any names of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.data.tables import Problems, RawGraph, Table, as_table

# Ending -> what separates the values of a text file; Parquet has no such thing.
DELIMITERS = {".csv": ",", ".tsv": "\t", ".parquet": "", ".pq": ""}


def read_tables(nodes: Path, edges: Path, delimiter: str, problems: Problems) -> RawGraph | None:
    """Return the graph in two files, or None after noting why they cannot be read."""
    tables = [read_file(path, delimiter, problems) for path in (nodes, edges)]
    return RawGraph(tables[0], tables[1]) if tables[0] is not None and tables[1] is not None else None


def read_file(path: Path, delimiter: str, problems: Problems) -> Table | None:
    """Return the table in a file, or None after noting why there is none. Values of a text file stay text.

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
        table = _read_text(path, delimiter or DELIMITERS[ending]) if DELIMITERS[ending] else _read_parquet(path)
    except OSError as error:
        problems.add(str(path), f"cannot be read: {' '.join((error.strerror or str(error)).split())}")
        return None
    except ValueError as error:  # pyarrow's errors are kinds of this
        problems.add(str(path), f"cannot be read: {' '.join(str(error).split())}")
        return None
    names = table.column_names
    other = next((mark for mark in (";", "\t", "|", ",") if len(names) == 1 and mark in names[0]), "")
    if other:
        problems.add(file, f"has the one column {names[0]!r}; add --delimiter {other!r}")
        return None
    return as_table(file, names, table.columns, table.num_rows, problems)


def _read_text(path: Path, delimiter: str) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with csv.open_csv(path, parse_options=parse) as reader:
        names = reader.schema.names
    # As text, or a column that turns from numbers to words in its middle could not be read at all.
    convert = csv.ConvertOptions(column_types={name: pa.string() for name in names}, strings_can_be_null=False)
    return csv.read_csv(path, parse_options=parse, convert_options=convert)


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path).read()
