"""Data as a course would divide them: figures and folders, without a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import isthmus as ist
from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_graph_folder, write_graph_folder
from isthmus.runs.who_holds_what import Division, own_folders
from isthmus.testing import toy_graph

WORDS = ["dataset.num_nodes=40", "splitter.name=random", "num_clients=2"]


def test_figures_are_of_what_a_course_s_clients_would_hold(tmp_path: Path) -> None:
    division = Division.of("csbm", WORDS)
    held = division.held(tmp_path)
    course = ist.load_course({"dataset": "csbm"}, WORDS)
    assert division.divided and division.course == course
    same = ist.load_scenario(course, tmp_path)
    assert [part.num_edges for part in held.parts.values()] == [part.num_edges for part in same.parts.values()]
    facts = division.figures(held)
    assert {name: found["num_nodes"] for name, found in facts["clients"].items()} == {"client-0": 20, "client-1": 20}
    assert facts["origin"].startswith("dataset csbm (") and "splitter random" in facts["origin"]
    assert facts["origin"].endswith("2 clients; seed 0")


def test_own_folders_are_as_they_are_unless_a_division_is_asked_for(tmp_path: Path) -> None:
    for name in "ab":
        write_graph_folder(toy_graph(), tmp_path / name)
    one, two = str(tmp_path / "a"), str(tmp_path / "b")
    whole = Division.of(one)
    assert not whole.divided and list(whole.held(tmp_path).parts) == ["all"] and "splitter" not in whole.origin
    assert list(Division.of(one, more=[two]).held(tmp_path).parts) == ["a", "b"]
    assert own_folders([one, two]) == {"dataset": {"name": "folders", "paths": [one, two]}}
    parts = Division.of(one, ["num_clients=3", "splitter.name=random"]).held(tmp_path).parts
    assert len(parts) == 3


def test_each_part_gets_a_folder_and_nothing_is_written_over(tmp_path: Path) -> None:
    division = Division.of("csbm", WORDS)
    parts, divided = division.write(tmp_path / "silos", tmp_path, ["north", "south"])
    assert [path.name for path in parts] == ["north", "south"] and divided.whole.num_nodes == 40
    for path, part in parts.items():
        assert read_graph_folder(path).graph.num_nodes == part.num_nodes == 20
        assert (path / "schema.yaml").is_file()
    with pytest.raises(BadInput, match="exists already"):
        division.write(tmp_path / "silos", tmp_path)
