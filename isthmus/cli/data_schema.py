"""isthmus data schema: what a silo's columns are, without its data, and one schema for several silos."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.output import examples
from isthmus.core.errors import BadInput
from isthmus.core.outside import printable

if TYPE_CHECKING:
    from isthmus.data.folders.schema.schema import Schema

EXAMPLES = examples(
    "isthmus data schema graphs/north -o north.yaml",
    "isthmus data schema north.yaml south.yaml -o schema.yaml",
    "isthmus data schema graphs/north graphs/south --max-words 500 -o schema.yaml",
    after="Each silo makes its own file and gives that away, not its data; any of them makes the union, which is "
    "the same in whatever order the files are named. Then all follow it: isthmus data import ... --schema "
    "schema.yaml",
)


def schema(
    paths: Annotated[list[Path], typer.Argument(metavar="FOLDER|FILE...", help="Graph folders, or schema files.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="The schema to write.")] = None,
    max_words: Annotated[int | None, typer.Option(min=1, help="Words of a vocabulary at most.")] = None,
    counts: Annotated[bool, typer.Option("--counts/--no-counts", help="Tell how many rows have seen what.")] = True,
    common: Annotated[bool, typer.Option("--common", help="Leave out features that not all have.")] = False,
) -> None:
    """Write the schema of a graph folder, or one schema for several folders or schema files: the union of theirs."""
    from isthmus.data.folders.schema.schema import to_yaml, write_schema
    from isthmus.data.folders.schema.schema_union import gained, union

    given = {str(path): _read(path, counts) for path in paths}
    if len(given) < len(paths):
        raise BadInput(f"{next(str(p) for p in paths if paths.count(p) > 1)!r} is named twice; name each once")
    made = union(given, max_words, common)
    if out is None:
        typer.echo(to_yaml(made), nl=False)
        return
    write_schema(made, out)
    lines = [
        f"{len(made.features)} features, {len(made.columns)} columns, classes: {', '.join(made.classes) or 'none'}"
    ]
    lines += [f"{name}: {line}" for name, own in given.items() for line in gained(made, own)]
    for line in [*lines, f"schema digest: {made.digest}", f"schema: {out}"]:
        typer.echo(printable(line))


def _read(path: Path, counts: bool) -> Schema:
    from isthmus.data.folders.graph_folder import Folder
    from isthmus.data.folders.own_kinds import kind_at
    from isthmus.data.folders.schema.schema import read_schema
    from isthmus.data.folders.schema.schema_union import of_folder, without_counts

    if not path.is_dir():
        found = read_schema(path)
        return found if counts else without_counts(found)
    kind = kind_at(path)
    if kind is not Folder:
        raise BadInput(f"{path} is a {kind.called}; only graph folders have a schema")
    return of_folder(path, counts)
