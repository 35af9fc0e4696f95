from __future__ import annotations

import builtins
import sqlite3
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from isthmus.core.errors import BadInput, MissingExtra
from isthmus.data.folders.tables.reading import Problems, RawGraph, as_column
from isthmus.data.imports.sql import database_address, read_sql, shown_url
from tests.cli.command import call
from tests.data.imports import postgres

pytest.importorskip("sqlalchemy", reason="install it with: pip install 'isthmus[sql]'")

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_data"
NODES = "SELECT customer AS id, age, segment AS label FROM customers ORDER BY customer"
EDGES = "SELECT payer AS source, payee AS target, amount AS weight FROM payments ORDER BY payer, payee"


def read(url: str, nodes: str = NODES, edges: str = EDGES) -> RawGraph:
    problems = Problems("import from the database")
    raw = read_sql(url, nodes, edges, problems)
    problems.raise_if_any()
    assert raw is not None
    return raw


def told(url: str, nodes: str = NODES, edges: str = EDGES) -> str:
    with pytest.raises(BadInput) as caught:
        read(url, nodes, edges)
    return str(caught.value)


def values(raw: RawGraph) -> dict[str, list[Any]]:
    return {name: column.to_pylist() for name, column in (raw.nodes.columns | raw.edges.columns).items()}


FILLED = {
    "id": ["a", "b", "c"],
    "age": [30, 41, 52],
    "label": ["red", "blue", None],
    "source": ["a", "b"],
    "target": ["b", "c"],
    "weight": [1.5, 2.5],
}


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    path = tmp_path / "bank of 100%.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE customers (customer TEXT, age INTEGER, segment TEXT)")
        database.execute("CREATE TABLE payments (payer TEXT, payee TEXT, amount REAL)")
        rows = [("a", 30, "red"), ("b", 41, "blue"), ("c", 52, None)]
        database.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
        database.executemany("INSERT INTO payments VALUES (?, ?, ?)", [("a", "b", 1.5), ("b", "c", 2.5)])
    database.close()
    return f"sqlite:///{path}"


def test_two_queries_give_two_tables(sqlite: str) -> None:
    assert values(read(sqlite)) == FILLED


def test_marks_in_a_query_are_no_parameters(sqlite: str) -> None:
    raw = read(sqlite, "SELECT customer AS id, ' :age' AS x, customer LIKE '%a%' AS has FROM customers")
    assert values(raw)["x"] == [" :age"] * 3 and values(raw)["has"] == [1, 0, 0]


def test_values_of_several_kinds_in_a_column_become_text(sqlite: str) -> None:
    raw = read(sqlite, "SELECT customer AS id, CASE customer WHEN 'b' THEN 'old' ELSE age END AS age FROM customers")
    assert values(raw)["age"] == ["30", "old", "52"]


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ([1, None, 2.5], [1.0, None, 2.5]),
        ([Decimal("1.50"), Decimal("2")], [1.5, 2.0]),
        ([UUID(int=7), UUID(int=8)], [str(UUID(int=7)), str(UUID(int=8))]),
        ([10**30, 1], [str(10**30), "1"]),
        ([True, False], [True, False]),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]),
        ([], []),
    ],
)
def test_values_of_a_driver_become_a_column(found: list[Any], kept: list[Any]) -> None:
    assert as_column(found).to_pylist() == kept


def test_wrong_queries_are_told_both_at_once_in_the_words_of_the_database(sqlite: str) -> None:
    assert told(sqlite, "SELECT * FROM custmers", "SELEC 1") == (
        "import from the database: 2 problems\n"
        "  nodes query: the database says: no such table: custmers\n"
        '  edges query: the database says: near "SELEC": syntax error'
    )


def test_two_columns_of_one_name_are_told(sqlite: str) -> None:
    text = told(sqlite, "SELECT customer, customer FROM customers")
    assert text == "import from the database: 1 problem\n  nodes query: more than one column named 'customer'"


@pytest.mark.parametrize("query", ["DROP TABLE customers", "DELETE FROM customers", "CREATE TABLE x (y)"])
def test_a_query_cannot_change_a_database(sqlite: str, query: str) -> None:
    text = told(sqlite, query)
    assert text.endswith("nodes query: the database says: attempt to write a readonly database")
    assert values(read(sqlite)) == FILLED


def test_a_query_without_rows_is_told(sqlite: str) -> None:
    assert "nodes query: gives no rows; a SELECT is needed" in told(sqlite, "PRAGMA cache_size = 10")


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    assert told(f"sqlite:///{path}") == f"sqlite:///{path}: there is no file {str(path)!r}"
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("no database" * 100)
    assert "the database says: file is not a database" in told(f"sqlite:///{tmp_path / 'a.db'}")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "sqlalchemy":
            raise ImportError(name)
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra) as caught:
        read("sqlite://")
    words = "reading a database needs the package 'sqlalchemy'; install it with: pip install 'isthmus[sql]'"
    assert str(caught.value) == words


def test_without_the_driver_of_postgresql_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert told("postgresql://u@/db") == (
        "reading PostgreSQL needs the package 'psycopg'; install it with: pip install 'isthmus[sql]'"
    )


def test_a_database_opened_by_uri_cannot_be_changed_either(sqlite: str) -> None:
    path = quote(sqlite.removeprefix("sqlite:///"))
    address = f"sqlite:///file:{quote(path)}?uri=true"
    assert "attempt to write a readonly database" in told(address, "DROP TABLE customers")
    assert values(read(address)) == FILLED


def test_the_address_may_be_in_the_environment(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK", sqlite)
    assert values(read("env:BANK")) == FILLED
    monkeypatch.delenv("BANK")
    assert told("env:BANK") == "--sql is 'env:BANK', but the environment variable 'BANK' is not set"


@pytest.mark.parametrize("url", ["nonsense:hunter2", "postgresql://u:hunter2@host:port/db"])
def test_an_address_that_is_none_is_not_repeated(url: str) -> None:
    assert told(url) == "--sql is no URL of a database; one looks like postgresql://user@host/name"


def test_an_address_is_shown_without_its_secrets() -> None:
    address = database_address("postgres://u:hunter2@host/db?sslpassword=hunter3&sslmode=require")
    assert shown_url(address) == "postgresql+psycopg://u:***@host/db?sslmode=require&sslpassword=***"


def test_a_kind_of_database_without_a_driver_is_told() -> None:
    text = told("oracle9://u:hunter2@host/db")
    assert text.startswith("oracle9://u:***@host/db: no way to such a database: ") and "hunter2" not in text


def test_a_server_that_does_not_answer_is_told_without_the_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    text = told(f"postgresql://u:hunter2@/db?host={quote(str(tmp_path), safe='')}")
    assert ": cannot be reached: " in text and "hunter2" not in text and "***" in text


def _fill(database: Any, table: str, path: Path) -> None:
    """Make a table of a CSV file, with all columns as text but the numbers."""
    names, first, *_ = [line.split(",") for line in path.read_text().splitlines()]
    kinds = ["numeric" if value.replace(".", "").isdigit() else "text" for value in first]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    database.execute(f"CREATE TABLE {table} ({columns})")
    with database.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv, HEADER)") as copy:
        copy.write(path.read_text())


@pytest.fixture(scope="module")
def bank() -> Iterator[str]:
    """The address of a real PostgreSQL server with two tables."""
    psycopg = pytest.importorskip("psycopg", reason="install it with: pip install 'isthmus[sql]'")
    with postgres.server() as socket:
        with psycopg.connect(
            host=str(socket), user="keeper", password=postgres.PASSWORD, dbname="postgres", autocommit=True
        ) as database:
            database.execute("CREATE TABLE customers (customer text, age numeric, segment text, embedding float8[])")
            database.execute("CREATE TABLE payments (payer text, payee text, amount numeric(9, 2))")
            database.execute(
                "INSERT INTO customers VALUES ('a', 30, 'red', '{1,2}'), ('b', 41, 'blue', '{3,4}'), "
                "('c', 52, NULL, '{5,6}')"
            )
            database.execute("INSERT INTO payments VALUES ('a', 'b', 1.5), ('b', 'c', 2.5)")
            for table in ("customers", "payments"):
                _fill(database, f"north_{table}", EXAMPLE / f"north_{table}.csv")
        yield f"postgresql://keeper:{quote(postgres.PASSWORD, safe='')}@/postgres?host={quote(str(socket), safe='')}"


def test_postgresql_gives_the_same_tables(bank: str) -> None:
    assert values(read(bank)) == FILLED


def test_lists_of_numbers_come_from_postgresql_as_such(bank: str) -> None:
    raw = read(bank, "SELECT customer AS id, embedding FROM customers WHERE customer LIKE '%a%'")
    assert values(raw)["embedding"] == [[1.0, 2.0]]


def test_postgresql_s_words_are_told_and_the_other_query_is_tried_as_well(bank: str) -> None:
    lines = told(bank, "SELECT * FROM custmers", "SELECT payr FROM payments").split("\n  ")
    assert lines[0] == "import from the database: 2 problems"
    assert lines[1].startswith('nodes query: the database says: relation "custmers" does not exist')
    assert lines[2].startswith('edges query: the database says: column "payr" does not exist')


def test_nothing_can_be_changed_in_postgresql(bank: str) -> None:
    for query in ("DROP TABLE customers", "DELETE FROM customers RETURNING customer"):
        assert "in a read-only transaction" in told(bank, query)
    assert values(read(bank)) == FILLED


@pytest.mark.parametrize("password", ["wrong+one", "a b/c"])
def test_a_wrong_password_is_not_repeated(bank: str, password: str) -> None:
    text = told(bank.replace(quote(postgres.PASSWORD, safe=""), quote(password, safe="")))
    assert 'password authentication failed for user "keeper"' in text
    assert password not in text and quote(password, safe="") not in text and "keeper:***@" in text


def test_a_graph_from_postgresql_is_imported_checked_and_run(
    bank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BANK", bank)
    queries = ["--nodes-query", "SELECT * FROM north_customers", "--edges-query", "SELECT * FROM north_payments"]
    roles = ["--id", "customer", "--label", "segment", "--source", "payer", "--target", "payee", "--weight", "amount"]
    schema = str(EXAMPLE / "schema.yaml")
    code, text = call("data", "import", "--sql", "env:BANK", *queries, *roles, "--schema", schema, "--out", "north")
    assert code == 0 and "60 nodes, 180 edges, 43 feature columns" in text
    assert call("data", "check", "north", "--schema", schema)[0] == 0
    words = ["dataset.name=folder", "dataset.path=north", "rounds=2", "num_clients=2", "model.gnn.hidden=8"]
    code, text = call("run", "-q", "--out", "run", *words)
    assert code == 0 and "whole graph" in text
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = file.read_bytes()
        assert postgres.PASSWORD.encode() not in content and quote(postgres.PASSWORD, safe="").encode() not in content
