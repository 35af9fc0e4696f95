"""Attributes of own data live through import, check, split by `meta`, writing and reading, for all three kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isthmus.data.folders.own_kinds import kind_at
from isthmus.data.splitters.facts import attributes_of, value_names
from isthmus.runs.simulation import load_scenario

from .command import call

NODES = "who,age,hospital,city,label\na,1,01,Ulm,x\nb,2,2,Bonn,y\nc,3,01,Ulm,x\nd,4,2,,y\n"
EDGES = "source,target\na,b\nb,c\nc,d\n"


def values(data: Any) -> dict[str, list[str]]:
    """Return each attribute of the items as its owner calls its values."""
    return {name: value_names(data, name, found.numpy()) for name, found in attributes_of(data).items()}


def read(path: Path, **options: Any) -> Any:
    return type(kind_at(path).at(path))(path=str(path), **options).read().data


def tables(path: Path, **files: str) -> Path:
    path.mkdir()
    for stem, content in files.items():
        (path / f"{stem}.csv").write_text(content, encoding="utf-8")
    return path


def imported(tmp_path: Path, *words: str) -> tuple[int, str]:
    raw = tables(tmp_path / "raw", nodes=NODES, edges=EDGES)
    return call("data", "import", str(raw), "--id", "who", *words, "--out", str(tmp_path / "mine"))


def split(folder: Path, attribute: str, clients: int, out: Path, *words: str) -> list[Path]:
    by = ["splitter.name=meta", f"splitter.attribute={attribute}", "splitter.deal=one_each"]
    code, text = call("data", "split", str(folder), "--clients", str(clients), "--out", str(out), *by, *words)
    assert code == 0, text
    return sorted(path for path in out.iterdir() if path.is_dir())


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_attributes_of_nodes_live_through_import_split_and_reading(format: str, tmp_path: Path) -> None:
    code, text = imported(tmp_path, "--attribute", "hospital", "--attribute", "city", "--format", format)
    assert code == 0 and "attributes, to split by: hospital, city" in text, text
    mine = read(tmp_path / "mine")
    assert mine.feature_names == ("age",)
    hospital = ["01", "2", "01", "2"] if format == "parquet" else ["1", "2", "1", "2"]  # CSV has no types
    assert values(mine) == {"hospital": hospital, "city": ["Ulm", "Bonn", "Ulm", ""]}
    north, south = split(tmp_path / "mine", "hospital", 2, tmp_path / "silos")
    assert values(read(north)) == {"hospital": hospital[:1] * 2, "city": ["Ulm", "Ulm"]}
    assert values(read(south)) == {"hospital": ["2", "2"], "city": ["Bonn", ""]}
    (alone,) = split(north, "city", 1, tmp_path / "again")
    assert values(read(alone)) == values(read(north)) and read(alone).feature_names == ("age",)


def test_a_folder_that_is_imported_again_keeps_its_attributes(tmp_path: Path) -> None:
    assert imported(tmp_path, "--attribute", "hospital")[0] == 0
    code, text = call("data", "import", str(tmp_path / "mine"), "--out", str(tmp_path / "again"))
    assert code == 0 and "attributes, to split by: hospital" in text, text
    assert values(read(tmp_path / "again")) == values(read(tmp_path / "mine"))
    assert read(tmp_path / "again").feature_names == read(tmp_path / "mine").feature_names


def test_large_numbers_that_are_attributes_are_not_rounded_as_features_are(tmp_path: Path) -> None:
    raw = tables(tmp_path / "raw", nodes="id,x,attribute.account\na,1,200000001\nb,2,200000002\n", edges=EDGES[:18])
    code, text = call("data", "import", str(raw), "--out", str(tmp_path / "mine"))
    assert code == 0 and values(read(tmp_path / "mine")) == {"account": ["200000001", "200000002"]}, text


def test_a_dataset_s_name_goes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables(tmp_path / "cora", nodes="id,x,label\na,1,0\nb,2,1\n", edges=EDGES[:18])
    assert "1354 nodes" in call("data", "split", "cora", "--clients", "2", "--out", "silos", "splitter.name=random")[1]
    assert "1 nodes" in call("data", "split", "./cora", "--clients", "2", "--out", "own", "splitter.name=random")[1]


def test_an_attribute_is_a_feature_too_where_a_schema_or_the_owner_says_so(tmp_path: Path) -> None:
    code, text = imported(tmp_path, "--attribute", "city", "--category", "city", "--ignore", "hospital")
    assert code == 0, text
    mine = read(tmp_path / "mine")
    assert mine.feature_names == ("age", "city=Bonn", "city=Ulm", "city=(other)")
    assert values(mine) == {"city": ["Ulm", "Bonn", "Ulm", ""]}
    schema = str(tmp_path / "mine" / "schema.yaml")
    raw = ["data", "import", str(tmp_path / "raw"), "--id", "who", "--schema", schema, "--attribute"]
    for name, left_out in (("city", "left out: hospital"), ("hospital", "schema digest")):
        code, text = call(*raw, name, "--out", str(tmp_path / name))
        assert code == 0 and left_out in text and f"left out: {name}" not in text, text
        assert list(values(read(tmp_path / name))) == [name]
        assert read(tmp_path / name).feature_names == mine.feature_names


def test_a_number_is_a_feature_and_an_attribute_where_that_is_asked_for(tmp_path: Path) -> None:
    code, text = imported(tmp_path, "--attribute", "age", "--number", "age", "--ignore", "city", "--ignore", "hospital")
    assert code == 0, text
    assert read(tmp_path / "mine").feature_names == ("age",) and values(read(tmp_path / "mine")) == {
        "age": list("1234")
    }


def test_an_attribute_is_kept_under_the_name_that_it_is_given(tmp_path: Path) -> None:
    code, text = imported(tmp_path, "--rename", "hospital=house", "--attribute", "house", "--attribute", "city")
    assert code == 0 and values(read(tmp_path / "mine"))["house"] == ["01", "2", "01", "2"], text


def test_json_has_the_attributes(tmp_path: Path) -> None:
    code, text = imported(tmp_path, "--attribute", "hospital", "--json")
    assert code == 0 and json.loads(text)["attributes"] == ["hospital"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--attribute", "hospitl"], "nodes.csv: --attribute names 'hospitl'; known: age, city, hospital."),
        (["--attribute", "hospitl"], "Did you mean 'hospital'?"),
        (["--attribute", "label"], "nodes.csv: --attribute names 'label'; known: age, city, hospital."),
    ],
)
def test_a_column_that_cannot_be_an_attribute_is_told(words: list[str], told: str, tmp_path: Path) -> None:
    code, text = imported(tmp_path, *words)
    assert code == 2 and told in text and not (tmp_path / "mine").exists(), text


def test_a_list_is_no_attribute(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    nodes = {"id": ["a", "b"], "x": [1.0, 2.0], "place": [[1.0, 2.0], [3.0, 4.0]]}
    pd.DataFrame(nodes).to_parquet(tmp_path / "raw" / "nodes.parquet")
    (tmp_path / "raw" / "edges.csv").write_text("source,target\na,b\n")
    words = ["--attribute", "place", "--out", str(tmp_path / "mine")]
    code, text = call("data", "import", str(tmp_path / "raw"), *words)
    assert code == 2 and "column 'place' is of type list<" in text and "text or whole numbers are needed" in text, text


def test_a_column_is_kept_to_split_by_and_left_out_of_the_features(tmp_path: Path) -> None:
    code, text = imported(tmp_path, "--attribute", "city", "--ignore", "city", "--ignore", "hospital")
    assert code == 0 and read(tmp_path / "mine").feature_names == ("age",), text
    assert list(values(read(tmp_path / "mine"))) == ["city"]


def test_names_that_mean_two_things_are_refused(tmp_path: Path) -> None:
    raw = tables(tmp_path / "raw", nodes="id,x,city,attribute.city\na,1,Ulm,U\nb,2,Bonn,B\n", edges=EDGES[:18])
    code, text = call("data", "import", str(raw), "--attribute", "city", "--out", str(tmp_path / "mine"))
    assert code == 2 and "nodes.csv: has the attribute 'city' twice, as 'city' and 'attribute.city'" in text, text
    (tmp_path / "s.yaml").write_text("features: [{name: x, type: number}, {name: attribute.age, type: number}]\n")
    raw = tables(tmp_path / "other", nodes="id,x,attribute.age\na,1,4\nb,2,5\n", edges=EDGES[:18])
    code, text = call("data", "import", str(raw), "--schema", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "mine"))
    assert code == 2 and "the feature 'attribute.age' has a name that a graph folder keeps" in text, text


@pytest.mark.parametrize(("folder", "called"), [("reviews", "link folder"), ("circuits", "graph set folder")])
def test_folders_of_links_and_graphs_are_read_as_they_are(folder: str, called: str, tmp_path: Path) -> None:
    code, text = call("data", "import", f"examples/own_data/{folder}", "--out", str(tmp_path / "mine"))
    assert code == 2 and f"has the tables of a {called}, which is read as it is: try isthmus data check" in text


def test_attributes_of_links_and_of_their_ends_live_through_split_and_reading(tmp_path: Path) -> None:
    mine = tables(
        tmp_path / "mine",
        nodes="id,side,age,city,attribute.zone\na,user,1,Ulm,3\nb,user,2,Bonn,3\nc,item,3,,5\n",
        links="source,target,label,shop,year\na,c,good,north,2020\nb,c,poor,south,2021\na,c,poor,south,2021\n",
    )
    expected = {
        "shop": ["north", "south", "south"],
        "year": ["2020", "2021", "2021"],
        **{"head.id": ["0", "1", "0"], "head.side": ["0", "0", "0"], "tail.id": ["2"] * 3, "tail.side": ["1"] * 3},
        **{"head.city": ["Ulm", "Bonn", "Ulm"], "tail.city": [""] * 3},
        **{"head.zone": ["3"] * 3, "tail.zone": ["5"] * 3},
    }
    data = read(mine)
    assert values(data) == expected and data.feature_names == ("age",)
    bonn, ulm = split(mine, "head.city", 2, tmp_path / "silos")
    found = {name: values(read(path, undirected=True)) for name, path in (("bonn", bonn), ("ulm", ulm))}
    for name, rows in (("bonn", [1]), ("ulm", [0, 2])):
        assert {key: value for key, value in found[name].items() if not key.endswith(".id")} == {
            key: [value[row] for row in rows] for key, value in expected.items() if not key.endswith(".id")
        }
    assert read(ulm).feature_names == ("age",)
    (again,) = split(ulm, "tail.zone", 1, tmp_path / "again")
    assert values(read(again)) == found["ulm"]


def test_attributes_of_graphs_live_through_split_and_reading(tmp_path: Path) -> None:
    mine = tables(
        tmp_path / "mine",
        graphs="id,label,maker,ward,attribute.year\ng,x,Acme,4,2020\nh,y,Bolt,5,2021\ni,x,Acme,5,2020\n",
        nodes="graph,id,f\ng,a,1\nh,a,2\ni,a,3\n",
        edges="graph,source,target\n",
    )
    expected = {"maker": ["Acme", "Bolt", "Acme"], "ward": ["4", "5", "5"], "year": ["2020", "2021", "2020"]}
    assert values(read(mine)) == expected
    acme, bolt = split(mine, "maker", 2, tmp_path / "silos")
    assert values(read(acme)) == {key: [value[0], value[2]] for key, value in expected.items()}
    assert values(read(bolt)) == {key: [value[1]] for key, value in expected.items()}
    (again,) = split(acme, "ward", 1, tmp_path / "again", "splitter.deal=balanced")
    assert values(read(again)) == values(read(acme))


def test_the_check_tells_what_there_is_to_split_by(tmp_path: Path) -> None:
    nodes = tables(tmp_path / "nodes", nodes="id,age,city\na,1,Ulm\nb,2,Bonn\nc,3,Ulm\n", edges="source,target\na,b\n")
    code, text = call("data", "check", str(nodes))
    assert code == 0 and "to split by: city (2 values)\n" in text
    links = tables(tmp_path / "links", nodes="id,city\na,Ulm\nb,Bonn\n", links="source,target,shop\na,b,x\nb,a,y\n")
    code, text = call("data", "check", str(links))
    told = "head.city (2 values), head.id (2 values), shop (2 values), tail.city (2 values), tail.id (2 values)"
    assert code == 0 and f"to split by: {told}\n" in text
    graphs = tables(
        tmp_path / "graphs",
        graphs="id,label,ward\ng,0,1\nh,1,1\n",
        nodes="graph,id,f\ng,a,1\nh,a,2\n",
        edges="graph,source,target\n",
    )
    code, text = call("data", "check", str(graphs))
    assert code == 0 and "classes: 2" in text and "to split by: ward (1 value)\n" in text, text
    bare = tables(tmp_path / "bare", nodes="id,age\na,1\nb,2\n", edges="source,target\na,b\n")
    assert "to split by" not in call("data", "check", str(bare))[1]


def test_a_zoo_s_attributes_are_in_the_folders_that_it_is_divided_into(tmp_path: Path) -> None:
    words = ["dataset.phis=[0.1,0.2]", "splitter.name=random"]
    code, text = call("data", "split", "fedcsbm", "--clients", "2", "--out", str(tmp_path / "silos"), *words)
    assert code == 0, text
    found = [value for name in "01" for value in values(read(tmp_path / "silos" / f"client-{name}"))["client"]]
    from isthmus.config.load import load_course

    course = load_course(None, ["dataset.name=fedcsbm", "num_clients=2", *words])
    assert sorted(found) == sorted(values(load_scenario(course, tmp_path).whole)["client"])


def test_attributes_that_a_table_cannot_hold_are_told(tmp_path: Path) -> None:
    words = ["--clients", "2", "--out", str(tmp_path / "silos"), "dataset.num_nodes=40", "splitter.name=random"]
    code, text = call("data", "split", "csbm_snc", *words, "masks.name=none")
    assert code == 0 and "attributes not written, with several values for each node: samples\n" in text, text


def test_a_name_that_is_no_attribute_gets_those_that_are(tmp_path: Path) -> None:
    nodes = tables(tmp_path / "mine", nodes="id,age,city,label\na,1,Ulm,x\nb,2,Bonn,y\n", edges="source,target\na,b\n")
    words = ["--clients", "2", "--out", str(tmp_path / "silos"), "splitter.name=meta"]
    code, text = call("data", "split", str(nodes), *words, "splitter.attribute=town")
    assert code == 2 and "splitter.attribute is 'town', which no node of 'mine' has; known: city." in text, text
    code, text = call("data", "split", str(nodes), *words, "splitter.attribute=age")
    assert code == 2 and "splitter.attribute is 'age', which is a feature of 'mine'; known: city." in text
    assert "name the column 'attribute.age'" in text and not (tmp_path / "silos").exists()
