"""The three kinds of own folders as datasets: their options, and which kind lies where."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.own_kinds import OWN_FOLDERS, kind_at, kind_for
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph
from isthmus.data.zoo import DATASETS, Folder, GraphSetFolder, LinkFolder
from isthmus.testing import toy_graph
from tests.learn.tasks.graph_toys import toy_set
from tests.learn.tasks.link_toys import toy_facts, toy_ratings

NAMES = ("p", "q", "r")
TOYS: dict[type[OwnFolder], Any] = {
    Folder: toy_graph(),
    LinkFolder: toy_ratings(),
    GraphSetFolder: toy_set("binary", categorical=True),
}


@pytest.mark.parametrize("kind", TOYS)
def test_what_a_kind_writes_is_what_it_reads(kind: type[OwnFolder], tmp_path: Path) -> None:
    data = replace(TOYS[kind], class_names=NAMES, masks={})
    kind.write(data, tmp_path / "mine")
    read = replace(kind.like(data), path=str(tmp_path / "mine"))
    assert read.present(tmp_path) and not kind().present(tmp_path)
    found = read.load(tmp_path)
    assert type(found) is kind.data_type and found.class_names == NAMES
    assert found.num_items == data.num_items and torch.equal(found.labels.nan_to_num(), data.labels.nan_to_num())
    assert kind.describe(found) == kind.describe(data)
    assert kind_at(tmp_path / "mine") is kind and kind_for(type(data)) is kind
    assert getattr(found, "undirected", None) == getattr(data, "undirected", None)
    assert getattr(found, "x_sizes", None) == getattr(data, "x_sizes", None)


@pytest.mark.parametrize(("kind", "data"), [(LinkFolder, toy_facts()), (GraphSetFolder, toy_set())])
def test_features_are_divided_by_their_sums_when_asked(kind: type[OwnFolder], data: Any, tmp_path: Path) -> None:
    kind.write(replace(data, x=data.x.abs(), class_names=NAMES, masks={}), tmp_path / "mine")
    loaded = kind(str(tmp_path / "mine"), NAMES, normalize_features=True).load(tmp_path)
    assert torch.allclose(loaded.x.to_dense().sum(dim=1), torch.ones(data.num_nodes))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", TOYS)
def test_a_path_is_needed(kind: type[OwnFolder]) -> None:
    with pytest.raises(BadInput, match=f"dataset.path is missing; give your {kind.called}"):
        kind().load(Path())


@pytest.mark.parametrize(("kind", "other"), list(permutations(TOYS, 2)))
def test_a_folder_of_another_kind_is_told_beside_what_is_wrong_with_it(
    kind: type[OwnFolder], other: type[OwnFolder], tmp_path: Path
) -> None:
    other.write(replace(TOYS[other], class_names=NAMES, masks={}), tmp_path / "mine")
    with pytest.raises(BadInput) as caught:
        kind(str(tmp_path / "mine")).read()
    (name,) = (name for name, known in OWN_FOLDERS.items() if known is other)
    found = str(caught.value)
    assert f"has the tables of a {other.called}: use dataset.name={name}" in found
    assert f"{kind.called} {tmp_path / 'mine'}: " in found and "problem" in found


def test_the_kinds_are_datasets_of_their_tasks() -> None:
    assert {name: DATASETS[name].task for name in OWN_FOLDERS} == {
        "folder": "node",
        "link_folder": "link",
        "graph_set_folder": "graph",
    }
    assert all(DATASETS[name] is kind for name, kind in OWN_FOLDERS.items())
    assert {kind.data_type for kind in OWN_FOLDERS.values()} == {Graph, LinkGraph, GraphSet}
    with pytest.raises(BadInput, match="there is no folder for a str; known: Graph, GraphSet, LinkGraph"):
        kind_for(str)


@pytest.mark.parametrize("fields", [{"target": "number"}, {"x_sizes": (3, 0)}, {"edge_sizes": (0,)}])
def test_impossible_options_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        GraphSetFolder(**fields)
    with pytest.raises(ValueError, match="normalize_features"):
        GraphSetFolder(x_sizes=(2,), normalize_features=True)


@pytest.mark.parametrize(
    ("graphs", "target"),
    [
        ("id,label\na,red\nb,blue\n", "class"),
        ("id,label\na,1\nb,0\n", "class"),
        ("id,label\na,1.5\nb,0\n", "value"),
        ("id,split\na,\nb,\n", "class"),
        ("id,u,v\na,1,0\nb,0,\n", "binary"),
        ("id,u,v\na,1,0\nb,0,2.5\n", "value"),
    ],
)
def test_the_kind_of_labels_is_guessed_where_nobody_says_it(graphs: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "graphs.csv").write_text(graphs)
    (tmp_path / "nodes.csv").write_text("graph,id\na,0\nb,0\n")
    (tmp_path / "edges.csv").write_text("graph,source,target\n")
    dataset = GraphSetFolder.at(tmp_path)
    assert dataset.target == target and dataset.load(tmp_path).num_items == 2
