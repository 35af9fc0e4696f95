"""The table of neighbours that other silos hold: what it says, and what is wrong with it by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_graph_folder, write_graph_folder
from isthmus.data.graph import Graph
from isthmus.data.splitters import NodeHostsSplitter
from isthmus.testing import toy_graph


def folder(path: Path, neighbors: str | None) -> Path:
    (path / "nodes.csv").write_text("id,age,label\nann,1,0\nbob,2,1\nc\u00e9,3,0\n", encoding="utf-8")
    (path / "edges.csv").write_text("source,target\nann,bob\n")
    if neighbors is not None:
        (path / "neighbors.csv").write_text(neighbors, encoding="utf-8")
    return path


def test_a_folder_may_name_neighbours_that_others_hold(tmp_path: Path) -> None:
    found = read_graph_folder(folder(tmp_path, "id,neighbor\nbob,007\nann,dora\nbob,dora\n"))
    assert found.foreign is not None and found.foreign.weight is None
    assert found.foreign.node.tolist() == [1, 0, 1] and found.foreign.ids == ("007", "dora", "dora")
    assert found.graph.num_nodes == 3 and found.graph.num_edges == 2  # no neighbour is a node of the graph


def test_edges_to_others_may_have_weights_and_be_told_twice(tmp_path: Path) -> None:
    found = read_graph_folder(folder(tmp_path, "id,neighbor,weight\nbob,dora,2.5\nann,dora,1\nbob,dora,2.5\n"))
    assert found.foreign is not None and found.foreign.weight is not None
    assert found.foreign.weight.tolist() == [2.5, 1.0, 2.5]


def test_a_folder_without_the_table_has_no_such_neighbours(tmp_path: Path) -> None:
    assert read_graph_folder(folder(tmp_path, None)).foreign is None


def test_an_empty_table_is_no_error(tmp_path: Path) -> None:
    found = read_graph_folder(folder(tmp_path, "id,neighbor,weight\n")).foreign
    assert found is None or found.ids == ()


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("id,neighbor\nann,dora\nzoe,dora\n", "neighbors.csv row 2: id 'zoe' is no id of nodes.csv"),
        ("id,neighbor\nann,\n", "neighbors.csv row 1: neighbor is empty"),
        ("id,neighbor\nann,bob\n", "neighbors.csv row 1: neighbor 'bob' is an id of nodes.csv; an edge between own"),
        ("id,neighbor\nann,ce\u0301\n", "neighbors.csv row 1: neighbor"),
        ("id,neighbor,weight\nann,dora,-1\n", "neighbors.csv row 1: weight is -1.0; a finite number above 0 is needed"),
        ("id,neighbor,weight\nann,dora,1\nbob,dora,3\nann,dora,2\n", "row 3: weight is 2.0, but row 1 tells the same"),
        ("id,friend\nann,dora\n", "neighbors.csv: no column 'neighbor'; columns found: 'id', 'friend'"),
        ("neighbor\ndora\n", "neighbors.csv: no column 'id'"),
    ],
)
def test_what_is_wrong_is_told_by_row(tmp_path: Path, table: str, told: str) -> None:
    with pytest.raises(BadInput) as error:
        read_graph_folder(folder(tmp_path, table))
    assert told in str(error.value) and "1 problem" in str(error.value)


@pytest.mark.parametrize("weighted", [False, True])
def test_parts_of_hosts_are_written_with_their_neighbours(tmp_path: Path, weighted: bool) -> None:
    whole = toy_graph(9, weighted=weighted, seed=3)
    parts = NodeHostsSplitter().split(whole, 3, np.random.default_rng(0))
    pairs: dict[tuple[int, int], float] = {}
    for number, part in enumerate(parts):
        write_graph_folder(part, tmp_path / str(number))
        read = read_graph_folder(tmp_path / str(number))
        assert read.foreign is not None
        weight = torch.ones(len(read.foreign.ids)) if read.foreign.weight is None else read.foreign.weight
        for node, other, value in zip(read.foreign.node.tolist(), read.foreign.ids, weight.tolist(), strict=True):
            pairs[int(read.ids[node]), int(other)] = value
    assert pairs == pytest.approx(_between(whole, 3))


def _between(whole: Graph, size: int) -> dict[tuple[int, int], float]:
    weight = torch.ones(whole.num_edges) if whole.edge_weight is None else whole.edge_weight
    ends = whole.edge_index.t().tolist()
    return {(a, b): w for (a, b), w in zip(ends, weight.tolist(), strict=True) if a // size != b // size}
