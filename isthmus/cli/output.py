"""How the command line speaks: errors on one line, tables, JSON for scripts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from isthmus.core.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.report.summary import Table


def explain(error: IsthmusError) -> int:
    """Print an error for a person, or as JSON when the command was asked for JSON, and return the exit code."""
    if "--json" in sys.argv:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
    else:
        lines = str(error).split("\n")  # of others there may be parts in it
        print("\n".join(plain(line) for line in [f"error: {lines[0]}", *lines[1:]]), file=sys.stderr)
    return error.exit_code


def print_json(value: Any) -> None:
    """Print one JSON object, nothing else."""
    print(json.dumps(value, indent=2, default=str))


def print_table(table: Table, title: str = "") -> None:
    """Print a table as wide as it needs, also where the output is not a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    shown = RichTable(title=escape(plain(title)) or None, title_justify="left")
    for index, heading in enumerate(table.headings):
        shown.add_column(heading, justify="left" if index < 2 else "right")
    for row in table.rows:
        shown.add_row(*(escape(plain(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(shown)


def plain(text: str) -> str:
    """Return a text from elsewhere without control characters, which a terminal might obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def human_bytes(number: int) -> str:
    """Return 1234567 as "1.2 MB"."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
