"""isthmus data: look at graphs before training on them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli import data_import, data_schema, data_show
from isthmus.cli.output import DataRoot, DatasetOrFolder, comma_list, examples
from isthmus.core.errors import BadInput
from isthmus.core.outside import data_root as locate_data

if TYPE_CHECKING:
    from isthmus.data.dividing import Holding
    from isthmus.data.folders.own_folder import OwnData

app = typer.Typer(help="Look at graphs before training on them.", no_args_is_help=True, rich_markup_mode=None)

CHECK_EXAMPLES = examples(
    "isthmus data check my_graph/",
    "isthmus data check my_graph/ --classes red,green,blue",
    "isthmus data check my_graph/ --schema schema.yaml",
    "isthmus data check my_links/",
)


SPLIT_EXAMPLES = examples(
    "isthmus data split cora --clients 3 --out silos",
    "isthmus data split cora --names bank-a,bank-b,bank-c --out silos splitter.name=random",
    "isthmus data split mutag --clients 3 --out silos splitter.name=random",
    "isthmus data split my_graph/ --clients 4 --out silos splitter.name=meta splitter.attribute=country",
)


app.command("show", epilog=data_show.EXAMPLES)(data_show.show)
app.command("import", epilog=data_import.EXAMPLES)(data_import.import_graph)
app.command("schema", epilog=data_schema.EXAMPLES)(data_schema.schema)


@app.command("check", epilog=CHECK_EXAMPLES)
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of tables: a graph, links, graphs.")],
    classes: Annotated[str, typer.Option(metavar="A,B,C", help="The class list of the course.")] = "",
    schema: Annotated[Path | None, typer.Option(metavar="FILE", help="The schema to follow.")] = None,
    directed: Annotated[bool, typer.Option("--directed", help="An edge and its reverse are two edges.")] = False,
    negatives: Annotated[str, typer.Option(metavar="CLASS", help="The label of pairs that are no links.")] = "",
) -> None:
    """Check a folder of a graph, of links or of graphs, and say everything that is wrong with it, by row."""
    from isthmus.data.folders.graph_folder import Folder, GraphFolder, read_following
    from isthmus.data.folders.link_folder import LinkFolder
    from isthmus.data.folders.own_kinds import kind_at
    from isthmus.data.link_graph import item_word

    names = tuple(comma_list(classes))
    kind = kind_at(folder)
    if negatives and kind is not LinkFolder:
        raise BadInput(f"--negatives is for link folders; {folder} is a {kind.called}")
    if kind is Folder:
        read: OwnData[Any] = read_following(folder, schema, names, undirected=not directed)
    elif schema is not None:
        raise BadInput(f"--schema is for graph folders; {folder} is a {kind.called}")
    else:
        dataset = replace(kind.at(folder), class_names=names)
        dataset = replace(dataset, negatives=negatives) if isinstance(dataset, LinkFolder) else dataset
        read = (replace(dataset, undirected=False) if directed else dataset).read()
    data = read.data
    typer.echo(f"{folder} is a {kind.called}: {kind.describe(data, directed)}")
    for split in ("train", "val", "test"):
        typer.echo(f"{split}: {int(data.mask(split).sum())} {item_word(data)}s")
    _tell_attributes(data)
    data_show.tell_doubt(data)
    if isinstance(read, GraphFolder) and read.schema is not None:
        typer.echo(f"schema digest: {read.schema.digest}")
    if schema is not None:
        typer.echo(f"follows {schema}")


def _tell_attributes(data: Holding) -> None:
    """Print what the splitter `meta` can go by, if there is anything."""
    import numpy as np

    from isthmus.data.splitters.facts import attributes_of

    counts = {name: len(np.unique(found.numpy())) for name, found in attributes_of(data).items()}
    told = [f"{name} ({count} value{'' if count == 1 else 's'})" for name, count in sorted(counts.items())]
    if told:
        typer.echo(f"to split by: {', '.join(told)}")


@app.command("split", epilog=SPLIT_EXAMPLES)
def split(
    dataset: DatasetOrFolder,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Splitter, masks and seed, as in a course.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the folders go.")] = Path("silos"),
    clients: Annotated[int, typer.Option(min=1, help="How many parts.")] = 3,
    names: Annotated[str, typer.Option(metavar="A,B,C", help="The parts' names, in place of --clients.")] = "",
    data_root: DataRoot = None,
) -> None:
    """Divide a dataset or a folder of tables into folders, one for each of several organisations, as a course would."""
    from isthmus.config.build import stated
    from isthmus.data.folders.schema.schema import SCHEMA_FILE
    from isthmus.data.link_graph import item_word
    from isthmus.runs.who_holds_what import Division

    chosen = _names(names)
    division = Division.of(dataset, [f"num_clients={len(chosen) or clients}", *(words or [])])
    parts, divided = division.write(out, locate_data(data_root), chosen)
    for path, part in parts.items():
        examples = "/".join(str(int(part.mask(split).sum())) for split in ("train", "val", "test"))
        typer.echo(f"{path}: {part.num_items} {item_word(part)}s, {examples} train/val/test")
    names = ",".join(divided.whole.class_names)
    typer.echo("classes: each has its own" if divided.own_classes else f"classes: {names}")
    settings = {key: value for key, value in stated(divided.dataset).items() if key != "class_names"}
    typer.echo(f"read with: {' '.join(f'dataset.{name}={value}' for name, value in settings.items())}")
    data_show.tell_namesake(dataset)
    lost = divided.lost_attributes
    if lost:
        typer.echo(f"attributes not written, with several values for each {divided.whole.item}: {', '.join(lost)}")
    if divided.write_schema(out / SCHEMA_FILE):
        typer.echo(f"schema: {out / SCHEMA_FILE}")


def _names(text: str) -> list[str]:
    chosen = comma_list(text)
    odd = [name for name in chosen if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or chosen.count(name) > 1]
    if odd:
        raise BadInput(f"--names has {odd[0]!r}; names are of letters, digits, - and _, each once")
    return chosen
