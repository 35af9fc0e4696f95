"""isthmus compare: a suite of methods, datasets, splitters and seeds as one table, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from isthmus.suites.runner import Run
    from isthmus.suites.spec import Point, Suite
    from isthmus.suites.table import Cell

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
    from isthmus.cli.output import plain, print_json, print_table
    from isthmus.core.errors import BadInput
    from isthmus.runs.journal import replace_file
    from isthmus.suites.figures import write_figures
    from isthmus.suites.part import changed, narrowed
    from isthmus.suites.settings import notes, settings
    from isthmus.suites.spec import load_suite
    from isthmus.suites.table import cell_table, cells, cells_csv, runs_csv

    loaded = changed(narrowed(load_suite(suite), only or ()), changes or ())
    if seeds is not None:
        if seeds > len(loaded.seeds):
            raise BadInput(f"--seeds is {seeds}, but {suite} has {len(loaded.seeds)}; give it more with seeds: {seeds}")
        loaded = replace(loaded, seeds=loaded.seeds[:seeds])
    if check and not any(expected.within is not None for expected in loaded.expected):
        raise BadInput(f"--check: {suite} asks for no number to be near a paper's; give its expected values `within`")
    folder = out or Path("results") / suite.stem
    _check_folder(folder)
    runs = _carried_out(loaded, folder, workers, data_root, json)
    found = cells(loaded, runs)
    table = cell_table(loaded, found)
    stated = settings(loaded, _chosen(found, runs))
    told = notes(loaded, stated, runs)
    replace_file(folder / "runs.csv", runs_csv(loaded, runs).encode())
    replace_file(folder / "table.csv", cells_csv(loaded, found).encode())
    replace_file(folder / "settings.csv", stated.as_csv().encode())
    text = f"# {loaded.title}\n\n{table.markdown()}\n## Settings\n\n{stated.markdown()}"
    text += "".join(f"\nNote: {note}.\n" for note in told)
    replace_file(folder / "table.md", text.encode())
    figures = write_figures(loaded, found, folder)
    if json:
        facts = {"title": loaded.title, "folder": str(folder), "headings": table.headings, "rows": table.rows}
        known = {"settings": {"differing": stated.differing(), "common": stated.common()}, "notes": told}
        print_json({**facts, **known, "figures": [str(path) for path in figures]})
    else:
        print_table(table, loaded.title)
        if stated.table().rows:
            print_table(stated.table(), "settings that rows differ in")
        common = ", ".join(f"{key}={value}" for key, value in stated.common().items())
        typer.echo(plain(f"in all rows: {common}"))
        for note in told:
            typer.echo(plain(f"note: {note}"))
        for path in figures:
            typer.echo(f"figure: {path}")
        typer.echo(f"results: {folder}")
    failed = any(cell.errors for cell in found) or (check and any(cell.holds is False for cell in found))
    if failed:
        raise typer.Exit(1)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else: what a comparison writes must take the place of nobody's files."""
    from isthmus.core.errors import BadInput

    written = ("runs", "runs.csv", "table.csv")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; results need a folder: give another with --out")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in written):
        raise BadInput(f"{folder} holds files that are of no comparison; give a new or an empty folder with --out")


def _chosen(found: Sequence[Cell], runs: Sequence[Run]) -> list[Point]:
    """Return the course that stands for each cell: at the point that was chosen, or at its first where none was."""
    return [next(run.point for run in (*cell.runs, *runs) if run.point.cell == cell.choices) for cell in found]


def _carried_out(suite: Suite, folder: Path, workers: int | None, root: Path | None, silent: bool) -> list[Run]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from isthmus.suites.runner import run_suite

    columns = (
        TextColumn("{task.fields[facts]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, quiet=silent)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len({point.key for point in suite.points()}), facts=suite.title)

        def on_done(run: Run) -> None:
            score = "no score" if run.score is None else f"{run.score:.4f}"
            shown = run.error.splitlines()[0] if run.error else score
            progress.update(task, advance=1, facts=f"{', '.join(run.point.cell.values())}: {shown}")

        return run_suite(suite, folder, workers=workers, data_root=root, on_done=on_done)
