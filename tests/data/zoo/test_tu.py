from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.graph_set import GraphSet
from isthmus.data.zoo.tu import (
    AIDS,
    BZR,
    COX2,
    DD,
    DHFR,
    ENZYMES,
    MUTAG,
    NCI1,
    PROTEINS,
    PTCMR,
    TU,
    IMDBBinary,
    IMDBMulti,
    read_tu,
)

Root = Callable[..., Path]

# As torch_geometric loads them: graphs, average nodes and edges, labels and attributes of nodes, labels of edges,
# classes.
PUBLISHED: dict[type[TU], tuple[int, float, float, int, int, int, int]] = {
    AIDS: (2000, 15.69, 16.20, 38, 4, 3, 2),
    BZR: (405, 35.75, 38.36, 53, 3, 0, 2),
    COX2: (467, 41.22, 43.45, 35, 3, 0, 2),
    DD: (1178, 284.32, 715.66, 89, 0, 0, 2),
    DHFR: (756, 42.43, 44.54, 53, 3, 0, 2),
    ENZYMES: (600, 32.63, 62.14, 3, 18, 0, 6),
    IMDBBinary: (1000, 19.77, 96.53, 0, 0, 0, 2),
    IMDBMulti: (1500, 13.00, 65.94, 0, 0, 0, 3),
    MUTAG: (188, 17.93, 19.79, 7, 0, 4, 2),
    NCI1: (4110, 29.87, 32.30, 37, 0, 0, 2),
    PROTEINS: (1113, 39.06, 72.82, 3, 1, 0, 2),
    PTCMR: (344, 14.29, 14.69, 18, 0, 4, 2),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind is DD else (), id=kind.name) for kind in PUBLISHED]
)
def test_counts_are_those_of_the_literature(real_root: Root, kind: type[TU]) -> None:
    root = real_root(*kind().needs)
    graphs = kind().load(root)
    num_graphs, nodes, edges, labels, attributes, edge_labels, classes = PUBLISHED[kind]
    assert kind().present(root) and graphs.num_items == num_graphs and graphs.num_classes == classes
    assert round(graphs.num_nodes / num_graphs, 2) == nodes
    assert round(graphs.num_edges / 2 / num_graphs, 2) == edges
    assert (0 if graphs.edge_attr is None else graphs.edge_attr.shape[1]) == edge_labels
    assert torch.bincount(graphs.y, minlength=classes).min() > 0
    assert torch.equal(graphs.attributes["size"], graphs.sizes)
    if labels + attributes:
        assert graphs.num_features == labels + attributes
        assert kind(use_attributes=False).load(root).num_features == labels
    else:
        assert graphs.num_features == {IMDBBinary: 136, IMDBMulti: 89}[kind]  # as in GCFL
    source, target = graphs.edge_index
    keys = source * graphs.num_nodes + target
    assert bool((keys[1:] > keys[:-1]).all()) and bool((source != target).all())
    assert torch.equal((target * graphs.num_nodes + source).sort().values, keys), "an edge goes one way only"


@pytest.mark.parametrize(
    "kind", [MUTAG, BZR, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (IMDBMulti, PROTEINS))]
)
def test_they_are_those_of_torch_geometric_graph_by_graph(real_root: Root, tmp_path: Path, kind: type[TU]) -> None:
    from torch_geometric.datasets import TUDataset

    root = real_root(*kind().needs)
    folder = Path(kind().needs[0]).parent
    (tmp_path / "TU" / kind.name).mkdir(parents=True)
    (tmp_path / folder).symlink_to((root / folder).resolve())
    theirs = TUDataset(str(tmp_path / "TU"), kind.name, use_node_attr=True)
    ours = kind().load(root)
    for number in range(0, len(theirs), 17):
        (mine,) = ours.divide([torch.tensor([number])])
        data = theirs[number]
        assert torch.equal(mine.edge_index, data.edge_index)
        if data.x is not None:  # theirs has the attributes first
            num_attributes = theirs.num_node_attributes
            assert torch.equal(mine.x, torch.cat([data.x[:, num_attributes:], data.x[:, :num_attributes]], dim=1))
        assert mine.edge_attr is None or torch.equal(mine.edge_attr, data.edge_attr)
        assert int(mine.y) == int(data.y)


FILES = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n4, 4\n5, 4\n1, 2\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "-1\n3\n",
    "node_labels": "4\n2\n2\n5\n4\n",
    "node_attributes": " 0.5, 1\n 1.5, 2\n 2.5, 3\n 3.5, 4\n 4.5, 5\n",
    "edge_labels": "1\n1\n2\n1\n1\n1\n1\n2\n",
}


def write(folder: Path, **changes: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in {**FILES, **changes}.items():
        if content is not None:
            (folder / f"TOY_{part}.txt").write_text(content)
    return folder


def test_small_files_by_hand(tmp_path: Path) -> None:
    graphs = read_tu(write(tmp_path), "TOY")
    assert isinstance(graphs, GraphSet) and graphs.node_start.tolist() == [0, 3, 5]
    assert graphs.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]], "no loop, none twice"
    assert graphs.x.tolist() == [  # labels 2, 3, 4, 5, then the attributes
        [0, 0, 1, 0, 0.5, 1],
        [1, 0, 0, 0, 1.5, 2],
        [1, 0, 0, 0, 2.5, 3],
        [0, 0, 0, 1, 3.5, 4],
        [0, 0, 1, 0, 4.5, 5],
    ]
    assert graphs.edge_attr is not None
    assert graphs.edge_attr.tolist() == [[1, 0], [1, 0], [0, 1], [1, 0], [1, 0], [1, 0]], "each way has its label"
    assert graphs.y.tolist() == [0, 1] and graphs.class_names == ("-1", "3") and graphs.num_classes == 2
    assert graphs.attributes["size"].tolist() == [3, 2] and graphs.graph_ids.tolist() == [0, 1]


def test_an_edge_given_one_way_goes_both_with_the_same_label(tmp_path: Path) -> None:
    graphs = read_tu(write(tmp_path, A="2,1\n2,3\n", edge_labels="7\n8\n"), "TOY")
    assert graphs.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graphs.edge_attr is not None and graphs.edge_attr.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]


def test_nodes_without_features_have_their_degree(tmp_path: Path) -> None:
    bare = write(tmp_path, node_labels=None, node_attributes=None, edge_labels=None)
    graphs = read_tu(bare, "TOY")
    assert graphs.x.argmax(dim=1).tolist() == [1, 2, 1, 1, 1] and graphs.num_features == 3
    assert graphs.edge_attr is None
    capped = read_tu(bare, "TOY", max_degree=1)
    assert capped.x.tolist() == [[0, 1]] * 5
    assert read_tu(bare, "TOY", max_degree=0).x.tolist() == [[1]] * 5
    with pytest.raises(ValueError, match="max_degree is -1"):
        MUTAG(max_degree=-1)


def test_graphs_without_an_edge_are_read(tmp_path: Path) -> None:
    graphs = read_tu(write(tmp_path, A="", edge_labels=""), "TOY")
    assert graphs.num_edges == 0 and graphs.num_items == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"A": "1, 2\n2\n"}, r"TOY_A\.txt cannot be read"),
        ({"A": "1, 2\n2, x\n"}, r"TOY_A\.txt cannot be read"),
        ({"A": "1, 2, 3\n"}, r"TOY_A\.txt has 3 columns; 2 are expected"),
        ({"A": "1, 6\n"}, r"TOY_A\.txt names node 6; 1 to 5 are known"),
        ({"A": "0, 1\n"}, r"TOY_A\.txt names node 0"),
        ({"A": "1, 2\n3, 4\n"}, r"TOY_A\.txt, line 2: an edge joins nodes of two graphs"),
        ({"A": "1, 2\n"}, r"TOY_edge_labels\.txt has 8 lines and TOY_A\.txt has 1"),
        ({"graph_indicator": "1\n2\n1\n2\n2\n"}, r"line 3: graph numbers should not fall"),
        ({"graph_indicator": "1\n1\n1\n3\n3\n"}, r"names graph 3; 1 to 2 are known"),
        ({"graph_labels": "1\n0\n1\n"}, r"has no node of graph 3, but there are 3 labels"),
        ({"graph_labels": "1\n"}, r"names graph 2; 1 to 1 are known"),
        ({"node_labels": "4\n2\n"}, r"TOY_node_labels\.txt has 2 lines and TOY_graph_indicator\.txt has 5"),
        ({"node_attributes": "0.5\n1\n2\n3\nnan\n"}, r"not finite in line 5"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_tu(write(tmp_path, **changes), "TOY")


def test_absent_and_damaged_files_are_named(tmp_path: Path) -> None:
    assert not MUTAG().present(tmp_path)
    with pytest.raises(MissingData, match=r"TU/MUTAG/raw/MUTAG_edge_labels\.txt.*Published at www\.chrsmrrs\.com"):
        MUTAG().load(tmp_path)
    (tmp_path / "TU/MUTAG/raw").mkdir(parents=True)
    for file in MUTAG().needs:
        (tmp_path / file).write_text("1, 2\n")
    with pytest.raises(BadInput, match=r"MUTAG_A\.txt is damaged or another edition"):
        MUTAG().load(tmp_path)


def test_normalized_rows_sum_to_one(real_root: Root) -> None:
    root = real_root("TU/ENZYMES/raw/ENZYMES_A.txt")
    sums = ENZYMES(normalize_features=True, use_attributes=False).load(root).x.sum(dim=1)
    assert torch.allclose(sums, torch.ones_like(sums))
