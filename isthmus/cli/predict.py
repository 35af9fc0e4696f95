"""isthmus predict: what a trained model says of the nodes of a graph, or of the graphs of a set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

    from isthmus.config.course import Course

EXAMPLES = """Examples:

  isthmus predict runs/20260131-235959-fedavg-cora --graph cora --out labels.csv

  isthmus predict RUN --graph my_graph/ --out labels.parquet

  isthmus predict RUN --graph my_graph/ --client client-2
"""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of a finished course.")],
    graph: Annotated[
        str, typer.Option("--graph", metavar="FOLDER|DATASET", help="A graph folder, or a dataset's name.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .csv or .parquet file.")] = Path(
        "predictions.csv"
    ),
    client: Annotated[str | None, typer.Option("--client", metavar="ID", help="Use this client's own model.")] = None,
    data_root: Annotated[Path | None, typer.Option("--data-root", metavar="FOLDER", help="Where datasets lie.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")] = False,
) -> None:
    """Write the predicted label of every node or graph, and the probability of every class, as CSV or Parquet."""
    from isthmus.cli.output import print_json
    from isthmus.core.errors import BadInput

    if out.suffix not in (".csv", ".parquet"):
        raise BadInput(f"--out is {str(out)!r}; its name must end in .csv or .parquet")
    if out.exists() and not force:
        raise BadInput(f"{out} exists already; choose another file or add --force")
    table = predictions(run, graph, client, data_root)
    _write(table, out)
    if json:
        print_json({"file": str(out), "rows": len(table)})
    else:
        typer.echo(f"{len(table)} predictions written to {out}")


def predictions(run: Path, graph: str, client: str | None = None, root: Path | None = None) -> pd.DataFrame:
    """Return a table with the column id and those of the task, such as label and one probability for each class."""
    import json

    import pandas as pd

    from isthmus.config.load import load_course
    from isthmus.core.errors import BadInput
    from isthmus.learn.fit import load_params
    from isthmus.monitor.folder import RunFolder, load_model_file

    folder = RunFolder.open(run)
    path = folder.model if client is None else folder.client_model(client)
    if not path.is_file():
        raise BadInput(f"{run} has no {path.relative_to(run)}; {_models_there(folder)}")
    params, facts = load_model_file(path)
    # A run between sites came from the server: only installed parts, no import paths.
    course = load_course(folder.course, allow_import=not (run / "course_id").exists())
    class_names = tuple(json.loads(facts.get("class_names", "[]")))
    data, ids = _graph(graph, class_names, root, course)
    if "input_dim" not in facts or "output_dim" not in facts:
        raise BadInput(f"{path} does not say its dimensions; it was not written by isthmus")
    width = int(facts["input_dim"])
    if course.task.input_dim(data) != width:
        raise BadInput(f"{graph} has {course.task.input_dim(data)} features, the model was trained on {width}")
    model = course.model.build(width, int(facts["output_dim"]))
    if client is None and model.state_dict().keys() > params.keys():
        raise BadInput(f"{path} holds only what the clients share, no whole model; {_models_there(folder)}")
    load_params(model, params)
    found = course.task.predict(model, course.task.prepare(data))
    names = class_names or tuple(str(number) for number in range(found.probabilities.shape[1]))
    return pd.DataFrame({"id": ids, **found.columns(names)})


def _graph(graph: str, class_names: tuple[str, ...], root: Path | None, course: Course) -> tuple[Any, list[Any]]:
    from isthmus.config.build import Builder
    from isthmus.config.tables import name_of
    from isthmus.core.errors import BadInput, nearest
    from isthmus.data.graph import Graph
    from isthmus.data.sources import read_graph_folder
    from isthmus.data.zoo import DATASETS, Dataset, data_root

    wanted = course.task.data_type
    if Path(graph).is_dir() and wanted is not Graph:
        raise BadInput(f"--graph is {graph!r}, a folder of one graph; the model predicts {wanted.item}s, name a set")
    if Path(graph).is_dir():
        read = read_graph_folder(Path(graph), class_names)
        return read.graph, list(read.ids)
    if graph not in DATASETS:
        raise BadInput(f"--graph is {graph!r}, which is no folder and no dataset; {nearest(graph, DATASETS)}")
    same = graph == name_of(type(course.dataset))  # then with the options that the model was trained with
    dataset = course.dataset if same else Builder("--graph").build(Dataset, graph, "dataset")
    data = dataset.load(data_root(root))
    if not isinstance(data, wanted):
        raise BadInput(f"--graph is {graph!r}, a dataset of {data.item}s; the model predicts {wanted.item}s")
    return data, data.item_ids.tolist()


def _models_there(folder: Any) -> str:
    clients = sorted(path.stem for path in (folder.path / "clients").glob("*.safetensors"))
    if clients:
        return f"its models are the clients' own: --client {' | '.join(clients[:5])}"
    if folder.model.is_file():
        return "its one model is the global one: leave --client out"
    return f"the course was not finished; go on with: isthmus run --resume {folder.path}"


def _write(table: pd.DataFrame, out: Path) -> None:
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if out.suffix == ".csv":
            table.to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, index=False)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
