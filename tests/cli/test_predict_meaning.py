"""isthmus predict compares what columns mean, not only how many there are."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isthmus as ist
from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.folders.own_kinds import kind_for
from isthmus.data.folders.schema.schema import Number, Schema, write_schema
from isthmus.data.graph import Graph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import GraphSetFolder, LinkFolder
from isthmus.learn.tasks import GraphClassification, LinkClassification
from isthmus.models import GCN, HadamardMLPDecoder, ModelSpec
from isthmus.runs.folder import RunFolder, load_model_file, save_model_file
from isthmus.testing import toy_graph
from tests.learn.tasks.graph_toys import PLAIN, toy_set
from tests.learn.tasks.link_toys import toy_facts

from .command import call

NAMES = ("age", "income", "country=AT", "country=CH", "d", "e")
CLASSES = ("red", "green", "blue")


def permuted(graph: Graph) -> Graph:
    order = [3, 0, 5, 1, 4, 2]
    return replace(graph, x=graph.x[:, order], feature_names=tuple(graph.feature_names[i] for i in order))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the folder `mine`, and copies of that folder with other columns."""
    root = tmp_path_factory.mktemp("meaning")
    graph = replace(toy_graph(), feature_names=NAMES, class_names=CLASSES)
    write_graph_folder(graph, root / "mine")
    write_graph_folder(permuted(graph), root / "permuted")
    write_graph_folder(replace(graph, feature_names=("weight", *NAMES[1:])), root / "other")
    write_graph_folder(replace(graph, x=graph.x.to_sparse_csr(), feature_names=()), root / "nameless")
    words = ["dataset.name=folder", f"dataset.path={root / 'mine'}", "rounds=2", "num_clients=2", "model.gnn.hidden=4"]
    assert call("run", "-q", "--out", str(root / "run"), *words)[0] == 0
    return root


def predicted(root: Path, folder: str, *words: str, run: str = "run") -> tuple[int, str, pd.DataFrame | None]:
    out = root / f"{folder}.csv"
    code, text = call("predict", str(root / run), "--graph", str(root / folder), "--out", str(out), "--force", *words)
    return code, text, pd.read_csv(out) if code == 0 else None


def test_the_same_columns_in_another_order_are_put_in_order_and_that_is_said(trained: Path) -> None:
    code, text, expected = predicted(trained, "mine")
    assert code == 0 and "order" not in text and "compared" not in text
    code, text, found = predicted(trained, "permuted")
    assert code == 0 and "its columns are in another order" in text and "'age' is number 2 here" in text
    assert expected is not None and found is not None
    assert np.allclose(found.filter(regex="^p_"), expected.filter(regex="^p_"), atol=1e-6)


def test_columns_of_other_names_are_refused_with_the_first_differences(trained: Path) -> None:
    code, text, _ = predicted(trained, "other")
    assert code == 2 and "column 'age' is missing, number 1 of the model's" in text
    assert "column 'weight' (number 1) is not among the model's" in text and "--by-position" in text
    assert predicted(trained, "other", "--by-position")[0] == 0


def test_columns_without_names_are_refused_unless_they_are_to_be_taken_by_position(trained: Path) -> None:
    code, text, _ = predicted(trained, "nameless")
    assert code == 2 and "have no names" in text and "--by-position" in text
    assert predicted(trained, "nameless", "--by-position")[0] == 0


def test_a_run_that_does_not_say_what_its_columns_are_is_used_and_told(trained: Path) -> None:
    shutil.copytree(trained / "run", trained / "old", dirs_exist_ok=True)
    folder = RunFolder(trained / "old")
    params, facts = load_model_file(folder.model)
    save_model_file(folder.model, params, {k: v for k, v in facts.items() if not k.startswith("feature")})
    code, text, _ = predicted(trained, "permuted", run="old")
    assert code == 0 and "could not be compared" in text


def test_a_digest_alone_is_compared_and_a_schema_beside_it_says_what_differs(trained: Path) -> None:
    shutil.copytree(trained / "run", trained / "digest", dirs_exist_ok=True)
    folder = RunFolder(trained / "digest")
    params, facts = load_model_file(folder.model)
    save_model_file(folder.model, params, {k: v for k, v in facts.items() if k != "feature_names"})
    assert predicted(trained, "mine", run="digest")[:2][0] == 0
    code, text, _ = predicted(trained, "permuted", run="digest")
    assert code == 2 and "other names, or another order" in text and "schema" in text
    write_schema(Schema(tuple(Number(name) for name in NAMES), CLASSES), folder.path / "schema.yaml")
    code, text, _ = predicted(trained, "permuted", run="digest")
    assert code == 0 and "in another order" in text
    (folder.path / "schema.yaml").unlink()
    write_schema(Schema((Number("x"),)), folder.path / "schema.yaml")  # not the one of the run
    code, text, _ = predicted(trained, "permuted", run="digest")
    assert code == 2 and "schema.yaml" in text


def test_a_run_that_came_from_a_server_names_installed_parts_only(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The course in such a folder was written elsewhere: reading it must not import what it names."""
    shutil.copytree(trained / "run", trained / "own")
    course = trained / "own" / "course.yaml"
    (tmp_path / "theirs.py").write_text('from isthmus.models import GCN\n\n\nclass Mine(GCN):\n    """Own."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    course.write_text(course.read_text().replace("name: gcn", "name: theirs:Mine"))
    (trained / "own" / "course_id").write_text("ab" * 16)
    code, text, _ = predicted(trained, "mine", run="own")
    assert code == 2 and "theirs:Mine" in text and "theirs" not in sys.modules
    (trained / "own" / "course_id").unlink()
    assert predicted(trained, "mine", run="own")[0] == 0  # a run of one's own may


def scaled(root: Path, name: str, mean: float) -> Path:
    """Write the folder of toys with a schema whose first column has another mean: the names say nothing of that."""
    graph = replace(toy_graph(), feature_names=NAMES, class_names=CLASSES)
    write_graph_folder(graph, root / name)
    features = (Number(NAMES[0], mean, 2.0), *(Number(other) for other in NAMES[1:]))
    write_schema(Schema(features, CLASSES), root / name / "schema.yaml")
    return root / name


def test_columns_of_the_same_names_on_another_scale_are_noted(tmp_path: Path) -> None:
    here, like_it, other = (scaled(tmp_path, name, mean) for name, mean in (("a", 1.0), ("b", 1.0), ("c", 7.0)))
    small = ["rounds=1", "model.gnn.hidden=4"]
    words = ["dataset.name=folder", f"dataset.path={here}", "num_clients=2", *small]
    assert call("run", "-q", "--out", str(tmp_path / "run"), *words)[0] == 0
    for folder in (here, like_it):
        code, text, _ = predicted(tmp_path, folder.name)
        assert code == 0 and "scale" not in text
    code, text, _ = predicted(tmp_path, other.name)
    assert code == 0 and "another schema than the training data" in text and "scale" in text
    # Folders as clients: their models are as they are, and the global one where all have one schema.
    words = ["dataset.name=folders", f"dataset.paths=[{here}, {like_it}]", *small]
    assert call("run", "-q", "--out", str(tmp_path / "alike"), *words)[0] == 0
    assert "scale" in predicted(tmp_path, other.name, run="alike")[1]
    words = ["dataset.name=folders", f"dataset.paths=[{here}, {other}]", *small]
    assert call("run", "-q", "--out", str(tmp_path / "unlike"), *words)[0] == 0
    assert "scale" not in predicted(tmp_path, other.name, run="unlike")[1]


def test_columns_of_links_and_of_graphs_and_of_their_edges_are_compared_too(tmp_path: Path) -> None:
    from isthmus.runs.predicting import predictions

    links = replace(toy_facts(), class_names=("p", "q", "r"))
    links = replace(links, feature_names=NAMES[: links.num_features])
    graphs = replace(toy_set("class"), class_names=("p", "q", "r"))
    graphs = replace(graphs, feature_names=NAMES[: graphs.num_features])
    decoder = ModelSpec(GCN(hidden=4), decoder=HadamardMLPDecoder(hidden=4))
    cases: list[tuple[Any, dict[str, Any]]] = [
        (links, {"task": LinkClassification(), "model": decoder}),
        (graphs, {"task": GraphClassification(), "model": PLAIN}),
    ]
    for data, parts in cases:
        kind, place = kind_for(type(data)), tmp_path / type(data).__name__
        assert kind in (LinkFolder, GraphSetFolder)
        place.mkdir()
        kind.write(data, place / "mine")
        kind.write(replace(data, feature_names=tuple(reversed(data.feature_names))), place / "other")
        kind.write(replace(data, feature_names=("z", *data.feature_names[1:])), place / "odd")
        dataset = replace(kind.like(data), path=str(place / "mine"))
        course = ist.Course(dataset=dataset, num_clients=2, rounds=1, splitter=RandomSplitter(), **parts)
        ist.run(course, run_dir=place / "run")
        expected = predictions(place / "run", str(place / "mine")).filter(regex="^p_").to_numpy()
        turned = predictions(place / "run", str(place / "other")).filter(regex="^p_").to_numpy()
        assert not np.allclose(expected, turned)
        with pytest.raises(BadInput, match="column 'age' is missing"):
            predictions(place / "run", str(place / "odd"))
