"""isthmus predict: what a trained model says of the nodes of a graph, of links, or of the graphs of a set."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.core.outside.files import naming

if TYPE_CHECKING:
    import pandas as pd

    from isthmus.config.course import Course
    from isthmus.core.record import Params
    from isthmus.data.folders.own_folder import OwnFolder
    from isthmus.runs.folder import RunFolder

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
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Take feature columns by their order, whatever they are called.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")] = False,
) -> None:
    """Write what the model says of every node, link or graph (label and probabilities, scores), as CSV or Parquet."""
    from isthmus.cli.output import plain, print_json
    from isthmus.core.errors import BadInput

    if out.suffix not in (".csv", ".parquet"):
        raise BadInput(f"--out is {str(out)!r}; its name must end in .csv or .parquet")
    if out.exists() and not force:
        raise BadInput(f"{out} exists already; choose another file or add --force")
    notes: list[str] = []
    table = predictions(run, graph, client, data_root, by_position, notes.append)
    _write(table, out)
    if json:
        print_json({"file": str(out), "rows": len(table), "notes": notes})
    else:
        for note in notes:
            typer.echo(f"note: {plain(note)}")
        typer.echo(f"{len(table)} predictions written to {out}")


def predictions(
    run: Path,
    graph: str,
    client: str | None = None,
    root: Path | None = None,
    by_position: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> pd.DataFrame:
    """Return a table: whose row it is (id, or source and target), and what the task says, such as label and p_CLASS.

    Columns are matched by name, unless `by_position`; what a user should know of that goes to `note`.
    """
    import json

    import pandas as pd

    from isthmus.config.client_settings import own_algorithm, own_model
    from isthmus.config.load import load_course
    from isthmus.core.errors import BadInput
    from isthmus.learn.fit import load_params
    from isthmus.runs.folder import ID_FILE, RunFolder, load_model_file

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
    if not by_position:
        data = _by_name(folder, course, facts, graph, data, note)
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


def _by_name(
    folder: RunFolder, course: Course, facts: dict[str, str], graph: str, data: Any, note: Callable[[str], None]
) -> Any:
    """Return data with the columns that the model was trained on, in their order; refuses data that has others."""
    from isthmus.config.registry import name_of
    from isthmus.core.errors import BadInput
    from isthmus.data.folders.schema.column_names import in_order, name_differences, names_digest
    from isthmus.runs.simulation import columns_of

    own, wanted = columns_of(course, data), _names_of(folder, facts)
    same_dataset = not Path(graph).is_dir() and graph == name_of(type(course.dataset))
    if not wanted and not facts.get("features"):
        if not same_dataset:
            note(
                f"{folder.path} does not say what its feature columns are called, so their meaning could not be "
                f"compared with {graph}'s, only their number"
            )
        return data
    if names_digest(own) == facts.get("features", names_digest(wanted)):
        return data
    remedy = "give a graph with the columns of the training data, or --by-position to take them in the order they have"
    if not own:
        raise BadInput(
            f"the feature columns of {graph} have no names, those of the model's training data have; {remedy}"
        )
    if not wanted:
        raise BadInput(
            f"the feature columns of {graph} have other names, or another order, than those of the training data, of "
            f"which {folder.path} has only a digest: put the schema of the silos into it as schema.yaml to see which; "
            f"{remedy}"
        )
    differences = name_differences(own, wanted, "the model's")
    if set(own) != set(wanted):
        raise BadInput(f"{graph} is not what the model was trained on: {'; '.join(differences)}; {remedy}")
    note(
        f"{graph} has the model's feature columns, but its columns are in another order, which was mended by their "
        f"names: {differences[0]}"
    )
    return in_order(data, wanted)


def _names_of(folder: RunFolder, facts: dict[str, str]) -> tuple[str, ...]:
    """Return what the columns of a model's training data are called, from its file or from a schema beside it."""
    import json

    from isthmus.core.errors import BadInput
    from isthmus.data.folders.schema.column_names import names_digest
    from isthmus.data.folders.schema.schema import SCHEMA_FILE, read_schema

    path = folder.path / SCHEMA_FILE
    if "feature_names" in facts or "features" not in facts or not path.is_file():
        return tuple(json.loads(facts.get("feature_names", "[]")))
    names = read_schema(path).columns
    if facts.get("features") != names_digest(names):
        raise BadInput(f"{path} is not the schema of the training data: it has other feature columns than the model")
    return names


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
    from isthmus.config.registry import name_of
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
    from isthmus.data.folders.own_kinds import kind_at, kind_for
    from isthmus.data.zoo import GraphSetFolder
    from isthmus.learn.tasks.graph_task import GraphTask

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
    from isthmus.core.errors import quoted
    from isthmus.runs.folder import ID_FILE

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
    return f"the course was not finished; go on with: isthmus run --resume {quoted(folder.path)}"


def _write(table: pd.DataFrame, out: Path) -> None:
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with naming(out):
            if out.suffix == ".csv":
                table.to_csv(temporary, index=False)
            else:
                table.to_parquet(temporary, index=False)
            temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
