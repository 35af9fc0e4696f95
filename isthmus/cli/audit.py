"""isthmus audit: what each position can find out of a course, with and without guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.output import DataRoot, Json, Words, examples, print_json, print_table
from isthmus.cli.run import split_words
from isthmus.core.outside import printable

if TYPE_CHECKING:
    from isthmus.attacks.audit.pace import Standing

EXAMPLES = examples(
    "isthmus audit --attacks vocabulary --attacks label_shares --seeds 3",
    "isthmus audit course.yaml num_clients=50 --attacks '{name: lira, shadows: 64}' --out results/audit",
    "isthmus audit papers/fs_g/section6_updates.yaml --data-root DATA",
    "isthmus audit algorithm.name=fedgl --guards secure_sum --guards '[quantise, entropy]'",
    after="An audit that was cut short goes on where it stopped when it is started again with the same --out; more "
    "attacks, guards or seeds may be named then. --guards may be given several times: each is a guard, or a list of "
    "them, that takes the place of the course's own.",
)


def audit(
    words: Words = None,
    attacks: Annotated[
        list[str] | None, typer.Option(metavar="ATTACK", help="An attack; by default all that can be tried.")
    ] = None,
    guards: Annotated[
        list[str] | None, typer.Option(metavar="GUARDS", help="Also with these guards in place of the course's own.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="So many seeds, from the course's own on; by default the file's, or 5.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where results go; goes on with it.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes for shadows; by default one per core.")] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Attack a course from each position, beside who sees nothing, and again under each list of guards.

    The file is that of a course, or of an audit: `base` (keys of the course), `attacks`, `guards`, `seeds`, `title`.
    How many courses that takes is said before it begins, and about how long when the first has run.
    """
    from isthmus.attacks.audit.reading import read_audit
    from isthmus.attacks.audit.results import facts_of, title_of, write_results
    from isthmus.attacks.audit.running import carry_out
    from isthmus.attacks.audit.table import attack_table, cost_table, findings, in_words
    from isthmus.config.build import name_of

    source, overrides = split_words(words or [])
    notes: list[str] = []
    made = read_audit(source, overrides, attacks=attacks or (), guards=guards or (), seeds=seeds, say=notes.append)
    names = f"{name_of(type(made.course.algorithm))}-{name_of(type(made.course.dataset))}".replace(":", "_")
    folder = out or Path("results") / f"audit-{source.stem if source else names}"
    for note in notes:
        _tell(f"note: {note}")
    with _progress(json) as (say, watch):
        carried = carry_out(made, folder, data_root=data_root, workers=workers, say=say, watch=watch)
    files = write_results(carried, folder)
    if json:
        print_json({**facts_of(carried), "folder": str(folder)})
        return
    found = list(findings(carried))
    print_table(attack_table(found), title_of(carried))
    print_table(cost_table(carried), "what guards cost")
    for line in in_words(carried, found):
        typer.echo(printable(line))
    for name, problem in carried.skipped.items():
        typer.echo(printable(f"not tried: {name}: {problem}"))
    for path in files:
        typer.echo(f"written: {path}")


@contextmanager
def _progress(silent: bool) -> Iterator[tuple[Callable[[str], None], Callable[[Standing], None]]]:
    """Give what says lines, and what shows a bar of runs with the time that is left, or a line for each step.

    The latter where there is no terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from isthmus.attacks.audit.pace import in_time

    console = Console(stderr=True, quiet=silent)
    if silent or not console.is_terminal:
        last = ""

        def told(standing: Standing) -> None:
            nonlocal last
            if standing.doing != last and not silent:
                _tell(f"{standing.done} of {standing.number} runs; {standing.doing}")
            last = standing.doing

        yield (lambda text: None if silent else _tell(text)), told
        return
    columns = (
        TextColumn("{task.fields[facts]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None, facts="", left="")

        def shown(standing: Standing) -> None:
            left = "" if standing.left is None else f"about {in_time(standing.left)} left"
            facts = printable(standing.doing)
            progress.update(task, completed=standing.done, total=standing.number, facts=facts, left=left)

        # Not past the bar, which is where other ways to stderr go.
        yield (lambda text: progress.console.print(printable(text), markup=False, highlight=False)), shown


def _tell(text: str) -> None:
    typer.echo(printable(text), err=True)
