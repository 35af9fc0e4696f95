"""Amazon, Coauthor, CitationFull and ACM: one layout, one reader."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.survey.statistics import edge_homophily
from isthmus.data.zoo.npz_graph import (
    ACM,
    AmazonComputers,
    AmazonPhoto,
    CitationDBLP,
    CoauthorCS,
    CoauthorPhysics,
    CoraML,
    NpzGraph,
)
from isthmus.data.zoo.raw import digests

Root = Callable[..., Path]
KINDS: list[type[NpzGraph]] = [
    AmazonComputers,
    AmazonPhoto,
    CoauthorCS,
    CoauthorPhysics,
    CitationDBLP,
    CoraML,
    ACM,
]
# Nodes, undirected edges, features and classes as published; ACM as in FedGL, table 1.
PUBLISHED = {
    "amazon_computers": (13752, 245861, 767, 10),
    "amazon_photo": (7650, 119081, 745, 8),
    "coauthor_cs": (18333, 81894, 6805, 15),
    "coauthor_physics": (34493, 247962, 8415, 5),
    "dblp": (17716, 52867, 1639, 4),
    "cora_ml": (2995, 8158, 2879, 7),
    "acm": (3025, 13128, 1870, 3),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_counts_are_those_of_the_literature(kind: type[NpzGraph], real_root: Root) -> None:
    root = real_root(kind().needs[0])
    assert kind().present(root)
    graph = kind().load(root)
    found = (graph.num_nodes, graph.num_edges // 2, graph.num_features, graph.num_classes)
    assert found == PUBLISHED[kind.name] == kind.counts
    assert graph.name == kind.name and kind.licence
    assert len(torch.unique(graph.y)) == graph.num_classes
    assert (graph.x.layout == torch.strided) == kind.name.startswith("amazon")
    source, target = graph.edge_index
    key = source * graph.num_nodes + target
    assert bool((key[1:] > key[:-1]).all()) and not bool((source == target).any())
    assert torch.equal(torch.sort(target * graph.num_nodes + source).values, key)
    homophily = edge_homophily(graph)
    assert homophily is not None and homophily > 0.75


def test_isolated_nodes(real_root: Root) -> None:
    graph = ACM().load(real_root(ACM().needs[0]))
    assert int((torch.bincount(graph.edge_index[0], minlength=graph.num_nodes) == 0).sum()) == 561


def test_features_as_published_or_as_torch_geometric_reads_them(real_root: Root) -> None:
    root = real_root(CoauthorCS().needs[0])
    counts, marks = CoauthorCS().load(root).x, CoauthorCS(binary_features=True).load(root).x
    assert float(counts.values().max()) > 1.0
    assert set(marks.values().tolist()) == {1.0}
    assert torch.equal(counts.col_indices(), marks.col_indices())


def test_it_is_torch_geometrics_graph(real_root: Root) -> None:
    from torch_geometric.io import read_npz

    root = real_root(CoraML().needs[0])
    ours, theirs = CoraML(binary_features=True).load(root), read_npz(str(root / CoraML().needs[0]))
    assert torch.equal(ours.x.to_dense(), theirs.x) and torch.equal(ours.y, theirs.y)
    edges = theirs.edge_index
    assert torch.equal(ours.edge_index, edges[:, torch.argsort(edges[0] * ours.num_nodes + edges[1])])


def write_small(root: Path, kind: type[NpzGraph], **changes: np.ndarray) -> Path:
    """Write 4 nodes, 5 features: directed entries 0-1, 1-0, 1-2, 3-3 (a self-loop); columns out of order."""
    path = root / kind().needs[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        "adj_data": np.ones(4, np.float32),
        "adj_indices": np.array([1, 2, 0, 3], np.int32),
        "adj_indptr": np.array([0, 1, 3, 3, 4], np.int32),
        "adj_shape": np.array([4, 4]),
        "attr_data": np.array([2, 3, 1, 1], np.float32),
        "attr_indices": np.array([4, 0, 2, 3], np.int32),
        "attr_indptr": np.array([0, 2, 3, 3, 4], np.int32),
        "attr_shape": np.array([4, 5]),
        "labels": np.array([0, 1, 1, 2]),
    }
    np.savez(path, **(arrays | changes))  # type: ignore[arg-type]
    return path


@pytest.mark.usefixtures("no_digests")
class TestSmall:
    def test_both_directions_once_without_loops(self, tmp_path: Path) -> None:
        write_small(tmp_path, CoauthorCS)
        graph = CoauthorCS().load(tmp_path)
        assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert graph.y.tolist() == [0, 1, 1, 2] and graph.num_classes == 3
        dense = torch.tensor([[3.0, 0, 0, 0, 2], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
        assert graph.x.layout == torch.sparse_csr  # 4 of 20 are set
        assert torch.equal(graph.x.to_dense(), dense)

    def test_features_of_which_a_quarter_is_set_are_dense(self, tmp_path: Path) -> None:
        attr = {"attr_data": np.array([2, 3, 1, 4, 1], np.float32), "attr_indices": np.array([4, 0, 2, 0, 3])}
        write_small(tmp_path, CoauthorCS, **attr, attr_indptr=np.array([0, 2, 3, 4, 5]))
        graph = CoauthorCS().load(tmp_path)
        dense = torch.tensor([[3.0, 0, 0, 0, 2], [0, 0, 1, 0, 0], [4, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
        assert torch.equal(graph.x, dense)

    def test_binary_and_normalized_features(self, tmp_path: Path) -> None:
        write_small(tmp_path, CoauthorCS)
        assert CoauthorCS(binary_features=True).load(tmp_path).x.to_dense()[0].tolist() == [1, 0, 0, 0, 1]
        x = CoauthorCS(normalize_features=True).load(tmp_path).x.to_dense()
        assert torch.allclose(x.sum(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0]))
        assert torch.allclose(x[0], torch.tensor([0.6, 0.0, 0.0, 0.0, 0.4]))

    @pytest.mark.parametrize(
        "changes",
        [
            {"adj_indices": np.array([1, 2, 0, 9])},
            {"attr_indices": np.array([4, 0, 2, 9])},
            {"adj_indptr": np.array([0, 1, 3])},
            {"attr_indptr": np.array([0, 2, 3, 3, 9])},
            {"labels": np.array([0, 1])},
        ],
        ids=["edge", "feature", "rows of edges", "rows of features", "labels"],
    )
    def test_arrays_that_do_not_fit_are_named(self, tmp_path: Path, changes: dict[str, np.ndarray]) -> None:
        write_small(tmp_path, ACM, **changes)
        with pytest.raises(BadInput, match=r"acm\.npz is damaged .*do not fit together"):
            ACM().load(tmp_path)

    def test_a_cut_archive_is_named(self, tmp_path: Path) -> None:
        os.truncate(write_small(tmp_path, ACM), 700)
        with pytest.raises(BadInput, match=r"acm\.npz is damaged .*700 bytes .*Delete it"):
            ACM().load(tmp_path)


def test_another_edition_is_refused_unless_its_counts_are_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small(tmp_path, ACM)
    with pytest.raises(BadInput) as caught:
        ACM().load(tmp_path)
    message = str(caught.value)
    assert digests()["acm/acm.npz"] in message and "(4, 2, 5, 3) in it, (3025, 13128, 1870, 3) in acm" in message
    monkeypatch.setattr(ACM, "counts", (4, 2, 5, 3))
    assert ACM().load(tmp_path).num_nodes == 4


def test_a_real_file_cut_short_is_named_with_its_digest(tmp_path: Path, real_root: Root) -> None:
    path = tmp_path / ACM().needs[0]
    path.parent.mkdir()
    shutil.copyfile(real_root(ACM().needs[0]) / ACM().needs[0], path)
    os.truncate(path, path.stat().st_size - 1000)
    with pytest.raises(BadInput, match=rf"acm\.npz is damaged .*expected {digests()[ACM().needs[0]]}"):
        ACM().load(tmp_path)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_absent_file_says_where_and_whence(kind: type[NpzGraph], tmp_path: Path) -> None:
    assert not kind().present(tmp_path)
    with pytest.raises(MissingData) as caught:
        kind().load(tmp_path)
    assert (
        kind().needs[0] in str(caught.value)
        and str(tmp_path) in str(caught.value)
        and "github.com" in str(caught.value)
    )
