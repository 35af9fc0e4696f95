from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from scipy import sparse

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import Folder, read_graph_folder, write_graph_folder
from isthmus.data.graph import Graph
from isthmus.data.splitters.facts import value_names
from tests.data.strategies import adjacency, dense, graphs, make_graph, many

NODES = "id,f1,f2,label,split\na,1,0.5,red,train\nb,2,1.5,blue,val\nc,3,2.5,,\n"
EDGES = "source,target\na,b\nb,c\n"


def folder(path: Path, nodes: str | None = NODES, edges: str | None = EDGES) -> Path:
    for name, content in (("nodes.csv", nodes), ("edges.csv", edges)):
        if content is not None:
            (path / name).write_text(content, encoding="utf-8")
    return path


def problems_of(path: Path, class_names: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read_graph_folder(path, class_names)
    head, *lines = str(caught.value).split("\n  ")
    assert head.startswith(f"graph folder {path}: ")
    return lines


def test_a_small_folder_is_read_as_written(tmp_path: Path) -> None:
    read = read_graph_folder(folder(tmp_path))
    graph = read.graph
    assert read.ids == ("a", "b", "c")
    assert graph.x.tolist() == [[1.0, 0.5], [2.0, 1.5], [3.0, 2.5]]
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.edge_weight is None
    assert graph.y.tolist() == [1, 0, -1]
    assert (graph.class_names, graph.num_classes, graph.name) == (("blue", "red"), 2, tmp_path.name)
    assert {split: mask.tolist() for split, mask in graph.masks.items()} == {
        "train": [True, False, False],
        "val": [False, True, False],
        "test": [False, False, False],
    }


def test_class_names_give_the_numbers_also_of_classes_not_seen(tmp_path: Path) -> None:
    graph = read_graph_folder(folder(tmp_path), ("red", "green", "blue")).graph
    assert graph.y.tolist() == [0, 2, -1]
    assert graph.num_classes == 3


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    graph = read_graph_folder(folder(tmp_path, "id,f,label\n1,0,2\n2,1,-1\n3,1,\n", "source,target\n1,3\n")).graph
    assert graph.y.tolist() == [2, -1, -1]
    assert (graph.num_classes, graph.class_names) == (3, ())
    assert read_graph_folder(tmp_path, ("p", "q", "r", "s")).graph.num_classes == 4


def test_without_labels_and_splits_there_are_none(tmp_path: Path) -> None:
    graph = read_graph_folder(folder(tmp_path, "id,f\na,1\nb,2\nc,3\n")).graph
    assert graph.y.tolist() == [-1, -1, -1]
    assert (graph.num_classes, dict(graph.masks)) == (0, {})


def test_directed_edges_stay_directed_when_asked(tmp_path: Path) -> None:
    graph = read_graph_folder(folder(tmp_path), undirected=False).graph
    assert graph.edge_index.tolist() == [[0, 1], [1, 2]]


def test_loops_and_repeated_edges_count_once_and_not(tmp_path: Path) -> None:
    edges = "source,target,weight\na,b,2\nb,a,2\nc,c,1\n"
    graph = read_graph_folder(folder(tmp_path, edges=edges)).graph
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.edge_weight is not None and graph.edge_weight.tolist() == [2.0, 2.0]


def test_ids_are_text_whatever_they_look_like(tmp_path: Path) -> None:
    nodes = "id,f\n007,1\n7,2\nNA,3\n"
    read = read_graph_folder(folder(tmp_path, nodes, "source,target\n007,NA\n"))
    assert read.ids == ("007", "7", "NA")
    assert read.graph.edge_index.tolist() == [[0, 2], [2, 0]]


def test_parquet_ids_may_be_numbers_here_and_text_there(tmp_path: Path) -> None:
    nodes = {"id": [10, 20], "f": [1.0, 2.0], "on": [True, False], "label": [1.0, None], "note": ["x", "y"]}
    parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    edges = {"source": pa.array(["10"]).dictionary_encode(), "target": [20.0]}
    parquet.write_table(pa.table(edges), tmp_path / "edges.parquet")
    read = read_graph_folder(tmp_path)
    assert read.ids == ("10", "20")
    assert read.graph.x.tolist() == [[1.0, 1.0], [2.0, 0.0]]
    assert read.graph.y.tolist() == [1, -1]
    assert read.graph.edge_index.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_features_may_come_from_an_archive(tmp_path: Path, kind: str) -> None:
    x = np.zeros((3, 40))
    x[0, 3], x[2, 39] = 5.0, 7.0
    if kind == "dense":
        np.savez(tmp_path / "features.npz", x=x)
    else:
        sparse.save_npz(tmp_path / "features.npz", sparse.coo_matrix(x))
    graph = read_graph_folder(folder(tmp_path, "id\na\nb\nc\n")).graph
    assert graph.x.layout == torch.sparse_csr, "two entries of 120 are few"
    assert np.array_equal(graph.x.to_dense().numpy(), x)


def test_entries_of_a_sparse_archive_told_twice_are_added(tmp_path: Path) -> None:
    values = np.array([1.0, 5.0, 2.0], dtype=np.float32)
    matrix = sparse.csr_matrix((values, np.array([7, 2, 7]), np.array([0, 3, 3, 3])), shape=(3, 40))
    sparse.save_npz(tmp_path / "features.npz", matrix)
    x = read_graph_folder(folder(tmp_path, "id\na\nb\nc\n")).graph.x.to_dense()
    assert (float(x[0, 7]), float(x[0, 2]), float(x.sum())) == (3.0, 5.0, 8.0)


def test_a_table_of_edges_may_be_empty(tmp_path: Path) -> None:
    assert read_graph_folder(folder(tmp_path, edges="source,target\n")).graph.num_edges == 0


def test_all_problems_are_told_at_once_by_row(tmp_path: Path) -> None:
    nodes = (
        "id,f1,f2,label,split\n"
        "a,1,,red,train\n"
        "b,2,inf,blue,dev\n"
        "a,3,1,red,test\n"
        ",3,1,red,\n"
        "e,3,1,pink,val\n"
        "f,3,1,,train\n"
    )
    edges = "source,target,weight\na,z,1\n,b,1\na,b,1\nb,a,3\na,e,-2\na,f,\n"
    assert problems_of(folder(tmp_path, nodes, edges), ("red", "blue")) == [
        "nodes.csv row 4: id is empty",
        "nodes.csv row 3: id 'a' is taken by row 1",
        "nodes.csv row 1: f2 is nan; a finite number is needed",
        "nodes.csv row 2: f2 is inf; a finite number is needed",
        "nodes.csv row 5: label 'pink' is none of the class names 'red', 'blue'",
        "nodes.csv row 2: split is 'dev'; known: train, val, test, or nothing",
        "nodes.csv row 6: split is 'train', but there is no label",
        "edges.csv row 2: source '' is no id of nodes.csv",
        "edges.csv row 1: target 'z' is no id of nodes.csv",
        "edges.csv row 5: weight is -2.0; a finite number above 0 is needed",
        "edges.csv row 6: weight is nan; a finite number above 0 is needed",
        "edges.csv row 4: weight is 3.0, but row 3 tells the same edge with 1.0",
    ]


def test_many_problems_of_one_kind_are_counted_not_listed(tmp_path: Path) -> None:
    edges = "source,target\n" + "".join(f"a,z{number}\n" for number in range(12))
    lines = problems_of(folder(tmp_path, edges=edges))
    assert lines[0] == "edges.csv row 1: target 'z0' is no id of nodes.csv"
    assert lines[5:] == ["edges.csv: 7 more rows like these"]
    with pytest.raises(BadInput, match=": 12 problems"):
        read_graph_folder(tmp_path)


def test_one_way_edges_may_differ_in_weight_by_direction(tmp_path: Path) -> None:
    path = folder(tmp_path, edges="source,target,weight\na,b,1\nb,a,3\n")
    graph = read_graph_folder(path, undirected=False).graph
    assert graph.edge_weight is not None and graph.edge_weight.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("nodes", "edges", "expected"),
    [
        ("name,f\na,1\n", "source,target\na,a\n", "nodes.csv: no column 'id'; columns found: 'name', 'f'"),
        (NODES, "from,to\na,b\n", "edges.csv: no column 'source'; columns found: 'from', 'to'"),
        ("id,f\n", EDGES, "nodes.csv: the table is empty; at least one node is needed"),
        ("", EDGES, "nodes.csv: cannot be read: "),
        ("id,f\na,1,2\n", EDGES, "nodes.csv: cannot be read: "),
        (None, EDGES, "nodes: not found; nodes.parquet or nodes.csv is needed"),
        (NODES, None, "edges: not found; edges.parquet or edges.csv is needed"),
        ("id,name\na,x\nb,y\nc,z\n", EDGES, "nodes.csv: no numeric feature column (columns: 'id', 'name')"),
        ("id,f,f\na,1,2\n", EDGES, "nodes.csv: more than one column named 'f'"),
        ("id,f\na,1\nb,2x\nc,3\n", EDGES, "nodes.csv row 2: f is '2x'; a number is needed, as in most rows"),
        ("id,f,label\na,1,0\nb,1,-4\nc,1,1\n", EDGES, "nodes.csv row 2: label is -4; a class number from 0 is needed"),
        (NODES, "source,target,weight\na,b,heavy\n", "edges.csv: column 'weight' is of type string; numbers"),
        ("id,f\na,1\nb,\nc,3\n", EDGES, "nodes.csv row 2: f is nan"),
        ("id,f,g\na,1,\nb,1,\nc,3,\n", EDGES, "nodes.csv row 1: g is nan"),
    ],
)
def test_each_problem_names_its_place(tmp_path: Path, nodes: str | None, edges: str | None, expected: str) -> None:
    lines = problems_of(folder(tmp_path, nodes, edges))
    assert any(line.startswith(expected) for line in lines), lines


def test_a_number_outside_the_class_names_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path, "id,f,label\na,1,0\nb,1,2\nc,1,1\n")
    assert problems_of(path, ("p", "q"))[0].startswith(
        "nodes.csv row 2: label is 2; a class number from 0 to 1 is needed"
    )


def test_two_tables_of_nodes_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1]}), folder(tmp_path) / "nodes.parquet")
    assert problems_of(tmp_path)[0] == "nodes: nodes.parquet or nodes.csv: both are there; remove one"


def test_feature_columns_beside_an_archive_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "features.npz", x=np.ones((3, 2)))
    assert problems_of(folder(tmp_path)) == [
        "nodes.csv: has the feature columns 'f1', 'f2', but there is also features.npz; remove one"
    ]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x": np.ones((2, 2))}, "features.npz: has shape (2, 2); nodes.csv has 3 rows"),
        ({"x": np.ones(3)}, "features.npz: has shape (3,); nodes.csv has 3 rows"),
        ({"x": np.array([[1.0], [np.nan], [2.0]])}, "features.npz row 2: holds a value that is not finite"),
        ({"y": np.ones((3, 2))}, "features.npz: neither an array 'x' nor a matrix saved by scipy.sparse.save_npz"),
        ({"x": np.array([["a"], ["b"], ["c"]])}, "features.npz: neither an array 'x'"),
        ({"x": np.array([[{}], [1], [2]], dtype=object)}, "features.npz: neither an array 'x'"),
    ],
)
def test_a_wrong_archive_is_told(tmp_path: Path, arrays: dict[str, np.ndarray], expected: str) -> None:
    np.savez(tmp_path / "features.npz", **arrays)
    assert problems_of(folder(tmp_path, "id\na\nb\nc\n"))[0].startswith(expected)


def test_a_file_that_is_no_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "features.npz").write_bytes(b"PK\x03\x04 nothing")
    assert problems_of(folder(tmp_path, "id\na\nb\nc\n"))[0].startswith("features.npz: neither an array 'x'")


def test_sparse_features_that_are_not_finite_are_told_by_row(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "features.npz", sparse.csr_matrix([[0, 1.0], [0, 0], [np.inf, 0]]))
    assert problems_of(folder(tmp_path, "id\na\nb\nc\n")) == ["features.npz row 3: holds a value that is not finite"]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no folder .*nowhere'; a graph folder holds nodes"):
        read_graph_folder(tmp_path / "nowhere")
    assert not Folder.is_at(tmp_path / "nowhere")
    assert Folder.is_at(folder(tmp_path))


def same(graph: Graph, other: Graph) -> None:
    assert torch.equal(dense(graph.x), dense(other.x))
    assert torch.equal(adjacency(graph), adjacency(other))
    assert torch.equal(graph.y, other.y)


@many
@given(graphs, st.sampled_from(["csv", "parquet"]), st.booleans())
def test_what_is_written_is_read_back(tmp_path_factory, graph: Graph, format: str, named: bool) -> None:
    path = tmp_path_factory.mktemp("round") / "graph"
    if named:
        graph = replace(graph, class_names=("red", "green", "blue"))
    write_graph_folder(graph, path, format)
    read = read_graph_folder(path, graph.class_names)
    same(read.graph, graph)
    assert read.ids == tuple(map(str, range(graph.num_nodes)))
    assert torch.equal(read.graph.masks["train"], graph.masks["train"])
    assert [file.name for file in path.parent.iterdir()] == ["graph"], "something was left beside the folder"


def test_a_directed_graph_is_written_edge_by_edge(tmp_path: Path) -> None:
    graph = replace(make_graph(3, 0), edge_index=torch.tensor([[0, 1, 2], [1, 0, 1]]))
    write_graph_folder(graph, tmp_path / "graph", "csv", ids=["x", "y", "z"])
    assert (tmp_path / "graph" / "edges.csv").read_text().split() == [
        '"source","target"',
        '"x","y"',
        '"y","x"',
        '"z","y"',
    ]
    same(read_graph_folder(tmp_path / "graph", undirected=False).graph, graph)


def test_a_pair_with_one_weight_is_written_once_and_with_two_twice(tmp_path: Path) -> None:
    pair = replace(make_graph(2, 0), edge_index=torch.tensor([[0, 1], [1, 0]]))
    for weights, rows in (([2.0, 2.0], 1), ([2.0, 3.0], 2)):
        write_graph_folder(replace(pair, edge_weight=torch.tensor(weights)), tmp_path / str(rows))
        assert parquet.read_table(tmp_path / str(rows) / "edges.parquet").num_rows == rows


def test_an_existing_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(BadInput, match="is there already and not an empty folder"):
        write_graph_folder(make_graph(3, 3), tmp_path)
    with pytest.raises(BadInput, match="is there already and not an empty folder"):
        write_graph_folder(make_graph(3, 3), tmp_path / "note")
    assert [file.name for file in tmp_path.iterdir()] == ["note"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_graph_folder(make_graph(3, 3), tmp_path / "empty")
    assert Folder.is_at(tmp_path / "empty")


def test_nothing_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(BadInput, match=r"graph' cannot be written: No space left"):
        write_graph_folder(make_graph(3, 3, sparse=True), tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_of_writing_are_told(tmp_path: Path) -> None:
    graph = make_graph(3, 3)
    with pytest.raises(BadInput, match="format is 'xml'; known: csv, parquet"):
        write_graph_folder(graph, tmp_path / "g", "xml")
    with pytest.raises(BadInput, match="3 ids, 2 distinct, for 3 nodes"):
        write_graph_folder(graph, tmp_path / "g", ids=["a", "a", "b"])
    twice = graph.with_masks({"train": torch.tensor([True] * 3), "val": torch.tensor([True] * 3)})
    with pytest.raises(BadInput, match="a node is in more than one of the masks"):
        write_graph_folder(twice, tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_attributes_are_written_and_read_back(tmp_path: Path, format: str) -> None:
    graph = replace(
        make_graph(6, 6),
        attributes={
            "city": torch.tensor([1, 0, 2, -1, 1, 0]),
            "hospital": torch.tensor([3, 4, -1, 3, 4, 2**60]),
            "score": torch.tensor([0.5, torch.nan, 2.0, 1.0, 0.25, 0.5]),
            "zip": torch.tensor([0, 1, 0, 1, 0, 1]),
            "day": torch.tensor([0, 1, 0, 1, 0, 1]),
            "neighbors": torch.zeros(6, 2),
        },
        attribute_names={"city": ("Ulm", "Bonn", "Aalen"), "zip": ("10", "9"), "day": ("2020-01-01", "2021-05-02")},
    )
    write_graph_folder(graph, tmp_path / "graph", format)
    read = read_graph_folder(tmp_path / "graph").graph
    assert read.feature_names == tuple(f"x{number}" for number in range(graph.num_features))
    assert set(read.attributes) == {"city", "hospital", "score", "zip", "day"}
    assert torch.equal(read.attributes["hospital"], graph.attributes["hospital"])
    assert torch.equal(read.attributes["score"].float().nan_to_num(9), graph.attributes["score"].nan_to_num(9))
    words = ["Bonn", "Ulm", "Aalen", "", "Bonn", "Ulm"]
    assert [read.attribute_names["city"][code] for code in read.attributes["city"]] == words
    assert [read.attribute_names["day"][code] for code in read.attributes["day"]] == ["2020-01-01", "2021-05-02"] * 3
    shown = value_names(read, "zip", read.attributes["zip"].numpy())
    assert shown == ["10", "9"] * 3


def test_a_column_that_is_named_so_is_an_attribute_whatever_it_holds(tmp_path: Path) -> None:
    nodes = "id,f,attribute.ward,attribute.room\na,1,4,7\nb,2,5,8\nc,3,4,x\n"
    graph = read_graph_folder(folder(tmp_path, nodes)).graph
    assert graph.feature_names == ("f",)
    assert graph.attributes["ward"].tolist() == [4, 5, 4] and graph.attribute_names == {"room": ("7", "8", "x")}
    assert problems_of(folder(tmp_path, "id,f,city,attribute.city\na,1,x,y\nb,2,x,y\nc,3,x,y\n")) == [
        "nodes.csv: has the attribute 'city' twice, as 'city' and 'attribute.city'; remove one, or rename it"
    ]


def test_days_are_attributes_and_lists_are_not(tmp_path: Path) -> None:
    days = [datetime.date(2020, 1, 2), None, datetime.date(2019, 5, 6)]
    nodes = {"id": ["a", "b", "c"], "f": [1.0, 2.0, 3.0], "day": days, "place": [[1, 2], [3, 4], [5, 6]]}
    parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    graph = read_graph_folder(folder(tmp_path, nodes=None)).graph
    assert graph.attribute_names == {"day": ("", "2019-05-06", "2020-01-02")}
    assert graph.attributes["day"].tolist() == [2, 0, 1] and set(graph.attributes) == {"day"}
    nodes["attribute.place"] = nodes.pop("place")
    parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    (told,) = problems_of(tmp_path)
    assert told.startswith("nodes.parquet: column 'attribute.place' is of type list<") and "text or" in told
