from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.zoo.feddblp import FedDBLP

PAPERS: list[dict[str, Any]] = [
    {
        "id": "p0",
        "venue": "KDD",
        "publisher": "ACM",
        "references": ["p1", "p2", "p0", "gone"],
        "abstract": "graphs learning graphs",
        "topic": "mining",
    },
    {"id": 1, "venue": "no abstract", "references": ["p0"], "topic": "mining"},
    {
        "id": "p1",
        "venue": {"raw": "ICML"},
        "publisher": None,
        "references": ["p0"],
        "indexed_abstract": {"IndexLength": 3, "InvertedIndex": {"Learning": [0, 2], "bounds": [1]}},
        "fos": [{"name": "theory", "w": 0.4}, {"name": "learning", "w": 0.6}, {"name": "odd", "w": "?"}],
    },
    {"id": "p2", "venue": "", "references": [7], "abstract": "graphs", "fos": ["mining", "theory"]},
    {"id": 7, "venue": "ICML", "abstract": "bounds", "topic": "learning", "references": None},
    {"id": "p0", "venue": "ICML", "abstract": "zebra", "topic": "zoology"},
    {"id": "p9", "venue": "KDD", "abstract": "queries", "topic": "databases", "references": ["p0"]},
    {"id": "px", "abstract": "no topic", "fos": []},
]


def write_dump(root: Path, papers: list[dict[str, Any]] = PAPERS, name: str = "dblp.jsonl.gz") -> Path:
    path = root / "feddblp" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "\n".join(json.dumps(paper) for paper in papers).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def test_citations_topics_venues_and_publishers(tmp_path: Path) -> None:
    write_dump(tmp_path)
    assert FedDBLP().present(tmp_path)
    graph = FedDBLP().load(tmp_path)  # papers p0, p1, p2, 7, p9
    assert graph.num_nodes == 5
    assert graph.edge_index.tolist() == [[0, 0, 0, 1, 2, 2, 3, 4], [1, 2, 4, 0, 0, 3, 2, 0]]
    assert graph.class_names == ("databases", "learning", "mining") and graph.y.tolist() == [2, 1, 2, 1, 0]
    assert graph.attribute_names == {"venue": ("ICML", "KDD", "unspecified"), "publisher": ("ACM", "unspecified")}
    assert graph.attributes["venue"].tolist() == [1, 0, 2, 0, 1]
    assert graph.attributes["publisher"].tolist() == [0, 1, 1, 1, 1]


def test_abstracts_are_bags_of_words(tmp_path: Path) -> None:
    write_dump(tmp_path)
    # Words by number of papers: bounds, graphs, learning (2 each), queries (1).
    x = FedDBLP(num_words=3).load(tmp_path).x
    assert x.tolist() == [[0, 1, 1], [1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    x = FedDBLP(num_words=3, binary_words=False).load(tmp_path).x
    assert x.tolist() == [[0, 2, 1], [1, 0, 2], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    rows = FedDBLP(num_words=3, normalize_features=True).load(tmp_path).x.sum(dim=1)
    assert torch.allclose(rows, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]))


def test_topics_and_venues_can_be_chosen(tmp_path: Path) -> None:
    write_dump(tmp_path)
    graph = FedDBLP(num_topics=2).load(tmp_path)
    assert graph.class_names == ("learning", "mining") and graph.num_nodes == 4
    graph = FedDBLP(venues=("ICML",)).load(tmp_path)
    assert graph.num_nodes == 3 and graph.class_names == ("learning", "zoology")
    assert graph.attribute_names["venue"] == ("ICML",)


def test_a_plain_dump_by_its_own_name(tmp_path: Path) -> None:
    path = write_dump(tmp_path, name="other.json")
    assert FedDBLP(dump="other.json").load(tmp_path).num_nodes == 5
    assert FedDBLP(dump=str(path)).load(tmp_path / "elsewhere").num_nodes == 5


def test_a_cut_dump_is_named(tmp_path: Path) -> None:
    path = write_dump(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"dblp\.jsonl\.gz is damaged"):
        FedDBLP().load(tmp_path)


def test_no_dump_and_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"feddblp for dblp\.jsonl\.gz.*aminer\.org"):
        FedDBLP().load(tmp_path)
    write_dump(tmp_path)
    with pytest.raises(BadInput, match="no paper has id, abstract and topic, and one of the venues VLDB"):
        FedDBLP(venues=("VLDB",)).load(tmp_path)
    with pytest.raises(ValueError, match="num_words is 0"):
        FedDBLP(num_words=0)


def test_a_hundred_thousand_citations_take_seconds(tmp_path: Path) -> None:
    papers = [
        {"id": n, "abstract": "word text", "topic": f"t{n % 3}", "references": [(n * k) % 10_000 for k in range(2, 12)]}
        for n in range(10_000)
    ]
    write_dump(tmp_path, papers)
    graph = FedDBLP().load(tmp_path)
    assert graph.num_nodes == 10_000 and graph.num_edges > 150_000
