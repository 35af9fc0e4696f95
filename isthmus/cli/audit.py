"""isthmus audit: what each position can find out of a course, with and without guards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.output import DataRoot, Json, Words, examples, print_json, print_table
from isthmus.cli.run import split_words
from isthmus.core.errors import BadInput
from isthmus.core.outside import parse_yaml, printable

if TYPE_CHECKING:
    from isthmus.attacks import Attack
    from isthmus.attacks.audit.spec import Audit, Guards
    from isthmus.config.course import Course

EXAMPLES = examples(
    "isthmus audit --attacks vocabulary --attacks label_shares --seeds 3",
    "isthmus audit course.yaml num_clients=50 --attacks '{name: lira, shadows: 64}' --out results/audit",
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
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds, from the course's own on.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where results go; goes on with it.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes for shadows; by default one per core.")] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Attack a course from each position, beside who sees nothing, and again under each list of guards."""
    from isthmus.attacks.audit.results import facts_of, title_of, write_results
    from isthmus.attacks.audit.running import carry_out
    from isthmus.attacks.audit.table import attack_table, cost_table, findings, in_words
    from isthmus.config.build import name_of
    from isthmus.config.load import load_course

    source, overrides = split_words(words or [])
    notes: list[str] = []
    course = load_course(source, overrides, say=notes.append)
    made = _made(course, attacks or (), guards or (), seeds)
    names = f"{name_of(type(course.algorithm))}-{name_of(type(course.dataset))}".replace(":", "_")
    folder = out or Path("results") / f"audit-{names}"
    for note in notes:
        _tell(f"note: {note}")
    carried = carry_out(
        made, folder, data_root=data_root, workers=workers, say=lambda text: None if json else _tell(text)
    )
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


def _tell(text: str) -> None:
    typer.echo(printable(text), err=True)


def _made(course: Course, attacks: Any, guards: Any, seeds: int) -> Audit:
    """Return the audit that the command line asks for."""
    from isthmus.attacks import ATTACKS
    from isthmus.attacks.audit.spec import Audit

    chosen = _attacks(attacks) if attacks else tuple(kind() for kind in ATTACKS.values())
    lines = (course.guards, *(line for word in guards if (line := _line(word)) != course.guards))
    try:
        made = Audit(course, chosen, lines, tuple(range(course.seed, course.seed + seeds)))
        list(made.cells())  # a guard that the course cannot have is refused before anything is run
    except ValueError as error:
        raise BadInput(f"command line: {error}") from None
    return made


def _attacks(words: Any) -> tuple[Attack, ...]:
    from isthmus.attacks import Attack
    from isthmus.config.build import Builder

    plain = [parse_yaml(word, "command line: an attack") for word in words]
    found: tuple[Attack, ...] = Builder("command line").build(tuple[Attack, ...], plain, "--attacks")
    return found


def _line(word: str) -> Guards:
    from isthmus.config.build import Builder
    from isthmus.core.guards.guard import Guard

    plain = parse_yaml(word, "command line: guards")
    found: Guards = Builder("command line").build(
        tuple[Guard, ...], plain if isinstance(plain, list) else [plain], "--guards"
    )
    return found
