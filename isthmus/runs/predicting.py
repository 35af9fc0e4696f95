"""What the model of a finished run says of the nodes of a graph, of links, or of the graphs of a set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.config.build import Builder, name_of
from isthmus.config.course import Course
from isthmus.config.load import load_course, own_algorithm, own_model
from isthmus.core.errors import BadInput, nearest, quoted
from isthmus.core.outside import data_root
from isthmus.core.record import Params
from isthmus.data.dataset import Dataset
from isthmus.data.features import in_order, name_differences
from isthmus.data.folders.graph_set_folder import GraphSetFolder
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.own_kinds import OWN_FOLDERS, kind_at, kind_for
from isthmus.data.folders.schema.schema import SCHEMA_FILE, digest_at, read_schema
from isthmus.data.graph import names_digest
from isthmus.data.zoo import DATASETS, is_own_folder, namesake_note
from isthmus.learn.optimizers import load_params
from isthmus.learn.tasks.graph_task import GraphTask
from isthmus.runs.folder import RunFolder, load_model_file
from isthmus.runs.simulation import columns_of

if TYPE_CHECKING:
    import pandas as pd


def predictions(
    run: Path,
    graph: str,
    client: str | None = None,
    root: Path | None = None,
    by_position: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> pd.DataFrame:
    """Return a table: whose row it is (id, or source and target), and what the task says, such as label and p_CLASS.

    `graph` is a dataset's name or the path of a folder: `cora` is the dataset, `./cora` a folder called so.
    Columns are matched by name, unless `by_position`; what a user should know of that goes to `note`.
    """
    import pandas as pd

    kept = _Kept(RunFolder.open(run), client)
    course, facts = kept.course, kept.facts
    data, rows = _data(graph, kept.class_names, root, course)
    if told := namesake_note(graph):
        note(told)
    data = course.task.to_predict(data)
    if "input_dim" not in facts or "output_dim" not in facts:
        raise BadInput(f"{kept.path} does not say its dimensions; it was not written by isthmus")
    if course.task.input_dim(data) != kept.width:
        raise BadInput(f"{graph} has {course.task.input_dim(data)} features, the model was trained on {kept.width}")
    if not by_position:
        data = _by_name(kept, graph, data, note)
        _note_scale(kept, graph, note)
    found = kept.predict(data, graph)
    if found.num_not_finite:
        raise BadInput(
            f"{kept.path}: the model's scores are NaN or infinite for {found.num_not_finite} of {len(found.ids)} "
            f"{data.item}s of {graph}: the training diverged, or these features are on another scale; train with a "
            "smaller algorithm.optimizer.lr, or dataset.normalize_features=true"
        )
    names = kept.class_names or tuple(str(number) for number in range(int(facts["output_dim"])))
    return pd.DataFrame({**_by_example(rows, len(found.ids)), **found.columns(names)})


class _Kept:
    """A model that a run left, the global one or a client's, and what is needed to use it."""

    def __init__(self, folder: RunFolder, client: str | None) -> None:
        self.folder, self.client = folder, client
        self.path = folder.model if client is None else folder.client_model(client)
        self.parts: Params = {}
        if client is not None and folder.client_parts(client).is_file():
            self.parts, _ = load_model_file(folder.client_parts(client))
            self.path = self.path if self.path.is_file() else folder.model
        if not self.path.is_file():
            raise BadInput(f"{folder.path} has no {self.path.relative_to(folder.path)}; {_models_there(folder)}")
        self.params, self.facts = load_model_file(self.path)
        # A run between sites came from the server: only installed parts, no import paths.
        self.allow_import = not folder.is_of_sites
        self.course = load_course(folder.course, allow_import=self.allow_import)

    @property
    def width(self) -> int:
        """How many features the model takes."""
        return int(self.facts["input_dim"])

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, where the outputs are classes."""
        known = self.course.task.outputs_are_classes
        return tuple(json.loads(self.facts.get("class_names", "[]"))) if known else ()

    def predict(self, data: Any, graph: str) -> Any:
        """Return what the model says of data."""
        made = own_model(self.course, self.client, self.allow_import).build(self.width, int(self.facts["output_dim"]))
        if self.client is None and made.state_dict().keys() > self.params.keys():
            raise BadInput(
                f"{self.path} holds only what the clients share, no whole model; {_models_there(self.folder)}"
            )
        load_params(made, self.params)
        own = self.client and own_algorithm(self.course, self.client, self.allow_import)
        try:
            return (own or self.course.algorithm).predict_with(self.parts, self.course.task, made, data)
        except ValueError as error:  # such as features of edges that are not there
            raise BadInput(f"{graph} is not what the model was trained on: {error}") from None


def _by_name(kept: _Kept, graph: str, data: Any, note: Callable[[str], None]) -> Any:
    """Return data with the columns that the model was trained on, in their order; refuses data that has others."""
    folder, course, facts = kept.folder, kept.course, kept.facts
    own, wanted = columns_of(course, data), _names_of(folder, facts)
    same_dataset = graph == name_of(type(course.dataset))
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


def _note_scale(kept: _Kept, graph: str, note: Callable[[str], None]) -> None:
    """Note that columns follow another schema than those of the training data: the same names, another meaning."""
    own, trained = digest_at(Path(graph)) if is_own_folder(graph) else "", kept.facts.get("schema", "")
    if own and trained and own != trained:
        note(
            f"{graph} follows another schema than the training data ({own}, not {trained}): columns of the same names "
            "may be on another scale, by other means or deviations; import it by the schema of the training data "
            "(isthmus data import --schema)"
        )


def _names_of(folder: RunFolder, facts: dict[str, str]) -> tuple[str, ...]:
    """Return what the columns of a model's training data are called, from its file or from a schema beside it."""
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
    if is_own_folder(graph):
        read = _own_folder(Path(graph), class_names, course).read()
        return read.data, dict(read.item_columns)
    wanted = course.task.data_type
    if graph not in DATASETS:
        raise BadInput(f"--graph is {graph!r}, which is no folder and no dataset; {nearest(graph, DATASETS)}")
    if graph in OWN_FOLDERS:
        raise BadInput(f"--graph is {graph!r}, a kind of folder; give the path of yours, such as ./{graph}")
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


def _models_there(folder: RunFolder) -> str:
    clients = sorted(path.stem for path in (folder.path / "clients").glob("*.safetensors"))
    if clients:
        more = f" (and {len(clients) - 5} more)" if len(clients) > 5 else ""
        return f"its models are the clients' own: --client {' | '.join(clients[:5])}{more}"
    if folder.is_of_sites:
        return (
            "the course was between sites, where models of one's own stay with the silos: each has its own in a folder "
            "of state/runs, for isthmus predict; here is what they share, without --client"
        )
    if folder.model.is_file():
        return "its one model is the global one: leave --client out"
    return f"the course was not finished; go on with: isthmus run --resume {quoted(folder.path)}"
