"""What feature columns are called: compared by name, and brought into another's order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.features import in_order, name_differences
from isthmus.data.folders.graph_folder import read_graph_folder, write_graph_folder
from isthmus.data.graph import input_names, names_digest
from isthmus.data.zoo import GraphSetFolder, LinkFolder
from isthmus.testing import toy_graph
from tests.learn.tasks.graph_toys import toy_set
from tests.learn.tasks.link_toys import toy_facts

NAMES = ("age", "country=AT", "income", "a", "b", "c")


def test_the_names_of_columns_survive_being_written_and_read_dense_and_sparse(tmp_path: Path) -> None:
    for number, sparse in enumerate((False, True)):
        graph = replace(toy_graph(sparse=sparse), feature_names=NAMES)
        write_graph_folder(graph, tmp_path / str(number))
        found = read_graph_folder(tmp_path / str(number)).graph
        assert found.feature_names == NAMES and torch.equal(found.x.to_dense(), graph.x.to_dense())
        assert found.subgraph(torch.tensor([3, 1])).feature_names == NAMES


def test_features_of_an_archive_without_names_have_none(tmp_path: Path) -> None:
    write_graph_folder(toy_graph(sparse=True), tmp_path / "mine")
    assert read_graph_folder(tmp_path / "mine").feature_names == ()
    write_graph_folder(toy_graph(), tmp_path / "columns")
    assert read_graph_folder(tmp_path / "columns").feature_names == tuple(f"x{i}" for i in range(6))


def test_names_in_an_archive_that_do_not_fit_its_columns_are_told(tmp_path: Path) -> None:
    graph = toy_graph()
    write_graph_folder(replace(graph, x=graph.x.to_sparse_csr()), tmp_path / "mine")
    np.savez(tmp_path / "mine" / "features.npz", x=graph.x.numpy(), names=np.asarray(["a", "b"]))
    with pytest.raises(BadInput, match="'names' is no list of 6 different names"):
        read_graph_folder(tmp_path / "mine")


def test_links_and_sets_of_graphs_have_names_of_columns_too(tmp_path: Path) -> None:
    LinkFolder.write(replace(toy_facts(), feature_names=NAMES[:4]), tmp_path / "links")
    assert LinkFolder(path=str(tmp_path / "links")).read().data.feature_names == NAMES[:4]
    made = toy_set("binary", categorical=True)
    width, edges = made.x.shape[1], tuple(f"bond {i}" for i in range(made.edge_attr.shape[1]))
    made = replace(made, feature_names=NAMES[:width], edge_feature_names=edges)
    GraphSetFolder.write(made, tmp_path / "graphs")
    found = replace(GraphSetFolder.like(made), path=str(tmp_path / "graphs")).read().data
    assert input_names(found, edges=True) == (*NAMES[:width], *(f"edge: {name}" for name in edges))
    assert input_names(found) == NAMES[:width]


def test_nodes_without_features_are_not_taken_for_nodes_with_one(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id\na\nb\n")
    (tmp_path / "links.csv").write_text("source,target\na,b\n")
    bare = LinkFolder(path=str(tmp_path)).read().data
    assert bare.x.tolist() == [[1.0], [1.0]]
    (tmp_path / "nodes.csv").write_text("id,age\na,1\nb,1\n")
    assert LinkFolder(path=str(tmp_path)).read().data.feature_names != bare.feature_names


def test_differences_name_the_first_columns_of_each_kind() -> None:
    assert name_differences(("a", "b"), ("a", "b"), "the model's") == []
    assert name_differences(("a", "z"), ("a", "b"), "the model's") == [
        "column 'b' is missing, number 2 of the model's",
        "column 'z' (number 2) is not among the model's",
    ]
    many = [f"w{i}" for i in range(10)]
    assert name_differences(("a",), ("a", *many), "theirs")[-1] == "7 more like this"
    moved = name_differences(("b", "a"), ("a", "b"), "theirs")
    assert moved[0] == "column 'a' is number 2 here, number 1 of theirs" and len(moved) == 2


def test_a_digest_tells_lists_apart_and_nothing_from_nothing() -> None:
    found = {names_digest(names) for names in [(), ("a", "b"), ("b", "a"), ("a b",), ('a", "b',)]}
    assert len(found) == 5 and names_digest(()) == ""


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_are_brought_into_the_order_of_names(sparse: bool) -> None:
    graph = replace(toy_graph(sparse=sparse), feature_names=NAMES)
    wanted = (*NAMES[2:], *NAMES[:2])  # not its own inverse, as a reversal would be
    found = in_order(graph, wanted)
    assert found.feature_names == wanted and found.x.layout == graph.x.layout
    assert torch.equal(found.x.to_dense(), graph.x.to_dense().roll(-2, 1))
