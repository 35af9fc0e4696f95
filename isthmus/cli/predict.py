"""isthmus predict: what a trained model says of the nodes of a graph, of links, or of the graphs of a set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import isthmus
from isthmus.cli.output import DataRoot, Json, examples, print_json
from isthmus.core.errors import BadInput
from isthmus.core.outside import printable, replacing

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = examples(
    "isthmus predict runs/20260131-235959-fedavg-cora --graph cora --out labels.csv",
    "isthmus predict RUN --graph my_graph/ --out labels.parquet",
    "isthmus predict RUN --graph my_graph/ --client client-2",
    "isthmus predict RUN --graph my_links/ --out scores.csv",
)


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of a finished course.")],
    graph: Annotated[
        str,
        typer.Option(
            metavar="DATASET|FOLDER", help="A dataset's name, or a folder of tables; a folder called so is ./NAME."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A .csv or .parquet file.")] = Path("predictions.csv"),
    client: Annotated[str | None, typer.Option(metavar="ID", help="Predict as this client would.")] = None,
    data_root: DataRoot = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Take feature columns by their order, whatever they are called.")
    ] = False,
    json: Json = False,
) -> None:
    """Write what the model says of every node, link or graph (label and probabilities, scores), as CSV or Parquet."""
    if out.suffix not in (".csv", ".parquet"):
        raise BadInput(f"--out is {str(out)!r}; its name must end in .csv or .parquet")
    if out.exists() and not force:
        raise BadInput(f"{out} exists already; choose another file or add --force")
    notes: list[str] = []
    table = isthmus.predictions(run, graph, client, data_root, by_position, notes.append)
    _write(table, out)
    if json:
        print_json({"file": str(out), "rows": len(table), "notes": notes})
    else:
        for note in notes:
            typer.echo(f"note: {printable(note)}")
        typer.echo(f"{len(table)} predictions written to {out}")


def _write(table: pd.DataFrame, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        write = table.to_csv if out.suffix == ".csv" else table.to_parquet
        write(temporary, index=False)
