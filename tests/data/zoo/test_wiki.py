from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.zoo.raw import digests
from isthmus.data.zoo.wiki import FILES, Wiki

WORDS, LINKS, CLASSES = FILES


def test_counts_are_those_of_the_literature(real_root: Callable[..., Path]) -> None:
    root = real_root(*FILES)
    assert Wiki().present(root)
    graph = Wiki().load(root)
    # FedGL, table 1: 2405 nodes, 17981 edges, 4973 features, 17 classes.
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (2405, 4973, 17)
    assert len((root / LINKS).read_text().splitlines()) == 17981
    assert graph.num_edges == 2 * 11596
    assert graph.x.layout == torch.sparse_csr and graph.x.dtype == torch.float32
    assert int(torch.count_nonzero(graph.x.values())) == graph.x.values().numel() == 1556595
    assert int(torch.count_nonzero(graph.x.to_dense())) == 1556595
    assert sorted(torch.unique(graph.y).tolist()) == list(range(17))


def write_small(root: Path, words: object = None, links: str = "0\t1\n1\t0\n1\t2\n2\t2\n1\t2\n") -> Path:
    raw = root / "attributed" / "wiki" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    x = np.array([[0.5, 0.0], [0.0, 0.25], [0.0, 0.0]])
    sparse.save_npz(raw / "attrs.npz", sparse.csc_matrix(x) if words is None else words)
    (raw / "edgelist.txt").write_text(links)
    (raw / "labels.txt").write_text("0\t2\n1\t1\n2\t2\n")
    return raw


@pytest.mark.usefixtures("no_digests")
@pytest.mark.parametrize("layout", [sparse.csc_matrix, sparse.csr_matrix])
def test_small_files(tmp_path: Path, layout: Callable[[np.ndarray], object]) -> None:
    x = np.array([[0.5, 0.0], [0.0, 0.25], [0.0, 0.0]])
    write_small(tmp_path, layout(x))
    graph = Wiki().load(tmp_path)
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.y.tolist() == [1, 0, 1]
    assert torch.equal(graph.x, torch.tensor(x).float())
    assert Wiki(normalize_features=True).load(tmp_path).x.tolist() == [[1, 0], [0, 1], [0, 0]]


@pytest.mark.usefixtures("no_digests")
def test_lines_that_are_no_numbers_and_pages_that_are_not_there_are_named(tmp_path: Path) -> None:
    write_small(tmp_path, links="0\t1\n1\n")
    with pytest.raises(BadInput, match=r"edgelist\.txt is damaged"):
        Wiki().load(tmp_path)
    write_small(tmp_path, links="0\t7\n")
    with pytest.raises(BadInput, match="a link goes to page 7 of 3"):
        Wiki().load(tmp_path)


def test_a_cut_file_is_named_with_its_digest(tmp_path: Path, real_root: Callable[..., Path]) -> None:
    root = real_root(*FILES)
    shutil.copytree(root / "attributed" / "wiki", tmp_path / "attributed" / "wiki")
    lines = (tmp_path / LINKS).read_text().splitlines(keepends=True)
    (tmp_path / LINKS).write_text("".join(lines[:-5000]))
    with pytest.raises(BadInput, match=rf"edgelist\.txt is damaged .*expected {digests()[LINKS]}"):
        Wiki().load(tmp_path)


def test_absent_files_are_named(tmp_path: Path) -> None:
    assert not Wiki().present(tmp_path)
    with pytest.raises(MissingData, match=r"attributed/wiki/raw/edgelist\.txt.*torch_geometric"):
        Wiki().load(tmp_path)
