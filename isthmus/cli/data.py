"""isthmus data: look at graphs before training on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli import data_import, data_show

app = typer.Typer(help="Look at graphs before training on them.", no_args_is_help=True, rich_markup_mode=None)

CHECK_EXAMPLES = """Examples:

  isthmus data check my_graph/

  isthmus data check my_graph/ --classes red,green,blue

  isthmus data check my_graph/ --schema schema.yaml
"""


SPLIT_EXAMPLES = """Examples:

  isthmus data split cora --clients 3 --out silos

  isthmus data split cora --names bank-a,bank-b,bank-c --out silos splitter.name=random
"""


@app.callback()
def data() -> None:
    """Look at graphs before training on them."""


app.command("show", epilog=data_show.EXAMPLES)(data_show.show)
app.command("import", epilog=data_import.EXAMPLES)(data_import.import_graph)


@app.command("check", epilog=CHECK_EXAMPLES)
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A graph folder: nodes and edges as tables.")],
    classes: Annotated[str, typer.Option("--classes", metavar="A,B,C", help="The class list of the course.")] = "",
    schema: Annotated[Path | None, typer.Option("--schema", metavar="FILE", help="The schema to follow.")] = None,
    directed: Annotated[bool, typer.Option("--directed", help="An edge and its reverse are two edges.")] = False,
) -> None:
    """Check a graph folder and say everything that is wrong with it, by row."""
    names = tuple(name.strip() for name in classes.split(",") if name.strip())
    read = data_import.read_checked(folder, names, schema, directed)
    graph = read.graph
    typer.echo(
        f"{folder} is a graph folder: {graph.num_nodes} nodes, {graph.num_edges} directed edges, "
        f"{graph.num_features} features, classes: {', '.join(graph.class_names) or 'none'}"
    )
    for split in ("train", "val", "test"):
        typer.echo(f"{split}: {int(graph.mask(split).sum())} nodes")
    if read.schema is not None:
        typer.echo(f"schema digest: {read.schema.digest}")
    if schema is not None:
        typer.echo(f"follows {schema}")


@app.command("split", epilog=SPLIT_EXAMPLES)
def split(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A dataset's name, as in isthmus list datasets.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Splitter, masks and seed, as in a course.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the graph folders go.")] = Path("silos"),
    clients: Annotated[int, typer.Option("--clients", min=1, help="How many parts.")] = 3,
    names: Annotated[
        str, typer.Option("--names", metavar="A,B,C", help="The parts' names, in place of --clients.")
    ] = "",
    data_root: Annotated[Path | None, typer.Option("--data-root", metavar="FOLDER", help="Where datasets lie.")] = None,
) -> None:
    """Divide a dataset into graph folders, one for each of several organisations, as a course would."""
    from isthmus.config.load import load_course
    from isthmus.core.errors import BadInput
    from isthmus.data.sources import write_graph_folder
    from isthmus.data.zoo import data_root as locate_data
    from isthmus.simulation import load_scenario, require_kind

    chosen = [name.strip() for name in names.split(",") if name.strip()]
    odd = [name for name in chosen if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or chosen.count(name) > 1]
    if odd:
        raise BadInput(f"--names has {odd[0]!r}; names are of letters, digits, - and _, each once")
    number = len(chosen) or clients
    course = load_course(None, [f"dataset.name={dataset}", f"num_clients={number}", *(words or [])])
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} exists already; choose another folder")
    scenario = load_scenario(course, locate_data(data_root))
    require_kind(course, scenario.whole)  # a graph folder holds a graph with classes of nodes
    out.mkdir(parents=True, exist_ok=True)
    for name, (client, part) in zip(chosen or scenario.parts, scenario.parts.items(), strict=True):
        write_graph_folder(part, out / name)
        typer.echo(f"{out / name}: {course.task.holds(scenario.parts[client])}")
    typer.echo(f"classes: {','.join(scenario.whole.class_names)}")
