"""isthmus tune: search over keys of a course at many fidelities; lookup tables, and searches on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.output import DataRoot, Json, examples, print_json, print_table
from isthmus.core.errors import BadInput
from isthmus.core.outside import printable

if TYPE_CHECKING:
    from isthmus.cli.live_study import LiveStudy
    from isthmus.tune.backends import Backend
    from isthmus.tune.results import Found
    from isthmus.tune.spec import Study
    from isthmus.tune.table import Row, Table

EXAMPLES = examples(
    "isthmus tune STUDY.yaml rounds=50 --out results/study",
    "isthmus tune STUDY.yaml --workers 2",
    "isthmus tune STUDY.yaml --federation federation/operator --out results/study",
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
    federation: Annotated[
        Path | None, typer.Option(metavar="KIT", help="Run trials on a federation's silos, with an operator's kit.")
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
    from isthmus.cli.live_study import LiveStudy
    from isthmus.tune.backends import backend_of
    from isthmus.tune.reading import load_study
    from isthmus.tune.results import found_by

    if federation is not None and (table or on is not None or workers is not None or cluster is not None):
        raise BadInput("--federation is for trials on silos; leave out --table, --on, --workers and --cluster")
    if federation is not None:
        where = out or Path("results") / study.stem
        between, found, final = _between_sites(study, words or [], federation, where, json)
        _show(found_by(between, found, final), where, json)
        return
    made = load_study(study, words or ())
    if table and on is not None:
        raise BadInput("--table fills a lookup table and --on searches on one; give one of them")
    if cluster is not None and (table or on is not None):
        raise BadInput("--cluster is for trials that are computed as they come; leave it out with --table and --on")
    folder = out or Path("results") / (f"{study.stem}-table" if table else study.stem)
    if table:
        _fill(made, _shares(fractions), points, folder, workers or 1, data_root, json)
    elif on is not None:
        _looked_up(made, on, out, json)
    else:
        with LiveStudy(made, json) as live, backend_of(workers, cluster, data_root) as backend:
            found, final = _searched(made, folder, live, backend)
        _show(found_by(made, found, final), folder, json)


def _shares(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",") if word]
    except ValueError:
        raise BadInput(f"--fractions is {text!r}, expected shares of clients such as 0.4,1.0") from None


def _fill(study: Study, shares: Any, points: int, folder: Path, workers: int, root: Path | None, silent: bool) -> None:
    from isthmus.cli.live_study import LiveStudy
    from isthmus.tune.filling import FILE, Filling, fill

    with LiveStudy(study, silent) as live:

        def on_done(told: str, done: int, total: int) -> None:
            live.bar.update(live.task, completed=done, total=total, facts=printable(told))

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


def _looked_up(study: Study, path: Path, folder: Path | None, silent: bool) -> None:
    from isthmus.tune.curves import Curves, LookedUp, regrets, unseen
    from isthmus.tune.results import found_by
    from isthmus.tune.running import search

    curves = Curves.load(path)
    table, seeds = search(study, LookedUp(study, curves)), unseen(study, curves)
    if not table.rows:
        found_by(study, table)  # which says why
    which = ", ".join(map(str, seeds))
    truth = f"test score on the table, in the mean over the splits of the seeds {which}"
    _show(found_by(study, table, (), regrets(table, curves, seeds), truth), folder, silent)


def _searched(study: Study, folder: Path, live: LiveStudy, backend: Backend) -> tuple[Table, list[float]]:
    from isthmus.tune.mirror import mirror_of
    from isthmus.tune.results import final_scores
    from isthmus.tune.running import Computed, search

    answers, mirror = Computed(study, folder, backend), mirror_of(study, folder)

    def on_row(row: Row, table: Table) -> None:
        if mirror is not None:
            mirror.told(row)
        live.told(row, table)

    found = search(study, answers, on_row)
    if mirror is not None:
        mirror.ends(found)
    return found, final_scores(study, found, folder, backend, live.say)


def _between_sites(
    path: Path, words: list[str], kit: Path, folder: Path, silent: bool
) -> tuple[Study, Table, list[float]]:
    """Search on the silos of a federation."""
    from isthmus.cli.federation import interruptible, say
    from isthmus.cli.live_study import LiveStudy
    from isthmus.sites.parties.kit import open_kit
    from isthmus.sites.submit import connected
    from isthmus.tune.between_sites import Federation, check_study
    from isthmus.tune.reading import load_study

    opened = open_kit(kit, "operator")

    def read(sites: tuple[str, ...]) -> Study:
        study = load_study(path, words, sites)
        check_study(study, sites)
        return study

    study = read(opened.sites)
    with interruptible(), connected(opened, say) as operator:
        sites = operator.sites()
        if sites != opened.sites:  # the federation has changed since this kit was made
            study = read(sites)
        with LiveStudy(study, silent) as live:
            found, final = _searched(study, folder, live, Federation(operator, folder, sites, live.say))
    return study, found, final


def _show(found: Found, folder: Path | None, silent: bool) -> None:
    from isthmus.tune.results import facts_of, in_words, trials_table, write_results

    files = [] if folder is None else write_results(found, folder)
    if json_wanted(silent, {**facts_of(found), "folder": None if folder is None else str(folder)}):
        return
    print_table(trials_table(found), found.study.title)
    for line in in_words(found):
        typer.echo(printable(line))
    for path in files:
        typer.echo(f"written: {path}")
