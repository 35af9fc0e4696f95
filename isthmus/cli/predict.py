"""isthmus predict: what a trained model says of the nodes of a graph, of links, or of the graphs of a set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

    from isthmus.config.course import Course
    from isthmus.core.record import Params
    from isthmus.data.zoo.own_folder import OwnFolder

EXAMPLES = """Examples:

  isthmus predict runs/20260131-235959-fedavg-cora --graph cora --out labels.csv

  isthmus predict RUN --graph my_graph/ --out labels.parquet

  isthmus predict RUN --graph my_graph/ --client client-2

  isthmus predict RUN --graph my_links/ --out scores.csv
"""


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of a finished course.")],
    graph: Annotated[
        str, typer.Option("--graph", metavar="FOLDER|DATASET", help="A folder of tables, or a dataset's name.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .csv or .parquet file.")] = Path(
        "predictions.csv"
    ),
    client: Annotated[str | None, typer.Option("--client", metavar="ID", help="Predict as this client would.")] = None,
    data_root: Annotated[Path | None, typer.Option("--data-root", metavar="FOLDER", help="Where datasets lie.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")] = False,
) -> None:
    """Write what the model says of every node, link or graph (label and probabilities, scores), as CSV or Parquet."""
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
    """Return a table: whose row it is (id, or source and target), and what the task says, such as label and p_CLASS."""
    import json

    import pandas as pd

    from isthmus.config.client_settings import own_algorithm, own_model
    from isthmus.config.load import load_course
    from isthmus.core.errors import BadInput
    from isthmus.learn.fit import load_params
    from isthmus.monitor.folder import ID_FILE, RunFolder, load_model_file

    folder = RunFolder.open(run)
    path = folder.model if client is None else folder.client_model(client)
    parts: Params = {}
    if client is not None and folder.client_parts(client).is_file():
        parts, _ = load_model_file(folder.client_parts(client))
        path = path if path.is_file() else folder.model
    if not path.is_file():
        raise BadInput(f"{run} has no {path.relative_to(run)}; {_models_there(folder)}")
    params, facts = load_model_file(path)
    # A run between sites came from the server: only installed parts, no import paths.
    allow_import = not (run / ID_FILE).exists()
    course = load_course(folder.course, allow_import=allow_import)
    class_names = tuple(json.loads(facts.get("class_names", "[]"))) if course.task.outputs_are_classes else ()
    data, rows = _data(graph, class_names, root, course)
    data = course.task.to_predict(data)
    if "input_dim" not in facts or "output_dim" not in facts:
        raise BadInput(f"{path} does not say its dimensions; it was not written by isthmus")
    width = int(facts["input_dim"])
    if course.task.input_dim(data) != width:
        raise BadInput(f"{graph} has {course.task.input_dim(data)} features, the model was trained on {width}")
    model = own_model(course, client, allow_import).build(width, int(facts["output_dim"]))
    if client is None and model.state_dict().keys() > params.keys():
        raise BadInput(f"{path} holds only what the clients share, no whole model; {_models_there(folder)}")
    load_params(model, params)
    try:
        algorithm = (client and own_algorithm(course, client, allow_import)) or course.algorithm
        found = algorithm.predict_with(parts, course.task, model, data)
    except ValueError as error:  # such as features of edges that are not there
        raise BadInput(f"{graph} is not what the model was trained on: {error}") from None
    if found.num_not_finite:
        raise BadInput(
            f"{path}: the model's scores are NaN or infinite for {found.num_not_finite} of {len(found.ids)} "
            f"{data.item}s of {graph}: the training diverged, or these features are on another scale; train with a "
            "smaller algorithm.optimizer.lr, or dataset.normalize_features=true"
        )
    names = class_names or tuple(str(number) for number in range(int(facts["output_dim"])))
    return pd.DataFrame({**_by_example(rows, len(found.ids)), **found.columns(names)})


def _by_example(rows: dict[str, Any], num_examples: int) -> dict[str, Any]:
    """Return the columns that tell examples apart: where a node has several samples, its row for each, and a number."""
    num_rows = len(next(iter(rows.values())))
    each = num_examples // max(num_rows, 1)
    if each <= 1:
        return rows
    repeated = {name: [value for value in column for _ in range(each)] for name, column in rows.items()}
    return {**repeated, "sample": list(range(each)) * num_rows}


def _data(graph: str, class_names: tuple[str, ...], root: Path | None, course: Course) -> tuple[Any, dict[str, Any]]:
    """Return the data to predict, and the columns that tell its rows apart."""
    from isthmus.config.build import Builder
    from isthmus.config.tables import name_of
    from isthmus.core.errors import BadInput, nearest
    from isthmus.data.zoo import DATASETS, Dataset, data_root

    if Path(graph).is_dir():
        read = _own_folder(Path(graph), class_names, course).read()
        return read.data, dict(read.item_columns)
    wanted = course.task.data_type
    if graph not in DATASETS:
        raise BadInput(f"--graph is {graph!r}, which is no folder and no dataset; {nearest(graph, DATASETS)}")
    same = graph == name_of(type(course.dataset))  # then with the options that the model was trained with
    dataset = course.dataset if same else Builder("--graph").build(Dataset, graph, "dataset")
    data = dataset.load(data_root(root))
    if not isinstance(data, wanted):
        raise BadInput(
            f"--graph is {graph!r}, a dataset of {data.item}s; the model predicts {wanted.item}s: give a dataset of "
            f"{wanted.item}s (isthmus list datasets), or a folder of your own"
        )
    return data, {"id": data.item_ids.tolist()}


def _own_folder(path: Path, class_names: tuple[str, ...], course: Course) -> OwnFolder:
    """Return a folder to predict as a dataset, with the options that the model was trained with."""
    from dataclasses import replace

    from isthmus.core.errors import BadInput
    from isthmus.data.zoo import GraphSetFolder
    from isthmus.data.zoo.own_kinds import kind_at, kind_for
    from isthmus.learn.tasks.graph import GraphTask

    kind = kind_for(course.task.data_type)
    found = kind_at(path, otherwise=kind)
    if found is not kind:
        raise BadInput(
            f"--graph is {str(path)!r}, a {found.called}; the model predicts {kind.data_type.item}s: give a "
            f"{kind.called}, with {', '.join(f'{stem}.(parquet|csv)' for stem in kind.tables)}"
        )
    if isinstance(course.dataset, kind):
        return replace(course.dataset, path=str(path), class_names=class_names)
    made = kind(path=str(path), class_names=class_names, normalize_features=course.dataset.normalize_features)
    if isinstance(made, GraphSetFolder) and isinstance(course.task, GraphTask):
        return replace(made, target=course.task.target)
    return made


def _models_there(folder: Any) -> str:
    from isthmus.monitor.folder import ID_FILE

    clients = sorted(path.stem for path in (folder.path / "clients").glob("*.safetensors"))
    if clients:
        more = f" (and {len(clients) - 5} more)" if len(clients) > 5 else ""
        return f"its models are the clients' own: --client {' | '.join(clients[:5])}{more}"
    if (folder.path / ID_FILE).exists():
        return (
            "the course was between sites, where models of one's own stay with the silos: each has its own in a folder "
            "of state/runs, for isthmus predict; here is what they share, without --client"
        )
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
