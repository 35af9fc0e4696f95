from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from isthmus.data.conventions import SPLITS
from isthmus.data.zoo import DATASETS, CiteSeer, Cora, Folder, PubMed

FILES = files("isthmus.data.zoo") / "files"


def test_counts_are_those_of_the_literature() -> None:
    graph = Cora().load(Path())
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (2708, 10556, 1433, 7)
    assert graph.x.layout == torch.sparse_csr and graph.x.dtype == torch.float32
    assert int(graph.x.values().sum()) == 49216 and set(graph.x.values().tolist()) == {1.0}
    assert {split: int(graph.masks[split].sum()) for split in SPLITS} == {"train": 140, "val": 500, "test": 1000}
    assert int(torch.stack(list(graph.masks.values())).sum(dim=0).max()) == 1
    assert torch.bincount(graph.y[graph.masks["train"]]).tolist() == [20] * 7


def test_classes_have_the_published_names_and_sizes() -> None:
    graph = Cora().load(Path())
    assert dict(zip(graph.class_names, torch.bincount(graph.y).tolist(), strict=True)) == {
        "Case_Based": 298,
        "Genetic_Algorithms": 418,
        "Neural_Networks": 818,
        "Probabilistic_Methods": 426,
        "Reinforcement_Learning": 217,
        "Rule_Learning": 180,
        "Theory": 351,
    }


def test_edges_go_both_ways_without_loops() -> None:
    source, target = Cora().load(Path()).edge_index
    edges = set(zip(source.tolist(), target.tolist(), strict=True))
    assert len(edges) == 10556
    assert all((b, a) in edges and a != b for a, b in edges)


def test_normalized_rows_sum_to_one() -> None:
    x = Cora(normalize_features=True).load(Path()).x
    assert torch.allclose(x.to_dense().sum(dim=1), torch.ones(2708), atol=1e-5)


def test_it_ships_small_without_pickles_and_with_its_digest() -> None:
    content = (FILES / "cora.npz").read_bytes()
    assert len(content) < 200_000
    assert hashlib.sha256(content).hexdigest() in (FILES / "cora.README.md").read_text(encoding="utf-8")
    with np.load(str(FILES / "cora.npz"), allow_pickle=False) as archive:
        assert archive["citations"].shape == (5429, 2)
        assert len(set(archive["paper_ids"].tolist())) == 2708
    assert Cora().present(Path("nowhere"))


def test_it_is_planetoids_cora_node_by_node(planetoid_root: Callable[[str], Path]) -> None:
    from torch_geometric.datasets import Planetoid

    theirs = Planetoid(str(planetoid_root("Cora") / "planetoid"), "Cora")[0]
    ours = Cora().load(Path())
    assert torch.equal(ours.x.to_dense(), theirs.x)
    assert torch.equal(ours.y, theirs.y)
    edges = theirs.edge_index
    assert torch.equal(ours.edge_index, edges[:, torch.argsort(edges[0] * 2708 + edges[1])])
    for split in SPLITS:
        assert torch.equal(ours.masks[split], theirs[f"{split}_mask"])


def test_datasets_by_name() -> None:
    assert {"cora": Cora, "citeseer": CiteSeer, "pubmed": PubMed, "folder": Folder}.items() <= DATASETS.items()
    assert len(set(DATASETS.values())) == len(DATASETS)
    assert all(dataset.__doc__ and dataset.licence for dataset in DATASETS.values())
    assert {dataset.task for dataset in DATASETS.values()} == {"node", "link", "graph"}
