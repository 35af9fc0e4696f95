from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.zoo.dblp_csr import DBLPCSR, FILE, shared_item_edges
from isthmus.data.zoo.raw import digests
from tests.data.strategies import many, seeds


@pytest.mark.slow
def test_counts(real_root: Callable[..., Path]) -> None:
    root = real_root(FILE)
    assert DBLPCSR().present(root)
    begin = time.perf_counter()
    graph = DBLPCSR().load(root)
    assert time.perf_counter() - begin < 60
    assert (graph.num_nodes, graph.num_edges // 2, graph.num_classes) == (148521, 2923072, 4)
    assert graph.num_features == 125323 and graph.x.values().numel() == 410743
    assert int((torch.bincount(graph.edge_index[0], minlength=graph.num_nodes) == 0).sum()) == 10277
    assert torch.bincount(graph.y).tolist() == [69632, 26766, 13941, 38182]
    conference, publisher = graph.attributes["conference"], graph.attributes["publisher"]
    assert len(graph.attribute_names["conference"]) == 81 and len(torch.unique(conference)) == 81
    assert graph.attribute_names["publisher"][-1] == "unspecified" and int((publisher == 5).sum()) == 35945
    classes = [len(torch.unique(graph.y[conference == number])) for number in range(81)]
    assert set(classes) == {1}, "the area is a function of the conference"


def dense_edges(start: np.ndarray, item: np.ndarray, num_items: int) -> list[list[int]]:
    incidence = np.zeros((len(start) - 1, num_items), dtype=np.int64)
    incidence[np.repeat(np.arange(len(start) - 1), np.diff(start)), item] = 1
    shared = incidence @ incidence.T
    np.fill_diagonal(shared, 0)
    return [ends.tolist() for ends in shared.nonzero()]


@many
@given(seeds, st.integers(1, 12), st.integers(1, 6))
def test_edges_are_those_of_the_product(seed: int, rows: int, items: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = rng.random((rows, items)) < 0.4
    start = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    item = chosen.nonzero()[1]
    assert shared_item_edges(start, item).tolist() == dense_edges(start, item, items)


def write_small(root: Path, **changes: np.ndarray) -> Path:
    """Write papers 0 (authors 2, 0), 1 (author 0), 2 (none), 3 (authors 1, 2)."""
    path = root / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        "author_indptr": np.array([0, 2, 3, 3, 5], np.int32),
        "author_indices": np.array([2, 0, 0, 1, 2], np.int32),
        "area": np.array([0, 1, 1, 0], np.int8),
        "conf": np.array([2, 0, 1, 2], np.int8),
        "publisher": np.array([0, 1, 1, 1], np.int8),
        "area_names": np.array(["a", "b"]),
        "conf_names": np.array(["X", "Y", "Z"]),
        "publisher_names": np.array(["P", "unspecified"]),
    }
    np.savez(path, **(arrays | changes))  # type: ignore[arg-type]
    return path


@pytest.mark.usefixtures("no_digests")
def test_small_files(tmp_path: Path) -> None:
    write_small(tmp_path)
    graph = DBLPCSR().load(tmp_path)
    assert graph.edge_index.tolist() == [[0, 0, 1, 3], [1, 3, 0, 0]]
    assert graph.x.to_dense().tolist() == [[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert graph.y.tolist() == [0, 1, 1, 0] and graph.class_names == ("a", "b")
    assert graph.attributes["conference"].tolist() == [2, 0, 1, 2]
    assert graph.attribute_names == {"conference": ("X", "Y", "Z"), "publisher": ("P", "unspecified")}
    degree = DBLPCSR(features="degree").load(tmp_path).x
    assert torch.allclose(degree, torch.log(torch.tensor([[3.0], [2.0], [1.0], [2.0]])))


@pytest.mark.usefixtures("no_digests")
def test_arrays_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write_small(tmp_path, area=np.array([0]))
    with pytest.raises(BadInput, match=r"dblp_csr\.npz is damaged .*4 papers, 5 authorships"):
        DBLPCSR().load(tmp_path)


def test_a_cut_or_other_file_is_refused_by_its_digest(tmp_path: Path, real_root: Callable[..., Path]) -> None:
    write_small(tmp_path)
    with pytest.raises(BadInput, match=rf"dblp_csr\.npz is damaged .*expected {digests()[FILE]}"):
        DBLPCSR().load(tmp_path)
    shutil.copyfile(real_root(FILE) / FILE, tmp_path / FILE)
    os.truncate(tmp_path / FILE, 5000)
    with pytest.raises(BadInput, match=r"dblp_csr\.npz is damaged .*5,000 bytes"):
        DBLPCSR().load(tmp_path)


def test_absent_files_and_bad_choices(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"dblp_csr/dblp_csr\.npz.*github\.com"):
        DBLPCSR().load(tmp_path)
    with pytest.raises(ValueError, match="features is 'words'; choose from authors, degree"):
        DBLPCSR(features="words")
