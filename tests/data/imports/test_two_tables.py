from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse

from isthmus.core.errors import BadInput
from isthmus.data.folders.schema import derive, encoding
from isthmus.data.folders.schema.derive import Choices
from isthmus.data.folders.schema.schema import Category, Number, Schema
from isthmus.data.folders.tables import number_block
from isthmus.data.folders.tables import reading as data_tables
from isthmus.data.folders.tables.reading import Problems
from isthmus.data.imports import two_tables as tables
from isthmus.data.imports.importing import Prepared, Wishes, described, prepare, reading_of
from isthmus.data.imports.two_tables import Reading, read_file, read_tables


def told(path: Path, delimiter: str = "") -> str:
    problems = Problems("import")
    assert read_file(path, delimiter, problems) is None
    (line,) = problems.lines
    return line


def test_values_of_a_text_file_stay_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,x,note\n007,1,"two\nlines"\nNA,,\n', encoding="utf-8")
    table = read_file(tmp_path / "a.csv", "", problems := Problems("import"))
    assert table is not None and not problems.lines
    found = {name: column.to_pylist() for name, column in table.columns.items()}
    assert found == {"id": ["007", "NA"], "x": ["1", ""], "note": ["two\nlines", ""]}


@pytest.mark.parametrize(("name", "mark", "option"), [("a.tsv", "\t", ""), ("a.csv", ";", ";"), ("a.CSV", ",", "")])
def test_values_are_separated_by_what_the_name_or_the_owner_says(
    tmp_path: Path, name: str, mark: str, option: str
) -> None:
    (tmp_path / name).write_text(f"id{mark}x\na{mark}1\n", encoding="utf-8")
    table = read_file(tmp_path / name, option, Problems("import"))
    assert table is not None and list(table.columns) == ["id", "x"]


def test_a_column_may_turn_from_numbers_to_words_late(tmp_path: Path) -> None:
    rows = "".join(f"n{row},{row}\n" for row in range(200_000))
    (tmp_path / "a.csv").write_text(f"id,x\n{rows}last,word\n", encoding="utf-8")
    table = read_file(tmp_path / "a.csv", "", Problems("import"))
    assert table is not None and table.columns["x"][-1].as_py() == "word"


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1, 2], "x": [[1.0], [2.0]]}), tmp_path / "a.pq")
    table = read_file(tmp_path / "a.pq", "", Problems("import"))
    assert table is not None and table.columns["x"].to_pylist() == [[1.0], [2.0]]


def test_what_is_wrong_with_both_files_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    problems = Problems("import")
    assert read_tables(tmp_path / "a.xlsx", tmp_path / "b.csv", "", problems) is None
    assert problems.lines == [
        f"{tmp_path / 'a.xlsx'}: its name ends in '.xlsx'; known: .csv, .parquet, .pq, .tsv",
        f"{tmp_path / 'b.csv'}: cannot be read: No such file or directory",
    ]


def test_a_file_of_another_kind_than_its_name_is_told(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_text("id,x\n")
    ending = "; its name must end accordingly"
    assert told(tmp_path / "a.csv").endswith(f"by its content it is a Parquet file, not text{ending}")
    assert told(tmp_path / "a.parquet").endswith(f"by its content it is no Parquet file{ending}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read: Empty CSV file"),
        (b"id,x\na,1,2\n", "cannot be read: CSV parse error: Row #2: Expected 2 columns, got 3"),
        (b"id,x\na\xff,1\n", "cannot be read: "),
        (b"id,x,x\na,1,2\n", "more than one column named 'x'"),
        (b"id;x;y\na;1;2\n", "has the one column 'id;x;y'; add --delimiter ';'"),
    ],
)
def test_text_that_is_no_table_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    assert words in told(tmp_path / "a.csv")


def test_a_damaged_parquet_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing of use")
    assert told(tmp_path / "a.parquet").startswith(f"{tmp_path / 'a.parquet'}: cannot be read: ")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    assert told(tmp_path / "a.csv") == f"{tmp_path / 'a.csv'}: cannot be read: Is a directory"


def wide(path: Path, columns: int, rows: int = 40) -> Path:
    """Write a table of nodes with many columns of numbers, one of words, and one that turns to words in its middle."""
    path.mkdir()
    values = np.arange(rows * columns).reshape(rows, columns) / 7 - 3
    names = ["id", "label", "kind", *(f"w{number}" for number in range(columns))]
    lines = [",".join(names)]
    for row in range(rows):
        lines.append(
            ",".join([f"0{row}", str(row % 2), "xy"[row % 2], *(repr(value) for value in values[row].tolist())])
        )
    (path / "nodes.csv").write_text("\n".join(lines) + "\n")
    (path / "edges.csv").write_text("source,target\n00,01\n")
    return path


def prepared(path: Path, **wishes: Any) -> Prepared:
    wanted = Wishes(**wishes)
    problems = Problems("import")
    raw = read_tables(path / "nodes.csv", path / "edges.csv", "", problems, reading_of(wanted))
    return prepare(raw, wanted, problems)


def test_numbers_read_in_blocks_have_the_bits_of_numbers_read_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wide(tmp_path / "wide", 30)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 2048)
    monkeypatch.setattr(tables, "MOST_BLOCKS", 1 << 20)
    fast = prepared(path)
    monkeypatch.setattr(Reading, "may_be_number", lambda self, name: False)
    slow = prepared(path)
    assert fast.schema == slow.schema and fast.notes == slow.notes and fast.edges.equals(slow.edges)
    assert fast.nodes.equals(slow.nodes) and fast.nodes.column("id")[3].as_py() == "03"
    assert fast.nodes.column("w7").type == pa.float32()


def test_what_has_a_role_or_is_a_category_is_read_as_told(tmp_path: Path) -> None:
    path = wide(tmp_path / "wide", 3)
    (path / "nodes.csv").write_text("id,w0,w1\n007,01,1\n008,02,2\n009,01,1\n")
    (path / "edges.csv").write_text("source,target\n007,008\n")
    made = prepared(path, choices=Choices(category=("w0",)))
    assert made.nodes.column("id").to_pylist() == ["007", "008", "009"]
    assert made.schema.features == (Category("w0", ("01", "02")), Number("w1"))
    with_schema = prepared(path, schema=Schema((Category("w0", ("01", "02")), Number("w1", mean=1.0, std=2.0))))
    assert with_schema.nodes.column("w1").to_pylist() == [0.0, 0.5, 0.0]


def test_a_column_that_turns_to_words_is_told_by_row_and_the_others_stay_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wide(tmp_path / "wide", 6)
    text = (path / "nodes.csv").read_text().splitlines()
    for row, place in ((30, 5), (31, 6), (32, 7), (33, 8)):
        cells = text[row].split(",")
        cells[place] = "n/A" if place == 8 else "much"
        text[row] = ",".join(cells)
    (path / "nodes.csv").write_text("\n".join(text) + "\n")
    with pytest.raises(BadInput) as caught:
        prepared(path)
    lines = str(caught.value).split("\n  ")[1:]
    assert lines == [
        "nodes.csv row 30: w2 is 'much'; a number is needed",
        "nodes.csv row 31: w3 is 'much'; a number is needed",
        "nodes.csv row 32: w4 is 'much'; a number is needed",
        "nodes.csv row 33: w5 is nan; a finite number is needed",
    ]


@pytest.mark.parametrize("columns", [300, 600])
def test_a_wide_table_is_one_matrix_in_single_precision_and_no_column_is_looked_at_by_itself(
    tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wide(tmp_path / "wide", columns)
    calls = Counter[str]()
    for module, name in ((data_tables, "numbers"), (encoding, "parsed_numbers"), (derive, "parsed_numbers")):
        plain = getattr(module, name)

        def counted(column: Any, plain: Any = plain, key: str = f"{module.__name__}.{name}") -> Any:
            calls[key] += 1
            return plain(column)

        monkeypatch.setattr(module, name, counted)
    made = prepared(path)
    assert made.features.dtype == np.float32 and made.features.shape == (40, columns + 3)
    # The words "x" and "y" are the only column that is looked at by itself, to see whether they are numbers.
    assert calls == {"isthmus.data.folders.schema.derive.parsed_numbers": 1}


def test_a_column_with_missing_numbers_is_filled_in_and_the_table_read_stays_as_it_is(tmp_path: Path) -> None:
    path = wide(tmp_path / "wide", 3)
    (path / "nodes.csv").write_text("id,w2,w0,w1,more\n00,1,-0.0,3,9\n01,NA,5,6,9\n")
    schema = Schema((Number("w0"), Number("w1"), Number("w2", fill=7.0)))
    raw = read_tables(
        path / "nodes.csv", path / "edges.csv", "", problems := Problems("x"), reading_of(Wishes(schema=schema))
    )
    assert raw is not None
    made = prepare(raw, Wishes(schema=schema), problems)
    assert [made.nodes.column(name).to_pylist() for name in ("w0", "w1", "w2")] == [[0, 5], [3, 6], [1, 7]]
    assert not np.signbit(made.nodes.column("w0").to_numpy()).any()
    assert made.notes[-1] == "w2: 1 missing number, filled in with 7"
    assert np.isnan(raw.nodes.columns["w2"].to_pylist()[1])


def test_an_empty_column_of_parquet_is_left_out_and_one_with_gaps_is_told_by_row(tmp_path: Path) -> None:
    path = wide(tmp_path / "wide", 3)
    gaps = pa.array([1.0, None, float("inf")])
    columns = {"id": pa.array(["00", "01", "02"]), "no": pa.array([None] * 3, pa.float64()), "a": pa.array([1, 2, 3])}
    parquet.write_table(pa.table(columns | {"gaps": gaps}), path / "nodes.parquet")
    wanted, problems = Wishes(), Problems("import")
    raw = read_tables(path / "nodes.parquet", path / "edges.csv", "", problems, reading_of(wanted))
    with pytest.raises(BadInput) as caught:
        prepare(raw, wanted, problems)
    assert str(caught.value).split("\n  ")[1:] == [
        "nodes.parquet row 2: gaps is nan; a finite number is needed",
        "nodes.parquet row 3: gaps is inf; a finite number is needed",
    ]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_rows_are_all_read_whatever_ends_a_line_and_whether_values_have_quotes(tmp_path: Path, end: str) -> None:
    lines = ["id,w,note", *(f"{row},{row}.5,plain" for row in range(50)), '50,50.5,"two\nlines"', "51,51.5,last"]
    (tmp_path / "nodes.csv").write_bytes(end.join(lines).encode())
    table = read_file(tmp_path / "nodes.csv", "", Problems("x"), Reading(frozenset({"id"}), single=True))
    assert table is not None and table.num_rows == 52
    assert table.columns["w"].to_pylist() == [row + 0.5 for row in range(52)]
    assert table.columns["note"].to_pylist()[-2:] == ["two\nlines", "last"]


def test_few_numbers_of_many_columns_are_kept_as_scipy_would_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_block, "NUMBERS_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    matrix = (rng.random((9, 5)) * (rng.random((9, 5)) < 0.3)).astype(np.float32)
    made, plain = number_block.sparse_rows_of(matrix), sparse.csr_matrix(matrix)
    for part in ("data", "indices", "indptr"):
        assert getattr(made, part).dtype == getattr(plain, part).dtype
        assert getattr(made, part).tolist() == getattr(plain, part).tolist()
    assert number_block.num_set(matrix) == plain.nnz


@pytest.mark.parametrize("fixed", [True, False])
def test_vectors_and_numbers_of_parquet_are_rounded_block_by_block(
    tmp_path: Path, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BLOCK_NUMBERS", 12)
    monkeypatch.setattr(tables, "COLUMNS_AT_ONCE", 2)
    values = np.random.default_rng(0).random((9, 4))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 4)
    columns = {"id": pa.array(range(9)), "v": vectors if fixed else vectors.cast(pa.list_(pa.float64()))}
    columns |= {"a": pa.array(values[:, 0]), "b": pa.array([None, *range(8)]), "c": pa.array([True] * 9)}
    parquet.write_table(pa.table(columns), tmp_path / "nodes.parquet", row_group_size=5)
    sizes = []
    plain = number_block.read_only_numbers
    monkeypatch.setattr(number_block, "read_only_numbers", lambda column: sizes.append(len(column)) or plain(column))
    table = read_file(tmp_path / "nodes.parquet", "", Problems("x"), Reading(frozenset({"id"}), single=True))
    assert table is not None and list(table.columns) == list(columns) and max(sizes) == 12
    assert table.columns["v"].type.value_type == pa.float32() and table.columns["v"].num_chunks == 1
    assert table.columns["v"].to_pylist() == values.astype(np.float32).tolist()
    assert table.columns["a"].to_pylist() == values[:, 0].astype(np.float32).tolist()
    assert np.isnan(table.columns["b"][0].as_py()) and table.columns["c"].to_pylist() == [1.0] * 9
    assert table.columns["id"].type == pa.int64()


@pytest.mark.parametrize("fixed", [True, False])
def test_lists_and_numbers_that_are_missing_stay_so_in_single_precision(
    tmp_path: Path, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BLOCK_NUMBERS", 4)
    lists = [[1.5, -0.0], None, [None, 2.0], [1e39, 0.1], [3.0, 4.0] if fixed else []]
    columns = {"id": pa.array(range(5)), "v": pa.array(lists, pa.list_(pa.float64(), 2 if fixed else -1))}
    parquet.write_table(pa.table(columns), tmp_path / "nodes.parquet", row_group_size=3)
    table = read_file(tmp_path / "nodes.parquet", "", Problems("x"), Reading(frozenset({"id"}), single=True))
    assert table is not None and table.columns["v"].null_count == 1
    found = table.columns["v"].to_pylist()
    assert found[0] == [1.5, 0.0] and np.signbit(found[0][1]) and found[1] is None
    assert np.isnan(found[2][0]) and found[2][1] == 2.0 and found[3] == [np.inf, float(np.float32(0.1))]
    assert found[4] == lists[4]


def test_many_features_are_told_in_a_line_for_each_kind() -> None:
    features = [Number(f"w{number}") for number in range(5000)] + [Category("k", ("a", "b"))]
    lines = described(Schema(tuple(features)))
    assert lines == [
        "number: 5000 features, 5000 columns (w0, w1, w2, ... w4999; --verbose tells all)",
        "category: 1 feature, 3 columns (k; --verbose tells all)",
    ]
    assert len(described(Schema(tuple(features)), verbose=True)) == 5001
