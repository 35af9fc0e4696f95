"""isthmus list and isthmus show: what there is, and what it does."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

import isthmus
from isthmus.cli.output import Json, examples, print_json, print_table
from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import data_root, parse_yaml
from isthmus.report.summary import Table

if TYPE_CHECKING:
    from isthmus.config.registry import Family
    from isthmus.core.guards.guard import Guard

LIST_EXAMPLES = examples("isthmus list", "isthmus list algorithms", "isthmus list datasets --json")
SHOW_EXAMPLES = examples(
    "isthmus show algorithm fedavg",
    "isthmus show algorithm fedavg --guards quantise",
    "isthmus show model gcn",
    "isthmus show course",
)
# Of a family, what else is told of each part.
EXTRA_HEADINGS = {"datasets": ("task", "present", "licence")}
MANY_CLIENTS = 1_000  # enough for any guard


def list_parts(
    kind: Annotated[str | None, typer.Argument(help="algorithms, datasets, splitters, models, ...")] = None,
    json: Json = False,
) -> None:
    """List the parts that a course can be made of, all of them or one kind."""
    from isthmus.config.registry import find_part, known_names

    chosen = _families().values() if kind is None else [_family(kind)]
    parts = {family.name: {part: find_part(family, part, part) for part in known_names(family)} for family in chosen}
    if json:
        print_json({name: {part: summary(cls) for part, cls in found.items()} for name, found in parts.items()})
        return
    for name, found in parts.items():
        rows = tuple((part, *_extra(name, cls), summary(cls)) for part, cls in found.items())
        print_table(Table(("name", *EXTRA_HEADINGS.get(name, ()), "what it is"), rows), name)


def show_part(
    kind: Annotated[str, typer.Argument(help="algorithm, dataset, splitter, model, ...; or: course")],
    name: Annotated[str | None, typer.Argument(help="The part's name, as in isthmus list.")] = None,
    guards: Annotated[
        list[str] | None,
        typer.Option(help="A guard of the course, by name or as {name: ..., field: value}; repeat it for several."),
    ] = None,
    json: Json = False,
) -> None:
    """Show one part: what it is, its fields and defaults; for an algorithm also its messages and who sees what."""
    from isthmus.config.registry import find_part

    if kind == "course":
        cls: type[Any] = isthmus.Course
    else:
        family = _family(kind)
        if name is None:
            raise BadInput(
                f"command line: name one of the {family.name}, for example: isthmus show {kind} "
                f"{next(iter(family.table))}"
            )
        cls = find_part(family, name, f"command line: {kind}")
    facts: dict[str, Any] = {"name": name or kind, "class": f"{cls.__module__}:{cls.__qualname__}"}
    facts["text"] = inspect.cleandoc(cls.__doc__ or "")
    facts["fields"] = fields(cls)
    if issubclass(cls, isthmus.Algorithm):
        from isthmus.core.exposure import exposure

        chosen = _guards(guards or ())
        facts["messages"] = [dataclasses.asdict(exchange) for exchange in exposure(cls, chosen)]
        if problem := _refused(cls, chosen):
            facts["refused"] = problem
    elif guards:
        raise BadInput("command line: --guards goes with an algorithm, whose messages guards are done to")
    if json:
        print_json(facts)
    else:
        _print(facts)


def _guards(words: Iterable[str]) -> tuple[Guard, ...]:
    """Return the guards that the command line names."""
    from isthmus.config.build import Builder
    from isthmus.core.guards.guard import Guard
    from isthmus.core.guards.line import line_problem

    found: tuple[Guard, ...] = Builder("command line").build(
        tuple[Guard, ...], [parse_yaml(word, "command line: a guard") for word in words], "--guards"
    )
    problem = line_problem(found)
    if problem:
        raise BadInput(f"command line: --guards: {problem}")
    return found


def _refused(algorithm: type[isthmus.Algorithm[Any]], guards: tuple[Guard, ...]) -> str:
    """Return why a course of this method with its defaults, and of many clients, cannot have these guards."""
    if not guards:
        return ""
    try:
        isthmus.Course(algorithm=algorithm(), guards=guards, num_clients=MANY_CLIENTS)
    except (TypeError, ValueError) as error:  # TypeError: a field of the method has no default
        return str(error) if isinstance(error, ValueError) else ""
    return ""


def summary(cls: type[Any]) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.cleandoc(cls.__doc__ or "").splitlines() or [""])[0]


def fields(cls: type[Any]) -> list[dict[str, Any]]:
    """Return name, type and default of each field of a part."""
    from isthmus.config.build import describe

    if not dataclasses.is_dataclass(cls):
        return []
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        plain = "(needed)" if default is dataclasses.MISSING else describe(default)
        rows.append({"field": field.name, "type": str(field.type), "default": plain})
    return rows


def _print(facts: dict[str, Any]) -> None:
    import yaml

    typer.echo(f"{facts['name']}  ({facts['class']})\n\n{facts['text']}\n")
    if facts["fields"]:
        typer.echo("Fields and defaults, as a course file has them:\n")
        plain = {row["field"]: row["default"] for row in facts["fields"]}
        text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=False)
        typer.echo("\n".join(f"    {line}" for line in text.splitlines()))
    if "refused" in facts:
        typer.echo(f"\nA course of it with these guards and defaults else is refused: {facts['refused']}")
    for number, message in enumerate(facts.get("messages", ())):
        if number == 0:
            typer.echo("\nWho sees what:")
        typer.echo(f"\n    server -> client  {message['request']}")
        _print_fields(message["sent"])
        typer.echo(f"    client -> server  {message['reply']}     the server sees {message['server_sees']}")
        _print_fields(message["answered"])
        typer.echo(f"    on the wire       down: {message['wire_down']}; up: {message['wire_up']}")


def _print_fields(docs: dict[str, str]) -> None:
    for name, text in docs.items():
        typer.echo(f"        {name}: {text}")


def _families() -> dict[str, Family]:
    """Return all families by name; those of attacks and searches stand above what knows the others."""
    import_module("isthmus.attacks")
    import_module("isthmus.tune.searches")
    from isthmus.config.registry import FAMILIES

    return {family.name: family for family in FAMILIES.values()}


def _family(kind: str) -> Family:
    """Return the family of a kind given in the singular or the plural."""
    families = _families()
    aliases = {"mask": "masks", "search": "searches", "gnn": "models", "gnns": "models"}
    for candidate in (kind, f"{kind}s", aliases.get(kind, "")):
        if candidate in families:
            return families[candidate]
    raise BadInput(f"command line: there are no {kind!r}; {nearest(kind, families)}")


def _extra(family: str, cls: type[Any]) -> tuple[str, ...]:
    if family != "datasets":
        return ()
    needed = [f for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    present = "-" if needed else "yes" if cls().present(data_root(None)) else "no"
    return (cls.task, present, cls.licence)
