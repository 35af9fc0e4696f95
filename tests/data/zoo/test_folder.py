from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.zoo import Folder

from ..strategies import adjacency, make_graph


def test_a_folder_is_loaded_with_its_options(tmp_path: Path) -> None:
    graph = replace(make_graph(6, 8), class_names=("r", "g", "b"))
    write_graph_folder(graph, tmp_path / "mine")
    loaded = Folder(str(tmp_path / "mine"), class_names=("r", "g", "b"), normalize_features=True).load(Path("unused"))
    assert torch.equal(loaded.y, graph.y)
    assert torch.equal(adjacency(loaded), adjacency(graph))
    sums = loaded.x.sum(dim=1)
    assert torch.allclose(sums[sums != 0], torch.ones(int((sums != 0).sum())))
    one_way = Folder(str(tmp_path / "mine"), undirected=False).load(Path())
    assert one_way.num_edges == graph.num_edges // 2


def test_presence_is_that_of_the_tables(tmp_path: Path) -> None:
    assert not Folder(str(tmp_path / "mine")).present(Path())
    write_graph_folder(make_graph(3, 3), tmp_path / "mine")
    assert Folder(str(tmp_path / "mine")).present(Path())
