"""isthmus data show on folders of one's own, of any kind."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.folders.own_kinds import kind_for
from isthmus.testing import toy_graph
from tests.learn.tasks.graph_toys import toy_set
from tests.learn.tasks.link_toys import toy_facts

from .command import call

HELD: dict[str, Any] = {
    "nodes": toy_graph(),
    "links": toy_facts(),
    "graphs": toy_set("class"),
    "values": toy_set("value"),
}


@pytest.mark.parametrize("what", HELD)
def test_a_folder_of_any_kind_is_shown_as_it_is(what: str, tmp_path: Path) -> None:
    kind_for(type(HELD[what])).write(HELD[what], tmp_path / "mine")
    code, text = call("data", "show", str(tmp_path / "mine"))
    assert code == 0 and "mine: who holds what" in text and "all" in text
    code, text = call("data", "show", str(tmp_path / "mine"), "--json")
    facts = json.loads(text)
    assert list(facts["clients"]) == ["all"] and facts["item"] == HELD[what].item
    assert facts["clients"]["all"]["num_nodes"] == facts["whole"]["num_nodes"] == HELD[what].num_nodes


def test_a_folder_is_divided_where_that_is_asked_for(tmp_path: Path) -> None:
    write_graph_folder(toy_graph(), tmp_path / "mine")
    code, text = call("data", "show", str(tmp_path / "mine"), "--splitter", "random", "--clients", "2", "--json")
    assert code == 0 and len(json.loads(text)["clients"]) == 2
    code, text = call("data", "show", str(tmp_path / "mine"), "num_clients=3", "splitter.name=random", "--json")
    assert code == 0 and len(json.loads(text)["clients"]) == 3


def test_several_folders_are_shown_side_by_side(tmp_path: Path) -> None:
    graph = toy_graph()
    for name, nodes in (("north", range(20)), ("south", range(20, 48))):
        write_graph_folder(graph.subgraph(torch.tensor(list(nodes))), tmp_path / name)
    paths = [str(tmp_path / name) for name in ("north", "south")]
    code, text = call("data", "show", *paths, "--json")
    facts = json.loads(text)
    assert code == 0 and {name: found["num_nodes"] for name, found in facts["clients"].items()} == {
        "north": 20,
        "south": 28,
    }
    write_graph_folder(replace(graph, feature_names=tuple("abcdef")), tmp_path / "odd")
    code, text = call("data", "show", *paths, str(tmp_path / "odd"))
    assert code == 2 and "odd and north cannot be shown side by side: column 'x0' is missing" in text
    code, text = call("data", "show", *paths, "--splitter", "random")
    assert code == 2 and "leave the splitter out" in text


def test_a_folder_behind_a_dataset_s_name_is_refused_and_not_left_out(tmp_path: Path) -> None:
    write_graph_folder(toy_graph(), tmp_path / "mine")
    code, text = call("data", "show", "csbm", str(tmp_path / "mine"))
    assert code == 2 and f"csbm is a dataset, and {tmp_path / 'mine'} a folder" in text


def test_a_folder_without_labels_is_shown_too(tmp_path: Path) -> None:
    graph = toy_graph()
    write_graph_folder(replace(graph, y=torch.full_like(graph.y, -1), masks={}), tmp_path / "mine")
    code, text = call("data", "show", str(tmp_path / "mine"))
    assert code == 0 and "who holds what" in text


def test_what_is_neither_a_folder_nor_a_dataset_is_told(tmp_path: Path) -> None:
    code, text = call("data", "show", "nowhere")
    assert code == 2 and "dataset.name is 'nowhere'" in text
    code, text = call("data", "show", str(tmp_path / "nowhere"))
    assert code == 2 and f"there is no folder '{tmp_path}/nowhere'" in text.replace("\n", "")


def test_what_is_shown_as_it_is_says_nothing_of_how_a_course_would_divide_it(tmp_path: Path) -> None:
    write_graph_folder(toy_graph(), tmp_path / "mine")
    (first, *_) = call("data", "show", str(tmp_path / "mine"))[1].splitlines()
    assert "dataset folder" in first and "splitter" not in first and "clients" not in first
    (first, *_) = call("data", "show", str(tmp_path / "mine"), "--clients", "2")[1].splitlines()
    assert "splitter community" in first and "2 clients" in first


def edges_told(text: str) -> int:
    """The number of edges in what import and check say."""
    (number,) = re.findall(r"(\d+) (?:directed )?edges", text)
    return int(number)


def edges_shown(path: Path, *words: str) -> int:
    code, text = call("data", "show", str(path), "--json", *words)
    assert code == 0, text
    return int(json.loads(text)["whole"]["num_edges"])


@pytest.mark.parametrize("edges", ["a,b\nb,a\nb,c\n", "a,b\nb,a\n", "a,b\n", ""])
@pytest.mark.parametrize("directed", [False, True])
def test_import_check_and_show_count_the_same_edges(edges: str, directed: bool, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,x\na,1\nb,2\nc,3\n")
    (tmp_path / "edges.csv").write_text(f"source,target\n{edges}")
    flags = ["--directed"] if directed else []
    code, imported = call("data", "import", str(tmp_path), "--out", str(tmp_path / "mine"), *flags)
    code, checked = call("data", "check", str(tmp_path / "mine"), *flags)
    assert code == 0 and edges_told(imported) == edges_told(checked)
    assert ("directed edges" in imported) == ("directed edges" in checked) == directed
    pairs = len({frozenset(line.split(",")) for line in edges.split()})
    assert edges_shown(tmp_path / "mine", *(["dataset.undirected=false"] if directed else [])) == pairs
    assert directed or edges_told(checked) == pairs


@pytest.mark.parametrize("what", ["nodes", "graphs", "values"])
def test_check_and_show_count_the_same_edges_of_a_written_folder(what: str, tmp_path: Path) -> None:
    kind_for(type(HELD[what])).write(HELD[what], tmp_path / "mine")
    code, text = call("data", "check", str(tmp_path / "mine"))
    assert code == 0 and edges_told(text) == edges_shown(tmp_path / "mine") > 0


@pytest.mark.parametrize("words", [("show", "g/north"), ("show", "cora", "g/north"), ("split", "g/north")])
def test_a_folder_that_is_not_there_is_told_as_such(words: tuple[str, ...]) -> None:
    code, text = call("data", *words)
    assert code == 2 and "there is no folder 'g/north'; give a folder of your own" in " ".join(text.split())


def test_the_name_of_a_dataset_is_the_dataset_also_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`data split` makes folders called as one likes; both commands must mean the same by a name."""
    write_graph_folder(toy_graph(), tmp_path / "cora")
    monkeypatch.chdir(tmp_path)
    assert "dataset cora " in call("data", "show", "cora", "--clients", "2")[1]
    assert "path cora" in call("data", "show", "./cora")[1]
    assert call("data", "split", "./cora", "--clients", "2", "--out", "parts")[0] == 0
