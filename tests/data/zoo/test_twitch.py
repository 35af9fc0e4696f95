from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.graph import Graph
from isthmus.data.zoo.raw import digests
from isthmus.data.zoo.twitch import COUNTRIES, FOLDERS, Twitch

Root = Callable[..., Path]
# FedGRL, table 1.
NODES = {"DE": 9498, "EN": 7126, "ES": 4648, "FR": 6549, "PT": 1912, "RU": 4385}
EDGES = {"DE": 153138, "EN": 35324, "ES": 59382, "FR": 112666, "PT": 31299, "RU": 37304}
RAW = [f"twitch_musae/{folder}/target.csv" for folder in FOLDERS.values()]
REDUCED = [f"twitch/{country}/raw/{country}.npz" for country in COUNTRIES]


@cache
def whole(features: str, root: Path) -> Graph:
    """Return the graph of all countries, read once."""
    return Twitch(features=features).load(root)


@pytest.mark.parametrize(("features", "files", "width"), [("raw", RAW, 3170), ("reduced", REDUCED, 128)])
def test_counts_are_those_of_the_paper(real_root: Root, features: str, files: list[str], width: int) -> None:
    root = real_root(*files)
    assert Twitch(features=features).present(root)
    graph = whole(features, root)
    assert (graph.num_nodes, graph.num_edges // 2, graph.num_features, graph.num_classes) == (34118, 429113, width, 2)
    country = graph.attributes["country"]
    assert country.dtype == torch.int64 and graph.attribute_names == {"country": COUNTRIES}
    assert dict(zip(COUNTRIES, torch.bincount(country).tolist(), strict=True)) == NODES
    source, target = graph.edge_index
    assert torch.equal(country[source], country[target])
    assert dict(zip(COUNTRIES, (torch.bincount(country[source]) // 2).tolist(), strict=True)) == EDGES
    assert (graph.x.layout == torch.sparse_csr) == (features == "raw")


def test_both_forms_have_the_same_nodes(real_root: Root) -> None:
    raw, reduced = (whole(form, real_root(*RAW, *REDUCED)) for form in ("raw", "reduced"))
    assert torch.equal(raw.edge_index, reduced.edge_index) and torch.equal(raw.y, reduced.y)
    assert set(raw.x.values().tolist()) == {1.0}


def test_dividing_by_country_gives_the_graphs_of_the_countries(real_root: Root) -> None:
    root = real_root(*RAW)
    graph = whole("raw", root)
    number = COUNTRIES.index("PT")
    (part,) = graph.divide([(graph.attributes["country"] == number).nonzero().squeeze(1)])
    alone = Twitch(countries=("PT",)).load(root)
    assert torch.equal(part.edge_index, alone.edge_index) and torch.equal(part.y, alone.y)
    assert torch.equal(part.x.to_dense(), alone.x.to_dense())
    assert alone.attribute_names == {"country": ("PT",)} and set(alone.attributes["country"].tolist()) == {0}


def write_country(root: Path, folder: str, edges: str = "from,to\n0,1\n1,0\n2,2\n") -> Path:
    target = root / "twitch_musae" / folder
    target.mkdir(parents=True, exist_ok=True)
    (target / "edges.csv").write_text(edges)
    (target / "features.json").write_text(json.dumps({"2": [5, 5, 7], "0": [3169], "1": []}))
    rows = ["id,days,mature,views,partner,new_id", "77,1,True,5,False,2", "78,1,False,5,False,0"]
    rows += ["79,1,True,5,True,1", "79,1,True,5,True,1"]
    (target / "target.csv").write_text("\n".join(rows) + "\n")
    return target


@pytest.mark.usefixtures("no_digests")
class TestSmall:
    def test_countries_are_joined_without_edges_between_them(self, tmp_path: Path) -> None:
        write_country(tmp_path, "RU")
        write_country(tmp_path, "ENGB", "from,to\n0,2\n")
        graph = Twitch(countries=("RU", "EN")).load(tmp_path)
        assert graph.edge_index.tolist() == [[0, 1, 3, 5], [1, 0, 5, 3]]
        assert graph.y.tolist() == [0, 1, 1, 0, 1, 1]
        assert graph.attributes["country"].tolist() == [0, 0, 0, 1, 1, 1]
        rows, columns = graph.x.to_dense().nonzero(as_tuple=True)
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [
            (0, 3169),
            (2, 5),
            (2, 7),
            (3, 3169),
            (5, 5),
            (5, 7),
        ]
        assert Twitch(countries=("RU", "EN")).present(tmp_path) and not Twitch().present(tmp_path)

    def test_the_reduced_form(self, tmp_path: Path) -> None:
        path = tmp_path / "twitch" / "ES" / "raw" / "ES.npz"
        path.parent.mkdir(parents=True)
        x = np.arange(256, dtype=np.float16).reshape(2, 128)
        np.savez(path, features=x, edges=np.array([[0, 1], [1, 0], [0, 0], [1, 1]]), target=np.array([1, 0]))
        graph = Twitch(features="reduced", countries=("ES",)).load(tmp_path)
        assert graph.edge_index.tolist() == [[0, 1], [1, 0]] and graph.y.tolist() == [1, 0]
        assert torch.equal(graph.x, torch.arange(256.0).reshape(2, 128))
        np.savez(path, features=x, edges=np.array([[0, 2]]), target=np.array([1, 0]))
        with pytest.raises(BadInput, match=r"ES\.npz is damaged"):
            Twitch(features="reduced", countries=("ES",)).load(tmp_path)

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("edges.csv", "from,to\n0,1\n1"),
            ("edges.csv", "from,to\n0,9\n"),
            ("features.json", '{"0": [1, 2'),
            ("features.json", '{"0": [3170]}'),
            ("target.csv", "id,days,mature,views,partner,new_id\n7,1,True,5,False,2\n"),
            ("target.csv", "id\n7\n"),
        ],
    )
    def test_what_is_cut_short_is_named(self, tmp_path: Path, name: str, content: str) -> None:
        (write_country(tmp_path, "FR") / name).write_text(content)
        with pytest.raises(BadInput, match=rf"{name} is damaged .*Delete it"):
            Twitch(countries=("FR",)).load(tmp_path)


def test_a_file_without_its_digest_is_refused(tmp_path: Path, real_root: Root) -> None:
    shutil.copytree(real_root(*RAW) / "twitch_musae" / "PTBR", tmp_path / "twitch_musae" / "PTBR")
    os.truncate(tmp_path / "twitch_musae" / "PTBR" / "edges.csv", 1000)
    expected = digests()["twitch_musae/PTBR/edges.csv"]
    with pytest.raises(BadInput, match=rf"edges\.csv is damaged .*1,000 bytes .*expected {expected}"):
        Twitch(countries=("PT",)).load(tmp_path)


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"twitch_musae/DE/edges\.csv.*github\.com"):
        Twitch().load(tmp_path)
    with pytest.raises(MissingData, match=r"twitch/DE/raw/DE\.npz"):
        Twitch(features="reduced").load(tmp_path)


def test_bad_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="features is 'all'; choose from raw, reduced"):
        Twitch(features="all")
    with pytest.raises(ValueError, match="countries has 'US'; known: DE, EN"):
        Twitch(countries=("DE", "US"))
    for countries in ((), ("DE", "DE")):
        with pytest.raises(ValueError, match="at least one, and none twice"):
            Twitch(countries=countries)
