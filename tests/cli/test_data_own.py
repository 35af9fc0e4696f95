"""isthmus data and isthmus join on folders of links and of graphs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_graph_folder
from isthmus.data.zoo import DATASETS, Cora, Dataset, GraphSetFolder, LinkFolder
from isthmus.sites.join import check_own
from tests.learn.tasks.graph_toys import toy_set
from tests.learn.tasks.link_toys import toy_facts, toy_ratings

from .command import call

NAMES = ("p", "q", "r")


@dataclass(frozen=True, kw_only=True)
class Toys(Dataset):
    """Toy links or toy graphs by name."""

    what: str = "links"

    def load(self, root: Path) -> Any:
        """Make them."""
        made: dict[str, Any] = {"links": toy_ratings(), "graphs": replace(toy_set(), class_names=("-1", "0", "1"))}
        return made[self.what]

    def present(self, root: Path) -> bool:
        """Nothing is needed."""
        return True


def test_a_link_folder_is_described(tmp_path: Path) -> None:
    LinkFolder.write(replace(toy_facts(), class_names=NAMES), tmp_path / "mine")
    code, text = call("data", "check", str(tmp_path / "mine"))
    assert code == 0 and "is a link folder: 12 nodes, 40 links, 4 features, classes: p, q, r" in text
    assert "train: 24 links" in text
    code, text = call("data", "check", str(tmp_path / "mine"), "--classes", "p,q")
    assert code == 2 and "label 'r' is none of the class names 'p', 'q'" in text


@pytest.mark.parametrize(
    ("target", "labels"), [("class", "classes: p, q, r"), ("binary", "binary tasks: p, q, r"), ("value", "value tasks")]
)
def test_a_graph_set_folder_is_described(target: str, labels: str, tmp_path: Path) -> None:
    GraphSetFolder.write(replace(toy_set(target), class_names=NAMES), tmp_path / "mine")
    code, text = call("data", "check", str(tmp_path / "mine"))
    assert code == 0 and "is a graph set folder: 12 graphs, 51 nodes" in text and "4 features of nodes, 0 of" in text
    assert labels in text and "train: 6 graphs" in text


def test_directed_edges_are_read_as_they_are_when_asked(tmp_path: Path) -> None:
    GraphSetFolder.write(toy_set("binary", categorical=True), tmp_path / "mine")
    code, text = call("data", "check", str(tmp_path / "mine"))
    assert code == 2 and "tells the same edge as row" in text
    assert call("data", "check", str(tmp_path / "mine"), "--directed")[0] == 0


def test_a_schema_is_for_one_graph(tmp_path: Path) -> None:
    LinkFolder.write(toy_facts(), tmp_path / "mine")
    (tmp_path / "schema.yaml").write_text("features: []\nclasses: []\n")
    code, text = call("data", "check", str(tmp_path / "mine"), "--schema", str(tmp_path / "schema.yaml"))
    assert code == 2 and "--schema is for graph folders" in text and "is a link folder" in text


@pytest.mark.parametrize(
    ("kind", "data", "item"), [("link_folder", toy_facts(), "links"), ("graph_set_folder", toy_set(), "graphs")]
)
def test_who_holds_what_is_shown(kind: str, data: Any, item: str, tmp_path: Path) -> None:
    DATASETS[kind].write(replace(data, masks={}), tmp_path / "mine")  # type: ignore[attr-defined]
    path = f"dataset.path={tmp_path / 'mine'}"
    code, text = call("data", "show", kind, path, "--splitter", "random", "--clients", "2")
    assert code == 0 and item in text and "who holds what" in text
    code, text = call("data", "show", kind, path, "--splitter", "community", "--clients", "2")
    assert code == 2 and f"divides nodes, but the dataset 'mine' holds {item}" in text
    code, text = call("data", "show", kind, "--splitter", "random")
    assert code == 2 and "dataset.path is missing" in text


@pytest.mark.parametrize(
    ("what", "named", "settings"),
    [
        ("links", "read with: dataset.name=link_folder dataset.undirected=True", "classes: "),
        ("graphs", "read with: dataset.name=graph_set_folder dataset.undirected=False", "class -1,class 0,class 1"),
    ],
)
def test_a_dataset_is_divided_into_folders_of_its_kind(what: str, named: str, settings: str, tmp_path: Path) -> None:
    dataset = "tests.cli.test_data_own:Toys"
    words = [f"dataset.what={what}", "splitter.name=random"]
    code, text = call("data", "split", dataset, "--names", "a,b", "--out", str(tmp_path / "silos"), *words)
    assert code == 0 and named in text and settings in text
    for name in "ab":
        code, text = call("data", "check", str(tmp_path / "silos" / name))
        assert code == 0 and f"train: 0 {what}" not in text


def test_a_silo_with_links_or_graphs_is_checked_before_anything_is_connected(tmp_path: Path) -> None:
    LinkFolder.write(toy_facts(), tmp_path / "links")
    GraphSetFolder.write(toy_set("value"), tmp_path / "graphs")
    GraphSetFolder.write(
        toy_set("binary", categorical=True), tmp_path / "directed"
    )  # features of edges differ both ways
    for name in ("links", "graphs", "directed"):
        check_own(tmp_path / name, b"a secret of all silos")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "nodes.csv").write_text("id\na\na\n")
    (tmp_path / "broken" / "links.csv").write_text("source,target\na,z\n")
    with pytest.raises(BadInput, match="2 problems"):
        check_own(tmp_path / "broken", None)


def test_parts_with_classes_of_their_own_are_written_under_their_own_names(tmp_path: Path) -> None:
    options = ["dataset.datasets=[csbm,cora]", "dataset.dim=16", "splitter.name=meta", "splitter.attribute=dataset"]
    code, text = call(
        "data",
        "split",
        "union",
        "--clients",
        "2",
        "--out",
        str(tmp_path / "out"),
        *options,
        "splitter.own_classes=true",
    )
    assert code == 0 and "classes: each has its own" in text, text
    found = [read_graph_folder(tmp_path / "out" / name).graph for name in ("client-0", "client-1")]
    assert {graph.num_classes: len(graph.y) for graph in found} == {7: 2708, 2: 200}
    cora = next(graph for graph in found if graph.num_classes == 7)
    assert sorted(cora.class_names) == sorted(f"cora/{name}" for name in Cora().load(tmp_path).class_names)


def test_labels_of_yes_and_no_are_told_and_counted_as_what_they_are(tmp_path: Path) -> None:
    told = replace(toy_facts(num_relations=2), masks={})
    told = replace(told, links=torch.combinations(torch.arange(12))[:40].t())
    LinkFolder.write(told, tmp_path / "mine")
    mine, none = str(tmp_path / "mine"), int((told.label == 0).sum())
    code, text = call("data", "check", mine)
    assert code == 0 and "40 links, 4" in text and "dataset.negatives=0 if not, dataset.all_links=true if" in text
    code, text = call("data", "check", mine, "--negatives", "0")
    assert code == 0 and f"{40 - none} links and {none} pairs that are none" in text and "note" not in text
    assert "train: 0 pairs" in text
    out = str(tmp_path / "silos")
    words = [f"dataset.path={mine}", "dataset.negatives=0", "splitter.name=random"]
    code, text = call("data", "split", "link_folder", "--clients", "2", "--out", out, *words)
    assert code == 0 and "read with: dataset.name=link_folder dataset.negatives=0" in text
    assert "client-0: 20 pairs, " in text
    read = [LinkFolder(path=f"{out}/client-{k}", negatives=0).read().data for k in (0, 1)]
    assert sum(int(part.is_negative.sum()) for part in read) == none
    code, text = call("data", "show", "link_folder", *words, "--clients", "2")
    assert code == 0 and "who holds what" in text and "no two clients share a pair" in text
    code, text = call("data", "show", mine, "dataset.negatives=0", "--json")
    facts = json.loads(text)
    assert facts["item"] == "pair" and facts["whole"]["num_links"] == facts["whole"]["num_edges"] == 40 - none
    assert "dataset.negatives=0 if not, dataset.all_links=true if" in call("data", "show", mine)[1]
    code, text = call("data", "check", "examples/own_data/circuits", "--negatives", "0")
    assert code == 2 and "--negatives is for link folders" in text


def test_links_of_two_plain_classes_are_divided_with_the_word_that_all_are_links(tmp_path: Path) -> None:
    assert LinkFolder.like(toy_facts(num_relations=2)).all_links
    assert not LinkFolder.like(toy_facts(num_relations=3)).all_links
    assert not LinkFolder.like(replace(toy_facts(num_relations=2), class_names=("skip", "click"))).all_links
    with pytest.raises(ValueError, match="set one of them"):
        LinkFolder(negatives="0", all_links=True)
