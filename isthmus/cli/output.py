"""How the command line speaks: errors on one line, tables, JSON for scripts; a stream that breaks is told once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from isthmus.core.errors import IsthmusError
from isthmus.core.outside import naming, printable
from isthmus.report.summary import Table

OUTPUT = "standard output"

# Options that several verbs have.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]
DataRoot = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where datasets lie (or ISTHMUS_DATA).")]
DatasetOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="DATASET|FOLDER",
        help="A dataset's name, as in isthmus list datasets, or a folder; a folder called so is ./NAME.",
    ),
]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[COURSE.yaml] [KEY=VALUE]...", help="A course file, then changes to it.")
]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run folder to make.")]
Resume = Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with a run folder.")]


def examples(*commands: str, after: str = "") -> str:
    """Return how the help of a verb ends: commands to copy, each a paragraph of its own, and what to know of them."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands), after.strip("\n")])


def explain(error: IsthmusError) -> int:
    """Print an error for a person, or as JSON when the command was asked for JSON, and return the exit code."""
    if "--json" in sys.argv:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
    else:
        lines = str(error).split("\n")  # of others there may be parts in it
        print("\n".join(printable(line) for line in [f"error: {lines[0]}", *lines[1:]]), file=sys.stderr)
    return error.exit_code


def comma_list(text: str) -> list[str]:
    """Return the names in a text like bank-a,bank-b."""
    return [name.strip() for name in text.split(",") if name.strip()]


def print_json(value: Any) -> None:
    """Print one JSON object, nothing else."""
    print(json.dumps(value, indent=2, default=str))


def print_table(table: Table, title: str = "") -> None:
    """Print a table as wide as it needs, also where the output is not a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    shown = RichTable(title=escape(printable(title)) or None, title_justify="left")
    for index, heading in enumerate(table.headings):
        shown.add_column(escape(printable(heading)), justify="left" if index < 2 else "right")
    for row in table.rows:
        shown.add_row(*(escape(printable(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(shown)


def human_bytes(number: int) -> str:
    """Return 1234567 as "1.2 MB"."""
    power = min((len(str(number)) - 1) // 3, 3)
    return f"{number / 1000**power:.1f} {' kMG'[power]}B" if power else f"{number} B"


# ---- output that may break while the work goes on: a full log disk or a closed pipe ends nothing


class NamedStream:
    """A text stream whose errors name it, as those of files do."""

    def __init__(self, stream: IO[str], name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        """Write; an error names the stream."""
        with self._guarded():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush; an error names the stream."""
        with self._guarded():
            self._stream.flush()

    def _guarded(self) -> AbstractContextManager[None]:
        return naming(Path(self._name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LastingStream(NamedStream):
    """A text stream that takes what it is given, whether or not it can be written.

    What cannot be written is told once on `other`. Every later write is tried again, so a log goes on when there is
    room for it.
    """

    def __init__(self, stream: IO[str], name: str, other: IO[str] | None = None) -> None:
        super().__init__(stream, name)
        self._other = other
        self._told = False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            first, self._told = not self._told, True
            if self._other is None or not first:
                return
            try:
                print(f"{self._name} cannot be written: {error.strerror or error}; the work goes on", file=self._other)
                self._other.flush()
            except OSError:
                self._other = None  # neither can be written, so nobody can be told


@contextmanager
def lasting_output() -> Iterator[None]:
    """Let standard output and error break without ending what goes on within."""
    before = sys.stdout, sys.stderr
    sys.stdout = LastingStream(before[0], OUTPUT, before[1])
    sys.stderr = LastingStream(before[1], "standard error", before[0])
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def named_output() -> Iterator[None]:
    """Let an error of standard output be told from one of a file, also one that comes with its last bytes.

    Standard error is for what is said on the way: where it cannot be written, the work goes on.
    """
    before, said = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = NamedStream(before, OUTPUT), LastingStream(said, "standard error")
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # What is left in the buffer would be tried again at the end of the process, with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), before.fileno())
            raise
        finally:
            sys.stdout, sys.stderr = before, said
