from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.zoo import amazon_copurchase as module
from isthmus.data.zoo.amazon_copurchase import SEGMENTS, AmazonCopurchase, Segment

COMPUTER = ["Electronics", "Computers & Accessories"]
PRODUCTS: Mapping[str, list[dict[str, Any]]] = {
    "meta_Electronics.json.gz": [
        {"asin": "C1", "category": [*COMPUTER, "Monitors", "x"], "also_buy": ["C2", "C2", "C1", "A1", "gone"]},
        {"asin": "C2", "category": [*COMPUTER, "Laptops"], "also_buy": ["C1"]},
        {"asin": "C3", "category": [*COMPUTER, "Laptops"], "also_buy": []},
        {"asin": "C4", "category": [*COMPUTER, "Laptops"], "also_buy": ["C2"]},
        {"asin": "C5", "category": COMPUTER, "also_buy": ["C1"]},
        {"asin": "C6", "category": [*COMPUTER, "Laptops"], "also_buy": ["C1"]},
        {"asin": "C2", "category": [*COMPUTER, "Again"], "also_buy": ["C4"]},
        {"asin": "T1", "category": ["Electronics", "Television"], "also_buy": ["C1"]},
        {"title": "without number"},
    ],
    "meta_Arts.json": [
        {"asin": "A1", "category": ["Arts, Crafts & Sewing", "Painting"], "also_buy": ["A2", "C1"]},
        {"asin": "A2", "category": ["Arts, Crafts & Sewing", "Knitting"], "also_buy": "none"},
        {"asin": "A3", "category": "Arts", "also_buy": ["A1"]},
    ],
}
REVIEWS: Mapping[str, list[dict[str, Any]]] = {
    "Electronics.json.gz": [
        {"asin": "C1", "reviewText": "Bright screen, bright colours"},
        {"asin": "C1", "reviewText": "screen broke"},
        {"asin": "C2", "reviewText": "fast"},
        {"asin": "C3", "reviewText": "fast"},
        {"asin": "C4", "reviewText": "fast screen"},
        {"asin": "C5", "reviewText": "zebra"},
        {"asin": "T1", "reviewText": "zebra"},
    ],
    "Arts.json": [{"asin": "A1", "reviewText": "bright yarn"}, {"asin": "A2"}],
}
BOTH = ("computer", "art")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "amazon_copurchase"
    folder.mkdir()
    for name, entries in {**PRODUCTS, **REVIEWS}.items():
        content = "\n".join(json.dumps(entry) for entry in entries).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return tmp_path


def test_products_of_a_segment_are_joined_by_also_buy(root: Path) -> None:
    dataset = AmazonCopurchase(segments=BOTH)
    assert dataset.present(root)
    graph = dataset.load(root)  # A1, A2 (files by name), then C1, C2, C4
    assert graph.num_nodes == 5
    assert graph.attributes["segment"].tolist() == [1, 1, 0, 0, 0]
    assert graph.attribute_names == {"segment": BOTH}
    assert graph.edge_index.tolist() == [[0, 1, 2, 3, 3, 4], [1, 0, 3, 2, 4, 3]]


def test_sub_segments_are_classes_of_their_segment(root: Path) -> None:
    graph = AmazonCopurchase(segments=BOTH).load(root)
    assert graph.class_names == ("computer: Laptops", "computer: Monitors", "art: Knitting", "art: Painting")
    assert graph.y.tolist() == [3, 2, 1, 0, 0] and graph.num_classes == 4


def test_words_are_shared_by_all_segments(root: Path) -> None:
    graph = AmazonCopurchase(segments=BOTH, num_words=3, binary_words=False).load(root)
    # By number of products: bright (A1, C1), fast (C2, C4), screen (C1, C4).
    assert graph.x.tolist() == [[1, 0, 0], [0, 0, 0], [2, 0, 2], [0, 1, 0], [0, 1, 1]]
    marks = AmazonCopurchase(segments=BOTH, num_words=3).load(root).x
    assert torch.equal(marks, (graph.x > 0).float())


def test_rarer_sub_segments_unreviewed_and_isolated_products_are_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = AmazonCopurchase(segments=("computer",), keep_isolated=True).load(root)
    assert graph.num_nodes == 4  # with C3, without C5 (no sub-segment) and C6 (no review)
    assert AmazonCopurchase(segments=("computer",), keep_isolated=True, min_reviews=0).load(root).num_nodes == 5
    assert AmazonCopurchase(segments=("computer",), keep_isolated=True, min_reviews=2).load(root).num_nodes == 1
    monkeypatch.setattr(module, "SEGMENTS", {**SEGMENTS, "computer": Segment(tuple(COMPUTER), 1)})
    graph = AmazonCopurchase(segments=("computer",)).load(root)
    assert graph.class_names == ("computer: Laptops",) and graph.edge_index.tolist() == [[0, 1], [1, 0]]


def test_the_segments_and_their_classes_are_the_papers() -> None:
    assert {name: segment.num_classes for name, segment in SEGMENTS.items()} == {
        "computer": 9,
        "photo": 8,
        "phone": 7,
        "tool": 6,
        "guitar": 5,
        "art": 8,
    }
    assert AmazonCopurchase().num_words == 1000


def test_a_cut_file_is_named(root: Path) -> None:
    path = root / "amazon_copurchase" / "Electronics.json.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"Electronics\.json\.gz is damaged"):
        AmazonCopurchase().load(root)


def test_absent_files_and_nothing_in_them(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no product of the segments guitar has a sub-segment, 1 reviews and an edge"):
        AmazonCopurchase(segments=("guitar",)).load(root)
    for name in PRODUCTS:
        (root / "amazon_copurchase" / name).unlink()
    assert not AmazonCopurchase().present(root)
    with pytest.raises(MissingData, match=r"amazon_copurchase for meta_\*\.json\.gz \(found 0\).*nijianmo"):
        AmazonCopurchase().load(root)


def test_bad_choices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"segments has 'phones'; known: .*Did you mean 'phone'"):
        AmazonCopurchase(segments=("phones",))
    with pytest.raises(ValueError, match="at least one, and none twice"):
        AmazonCopurchase(segments=())
    with pytest.raises(ValueError, match="num_words is 0"):
        AmazonCopurchase(num_words=0)
