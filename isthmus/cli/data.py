"""isthmus data: look at graphs before training on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Look at graphs before training on them.", no_args_is_help=True, rich_markup_mode=None)

CHECK_EXAMPLES = """Examples:

  isthmus data check my_graph/

  isthmus data check my_graph/ --classes red,green,blue
"""


@app.callback()
def data() -> None:
    """Look at graphs before training on them."""


@app.command("check", epilog=CHECK_EXAMPLES)
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A graph folder: nodes and edges as tables.")],
    classes: Annotated[str, typer.Option("--classes", metavar="A,B,C", help="The class list of the course.")] = "",
) -> None:
    """Check a graph folder and say everything that is wrong with it, by row."""
    from isthmus.data.sources import read_graph_folder

    names = tuple(name.strip() for name in classes.split(",") if name.strip())
    graph = read_graph_folder(folder, names).graph
    typer.echo(
        f"{folder} is a graph folder: {graph.num_nodes} nodes, {graph.num_edges} directed edges, "
        f"{graph.num_features} features, classes: {', '.join(graph.class_names) or 'none'}"
    )
    for split in ("train", "val", "test"):
        typer.echo(f"{split}: {int(graph.mask(split).sum())} nodes")
