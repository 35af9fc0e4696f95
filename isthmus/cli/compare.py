"""isthmus compare: a suite of methods, datasets, splitters and seeds as one table, and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.output import DataRoot, Json, examples, print_json, print_table
from isthmus.core.errors import BadInput
from isthmus.core.outside import printable

if TYPE_CHECKING:
    from isthmus.suites.comparison import Comparison
    from isthmus.suites.outcomes import Run
    from isthmus.suites.spec import Suite

EXAMPLES = examples(
    "isthmus compare papers/fs_g/gcn_cora.yaml",
    "isthmus compare SUITE.yaml --out results/mine --workers 1 --check",
    "isthmus compare SUITE.yaml --seeds 1 --only dataset=cora,citeseer --only method=fedavg",
    "isthmus compare SUITE.yaml --only lr=0.25 --only local_steps=4 --set rounds=100",
    after="A comparison that was cut short goes on where it stopped when it is started again with the same --out; "
    "one that is finished is only tabulated and drawn again. Rows of a runs.csv in that folder count as "
    "finished too.",
)


def compare(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="What to compare.")],
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where results go; goes on with it.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=CHOICE,...", help="Only these choices of an axis or of a searched key."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key in every course of the suite.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the workers of this Dask cluster.")
    ] = None,
    data_root: DataRoot = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a number is not as near as asked.")] = False,
    json: Json = False,
) -> None:
    """Run every method on every dataset, splitter and seed of a suite; print mean ± std beside the paper's numbers.

    Figures that the suite asks for are drawn into the folder of the results.
    """
    from isthmus.suites.comparison import Comparison, check_folder
    from isthmus.suites.part import part_of

    loaded = part_of(suite, only or (), changes or (), seeds)
    if check and not any(expected.within is not None for expected in loaded.expected):
        raise BadInput(f"--check: {suite} asks for no number to be near a paper's; give its expected values `within`")
    folder = out or Path("results") / suite.stem
    check_folder(folder)
    if loaded.tune:
        from isthmus.tune.of_suites import tuned

        loaded = tuned(loaded, folder, workers, cluster, data_root, lambda text: _tell(text, json))
    compared = Comparison(loaded, _carried_out(loaded, folder, workers, cluster, data_root, json))
    figures = compared.write(folder, lambda text: typer.echo(printable(f"note: {text}"), err=True))
    if json:
        print_json({**compared.facts(), "folder": str(folder), "figures": [str(path) for path in figures]})
    else:
        _show(compared, figures)
        typer.echo(f"results: {folder}")
    if compared.has_errors or (check and not compared.holds):
        raise typer.Exit(1)


def _tell(text: str, silent: bool) -> None:
    if not silent:
        typer.echo(printable(text), err=True)


def _show(compared: Comparison, figures: list[Path]) -> None:
    print_table(compared.table, compared.suite.title)
    differing = compared.settings.table()
    if differing.rows:
        print_table(differing, "settings that rows differ in")
    common = ", ".join(f"{key}={value}" for key, value in compared.settings.common().items())
    for line in [f"in all rows: {common}", *(f"note: {note}" for note in compared.notes)]:
        typer.echo(printable(line))
    for path in figures:
        typer.echo(f"figure: {path}")


def _carried_out(
    suite: Suite, folder: Path, workers: int | None, cluster: str | None, root: Path | None, silent: bool
) -> list[Run]:
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

        return run_suite(suite, folder, workers=workers, cluster=cluster, data_root=root, on_done=on_done)
