"""Predictions of links and of graphs in own folders: a row for each, with its owner's names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus.core.training import EarlyStopping
from isthmus.data.dividing import PublicSplit
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.folders.own_kinds import kind_for
from isthmus.data.splitters import RandomSplitter
from isthmus.learn.tasks import (
    GraphBinary,
    GraphClassification,
    GraphRegression,
    LinkClassification,
    LinkPrediction,
    Task,
)
from isthmus.models import GCN, HadamardMLPDecoder, ModelSpec
from isthmus.runs.predicting import predictions
from isthmus.testing import toy_graph
from tests.learn.tasks.graph_toys import BONDS, PLAIN, toy_set
from tests.learn.tasks.link_toys import toy_facts

from .command import call

NAMES = ("p", "q", "r")
LINKS = ModelSpec(GCN(hidden=5), decoder=HadamardMLPDecoder(hidden=4))
TASKS: dict[str, tuple[Task, ModelSpec]] = {
    "classes": (LinkClassification(), LINKS),
    "pairs": (LinkPrediction(), LINKS),
    "relations": (LinkPrediction(by_relation=True), LINKS),
    "class": (GraphClassification(), PLAIN),
    "binary": (GraphBinary(), BONDS),
    "value": (GraphRegression(), PLAIN),
}


def data_of(name: str) -> Any:
    made: Any = toy_set(name, categorical=name == "binary") if name in ("class", "binary", "value") else toy_facts()
    return replace(made, class_names=NAMES)


def course_of(name: str, folder: Path, **changes: Any) -> ist.Course:
    task, model = TASKS[name]
    data = data_of(name)
    fields: dict[str, Any] = {
        "dataset": replace(kind_for(type(data)).like(data), path=str(folder)),
        "masks": PublicSplit(),
        "splitter": RandomSplitter(),
        "num_clients": 2,
        "rounds": 1,
        "task": task,
        "model": model,
        "algorithm": ist.FedAvg(optimizer=ist.SGD(lr=1e-3)),
        "stopping": EarlyStopping(metric=task.metrics[0]),
    }
    return ist.Course(**{**fields, **changes})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on an own folder for each task, beside the folder."""
    place = tmp_path_factory.mktemp("own")
    for name in TASKS:
        data = data_of(name)
        kind_for(type(data)).write(data, place / f"{name} data")
        ist.run(course_of(name, place / f"{name} data"), run_dir=place / name)
    return place


def expected(name: str, runs: Path) -> Any:
    """Return what the model of a run says of the folder it was trained on, told by the package itself."""
    course = course_of(name, runs / f"{name} data")
    data: Any = course.dataset.load(runs)
    whole = course.task.input_dim(data), course.task.output_dim(data)
    from isthmus.learn.optimizers import load_params
    from isthmus.runs.folder import load_model_file

    model = course.model.build(*whole)
    load_params(model, load_model_file(runs / name / "model.safetensors")[0])
    return data, course.task.predict(model, course.task.prepare(data))


@pytest.mark.parametrize("name", TASKS)
def test_there_is_a_row_for_each_link_or_graph_with_its_owner_s_names(name: str, runs: Path) -> None:
    table = predictions(runs / name, str(runs / f"{name} data"))
    data, found = expected(name, runs)
    own = data_of(name)
    assert len(table) == data.num_items
    if name in ("class", "binary", "value"):
        assert list(table["id"]) == list(map(str, own.graph_ids.tolist()))
    else:
        assert list(table["source"]) == list(map(str, own.links[0].tolist()))
        assert list(table["target"]) == list(map(str, own.links[1].tolist()))
    for column, values in found.columns(NAMES).items():
        if isinstance(values, torch.Tensor):
            assert np.array_equal(table[column].to_numpy(), values.numpy())
        else:
            assert list(table[column]) == values
    first = {"pairs": "score", "relations": "relation", "binary": "p", "value": "p"}.get(name, "label")
    assert list(table)[1 if "id" in table else 2] == first


def test_links_without_labels_and_splits_can_be_predicted(runs: Path, tmp_path: Path) -> None:
    for name in ("nodes", "links"):
        table = pd.read_parquet(runs / "classes data" / f"{name}.parquet")
        table.drop(columns=["label", "split"], errors="ignore").to_csv(tmp_path / f"{name}.csv", index=False)
    table = predictions(runs / "classes", str(tmp_path))
    assert list(table) == ["source", "target", "label", "p_p", "p_q", "p_r"] and len(table) == 40
    with_split = predictions(runs / "classes", str(runs / "classes data"))
    assert not np.allclose(table["p_p"], with_split["p_p"]), "without a split the network reads all links"
    assert len(predictions(runs / "pairs", str(tmp_path))) == 40


@pytest.mark.parametrize("name", ["class", "value"])
def test_graphs_without_labels_can_be_predicted(name: str, runs: Path, tmp_path: Path) -> None:
    for stem in ("graphs", "nodes", "edges"):
        table = pd.read_parquet(runs / f"{name} data" / f"{stem}.parquet")
        kept = ["id"] if stem == "graphs" else list(table)
        table[kept].to_csv(tmp_path / f"{stem}.csv", index=False)
    found = predictions(runs / name, str(tmp_path))
    wanted = predictions(runs / name, str(runs / f"{name} data"))
    pd.testing.assert_frame_equal(found, wanted, atol=1e-5)


def test_other_names_of_links_do_not_matter_where_only_their_being_there_was_learned(
    runs: Path, tmp_path: Path
) -> None:
    data = replace(toy_facts(), class_names=("u", "v", "w"))
    kind_for(type(data)).write(data, tmp_path / "mine")
    code, text = call(
        "predict", str(runs / "pairs"), "--graph", str(tmp_path / "mine"), "--out", str(tmp_path / "a.csv")
    )
    assert code == 0 and "40 predictions" in text
    code, text = call(
        "predict", str(runs / "relations"), "--graph", str(tmp_path / "mine"), "--out", str(tmp_path / "b.csv")
    )
    assert code == 2 and "is none of the class names 'p', 'q', 'r'" in text


@pytest.mark.parametrize(
    ("name", "graph", "part"),
    [
        ("classes", "class data", "a graph set folder; the model predicts links: give a link folder, with nodes."),
        ("class", "classes data", "a link folder; the model predicts graphs: give a graph set folder, with nodes."),
        ("class", "nodes", "a graph folder; the model predicts graphs: give a graph set folder"),
        ("class", "nothing", "graphs: not found; graphs.parquet or graphs.csv is needed"),
        ("pairs", "nothing", "links: not found; links.parquet or links.csv is needed"),
        ("class", "cora", "a dataset of nodes; the model predicts graphs: give a dataset of graphs (isthmus list"),
        ("pairs", "narrow", "1 features, the model was trained on 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would_do(
    name: str, graph: str, part: str, runs: Path, tmp_path: Path
) -> None:
    write_graph_folder(toy_graph(), tmp_path / "nodes")
    (tmp_path / "nothing").mkdir()
    kind_for(type(toy_facts())).write(replace(toy_facts(), x=torch.ones(12, 1)), tmp_path / "narrow")
    place = next((str(root / graph) for root in (runs, tmp_path) if (root / graph).is_dir()), graph)
    code, text = call("predict", str(runs / name), "--graph", place, "--out", str(tmp_path / "a.csv"))
    assert code == 2 and part in " ".join(text.split()) and not (tmp_path / "a.csv").exists()


def test_graphs_without_the_features_of_edges_that_the_model_reads_are_refused(runs: Path, tmp_path: Path) -> None:
    for stem in ("graphs", "nodes", "edges"):
        table = pd.read_parquet(runs / "binary data" / f"{stem}.parquet")
        table.drop(columns=["e0", "e1"], errors="ignore").to_parquet(tmp_path / f"{stem}.parquet")
    code, text = call("predict", str(runs / "binary"), "--graph", str(tmp_path), "--out", str(tmp_path / "a.csv"))
    assert code == 2 and "edge_sizes has 2 numbers of categories" in " ".join(text.split())


def test_features_are_scaled_as_they_were_in_training(runs: Path, tmp_path: Path) -> None:
    folder = runs / "classes data"
    course = course_of("classes", folder)
    scaled = replace(course, dataset=replace(course.dataset, normalize_features=True))
    ist.run(scaled, run_dir=tmp_path / "run")
    table = predictions(tmp_path / "run", str(folder))
    data = scaled.dataset.load(tmp_path)
    model = ist.run(scaled).model
    wanted = course.task.predict(model, course.task.prepare(data)).probabilities
    assert np.allclose(table.filter(regex="^p_").to_numpy(), wanted.numpy(), atol=1e-6)
