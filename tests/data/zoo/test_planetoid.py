from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.conventions import SPLITS
from isthmus.data.survey.statistics import edge_homophily
from isthmus.data.zoo import CiteSeer, PubMed
from isthmus.data.zoo import planetoid as module
from isthmus.data.zoo.planetoid import Planetoid
from isthmus.data.zoo.raw import digests

Root = Callable[[str], Path]


@pytest.mark.parametrize(
    ("dataset", "counts", "classes", "layout"),
    [
        (CiteSeer(), (3327, 9104, 3703, 6), [249, 590, 668, 701, 596, 508], torch.sparse_csr),
        (PubMed(), (19717, 88648, 500, 3), [4103, 7739, 7875], torch.sparse_csr),
    ],
    ids=["citeseer", "pubmed"],
)
def test_counts_are_those_of_the_literature(
    planetoid_root: Root, dataset: Planetoid, counts: tuple[int, ...], classes: list[int], layout: torch.layout
) -> None:
    root = planetoid_root(dataset.name)
    assert dataset.present(root)
    graph = dataset.load(root)
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == counts
    assert torch.bincount(graph.y[graph.y >= 0]).tolist() == classes
    assert len(graph.class_names) == graph.num_classes
    assert graph.x.layout == layout and graph.x.dtype == torch.float32
    sizes = {split: int(graph.masks[split].sum()) for split in SPLITS}
    assert sizes == {"train": 20 * graph.num_classes, "val": 500, "test": 1000}
    homophily = edge_homophily(graph)
    assert homophily is not None and homophily > 0.7


def test_citeseer_has_fifteen_nodes_without_a_class_outside_the_split(planetoid_root: Root) -> None:
    graph = CiteSeer().load(planetoid_root("CiteSeer"))
    assert int((graph.y < 0).sum()) == 15
    assert not bool(torch.stack([graph.masks[split] for split in SPLITS])[:, graph.y < 0].any())
    assert float(graph.x.to_dense()[graph.y < 0].abs().sum()) == 0.0


def test_normalized_rows_sum_to_one_or_zero(planetoid_root: Root) -> None:
    root = planetoid_root("PubMed")
    x = PubMed(normalize_features=True).load(root).x
    assert x.layout == torch.sparse_csr
    sums = x.to_dense().sum(dim=1)
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-4)
    raw = PubMed().load(root).x.to_dense()
    assert not torch.allclose(raw.sum(dim=1), torch.ones_like(sums), atol=1e-2)
    torch.testing.assert_close(x.to_dense(), raw / raw.sum(dim=1, keepdim=True))


def test_loading_writes_nothing_beside_the_raw_files(planetoid_root: Root) -> None:
    root = planetoid_root("CiteSeer")
    before = sorted(root.rglob("*"))
    CiteSeer().load(root)
    assert sorted(root.rglob("*")) == before


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, timeout: float) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(module, "urlopen", refuse)


def test_no_files_and_no_connection_say_where_and_how(tmp_path: Path, empty_cache: Path, offline: None) -> None:
    root = tmp_path / "root"
    with pytest.raises(MissingData) as caught:
        CiteSeer().load(root)
    message = str(caught.value)
    assert "ind.citeseer.x, ind.citeseer.tx" in message and "ind.citeseer.test.index" in message
    assert f"in {root / 'planetoid/CiteSeer/raw'} and {empty_cache / 'planetoid/CiteSeer/raw'};" in message
    assert "no route to host" in message
    assert "set --data-root or ISTHMUS_DATA to a folder that holds planetoid/CiteSeer/raw/ind.citeseer.*" in message
    assert not CiteSeer().present(root)
    assert not root.exists() and not empty_cache.exists(), "something was left behind"


@pytest.fixture
def mirror(planetoid_root: Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path) -> list[str]:
    """Serve CiteSeer from a copy; return the list of addresses that were asked for."""
    raw = planetoid_root("CiteSeer") / "planetoid" / "CiteSeer" / "raw"
    kept = tmp_path / "mirror"
    shutil.move(raw, kept)
    asked: list[str] = []

    def serve(url: str, timeout: float) -> BytesIO:
        asked.append(url)
        return BytesIO((kept / url.rsplit("/", 1)[1]).read_bytes())

    monkeypatch.setattr(module, "urlopen", serve)
    return asked


def test_absent_files_are_downloaded_once_into_the_root(mirror: list[str], tmp_path: Path, empty_cache: Path) -> None:
    root = tmp_path / "new"
    assert CiteSeer().load(root).num_nodes == 3327
    assert len(mirror) == 8 and CiteSeer().present(root) and not empty_cache.exists()
    assert len(list((root / "planetoid/CiteSeer/raw").iterdir())) == 8
    CiteSeer().load(root)
    assert len(mirror) == 8


def test_a_root_that_cannot_be_written_sends_the_download_to_the_cache(
    mirror: list[str], tmp_path: Path, empty_cache: Path
) -> None:
    root = tmp_path / "file"
    root.write_text("a file where the folder should be")
    assert CiteSeer().load(root).num_nodes == 3327
    assert len(list((empty_cache / "planetoid/CiteSeer/raw").iterdir())) == 8
    assert CiteSeer().present(root)


def test_nowhere_to_write_is_told(mirror: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(BadInput, match=r"CiteSeer: the download cannot be kept .*give a --data-root"):
        CiteSeer().load(blocked)


def test_parallel_downloads_do_not_collide(mirror: list[str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        loaded = list(pool.map(lambda _: CiteSeer().load(tmp_path / "new"), range(3)))
    assert [graph.num_edges for graph in loaded] == [9104] * 3
    assert len(list((tmp_path / "new/planetoid/CiteSeer/raw").iterdir())) == 8


def test_an_answer_that_is_no_dataset_is_not_kept(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "urlopen", lambda url, timeout: BytesIO(b"<html>log in first</html>"))
    with pytest.raises(MissingData, match=r"download failed \(ind\.citeseer\.x came with 25 bytes .*expected d20de191"):
        CiteSeer().load(tmp_path / "new")
    for name in list(digests()):
        monkeypatch.delitem(digests(), name)
    with pytest.raises(MissingData, match=r"download failed .*cannot be read"):
        CiteSeer().load(tmp_path / "new")
    assert not (tmp_path / "new").exists() and not empty_cache.exists()


def test_damaged_files_are_named_before_a_pickle_is_read(planetoid_root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root = planetoid_root("CiteSeer")
    path = root / "planetoid/CiteSeer/raw/ind.citeseer.allx"
    os.truncate(path, 1000)
    monkeypatch.setattr(Planetoid, "_read", lambda self, raw: pytest.fail("read"))
    with pytest.raises(BadInput, match=r"ind\.citeseer\.allx is damaged .*1,000 bytes .*expected 2ac30345"):
        CiteSeer().load(root)


@pytest.mark.usefixtures("no_digests")
def test_files_that_cannot_be_read_are_named(planetoid_root: Root) -> None:
    root = planetoid_root("CiteSeer")
    path = root / "planetoid/CiteSeer/raw/ind.citeseer.allx"
    os.truncate(path, 1000)
    with pytest.raises(BadInput, match=r"ind\.citeseer\.\* in .*raw cannot be read .*delete them"):
        CiteSeer().load(root)
