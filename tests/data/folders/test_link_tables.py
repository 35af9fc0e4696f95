"""Own links from a folder: what is read, what is refused and how, and that what is written is read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_graph_folder
from isthmus.data.folders.link_folder import read_link_folder, write_link_folder
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters import MetaSplitter
from tests.learn.tasks.link_toys import toy_facts, toy_ratings

NODES = "id,f1,f2\na,1,0.5\nb,2,1.5\nc,3,2.5\n"
LINKS = "source,target,label,split\nb,a,likes,train\na,b,hates,val\nc,c,likes,\nb,a,hates,test\n"


def folder(path: Path, nodes: str | None = NODES, links: str | None = LINKS) -> Path:
    for name, content in (("nodes.csv", nodes), ("links.csv", links)):
        if content is not None:
            (path / name).write_text(content, encoding="utf-8")
    return path


def problems_of(path: Path, class_names: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read_link_folder(path, class_names)
    head, *lines = str(caught.value).split("\n  ")
    assert head.startswith(f"link folder {path}: ")
    return lines


def test_a_small_folder_is_read_as_written_row_by_row(tmp_path: Path) -> None:
    read = read_link_folder(folder(tmp_path))
    data = read.data
    assert read.node_ids == ("a", "b", "c")
    assert read.item_columns == {"source": ("b", "a", "c", "b"), "target": ("a", "b", "c", "a")}
    assert data.x.tolist() == [[1.0, 0.5], [2.0, 1.5], [3.0, 2.5]]
    assert data.links.tolist() == [[1, 0, 2, 1], [0, 1, 2, 0]], "neither loops nor repeated pairs are dropped"
    assert data.label.tolist() == [1, 0, 1, 0]
    assert (data.class_names, data.num_classes, data.undirected, data.name) == (
        ("hates", "likes"),
        2,
        False,
        tmp_path.name,
    )
    assert {split: mask.nonzero().flatten().tolist() for split, mask in data.masks.items()} == {
        "train": [0],
        "val": [1],
        "test": [3],
    }
    assert read_link_folder(tmp_path, undirected=True).data.undirected


def test_class_names_give_the_numbers_and_labels_may_be_numbers(tmp_path: Path) -> None:
    assert read_link_folder(folder(tmp_path), ("likes", "x", "hates")).data.label.tolist() == [0, 2, 0, 2]
    data = read_link_folder(folder(tmp_path, links="source,target,label\na,b,4\nb,c,\n")).data
    assert (data.label.tolist(), data.num_classes, data.class_names, dict(data.masks)) == ([4, -1], 5, (), {})


def test_without_labels_all_links_are_of_one_class_unless_there_are_several_to_choose_from(tmp_path: Path) -> None:
    plain = read_link_folder(folder(tmp_path, links="source,target\na,b\nb,c\n")).data
    assert (plain.label.tolist(), plain.num_classes) == ([0, 0], 1)
    asked = read_link_folder(tmp_path, ("likes", "hates")).data
    assert (asked.label.tolist(), asked.num_classes) == ([-1, -1], 2)


def test_a_link_without_a_label_may_be_in_a_split(tmp_path: Path) -> None:
    data = read_link_folder(folder(tmp_path, links="source,target,label,split\na,b,,train\nb,c,likes,train\n")).data
    assert data.masks["train"].tolist() == [True, True] and data.label.tolist() == [-1, 0]


def test_without_features_every_node_has_a_constant_one(tmp_path: Path) -> None:
    data = read_link_folder(folder(tmp_path, nodes="id,name\na,Ann\nb,Bob\nc,Cy\n")).data
    assert data.x.tolist() == [[1.0], [1.0], [1.0]]


def test_features_may_come_from_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "features.npz", x=np.arange(6).reshape(3, 2))
    assert read_link_folder(folder(tmp_path, nodes="id\na\nb\nc\n")).data.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert problems_of(folder(tmp_path)) == [
        "nodes.csv: has the feature columns 'f1', 'f2', but there is also features.npz; remove one"
    ]


def test_sides_are_users_and_items_and_no_features(tmp_path: Path) -> None:
    read = read_link_folder(folder(tmp_path, nodes="id,f,side\na,1,user\nb,2,item\nc,3,1\n")).data
    assert read.node_attributes["side"].tolist() == [0, 1, 1] and read.num_features == 1
    assert problems_of(folder(tmp_path, nodes="id,f,side\na,1,user\nb,2,shop\nc,3,\n")) == [
        "nodes.csv row 2: side is 'shop'; user (or 0) and item (or 1) are known",
        "nodes.csv row 3: side is ''; user (or 0) and item (or 1) are known",
    ]


def test_all_problems_are_told_at_once_by_row(tmp_path: Path) -> None:
    nodes = "id,f,label\na,1,x\na,inf,y\n,2,z\n"
    links = "source,target,label,split\na,z,likes,train\n,a,loves,dev\n"
    assert problems_of(folder(tmp_path, nodes, links), ("likes", "hates")) == [
        "nodes.csv: has a column 'label', which belongs into the table of links; move it there, or rename it",
        "nodes.csv row 3: id is empty",
        "nodes.csv row 2: id 'a' is taken by row 1",
        "nodes.csv row 2: f is inf; a finite number is needed",
        "links.csv row 2: source '' is no id of nodes.csv",
        "links.csv row 1: target 'z' is no id of nodes.csv",
        "links.csv row 2: label 'loves' is none of the class names 'likes', 'hates'",
        "links.csv row 2: split is 'dev'; known: train, val, test, or nothing",
    ]


@pytest.mark.parametrize(
    ("nodes", "links", "expected"),
    [
        (None, LINKS, ["nodes: not found; nodes.parquet or nodes.csv is needed"]),
        (NODES, None, ["links: not found; links.parquet or links.csv is needed"]),
        (NODES, "source,label\na,x\n", ["links.csv: no column 'target'; columns found: 'source', 'label'"]),
        (NODES, "source,target\n", ["links.csv: the table is empty; at least one link is needed"]),
        (
            "id,f\na,1\nb,two\nc,3\n",
            LINKS,
            [
                "nodes.csv row 2: f is 'two'; a number is needed, as in most rows",
                "nodes.csv: no numeric feature column (columns: 'id', 'f'), and there is no features.npz",
            ],
        ),
    ],
)
def test_tables_that_are_no_use_are_named(
    tmp_path: Path, nodes: str | None, links: str | None, expected: list[str]
) -> None:
    assert problems_of(folder(tmp_path, nodes, links)) == expected


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no folder .*nowhere'; a link folder holds nodes\.\(parquet\|csv\) and links"):
        read_link_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("data", [toy_facts(), toy_ratings()], ids=["facts", "ratings"])
def test_what_is_written_is_read_back(tmp_path: Path, data: LinkGraph, format: str) -> None:
    (part,) = data.divide([torch.arange(5, 22)])
    part = replace(part, class_names=("r", "s", "t"))
    write_link_folder(part, tmp_path / "mine", format)
    read = read_link_folder(tmp_path / "mine", part.class_names, part.undirected)
    assert torch.equal(read.data.x, part.x) and torch.equal(read.data.links, part.links)
    assert torch.equal(read.data.label, part.label) and read.data.undirected == part.undirected
    assert read.node_ids == tuple(map(str, part.node_ids.tolist()))
    assert all(torch.equal(read.data.masks[split], mask) for split, mask in part.masks.items())
    assert read.data.node_attributes.keys() == part.node_attributes.keys()
    assert all(torch.equal(read.data.node_attributes[key], part.node_attributes[key]) for key in part.node_attributes)


def test_sparse_features_and_missing_labels_are_read_back(tmp_path: Path) -> None:
    data = toy_facts()
    x = torch.zeros(12, 9).scatter_(1, torch.arange(12)[:, None] % 9, 1.0).to_sparse_csr()
    data = replace(data, x=x, label=torch.where(torch.arange(40) % 3 == 0, -1, data.label))
    write_link_folder(data, tmp_path / "mine")
    read = read_link_folder(tmp_path / "mine").data
    assert read.x.layout == torch.sparse_csr and torch.equal(read.x.to_dense(), x.to_dense())
    assert torch.equal(read.label, data.label)


def test_further_columns_of_links_and_text_of_nodes_are_kept_to_split_by(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "nodes.csv").write_text("id,x\na,1\nb,2\nc,3\n")
    (tmp_path / "links" / "links.csv").write_text(
        "source,target,label,shop,year\na,b,0,north,2020\nb,c,1,south,2021\na,c,0,north,2021\n"
    )
    data = read_link_folder(tmp_path / "links").data
    assert data.attributes["shop"].tolist() == [0, 1, 0] and data.attribute_names["shop"] == ("north", "south")
    assert data.attributes["year"].tolist() == [2020, 2021, 2021]
    parts = MetaSplitter("shop", deal="one_each").split(data, 2, np.random.default_rng(0))
    assert sorted(part.link_ids.tolist() for part in parts) == [[0, 2], [1]]
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "nodes.csv").write_text("id,x,city\na,1,Ulm\nb,2,Bonn\nc,3,Ulm\n")
    (tmp_path / "graph" / "edges.csv").write_text("source,target\na,b\n")
    graph = read_graph_folder(tmp_path / "graph").graph
    assert graph.num_features == 1 and graph.attribute_names["city"] == ("Bonn", "Ulm")
    nodes = MetaSplitter("city", deal="one_each").split(graph, 2, np.random.default_rng(0))
    assert sorted(part.node_ids.tolist() for part in nodes) == [[0, 2], [1]]


def test_text_of_nodes_and_columns_that_are_named_so_are_attributes_of_a_link_s_ends(tmp_path: Path) -> None:
    nodes = "id,f,side,city,attribute.zone\na,1,user,Ulm,3\nb,2,item,,5\nc,3,item,Bonn,5\n"
    data = read_link_folder(folder(tmp_path, nodes, "source,target\na,b\na,c\n")).data
    assert {key: value.tolist() for key, value in data.node_attributes.items()} == {
        "side": [0, 1, 1],
        "city": [2, 0, 1],
        "zone": [3, 5, 5],
    }
    assert data.node_attribute_names == {"city": ("", "Bonn", "Ulm")}
    assert data.feature_names == ("f",) and data.attributes == {}
    parts = MetaSplitter("tail.city", deal="one_each").split(data, 2, np.random.default_rng(0))
    assert [part.link_ids.tolist() for part in parts] == [[0], [1]]
    assert [part.node_attributes["city"].tolist() for part in parts] == [[2, 0], [2, 1]]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_attributes_of_links_and_nodes_are_written_and_read_back(tmp_path: Path, format: str) -> None:
    data = replace(
        toy_ratings(),
        attributes={"shop": torch.arange(22) % 3 - 1, "when": torch.arange(22) / 4, "pair": torch.zeros(22, 2)},
        attribute_names={"shop": ("north", "south")},
        node_attributes={
            **toy_ratings().node_attributes,
            "born": torch.arange(13) + 2**60,
            "city": torch.arange(13) % 2,
        },
        node_attribute_names={"city": ("Bonn", "Ulm")},
    )
    write_link_folder(data, tmp_path / "mine", format)
    read = read_link_folder(tmp_path / "mine").data
    assert set(read.attributes) == {"shop", "when"}, "an attribute of several numbers is not written"
    assert [read.attribute_names["shop"][code] for code in read.attributes["shop"]] == ["", "north", "south"] * 7 + [""]
    assert torch.equal(read.attributes["when"].float(), data.attributes["when"])
    assert torch.equal(read.node_attributes["born"], data.node_attributes["born"]), "large numbers stay exact"
    assert torch.equal(read.node_attributes["city"], data.node_attributes["city"])
    assert read.node_attribute_names == {"city": ("Bonn", "Ulm")}
    assert torch.equal(read.node_attributes["side"], data.node_attributes["side"])
    assert torch.equal(read.x, data.x)


def test_an_attribute_told_twice_is_refused(tmp_path: Path) -> None:
    links = "source,target,shop,attribute.shop\na,b,x,y\n"
    assert problems_of(folder(tmp_path, links=links)) == [
        "links.csv: has the attribute 'shop' twice, as 'shop' and 'attribute.shop'; remove one, or rename it"
    ]


def test_a_side_is_not_stated_as_an_attribute(tmp_path: Path) -> None:
    assert problems_of(folder(tmp_path, nodes="id,f,attribute.side\na,1,9\nb,2,8\nc,3,7\n")) == [
        "nodes.csv: has a column 'attribute.side', which belongs into the column 'side'; move it there, or rename it"
    ]
