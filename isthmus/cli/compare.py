"""isthmus compare: a suite of methods, datasets, splitters and seeds as one table, and its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from isthmus.suites.runner import Run
    from isthmus.suites.spec import Suite

EXAMPLES = """Examples:

  isthmus compare papers/fs_g/gcn_cora.yaml

  isthmus compare SUITE.yaml --out results/mine --workers 1 --check

  isthmus compare SUITE.yaml --seeds 1 --only dataset=cora,citeseer --only method=fedavg

  isthmus compare SUITE.yaml --only lr=0.25 --only local_steps=4 --set rounds=100

A comparison that was cut short goes on where it stopped when it is started again with the same --out; one that is
finished is only tabulated and drawn again.
"""


def compare(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="What to compare.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where results go; goes on with it.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="AXIS=CHOICE,...", help="Only these choices of an axis or of a searched key."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key in every course of the suite.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Only the first so many seeds.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; by default one per core.")] = None,
    data_root: Annotated[Path | None, typer.Option("--data-root", metavar="FOLDER", help="Where datasets lie.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a number is not as near as asked.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")] = False,
) -> None:
    """Run every method on every dataset, splitter and seed of a suite; print mean ± std beside the paper's numbers.

    Figures that the suite asks for are drawn into the folder of the results.
    """
    from isthmus.cli.output import print_json, print_table
    from isthmus.monitor.journal import replace_file
    from isthmus.suites.figures import write_figures
    from isthmus.suites.part import changed, narrowed
    from isthmus.suites.spec import load_suite
    from isthmus.suites.table import cell_table, cells, cells_csv, runs_csv

    loaded = changed(narrowed(load_suite(suite), only or ()), changes or ())
    if seeds is not None:
        loaded = replace(loaded, seeds=loaded.seeds[:seeds])
    folder = out or Path("results") / suite.stem
    runs = _carried_out(loaded, folder, workers, data_root, json)
    found = cells(loaded, runs)
    table = cell_table(loaded, found)
    replace_file(folder / "runs.csv", runs_csv(loaded, runs).encode())
    replace_file(folder / "table.csv", cells_csv(loaded, found).encode())
    replace_file(folder / "table.md", f"# {loaded.title}\n\n{table.markdown()}".encode())
    figures = write_figures(loaded, found, folder)
    if json:
        facts = {"title": loaded.title, "folder": str(folder), "headings": table.headings, "rows": table.rows}
        print_json({**facts, "figures": [str(path) for path in figures]})
    else:
        print_table(table, loaded.title)
        for path in figures:
            typer.echo(f"figure: {path}")
        typer.echo(f"results: {folder}")
    failed = any(cell.errors for cell in found) or (check and any(cell.holds is False for cell in found))
    if failed:
        raise typer.Exit(1)


def _carried_out(suite: Suite, folder: Path, workers: int | None, root: Path | None, silent: bool) -> list[Run]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from isthmus.suites.runner import run_suite

    columns = (TextColumn("{task.fields[facts]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True, quiet=silent)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len({point.key for point in suite.points()}), facts=suite.title)

        def on_done(run: Run) -> None:
            shown = run.error.splitlines()[0] if run.error else f"{run.score:.4f}"
            progress.update(task, advance=1, facts=f"{', '.join(run.point.cell.values())}: {shown}")

        return run_suite(suite, folder, workers=workers, data_root=root, on_done=on_done)
