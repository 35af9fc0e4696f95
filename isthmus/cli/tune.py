"""isthmus tune: search over keys of a course at many fidelities; lookup tables, and searches on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.output import DataRoot, Json, examples, print_json, print_table
from isthmus.core.errors import BadInput
from isthmus.core.outside import printable

if TYPE_CHECKING:
    from isthmus.tune.spec import Study
    from isthmus.tune.table import Row, Table

EXAMPLES = examples(
    "isthmus tune STUDY.yaml rounds=50 --out results/study",
    "isthmus tune STUDY.yaml --workers 2",
    "isthmus tune STUDY.yaml --table --fractions 0.4,1.0 --out results/table",
    "isthmus tune STUDY.yaml --on results/table/curves.npz",
    after="A study that was cut short goes on where it stopped when it is started again with the same --out, with the "
    "same trials and none of them twice; with a larger budget one that is finished goes on. best.yaml in that folder "
    "is a course for isthmus run.",
)


def tune(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What to search, and how.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes of the course that all trials have.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where results go; goes on with it.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default this one.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run trials on the workers of this Dask cluster.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Fill a lookup table with all configurations, and search nothing.")
    ] = False,
    fractions: Annotated[
        str, typer.Option(metavar="SHARE,...", help="With --table: shares of clients, each with curves of its own.")
    ] = "",
    points: Annotated[int, typer.Option(min=1, help="With --table: how many values of a range.")] = 3,
    on: Annotated[
        Path | None, typer.Option(metavar="CURVES.npz", help="Search on this lookup table, and compute nothing.")
    ] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Search for the keys of a course with which it does best; trials freeze and thaw."""
    from isthmus.tune.reading import load_study

    made = load_study(study, words or ())
    if table and on is not None:
        raise BadInput("--table fills a lookup table and --on searches on one; give one of them")
    if cluster is not None and (table or on is not None):
        raise BadInput("--cluster is for trials that are computed as they come; leave it out with --table and --on")
    folder = out or Path("results") / (f"{study.stem}-table" if table else study.stem)
    if table:
        _fill(made, _shares(fractions), points, folder, workers or 1, data_root, json)
    elif on is not None:
        _show(made, _looked_up(made, on), None, (), json)
    else:
        found, final = _searched(made, folder, workers, cluster, data_root, json)
        _show(made, found, folder, final, json)


def _shares(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",") if word]
    except ValueError:
        raise BadInput(f"--fractions is {text!r}, expected shares of clients such as 0.4,1.0") from None


def _fill(study: Study, shares: Any, points: int, folder: Path, workers: int, root: Path | None, silent: bool) -> None:
    from isthmus.tune.filling import FILE, Filling, fill

    with _bar(study.title, silent) as (progress, task):

        def on_done(told: str, done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, facts=printable(told))

        curves = fill(Filling.of(study, shares, points), folder, data_root=root, workers=workers, on_done=on_done)
    truth = curves.truth()
    facts = {
        "table": str(folder / FILE),
        "points": len(curves.points),
        "fractions": list(curves.fractions),
        "seeds": list(curves.seeds),
        "rounds": curves.rounds,
        "best": dict(curves.points[int(truth.argmax())]),
        "score": float(truth.max()),
    }
    if json_wanted(silent, facts):
        return
    size = f"{len(curves.points)} configurations x {len(curves.fractions)} shares x {len(curves.seeds)} seeds"
    typer.echo(f"{size}, {curves.rounds} rounds")
    typer.echo(printable(f"the best: {facts['best']}: {facts['score']:.4f}"))
    typer.echo(f"table: {facts['table']}")


def json_wanted(wanted: bool, facts: dict[str, Any]) -> bool:
    """Print facts as JSON where that is wanted, and say whether it was."""
    if wanted:
        print_json(facts)
    return wanted


def _looked_up(study: Study, path: Path) -> Table:
    from isthmus.tune.curves import Curves, LookedUp
    from isthmus.tune.running import search

    return search(study, LookedUp(study, Curves.load(path)))


def _searched(
    study: Study, folder: Path, workers: int | None, cluster: str | None, root: Path | None, silent: bool
) -> tuple[Table, list[float]]:
    from isthmus.tune.backends import backend_of
    from isthmus.tune.mirror import mirror_of
    from isthmus.tune.results import final_scores
    from isthmus.tune.running import Computed, search

    with _bar(study.title, silent) as (progress, task), backend_of(workers, cluster, root) as backend:
        answers = Computed(study, folder, backend)
        mirror = mirror_of(study, folder)
        total = study.budget.client_rounds

        def on_row(row: Row, table: Table) -> None:
            if mirror is not None:
                mirror.told(row)
            best = table.best()
            shown = "" if best is None else f", best {best.scores[0]:.4f}"
            rounds = study.rungs[row.trial.rung].rounds
            score = row.error.splitlines()[0] if row.error else f"{row.scores[0]:.4f}"
            spent = sum(each.cost for each in table.rows if each.done)
            done = spent if total else len(table.arms)
            told = f"{row.trial.arm} after {rounds} rounds: {score}{shown}"
            progress.update(task, completed=done, total=total or study.budget.trials, facts=printable(told))

        found = search(study, answers, on_row)
        if mirror is not None:
            mirror.ends(found)

        def say(text: str) -> None:
            progress.update(task, facts=text)

        return found, final_scores(study, found, folder, root, say)


def _bar(title: str, silent: bool) -> Any:
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[facts]}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())

    @contextmanager
    def shown() -> Any:
        with Progress(*columns, console=Console(stderr=True, quiet=silent)) as progress:
            yield progress, progress.add_task("", total=None, facts=title)

    return shown()


def _show(study: Study, table: Table, folder: Path | None, final: Any, silent: bool) -> None:
    from isthmus.tune.results import facts_of, found_by, in_words, trials_table, write_results

    found = found_by(study, table, final)
    files = [] if folder is None else write_results(found, folder)
    if json_wanted(silent, {**facts_of(found), "folder": None if folder is None else str(folder)}):
        return
    print_table(trials_table(found), study.title)
    for line in in_words(found):
        typer.echo(printable(line))
    for path in files:
        typer.echo(f"written: {path}")
