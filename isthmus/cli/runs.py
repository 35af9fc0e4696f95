"""isthmus runs: which runs there are, and those of them that somebody asks for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli.output import Json, examples, print_json, print_table
from isthmus.core.outside import replace_file
from isthmus.report.summary import Table, as_csv

EXAMPLES = examples(
    "isthmus runs",
    "isthmus runs results --where 'algorithm=fedgl and score>0.8'",
    "isthmus runs --where 'algorithm.optimizer.lr<=0.1 and state=finished' --csv runs.csv",
)


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where runs lie, at any depth.")] = Path("runs"),
    where: Annotated[
        str, typer.Option(metavar="WORDS", help="Those of which this is so: columns and keys of courses, with `and`.")
    ] = "",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write them as a table.")] = None,
    json: Json = False,
) -> None:
    """List runs: what they are, how far they are, and what came of them."""
    from isthmus.runs.listing import COLUMNS, listed

    found = listed(folder, where)
    rows = [[run.facts[name] for name in COLUMNS] for run in found]
    if csv is not None:
        replace_file(csv, as_csv([COLUMNS, *rows]).encode())
    if json:
        print_json({"runs": [{**run.facts, "path": str(run.path)} for run in found]})
        return
    print_table(Table(COLUMNS, tuple(tuple(map(_cell, COLUMNS, row)) for row in rows)), f"{len(rows)} runs")
    if csv is not None:
        typer.echo(f"table: {csv}")


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column == "began" and isinstance(value, int | float):
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    return f"{value:.4f}" if column == "score" else str(value)
