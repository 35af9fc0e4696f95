from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.zoo.ratings import COLUMNS, Ciao, Epinions, Ratings

Root = Callable[..., Path]


@pytest.mark.parametrize(
    ("kind", "counts", "repeated", "entries", "labels"),
    [
        (Ciao, (7375, 105114, 28, 284086), 1436, 105114 + 105, [34, 11049, 14317, 31294, 88499, 138893]),
        (Epinions, (22164, 296277, 27, 922267), 9826, 296277 + 600, [52967, 68807, 119763, 290952, 389778]),
    ],
    ids=["ciao", "epinions"],
)
def test_counts_are_those_of_the_literature(
    real_root: Root, kind: type[Ratings], counts: tuple[int, ...], repeated: int, entries: int, labels: list[int]
) -> None:
    root = real_root(*kind().needs)
    graph = kind().load(root)
    users, items = torch.bincount(graph.node_attributes["side"]).tolist()
    category = graph.attributes["category"]
    assert (users, items, len(graph.attribute_names["category"]), graph.num_items) == counts
    assert torch.bincount(category).min() > 0 and len(torch.bincount(category)) == counts[2]
    assert torch.bincount(graph.label).tolist() == labels and graph.num_classes == len(labels)
    assert bool((graph.links[0] < users).all()) and bool((graph.links[1] >= users).all())
    assert len(torch.unique(graph.links)) == graph.num_nodes, "a node has no link"
    assert len(torch.unique(graph.links[1] * counts[2] + category)) == entries
    assert kind(keep_repeated=False).load(root).num_items == counts[3] - repeated


def write(root: Path, **changes: list[int]) -> Path:
    rows = {
        "user": [7, 2, 7, 7],
        "item": [5, 5, 9, 5],
        "category": [1, 1, 28, 2],
        "rating": [0, 5, 3, 4],
        "helpfulness": [1, 2, 3, 4],
        "time": [10, 20, 30, 40],
    }
    path = root / "recsys/ciao/ratings.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, **{key: np.array(value) for key, value in {**rows, **changes}.items()})
    return path


def test_a_small_file_by_hand(tmp_path: Path, no_digests: None) -> None:
    write(tmp_path)
    graph = Ciao().load(tmp_path)
    assert graph.node_attributes["published_id"].tolist() == [2, 7, 5, 9]
    assert graph.node_attributes["side"].tolist() == [0, 0, 1, 1]
    assert graph.links.tolist() == [[1, 0, 1, 1], [2, 2, 3, 2]] and graph.undirected
    assert graph.label.tolist() == [0, 5, 3, 4] and graph.class_names == ("0", "1", "2", "3", "4", "5")
    assert graph.attributes["category"].tolist() == [0, 0, 27, 1]
    assert graph.attributes["time"].tolist() == [10, 20, 30, 40] and graph.attributes["helpfulness"].tolist()[3] == 4
    assert graph.x.tolist() == [[1.0]] * 4 and not graph.masks


def test_an_item_of_two_categories_is_a_node_of_both_clients(tmp_path: Path, no_digests: None) -> None:
    write(tmp_path)
    graph = Ciao().load(tmp_path)
    category = graph.attributes["category"]
    first, second = graph.divide([(category == 0).nonzero()[:, 0], (category == 1).nonzero()[:, 0]])
    assert first.node_attributes["published_id"].tolist() == [2, 7, 5]
    assert second.node_attributes["published_id"].tolist() == [7, 5]


def test_of_repeated_ratings_the_last_stays(tmp_path: Path, no_digests: None) -> None:
    write(tmp_path)
    graph = Ciao(keep_repeated=False).load(tmp_path)
    assert graph.label.tolist() == [5, 3, 4] and graph.attributes["time"].tolist() == [20, 30, 40]


def test_choices_of_features(tmp_path: Path, no_digests: None) -> None:
    write(tmp_path)
    assert Ciao(features="side").load(tmp_path).x.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert Ciao(features="none").load(tmp_path).x.shape == (4, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rating": [0, 6, 3, 4]}, r"has a rating of 6; 0 to 5 are expected"),
        ({"category": [1, 1, 29, 1]}, r"has a category of 29; 1 to 28"),
        ({"item": [5, 5, 9]}, r"should be of one length; found .*'item': \(3,\)"),
    ],
)
def test_columns_that_do_not_fit_are_told(
    tmp_path: Path, no_digests: None, changes: dict[str, list[int]], words: str
) -> None:
    write(tmp_path, **changes)
    with pytest.raises(BadInput, match=words):
        Ciao().load(tmp_path)


def test_a_file_cut_short_or_without_a_column_is_told(tmp_path: Path, no_digests: None) -> None:
    path = write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadInput, match=r"ratings\.npz is damaged or another edition"):
        Ciao().load(tmp_path)
    np.savez(path, **{key: np.ones(2, dtype=np.int64) for key in COLUMNS if key != "time"})
    with pytest.raises(BadInput, match=r"time"):
        Ciao().load(tmp_path)


def test_an_absent_file_is_named_with_its_place_and_source(tmp_path: Path) -> None:
    assert not Epinions().present(tmp_path)
    with pytest.raises(MissingData, match=r"recsys/epinions/ratings\.npz.*Published at www\.cse\.msu\.edu"):
        Epinions().load(tmp_path)
