from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from isthmus.data.imports.tables import read_file, read_tables
from isthmus.data.tables import Problems


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
