"""isthmus data show: who holds what, in numbers and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.output import DataRoot, DatasetOrFolder, Json, examples, print_json, print_table
from isthmus.core.errors import BadInput
from isthmus.core.outside import data_root as locate_data
from isthmus.core.outside import replace_file
from isthmus.report import data_page, data_tables
from isthmus.report.summary import Table

if TYPE_CHECKING:
    from isthmus.data.dividing import Holding

EXAMPLES = examples(
    "isthmus data show cora --splitter community --clients 5",
    "isthmus data show cora --splitter community --clients 5 splitter.balanced=false masks.name=public",
    "isthmus data show cora --splitter random --clients 6 splitter.overlap_fraction=0.2 --html cora.html",
    "isthmus data show graphs/north",
    "isthmus data show graphs/north graphs/south",
)


def show(
    dataset: DatasetOrFolder,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER]... [KEY=VALUE]...", help="More folders; keys of a course: dataset, masks, ..."
        ),
    ] = None,
    splitter: Annotated[
        str | None, typer.Option(metavar="NAME", help="How it is divided, as in isthmus list splitters.")
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="How many clients.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides everything that is random.")] = None,
    data_root: DataRoot = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw a page of figures.")] = None,
    all_clients: Annotated[bool, typer.Option("--all", help="Show all clients, however many.")] = False,
    json: Json = False,
) -> None:
    """Show who holds what: sizes, labels, degrees, overlap, lost edges, and how far clients are apart."""
    from isthmus.data.zoo import is_own_folder
    from isthmus.runs.who_holds_what import Division

    if html is not None:
        _check_page(html)
    options = {"splitter.name": splitter, "num_clients": clients, "seed": seed}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    folders = [word for word in words or [] if "=" not in word and is_own_folder(word)]
    division = Division.of(dataset, [*given, *(word for word in words or [] if word not in folders)], folders)
    scenario = division.held(locate_data(data_root))
    facts = division.figures(scenario)
    if html is not None:
        page = data_page.data_page(facts, None if all_clients else data_page.MAX_CLIENTS)
        replace_file(html, page.encode())
    if json:
        print_json(facts)
        return
    _print(facts, all_clients)
    tell_namesake(dataset)
    tell_doubt(scenario.whole)
    if html is not None:
        typer.echo(f"page: {html}")


def _check_page(html: Path) -> None:
    """Refuse a file that cannot be written, or that holds something else than a page of ours."""
    if html.is_dir() or not html.absolute().parent.is_dir():
        found = "a folder" if html.is_dir() else f"in the folder {html.parent}, which is not there"
        raise BadInput(f"--html is {str(html)!r}, {found}; give a file to write")
    if html.exists() and data_page.GENERATOR.encode() not in html.read_bytes()[:2000]:
        raise BadInput(f"--html is {str(html)!r}, a file that this command did not write; choose another")


def tell_namesake(word: str) -> None:
    """Print that a folder is called as the dataset that was taken, if there is one."""
    from isthmus.data.zoo import namesake_note

    if told := namesake_note(word):
        typer.echo(f"note: {told}")


def tell_doubt(data: Holding) -> None:
    """Print that labels may say of some pairs that they are no links, where nobody has said whether they do."""
    doubtful = getattr(data, "doubtful", "")
    if doubtful:
        typer.echo(
            f"note: link_prediction must be told whether pairs of the class {doubtful!r} are links: "
            f"dataset.negatives={doubtful} if not, dataset.all_links=true if every row is one"
        )


def _print(facts: dict[str, Any], all_clients: bool) -> None:
    limit = None if all_clients else data_tables.MAX_CLIENTS
    names = list(facts["clients"])
    typer.echo(facts["origin"])
    _print_table(data_tables.clients_table(facts, limit), f"{facts['dataset']}: who holds what")
    _print_table(data_tables.labels_table(facts, limit), "labels of each class")
    for key, what in (("overlap", f"{facts['item']}s"), ("node_overlap", "nodes")):
        shared = None if facts[key] is None else data_tables.overlap_table(names, facts[key], limit)
        if shared is not None:
            _print_table(shared, f"shared {what}")
    _print_table(data_tables.heterogeneity_table(facts), "how far clients are apart")
    for line in data_tables.losses(facts):
        typer.echo(line)


def _print_table(table: Table, title: str) -> None:
    """Print a table of numbers behind a name."""
    width = max(len(row[1]) for row in table.rows)
    rows = tuple((name, first.rjust(width), *rest) for name, first, *rest in table.rows)
    print_table(replace(table, rows=rows), title)
