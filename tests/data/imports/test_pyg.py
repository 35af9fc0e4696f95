from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from isthmus.data.folders.tables.reading import Problems, RawGraph
from isthmus.data.imports.pyg import read_pyg


def parts(**changes: Any) -> dict[str, Any]:
    whole = {
        "x": torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]),
        "y": torch.tensor([0, 2, -1]),
        "edge_index": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        "edge_weight": torch.tensor([1.0, 1.0, 2.5, 2.5]),
        "train_mask": torch.tensor([True, False, False]),
        "test_mask": torch.tensor([False, True, False]),
    } | changes
    return {key: value for key, value in whole.items() if value is not None}


def read(path: Path) -> RawGraph:
    problems = Problems("import")
    raw = read_pyg(path, problems)
    problems.raise_if_any()
    assert raw is not None
    return raw


def told(path: Path) -> list[str]:
    problems = Problems("import")
    assert read_pyg(path, problems) is None
    return [line.removeprefix(f"{path}: ") for line in problems.lines]


def saved(path: Path, value: Any) -> Path:
    torch.save(value, path / "g.pt")
    return path / "g.pt"


WAYS = [lambda d: d, lambda d: Data(**d), lambda d: (d, None, Data)]


@pytest.mark.parametrize("way", WAYS, ids=["dict", "Data", "dataset"])
def test_a_graph_is_read_however_it_was_saved(tmp_path: Path, way: Any) -> None:
    raw = read(saved(tmp_path, way(parts())))
    found = {name: column.to_pylist() for name, column in (raw.nodes.columns | raw.edges.columns).items()}
    assert found == {
        "id": ["0", "1", "2"],
        "label": [0, 2, -1],
        "split": ["train", "test", ""],
        "x": [[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]],
        "source": ["0", "1", "1", "2"],
        "target": ["1", "0", "2", "1"],
        "weight": [1.0, 1.0, 2.5, 2.5],
    }
    assert raw.notes == ()


def test_names_of_nodes_and_one_number_an_edge_are_taken(tmp_path: Path) -> None:
    attr = torch.tensor([[1.0], [1.0], [4.0], [4.0]])
    raw = read(saved(tmp_path, parts(node_id=["p", "q", "r"], edge_weight=None, edge_attr=attr, pos=torch.ones(3, 2))))
    assert raw.nodes.columns["id"].to_pylist() == ["p", "q", "r"]
    assert raw.edges.columns["source"].to_pylist() == ["p", "q", "q", "r"]
    assert raw.edges.columns["weight"].to_pylist() == [1.0, 1.0, 4.0, 4.0]
    assert raw.notes == ("left out: pos",)


def test_sparse_features_are_read(tmp_path: Path) -> None:
    raw = read(saved(tmp_path, parts(x=torch.eye(3).to_sparse_csr())))
    assert raw.nodes.columns["x"].to_pylist() == torch.eye(3).tolist()


class Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch harmed",)


def test_a_pickle_that_needs_more_is_refused_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    safe = "which could run code; save plain tensors instead: torch.save(data.to_dict(), 'graph.pt')"
    assert told(saved(tmp_path, {**parts(), "more": Harmful()})) == [f"is not loaded: it needs posix.system, {safe}"]
    assert [file.name for file in tmp_path.iterdir()] == ["g.pt"]
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Harmful(), protocol=2))
    assert len(told(tmp_path / "plain.pt")) == 1
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (
            {"x": torch.ones(3)},
            [
                "edge_index is missing; a tensor of shape (2, edges) is needed",
                "x is float32 of shape (3,); a tensor of shape (nodes, features) is needed",
            ],
        ),
        (torch.ones(3), ["holds a Tensor; a Data with one graph is needed, or its to_dict()"]),
        (
            parts(y=torch.ones(3, 4)),
            ["y is float32 of shape (3, 4); one whole number for each of 3 nodes is needed"],
        ),
        (
            parts(train_mask=torch.ones(3, 10, dtype=torch.bool)),
            [
                "train_mask is bool of shape (3, 10); one value for each of 3 nodes; choose one of its columns: "
                "data.train_mask = data.train_mask[:, 0]"
            ],
        ),
        (
            parts(test_mask=torch.tensor([True, True, False])),
            ["1 nodes are in more than one mask, the first is node 0"],
        ),
        (
            parts(edge_weight=torch.ones(3)),
            ["edge_weight is float32 of shape (3,); one number for each of 4 edges is needed"],
        ),
        (parts(node_id=["a"]), ["node_id has 1 entries for 3 nodes"]),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, value: Any, lines: list[str]) -> None:
    assert told(saved(tmp_path, value)) == lines


@pytest.mark.parametrize("content", [b"", b"id,x\na,1\n", b"PK\x03\x04 nothing", b"\x80\x02 nothing", b"garbage" * 9])
def test_a_file_of_another_kind_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "g.pt").write_bytes(content)
    (line,) = told(tmp_path / "g.pt")
    assert line.startswith("is no file of torch.save"), line


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert told(tmp_path / "g.pt") == ["cannot be read: No such file or directory"]
