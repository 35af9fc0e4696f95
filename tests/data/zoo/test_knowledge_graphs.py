from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.conventions import SPLITS
from isthmus.data.zoo.knowledge_graphs import WN18, FB15k237, KnowledgeGraph, read_named, read_numbered

Root = Callable[..., Path]


@pytest.mark.parametrize(
    ("dataset", "counts", "splits"),
    [(WN18(), (40943, 18), [141442, 5000, 5000]), (FB15k237(), (14541, 237), [272115, 17535, 20466])],
    ids=["wn18", "fb15k-237"],
)
def test_counts_are_those_of_the_literature(
    real_root: Root, dataset: KnowledgeGraph, counts: tuple[int, int], splits: list[int]
) -> None:
    root = real_root(*dataset.needs)
    graph = dataset.load(root)
    assert dataset.present(root)
    assert (graph.num_nodes, graph.num_classes) == counts and len(graph.class_names) == graph.num_classes
    assert [int(graph.masks[split].sum()) for split in SPLITS] == splits
    assert int(torch.stack([graph.masks[split] for split in SPLITS]).sum(dim=0).max()) == 1
    assert graph.num_items == sum(splits) and not graph.undirected
    facts = (graph.links[0] * graph.num_nodes + graph.links[1]) * graph.num_classes + graph.label
    assert len(torch.unique(facts)) == graph.num_items, "a fact is there twice"
    assert torch.bincount(graph.label[graph.masks["train"]], minlength=graph.num_classes).min() > 0


def write_numbered(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "entity2id.txt").write_text("3\ndog\t1\ncat\t0\nanimal\t2\n")
    (folder / "relation2id.txt").write_text("2\n_is_a\t0\n_chases\t1\n")
    (folder / "train.txt").write_text("3\n1 2 0\n1 0 1\n1 0 0\n")
    (folder / "valid.txt").write_text("1\n0 2 0\n")
    (folder / "test.txt").write_text("0\n")


def write_named(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "entities.dict").write_text("0\t/m/cat\n1\t/m/dog\n2\t/m/animal\n")
    (folder / "relations.dict").write_text("0\t/is/a\n1\t/chases\n")
    (folder / "train.txt").write_text("/m/dog\t/is/a\t/m/animal\n/m/dog\t/chases\t/m/cat\n/m/dog\t/is/a\t/m/cat\n")
    (folder / "valid.txt").write_text("/m/cat\t/is/a\t/m/animal\n")
    (folder / "test.txt").write_text("")


WRITERS = {"WN18/raw": (WN18, write_numbered), "FB15k-237/raw": (FB15k237, write_named)}


@pytest.mark.parametrize("folder", WRITERS)
def test_small_files_by_hand(tmp_path: Path, no_digests: None, folder: str) -> None:
    kind, write = WRITERS[folder]
    write(tmp_path / folder)
    graph = kind().load(tmp_path)
    assert graph.links.tolist() == [[1, 1, 1, 0], [2, 0, 0, 2]]
    assert graph.label.tolist() == [0, 1, 0, 0] and graph.link_ids.tolist() == [0, 1, 2, 3]
    assert graph.masks["train"].tolist() == [True, True, True, False]
    assert graph.masks["val"].tolist() == [False, False, False, True] and not bool(graph.masks["test"].any())
    assert graph.x.tolist() == [[1.0], [1.0], [1.0]] and graph.x.dtype == torch.float32
    assert kind(features="none").load(tmp_path).x.shape == (3, 0)
    degrees = kind(features="degree").load(tmp_path).x  # training facts alone count
    assert torch.allclose(degrees.exp() - 1, torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train.txt", "3\n1 2 0\n1 0 1\n", r"train\.txt says '3' lines at its top and has 2"),
        ("train.txt", "1\n1 2\n", r"train\.txt has 2 columns; 3 are expected"),
        ("train.txt", "2\n1 2 0\n1 x 0\n", r"train\.txt cannot be read .*x"),
        ("valid.txt", "1\n1 3 0\n", r"valid\.txt names entity 3; 0 to 2 are known"),
        ("test.txt", "1\n1 2 2\n", r"test\.txt names relation 2; 0 to 1 are known"),
        ("entity2id.txt", "3\ncat\t0\ndog\t1\n", r"entity2id\.txt says '3' lines at its top and has 2"),
        ("entity2id.txt", "2\ncat\t0\ndog\t2\n", r"2 names, but none with the number 1"),
        ("relation2id.txt", "2\n_is_a\t0\n_chases\n", r"relation2id\.txt has a line that is not a name and a number"),
    ],
)
def test_numbered_files_that_do_not_fit_are_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    write_numbered(tmp_path / "raw")
    (tmp_path / "raw" / file).write_text(content)
    with pytest.raises(BadInput, match=words):
        read_numbered(tmp_path / "raw")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train.txt", "/m/dog\t/is/a\n", r"train\.txt, line 1: .* is not head, relation and tail"),
        ("valid.txt", "/m/cow\t/is/a\t/m/animal\n", r"valid\.txt names '/m/cow', which no \*\.dict"),
        ("entities.dict", "0\t/m/cat\n2\t/m/dog\n", r"2 names, but none with the number 1"),
    ],
)
def test_named_files_that_do_not_fit_are_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    write_named(tmp_path / "raw")
    (tmp_path / "raw" / file).write_text(content)
    with pytest.raises(BadInput, match=words):
        read_named(tmp_path / "raw")


@pytest.mark.parametrize("folder", WRITERS)
def test_another_edition_is_told_by_its_digest(tmp_path: Path, folder: str) -> None:
    kind, write = WRITERS[folder]
    write(tmp_path / folder)
    with pytest.raises(BadInput, match=r"train\.txt is damaged or another edition"):
        kind().load(tmp_path)


def test_absent_files_are_named_with_their_place_and_source(tmp_path: Path) -> None:
    write_numbered(tmp_path / "WN18/raw")
    (tmp_path / "WN18/raw/valid.txt").unlink()
    assert not WN18().present(tmp_path)
    with pytest.raises(MissingData, match=r"not there: WN18/raw/valid\.txt\. Published at github\.com/villmow"):
        WN18().load(tmp_path)
