from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import networkx
import numpy as np
import pandas as pd
import pytest
import torch

from isthmus.data import on_demand
from isthmus.data.folders.graph_folder import read_graph_folder
from isthmus.data.folders.schema.schema import read_schema

from .command import call

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data"
NORTH = ["--id", "customer", "--source", "payer", "--target", "payee", "--label", "segment", "--weight", "amount"]
SOUTH = ["--id", "client", "--source", "from", "--target", "to", "--label", "kind", "--weight", "euros"]
NORTH_TABLES = ["--nodes", str(EXAMPLE / "north_customers.csv"), "--edges", str(EXAMPLE / "north_payments.csv")]
SOUTH_TABLES = ["--nodes", str(EXAMPLE / "south_customers.csv"), "--edges", str(EXAMPLE / "south_payments.csv")]
SCHEMA = str(EXAMPLE / "schema.yaml")


def load() -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.read_csv(NORTH_TABLES[1]), pd.read_csv(NORTH_TABLES[3])


def from_csv(place: Path) -> list[str]:
    return [*NORTH_TABLES, *NORTH]


def from_parquet(place: Path) -> list[str]:
    nodes, edges = load()
    nodes.to_parquet(place / "nodes.parquet")
    edges.to_parquet(place / "edges.parquet")
    return [str(place), *NORTH]


def from_sqlite(place: Path) -> list[str]:
    pytest.importorskip("sqlalchemy", reason="install it with: pip install 'isthmus[sql]'")
    nodes, edges = load()
    with sqlite3.connect(place / "bank.db") as database:
        nodes.to_sql("customers", database, index=False)
        edges.to_sql("payments", database, index=False)
    database.close()
    queries = ["--nodes-query", "SELECT * FROM customers", "--edges-query", "SELECT * FROM payments"]
    return ["--sql", f"sqlite:///{place / 'bank.db'}", *queries, *NORTH]


def as_network() -> networkx.Graph:
    nodes, edges = load()
    graph = networkx.DiGraph()
    for row in nodes.to_dict("records"):
        name = row.pop("customer")
        graph.add_node(name, **{key: value for key, value in row.items() if not pd.isna(value)})
    graph.add_weighted_edges_from(edges.itertuples(index=False))
    return graph


def from_graphml(place: Path) -> list[str]:
    networkx.write_graphml(as_network(), place / "bank.graphml")
    return [str(place / "bank.graphml"), "--label", "segment"]


def from_gexf(place: Path) -> list[str]:
    networkx.write_gexf(as_network(), place / "bank.gexf")
    return [str(place / "bank.gexf"), "--label", "segment"]


@pytest.mark.parametrize("source", [from_csv, from_parquet, from_sqlite, from_graphml, from_gexf])
def test_a_graph_from_any_source_is_imported_checked_and_run(
    source: Callable[[Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    code, text = call("data", "import", *source(tmp_path / "in"), "--schema", SCHEMA, "--out", "north")
    assert code == 0, text
    assert "60 nodes, 180 edges, 43 feature columns" in text
    code, text = call("data", "check", "north", "--schema", SCHEMA)
    assert code == 0 and text.endswith(f"follows {SCHEMA}\n")
    # All sources hold the same graph, so they give the same folder.
    assert call("data", "import", *from_csv(tmp_path), "--schema", SCHEMA, "--out", "same")[0] == 0
    found, same = read_graph_folder("north"), read_graph_folder("same")
    order = [found.ids.index(name) for name in same.ids]
    assert np.array_equal(found.graph.x.to_dense()[order], same.graph.x.to_dense())
    assert torch.equal(found.graph.y[order], same.graph.y)
    assert found.graph.num_edges == same.graph.num_edges
    words = ["dataset.name=folder", "dataset.path=north", "rounds=2", "num_clients=2", "model.gnn.hidden=8"]
    code, text = call("run", "-q", "--out", "run", *words)
    assert code == 0 and "whole graph" in text, text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "north", "run", "same"]


def test_a_torch_geometric_graph_is_imported_checked_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_geometric.data import Data

    monkeypatch.chdir(tmp_path)
    assert call("data", "import", *from_csv(tmp_path), "--schema", SCHEMA, "--out", "north")[0] == 0
    graph = read_graph_folder("north").graph
    torch.save(Data(x=graph.x.to_dense(), y=graph.y, edge_index=graph.edge_index), "graph.pt")
    code, text = call("data", "import", "graph.pt", "--write-schema", "schema.yaml", "--out", "mine")
    assert code == 0, text
    assert "x: vector, 43 columns as given" in text and "classes: 0, 1, 2" in text
    assert call("data", "check", "mine", "--schema", "schema.yaml")[0] == 0
    mine = read_graph_folder("mine").graph
    assert torch.equal(mine.x.to_dense(), graph.x.to_dense()) and torch.equal(mine.y, graph.y)
    assert torch.equal(mine.edge_index, graph.edge_index)
    words = ["dataset.name=folder", "dataset.path=mine", "rounds=2", "num_clients=2", "model.gnn.hidden=8"]
    code, text = call("run", "-q", "--out", "run", *words)
    assert code == 0 and "whole graph" in text


def test_the_example_s_schema_is_the_one_its_data_make(tmp_path: Path) -> None:
    made = tmp_path / "schema.yaml"
    code, _ = call(
        "data", "import", *NORTH_TABLES, *NORTH, "--text", "notes", "--standardize", "--write-schema", str(made)
    )
    assert code == 0 and made.read_text() == Path(SCHEMA).read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["schema.yaml"]


def test_a_second_silo_follows_the_schema_and_is_told_what_is_not_in_it(tmp_path: Path) -> None:
    words = [*SOUTH_TABLES, *SOUTH, "--rename", "land=country", "--schema", SCHEMA, "--out", str(tmp_path / "south")]
    code, text = call("data", "import", *words)
    assert code == 0
    assert "country: 3 values not in the vocabulary, counted in 'country=(other)': 'LI' 3" in text
    assert read_graph_folder(tmp_path / "south").feature_names == read_schema(SCHEMA).columns


def test_json_has_the_same_facts(tmp_path: Path) -> None:
    words = [*SOUTH_TABLES, *SOUTH, "--rename", "land=country", "--schema", SCHEMA, "--out", str(tmp_path / "south")]
    code, text = call("data", "import", *words, "--json")
    assert code == 0
    assert json.loads(text) == {
        "folder": str(tmp_path / "south"),
        "schema": None,
        "digest": read_schema(SCHEMA).digest,
        "nodes": 50,
        "edges": 150,
        "features": 43,
        "classes": ["business", "private", "student"],
        "attributes": [],
        "notes": ["country: 3 values not in the vocabulary, counted in 'country=(other)': 'LI' 3"],
    }


def test_a_folder_that_does_not_follow_a_schema_is_told_column_by_column(tmp_path: Path) -> None:
    south = tmp_path / "south"
    words = [*SOUTH_TABLES, *SOUTH, "--ignore", "notes", "--ignore", "age", "--rename", "land=country"]
    assert call("data", "import", *words, "--out", str(south))[0] == 0
    code, text = call("data", "check", str(south), "--schema", SCHEMA)
    assert code == 2
    head, *lines = text.split("\n  ")
    assert head == f"{south} does not follow {SCHEMA}: 41 problems"
    assert lines == [
        "schema.yaml: column 'age' is missing; it is number 1 of the schema",
        *(
            f"schema.yaml: column 'notes:{word}' is missing; it is number {number} of the schema"
            for number, word in enumerate(("and", "arrives", "asked", "credit"), start=7)
        ),
        "schema.yaml: 33 more like these",
        "schema.yaml: column 'country=LI' (number 5) is not in the schema",
        "schema.yaml: feature 'income': mean is 0.0, 48.12500000000001 in the schema",
        "schema.yaml: feature 'income': std is 1.0, 36.72540276611454 in the schema",
    ]


def test_a_folder_made_by_hand_is_compared_by_the_names_of_its_columns(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(
        "features: [{name: a, type: number}, {name: b, type: number}]\nclasses: [u, v]\n"
    )
    folder = tmp_path / "g"
    folder.mkdir()
    (folder / "edges.csv").write_text("source,target\np,q\n")
    (folder / "nodes.csv").write_text("id,a,b,label\np,1,2,v\nq,1,2,u\n")
    assert call("data", "check", str(folder), "--schema", str(tmp_path / "schema.yaml"))[0] == 0
    (folder / "nodes.csv").write_text("id,b,a,label\np,1,2,v\nq,1,2,u\n")
    code, text = call("data", "check", str(folder), "--schema", str(tmp_path / "schema.yaml"))
    assert code == 2 and "nodes: column 'a' is number 2, number 1 in the schema" in text
    (folder / "nodes.csv").write_text("id,label\np,v\nq,u\n")
    np.savez(folder / "features.npz", x=np.ones((2, 3)))
    code, text = call("data", "check", str(folder), "--schema", str(tmp_path / "schema.yaml"))
    assert code == 2 and "features.npz: has 3 columns, 2 in the schema" in text


def test_a_course_can_ask_for_a_schema(tmp_path: Path) -> None:
    assert call("data", "import", *from_csv(tmp_path), "--schema", SCHEMA, "--out", str(tmp_path / "north"))[0] == 0
    words = ["dataset.name=folder", f"dataset.path={tmp_path / 'north'}", "rounds=1", "num_clients=2"]
    digest = read_schema(SCHEMA).digest
    assert call("run", "-q", "--out", str(tmp_path / "a"), *words, f"dataset.schema_digest={digest}")[0] == 0
    code, text = call("run", "-q", "--out", str(tmp_path / "b"), *words, "dataset.schema_digest=beef")
    assert code == 2 and f"has a schema with the digest {digest}; the course asks for beef" in text
    (tmp_path / "north" / "schema.yaml").unlink()
    code, text = call("run", "-q", "--out", str(tmp_path / "b"), *words, "dataset.schema_digest=beef")
    assert code == 2 and "has no schema.yaml; the course asks for beef" in text


def test_a_directed_graph_keeps_its_directions(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,x\na,1\nb,2\n")
    (tmp_path / "e.csv").write_text("source,target,weight\na,b,1\nb,a,3\n")
    words = ["--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv"), "--out", str(tmp_path / "g")]
    code, text = call("data", "import", *words)
    assert code == 2 and "e.csv row 2: weight is 3.0, but row 1 tells the same edge with 1.0" in text
    code, text = call("data", "import", *words, "--directed")
    assert code == 0 and text.endswith(f"dataset.path={tmp_path / 'g'} dataset.undirected=false\n")
    assert call("data", "check", str(tmp_path / "g"))[0] == 2
    assert call("data", "check", str(tmp_path / "g"), "--directed")[0] == 0


def test_all_problems_are_told_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("who,age,country,kind\na,1,AT,red\na,x,AT,red\nb,,AT,green\n")
    (tmp_path / "e.csv").write_text("source,target\na,z\n")
    schema = (
        "features:\n- {name: age, type: number}\n- {name: country, type: category, vocabulary: [DE], unknown: refuse}\n"
    )
    (tmp_path / "s.yaml").write_text(schema + "classes: [red]\n")
    before = sorted(tmp_path.iterdir())
    words = ["--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv"), "--id", "who", "--label", "kind"]
    code, text = call("data", "import", *words, "--schema", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "g"))
    assert code == 2
    assert text.split("\n  ") == [
        f"import of {tmp_path / 'n.csv'} and {tmp_path / 'e.csv'}: 8 problems (rows count from 1, without the header)",
        "n.csv row 2: who 'a' is taken by row 1",
        "n.csv row 2: age is 'x'; a number is needed",
        "n.csv row 3: age is nan; a finite number is needed",
        "n.csv row 1: country is 'AT', which is none of the schema's values 'DE'",
        "n.csv row 2: country is 'AT', which is none of the schema's values 'DE'",
        "n.csv row 3: country is 'AT', which is none of the schema's values 'DE'",
        "n.csv row 3: kind 'green' is none of the class names 'red'",
        "e.csv row 1: target 'z' is no id of n.csv",
    ]
    assert sorted(tmp_path.iterdir()) == before


def test_a_schema_is_not_left_when_the_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(on_demand.parquet, "write_table", full)
    words = ["--write-schema", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "g")]
    code, text = call("data", "import", *from_csv(tmp_path), *words)
    assert code == 2 and "cannot be written: No space left on device" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "nothing to write; give --out FOLDER, or --write-schema FILE, or both"),
        (
            ["--out", "g"],
            "one source is needed, none is given; SOURCE (a file), --nodes and --edges, or --sql with two queries",
        ),
        (["--out", "g", "a.pt", "--sql", "sqlite://"], "one source is needed, SOURCE and --sql are given; "),
        (["--out", "g", "--nodes", "a.csv"], "--nodes is given alone; both --nodes and --edges are needed"),
        (["--out", "g", "--edges", "a.csv"], "--edges is given alone; both --nodes and --edges are needed"),
        (["--out", "g", "--sql", "sqlite://"], "--sql needs two queries: --nodes-query and --edges-query"),
        (["--out", "g", "a.pt", "--nodes-query", "q"], "--nodes-query and --edges-query go with --sql"),
        (
            ["--out", "g", "a.csv"],
            "SOURCE is 'a.csv'; known: a folder, .gexf, .graphml, .pt, .pth; tables are given as",
        ),
        (["--out", "g", "a.xlsx"], "SOURCE is 'a.xlsx'; known: a folder, .gexf, .graphml, .pt, .pth"),
        (["--out", "g", "postgresql://u:hunter2@h/d"], "SOURCE is the address of a database; give it as --sql"),
        (["--out", "g", "."], ". has not one table of nodes and one of edges, as .csv or .parquet"),
        (["--out", "g", "a.pt", "--repeated", "add"], "--repeated is 'add'; known: max, mean, refuse, sum."),
        (["--out", "g", "a.pt", "--unknown-ends", "dropp"], "--unknown-ends is 'dropp'; known: drop, refuse."),
        (["--out", "g", "a.pt", "--format", "xml"], "format is 'xml'; known: csv, parquet"),
        (["--out", "g", "a.pt", "--rename", "age"], "--rename is 'age'; OLD=NEW is needed, once for each column"),
        (["--out", "g", "a.pt", "--delimiter", ";;"], "--delimiter is ';;'; one character is needed"),
        (
            ["--out", "g", "a.pt", "--schema", "s.yaml", "--category", "x"],
            "--category goes without --schema: the schema says what the columns are",
        ),
        (["--out", "g", "a.pt", "--schema", "s.yaml"], "s.yaml: cannot be read: No such file or directory"),
        (["--write-schema", "there.yaml", "a.pt"], "there.yaml exists already; choose another file, or follow it with"),
        (["--out", "full", "a.pt"], "'full' is there already and not an empty folder; give another path"),
        (["--out", "g", "a.pt"], "import of a.pt: 1 problem\n  a.pt: cannot be read: No such file or directory"),
    ],
)
def test_bad_words_are_named_and_nothing_is_written(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    code, found = call("data", "import", *words)
    assert code == 2 and found.startswith(text), found
    assert "hunter2" not in found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "there.yaml"]


def test_sql_errors_are_told_without_the_password(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="install it with: pip install 'isthmus[sql]'")
    words = from_sqlite(tmp_path)
    words[words.index("SELECT * FROM customers")] = "SELECT * FROM custmers"
    code, text = call("data", "import", *words, "--out", str(tmp_path / "g"))
    assert code == 2
    assert text == ("import from the database: 1 problem\n  nodes query: the database says: no such table: custmers")
    url = f"postgresql://u:hunter2@/d?host={tmp_path}"
    code, text = call("data", "import", "--sql", url, *words[2:], "--out", str(tmp_path / "g"))
    assert code == 2 and "hunter2" not in text and "u:***@" in text


def test_a_schema_beside_the_tables_of_a_folder_must_fit_them(tmp_path: Path) -> None:
    assert call("data", "import", *from_csv(tmp_path), "--schema", SCHEMA, "--out", str(tmp_path / "g"))[0] == 0
    shutil.copyfile(SCHEMA, tmp_path / "g" / "schema.yaml")
    assert call("data", "check", str(tmp_path / "g"))[0] == 0
    (tmp_path / "g" / "schema.yaml").write_text("features: [{name: age, type: number}]")
    code, text = call("data", "check", str(tmp_path / "g"))
    assert code == 2 and "schema.yaml: has 1 feature columns, features.npz has 43" in text
    (tmp_path / "g" / "schema.yaml").write_text("features: 7")
    code, text = call("data", "check", str(tmp_path / "g"))
    assert code == 2 and "schema.yaml: is no schema; a list of features is needed" in text


@pytest.mark.parametrize(("directed", "count"), [(False, "2 edges"), (True, "3 directed edges")])
def test_import_and_check_count_edges_alike_and_what_is_printed_can_be_pasted(
    tmp_path: Path, directed: bool, count: str
) -> None:
    (tmp_path / "nodes.csv").write_text("id,x\na,1\nb,2\nc,3\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,a\nb,c\n")
    out = tmp_path / "my graph; it's"
    flags = ["--directed"] if directed else []
    code, text = call("data", "import", str(tmp_path), "--out", str(out), *flags)
    assert code == 0 and f"3 nodes, {count}, " in text
    code, checked = call("data", "check", str(out), *flags)
    assert code == 0 and f"3 nodes, {count}, " in checked
    command = shlex.split(text.split("run it with: ")[1].strip())
    assert command[:2] == ["isthmus", "run"] and f"dataset.path={out}" in command
