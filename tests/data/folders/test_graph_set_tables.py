"""Own sets of graphs from a folder: what is read, what is refused and how, and that what is written is read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_set_folder import read_graph_set_folder, write_graph_set_folder
from isthmus.data.graph_set import GraphSet
from isthmus.data.splitters import MetaSplitter
from isthmus.data.zoo import GraphSetFolder
from tests.learn.tasks.graph_toys import EDGE_SIZES, SIZES, toy_set

GRAPHS = "id,label,split\ng1,toxic,train\ng2,safe,test\ng3,,\n"
NODES = "graph,id,f\ng2,x,20\ng1,a,10\ng1,b,11\ng2,y,21\ng1,c,12\n"
EDGES = "graph,source,target,bond\ng2,x,y,2\ng1,a,b,1\ng1,c,b,3\n"


def folder(path: Path, graphs: str | None = GRAPHS, nodes: str | None = NODES, edges: str | None = EDGES) -> Path:
    for name, content in (("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", edges)):
        if content is not None:
            (path / name).write_text(content, encoding="utf-8")
    return path


def problems_of(path: Path, **options: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read_graph_set_folder(path, **options)
    head, *lines = str(caught.value).split("\n  ")
    assert head.startswith(f"graph set folder {path}: ")
    return lines


def test_a_small_folder_is_read_graph_after_graph(tmp_path: Path) -> None:
    read = read_graph_set_folder(folder(tmp_path))
    data = read.data
    assert read.item_columns == {"id": ("g1", "g2", "g3")} and read.node_ids is None
    assert data.node_start.tolist() == [0, 3, 5, 5], "g3 has no nodes"
    assert data.x.flatten().tolist() == [10, 11, 12, 20, 21]
    assert data.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]
    assert data.edge_attr is not None and data.edge_attr.flatten().tolist() == [1, 1, 3, 3, 2, 2]
    assert (data.y.tolist(), data.class_names, data.num_classes, data.target) == (
        [1, 0, -1],
        ("safe", "toxic"),
        2,
        "class",
    )
    assert data.masks["train"].tolist() == [True, False, False] and data.masks["test"].tolist() == [False, True, False]


def test_directed_edges_stay_directed_when_asked(tmp_path: Path) -> None:
    data = read_graph_set_folder(folder(tmp_path), undirected=False).data
    assert data.edge_index.tolist() == [[0, 2, 3], [1, 1, 4]]
    assert data.edge_attr is not None and data.edge_attr.flatten().tolist() == [1, 3, 2]


def test_an_edge_counts_once_loops_do_not_and_edges_may_have_no_features(tmp_path: Path) -> None:
    data = read_graph_set_folder(folder(tmp_path, edges="graph,source,target\ng1,a,b\ng1,b,a\ng1,c,c\n")).data
    assert data.edge_index.tolist() == [[0, 1], [1, 0]] and data.edge_attr is None
    assert read_graph_set_folder(folder(tmp_path, edges="graph,source,target\n")).data.num_edges == 0


def test_ids_of_nodes_are_those_of_their_graph_alone(tmp_path: Path) -> None:
    nodes, edges = "graph,id,f\n1,1,5\n1,2,6\n2,1,7\n2,2,8\n", "graph,source,target\n2,1,2\n"
    data = read_graph_set_folder(folder(tmp_path, "id\n2\n1\n", nodes, edges)).data
    assert data.x.flatten().tolist() == [7, 8, 5, 6] and data.edge_index.tolist() == [[0, 1], [1, 0]]


def test_without_features_every_node_has_a_constant_one_and_an_archive_is_in_the_order_of_rows(tmp_path: Path) -> None:
    nodes = "graph,id\ng2,x\ng1,a\ng1,b\ng2,y\ng1,c\n"
    assert read_graph_set_folder(folder(tmp_path, nodes=nodes)).data.x.flatten().tolist() == [1] * 5
    np.savez(tmp_path / "features.npz", x=np.array([[20], [10], [11], [21], [12]]))
    assert read_graph_set_folder(tmp_path).data.x.flatten().tolist() == [10, 11, 12, 20, 21]


def test_tasks_are_columns_and_an_empty_cell_is_no_label(tmp_path: Path) -> None:
    graphs = "id,smiles,burns,melts,split\ng1,CO,1,-3.5,train\ng2,CC,,2,\ng3,N,,,\n"
    data = read_graph_set_folder(folder(tmp_path, graphs), target="value").data
    assert (data.class_names, data.num_classes, data.target) == (("burns", "melts"), 2, "value")
    assert np.array_equal(data.y.numpy(), [[1, -3.5], [np.nan, 2], [np.nan, np.nan]], equal_nan=True)
    only = read_graph_set_folder(tmp_path, class_names=("burns",), target="binary").data
    assert np.array_equal(only.y.numpy(), [[1], [np.nan], [np.nan]], equal_nan=True)
    nothing = read_graph_set_folder(folder(tmp_path, "id\ng1\ng2\ng3\n"), class_names=("u", "v"), target="value").data
    assert bool(nothing.y.isnan().all()) and nothing.num_classes == 2, "graphs to be predicted need no labels"


def test_all_problems_are_told_at_once_by_row(tmp_path: Path) -> None:
    graphs = "id,label,split\ng1,toxic,train\ng1,safe,dev\n,,\ng4,odd,test\ng5,,test\n"
    nodes = "graph,id,f,split\ng1,a,1,x\ng1,a,2,x\ng9,b,3,x\ng4,,inf,x\ng4,d,5,x\n"
    edges = "graph,source,target,bond\ng1,a,d,1\ng9,a,b,1\ng4,d,e,\n"
    assert problems_of(folder(tmp_path, graphs, nodes, edges), class_names=("safe", "toxic")) == [
        "graphs.csv row 3: id is empty",
        "graphs.csv row 2: id 'g1' is taken by row 1",
        "graphs.csv row 4: label 'odd' is none of the class names 'safe', 'toxic'",
        "graphs.csv row 2: split is 'dev'; known: train, val, test, or nothing",
        "graphs.csv row 5: split is 'test', but there is no label",
        "nodes.csv: has a column 'split', which belongs into the table of graphs; move it there, or rename it",
        "nodes.csv row 3: graph 'g9' is no id of graphs.csv",
        "nodes.csv row 4: f is inf; a finite number is needed",
        "nodes.csv row 4: id is empty",
        "nodes.csv row 2: id 'a' is taken by row 1 of the same graph",
        "edges.csv row 2: graph 'g9' is no id of graphs.csv",
        "edges.csv row 1: target 'd' is no id of a node of its graph",
        "edges.csv row 3: target 'e' is no id of a node of its graph",
        "edges.csv row 3: bond is nan; a finite number is needed",
    ]


@pytest.mark.parametrize(
    ("parts", "options", "expected"),
    [
        ({"graphs": None}, {}, "graphs: not found; graphs.parquet or graphs.csv is needed"),
        ({"nodes": None}, {}, "nodes: not found; nodes.parquet or nodes.csv is needed"),
        ({"edges": None}, {}, "edges: not found; edges.parquet or edges.csv is needed"),
        ({"graphs": "id\n"}, {}, "graphs.csv: the table is empty; at least one graph is needed"),
        ({"nodes": "id,f\na,1\n"}, {}, "nodes.csv: no column 'graph'; columns found: 'id', 'f'"),
        ({"edges": "graph,source\ng1,a\n"}, {}, "edges.csv: no column 'target'; columns found: 'graph', 'source'"),
        (
            {"edges": "graph,source,target,bond\ng1,a,b,1\ng1,b,a,2\n"},
            {},
            "edges.csv row 2: tells the same edge as row 1, but with other features",
        ),
        (
            {"edges": "graph,source,target,bond\ng1,a,b,1\ng1,b,c,2\ng2,x,y,double\n"},
            {},
            "edges.csv row 3: bond is 'double'; a number is needed, as in most rows",
        ),
        (
            {"graphs": "id,burns\ng1,1\ng2,0.5\n"},
            {"target": "binary"},
            "graphs.csv row 2: burns is 0.5; 0 or 1 is needed, or nothing",
        ),
        (
            {"graphs": "id,heat\ng1,1\ng2,hot\ng3,\n"},
            {"target": "value"},
            "graphs.csv row 2: heat is 'hot'; a finite number is needed, or nothing",
        ),
        (
            {"graphs": "id,heat\ng1,1\ng2,inf\n"},
            {"target": "value"},
            "graphs.csv row 2: heat is inf; a finite number is needed, or nothing",
        ),
        (
            {"graphs": "id,smiles\ng1,C\ng2,CC\n"},
            {"target": "value"},
            "graphs.csv: no column of numbers for a task of the target 'value'; columns found: 'id', 'smiles'",
        ),
        (
            {"graphs": "id,u\ng1,1\ng2,0\n"},
            {"target": "binary", "class_names": ("u", "v")},
            "graphs.csv: no column 'v' for a task; columns found: 'id', 'u'",
        ),
        (
            {"graphs": "id,heat,split\ng1,1,train\ng2,,test\n"},
            {"target": "value"},
            "graphs.csv row 2: split is 'test', but there is no label",
        ),
        ({}, {"x_sizes": (4, 2)}, "nodes.csv: has 1 feature columns; dataset.x_sizes has 2 numbers of categories"),
        ({}, {"x_sizes": (21,)}, "nodes.csv row 4: feature 0 is 21; a category from 0 to 20 is needed"),
        ({}, {"edge_sizes": (3,)}, "edges.csv row 3: feature 0 is 3; a category from 0 to 2 is needed"),
    ],
)
def test_each_problem_is_named(
    tmp_path: Path, parts: dict[str, str | None], options: dict[str, Any], expected: str
) -> None:
    assert expected in problems_of(folder(tmp_path, **parts), **options)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no folder .*nowhere'; a graph set folder holds graphs"):
        read_graph_set_folder(tmp_path / "nowhere")


def same(found: GraphSet, wanted: GraphSet) -> None:
    assert torch.equal(found.x.to_dense(), wanted.x.to_dense()) and found.x.layout == wanted.x.layout
    assert torch.equal(found.edge_index, wanted.edge_index) and torch.equal(found.node_start, wanted.node_start)
    assert np.array_equal(found.y.numpy(), wanted.y.numpy(), equal_nan=wanted.y.is_floating_point())
    assert (found.num_classes, found.target, found.class_names) == (
        wanted.num_classes,
        wanted.target,
        wanted.class_names,
    )
    assert (found.edge_attr is None) == (wanted.edge_attr is None)
    assert wanted.edge_attr is None or torch.equal(found.edge_attr, wanted.edge_attr)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("target", "undirected"), [("class", True), ("class", False), ("binary", False), ("value", True)]
)
def test_what_is_written_is_read_back(tmp_path: Path, target: str, undirected: bool, format: str) -> None:
    whole = toy_set(target, categorical=target == "binary")
    (data,) = whole.divide([torch.tensor([7, 0, 3, 5, 1, 6])])
    data = replace(data, class_names=("p", "q", "r"), masks={})
    write_graph_set_folder(data, tmp_path / "mine", format)
    sizes = (SIZES, EDGE_SIZES) if target == "binary" else ((), ())
    read = read_graph_set_folder(tmp_path / "mine", ("p", "q", "r"), target, undirected, *sizes)
    same(read.data, data)
    assert read.item_columns["id"] == tuple(map(str, data.graph_ids.tolist()))
    assert (read.data.x_sizes, read.data.edge_sizes) == sizes


def test_masks_and_sparse_features_are_read_back(tmp_path: Path) -> None:
    data = toy_set(sparse=True)
    x = torch.where(torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0)) < 0.2, 1.0, 0.0)
    data = replace(data, x=x.to_sparse_csr(), class_names=("p", "q", "r"))
    write_graph_set_folder(data, tmp_path / "mine")
    read = read_graph_set_folder(tmp_path / "mine", ("p", "q", "r")).data
    same(read, data)
    known = data.y >= 0
    assert not bool(known.all()), "there are graphs without a label"
    assert all(torch.equal(read.masks[split], mask & known) for split, mask in data.masks.items())


def test_further_columns_of_graphs_are_attributes_to_split_by(tmp_path: Path) -> None:
    graphs = "id,label,split,maker,ward\ng1,toxic,train,Bolt,4\ng2,safe,test,Acme,5\ng3,,,Bolt,5\n"
    data = read_graph_set_folder(folder(tmp_path, graphs)).data
    assert {key: value.tolist() for key, value in data.attributes.items()} == {"maker": [1, 0, 1], "ward": [4, 5, 5]}
    assert data.attribute_names == {"maker": ("Acme", "Bolt")}
    parts = MetaSplitter("maker", deal="one_each").split(data, 2, np.random.default_rng(0))
    assert [part.graph_ids.tolist() for part in parts] == [[1], [0, 2]]


def test_columns_of_tasks_are_no_attributes_and_those_named_so_are_no_tasks(tmp_path: Path) -> None:
    graphs = "id,maker,burns,melts,attribute.year\ng1,Bolt,1,-3.5,2020\ng2,Acme,,2,2021\ng3,Bolt,,,2020\n"
    data = read_graph_set_folder(folder(tmp_path, graphs), target="value").data
    assert data.class_names == ("burns", "melts") and set(data.attributes) == {"maker", "year"}
    some = read_graph_set_folder(tmp_path, class_names=("melts",), target="value").data
    assert set(some.attributes) == {"maker", "year", "burns"}, "a number that is no task is an attribute"


@pytest.mark.parametrize(
    ("graphs", "target"),
    [
        ("id,label,ward\ng1,toxic,4\ng2,safe,5\n", "class"),
        ("id,label,ward\ng1,1,4\ng2,0,5\n", "class"),
        ("id,attribute.ward\ng1,4\ng2,5\n", "class"),
        ("id,burns,attribute.ward\ng1,1,4\ng2,0,5\n", "binary"),
        ("id,heat,attribute.ward\ng1,1.5,4\ng2,0,5\n", "value"),
        ("id,label,attribute.ward\ng1,1.5,4\ng2,0,5\n", "value"),
    ],
)
def test_what_the_labels_seem_to_be_is_not_told_by_attributes(graphs: str, target: str, tmp_path: Path) -> None:
    assert GraphSetFolder.at(folder(tmp_path, graphs)).target == target


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("target", ["class", "binary", "value"])
def test_attributes_are_written_and_read_back(tmp_path: Path, target: str, format: str) -> None:
    data = replace(
        toy_set(target),
        attributes={"maker": torch.arange(12) % 3, "year": torch.arange(12) + 2000, "pair": torch.zeros(12, 2)},
        attribute_names={"maker": ("Acme", "Bolt", "Cobb")},
        class_names=("p", "q", "r"),
    )
    write_graph_set_folder(data, tmp_path / "mine", format)
    dataset = replace(GraphSetFolder.like(data), path=str(tmp_path / "mine"))
    for read in (dataset.read().data, GraphSetFolder.at(tmp_path / "mine").read().data):
        same(read, data)
        assert set(read.attributes) == {"maker", "year"} and read.attribute_names == {"maker": ("Acme", "Bolt", "Cobb")}
        assert all(torch.equal(read.attributes[key], data.attributes[key]) for key in read.attributes)


def test_an_attribute_in_the_table_of_nodes_is_out_of_place(tmp_path: Path) -> None:
    nodes = "graph,id,f,attribute.ward\ng1,a,1,4\n"
    assert problems_of(folder(tmp_path, nodes=nodes, edges="graph,source,target\n")) == [
        "nodes.csv: has a column 'attribute.ward', which belongs into the table of graphs; move it there, or rename it"
    ]
