from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.data.folders.tables.number_block import BlockColumn, BlockWriter
from isthmus.data.folders.tables.reading import Problems, Table
from isthmus.data.imports import two_tables as tables
from isthmus.data.imports import wide_text
from isthmus.data.imports.two_tables import Reading, read_file
from isthmus.data.imports.wide_text import is_wide, read_wide_text

HEAD = "id,a,b,c,d\n"
PLAIN = HEAD + "".join(f"n{row},{row},{row / 7:.4f},-0.0,{row % 3}\n" for row in range(60))
NUMBERS = {"a", "b", "c", "d"}
MISSING = ["", "na", "nan", "NA"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take tables of four numbers for wide ones, and read them in pieces of a few lines."""
    monkeypatch.setattr(wide_text, "FEWEST_NUMBERS", 4)
    monkeypatch.setattr(wide_text, "FEWEST_FOR_EACH_TEXT", 1)
    monkeypatch.setattr(wide_text, "PIECE_BYTES", 100)


def read(path: Path, delimiter: str = "") -> Table:
    table = read_file(path, delimiter, problems := Problems("x"), Reading(frozenset({"id", "note"}), single=True))
    assert table is not None and not problems.lines
    return table


def facts(table: Table) -> dict[str, Any]:
    """Return what there is to know of a table: of numbers their bits, so that -0 is not 0 and NaN is NaN."""
    found: dict[str, Any] = {"rows": table.num_rows}
    for name, column in table.columns.items():
        is_number = isinstance(column, BlockColumn)
        values = column.matrix[:, column.place].tobytes() if is_number else column.to_pylist()
        found[name] = (str(column.type), column.null_count, values)
    return found


TEXTS = {
    "plain": PLAIN,
    "lines that end in two characters": PLAIN.replace("\n", "\r\n"),
    "no line end at the end": PLAIN[:-1],
    "empty lines at the end": PLAIN + "\n\n",
    "missing numbers": PLAIN.replace(",2\n", ",\n").replace("n7,7,", "n7,NA,"),
    "words for no number": PLAIN.replace("n7,7,", "n7,nan,"),
    "words for no number that Arrow does not know": PLAIN.replace("n7,7,", "n7,NaN,"),
    "what is not finite": PLAIN.replace("n7,7,", "n7,inf,").replace("n8,8,", "n8,1e39,"),
    "spaces, signs, exponents": PLAIN.replace("n7,7,", "n7, 7 ,").replace("n8,8,", "n8,+8e-3,"),
    "more digits than a number has": PLAIN.replace("n7,7,", "n7,0.1234567890123456789012,"),
    "between two numbers": PLAIN.replace("n7,7,", "n7,1.00000005960464477539062500000000000001,"),
    "between two numbers, beside a missing one": PLAIN.replace(
        "n7,7,1.0000,", "n7,1.00000005960464477539062500000000000001,,"
    ),
    "ids in quotes": HEAD + "".join(f'"n{row}",1,2,3,4\n' for row in range(60)),
    "ids that are long, short, none and not ASCII": HEAD + "nnnnnnnnnnnn,1,2,3,4\nn,1,2,3,4\n,1,2,3,4\nñé,1,2,3,4\n",
    "names in quotes": PLAIN.replace(HEAD, '"id","a","b","c, too","d"\n'),
    "text in the middle": "a,b,id,c,note,d\n" + "".join(f"1,2,n{row},3,some text,4\n" for row in range(60)),
    "text among numbers of many digits": "a,b,id,c,note,d\n"
    + "".join(f"1.5,{row / 7},n{row},{row / 3},some text,4\n" for row in range(60)),
    "text among missing numbers": "a,b,id,c,note,d\n"
    + "".join(f"1.5,{'' if row % 2 else row},n{row},{row if row % 3 else 'NA'},some text,4\n" for row in range(60)),
    "signs": HEAD + "".join(f"n{row},-{row},{row - 9:.3f},-.5,-0.000\n" for row in range(60)),
    "points without digits on one side": HEAD
    + "".join(f"n{row},.{row},{row}.,0{row},00.{row}0\n" for row in range(60)),
    "numbers of all lengths": HEAD + "".join(f"n{row},{row / 7:.{row % 20}f},1.25,-3,4\n" for row in range(60)),
    "text at the end": "a,b,c,d,note,id\n" + "".join(f"1,2,3,4,some text,n{row}\n" for row in range(60)),
    "no text": "a,b,c,d\n" + "".join(f"{row},2.5,3,4\n" for row in range(60)),
    "counts": HEAD + "".join(f"n{row},0,{row % 4},0,9\n" for row in range(60)),
    "counts, few of two digits": HEAD + "".join(f"n{row},0,{row % 13},0,9\n" for row in range(300)),
    "counts, few of them missing": HEAD + "".join(f"n{row},0,{'' if row % 40 == 3 else 0},0,9\n" for row in range(300)),
    "counts, the first of two digits": HEAD + "n,12,0,0,9\n" * 30,
    "counts, the last of them missing": HEAD + "n,0,1,2,3\n" * 30 + "n,0,1,2,\n",
    "counts, many of two digits": HEAD + "".join(f"n{row},0,{row},0,{row}\n" for row in range(300)),
    "first lines longer than all others": HEAD + "n,0.123456789,0.123456789,1,2\n" * 3 + "n,0,0,0,0\n" * 200,
    "one row": HEAD + "n,1,2,3,4\n",
}


@pytest.mark.parametrize("few", [0.0, 0.5])
@pytest.mark.parametrize("name", TEXTS)
def test_a_wide_text_is_read_as_the_usual_way_reads_it(
    name: str, few: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_bytes(TEXTS[name].encode())
    monkeypatch.setattr(wide_text, "OTHERS_AMONG_COUNTS", few)
    was_plain = []

    def spied(*args: Any) -> Any:
        found = read_wide_text(*args)
        was_plain.append(found is not None)
        return found

    monkeypatch.setattr(tables, "read_wide_text", spied)
    wide = read(tmp_path / "a.csv")
    assert was_plain == [True]
    monkeypatch.setattr(tables, "is_wide", lambda *numbers: False)
    assert facts(wide) == facts(read(tmp_path / "a.csv"))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_separators_are_as_good(delimiter: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(PLAIN)
    (tmp_path / "b.csv").write_text(PLAIN.replace(",", delimiter))
    assert facts(read(tmp_path / "b.csv", delimiter)) == facts(read(tmp_path / "a.csv"))


ODD = {
    "a separator in quotes": PLAIN.replace("n7,7,", '"n,7",7,'),
    "a line end in quotes": PLAIN.replace("n7,7,", '"n\n7",7,'),
    "a quotation mark in quotes": PLAIN.replace("n7,7,", '"n""7",7,'),
    "a quotation mark alone": PLAIN.replace("n7,7,", '",7,'),
    "a number in quotes": PLAIN.replace("n7,7,", 'n7,"7",'),
    "a line end in a name": PLAIN.replace(HEAD, '"i\nd",a,b,c,d\n'),
    "a word for a number": PLAIN.replace("n7,7,", "n7,much,"),
    "a short row": PLAIN.replace("n7,7,", "n7,"),
    "a short row before a long one": PLAIN.replace("n7,7,", "n7,").replace("n8,8,", "n8,8,8,"),
    "numbers alone, a short row before a long one": HEAD
    + "1,2,3,4,5\n" * 9
    + "1,2,3,4\n1,2,3,4,5,6\n"
    + "1,2,3,4,5\n" * 9,
    "an empty line": PLAIN.replace("\nn3,", "\n\nn3,"),
    "an empty line at the start": "\n" + PLAIN,
    "lines that end in a carriage return": PLAIN.replace("\n", "\r"),
    "one line that ends in a carriage return": PLAIN.replace("\nn7,", "\rn7,"),
    "a carriage return within a line": PLAIN.replace("n7,7,", "n7,7\r,"),
    "a control character": PLAIN.replace("n7,7,", "n7,7\x01,"),
    "a letter among counts": HEAD + "n,0,0,0,0\n" * 60 + "n,0,x,0,0\n",
}


@pytest.mark.parametrize("name", ODD)
def test_a_text_that_is_not_plain_is_left_to_the_usual_way(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_text, "PIECE_BYTES", 1 << 20)
    (tmp_path / "a.csv").write_bytes(ODD[name].encode())
    assert read_wide_text(tmp_path / "a.csv", ",", HEAD.strip().split(","), NUMBERS, MISSING) is None


def test_text_that_is_not_utf8_is_left_to_the_usual_way(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(PLAIN.replace("n7,", "ñ7,").encode("latin-1"))
    assert read_wide_text(tmp_path / "a.csv", ",", HEAD.strip().split(","), NUMBERS, MISSING) is None


def test_lines_are_counted_where_room_for_as_many_as_there_may_be_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(PLAIN)
    plain = facts(read(tmp_path / "a.csv"))
    asked = []

    def scarce(num_rows: int, num_columns: int) -> BlockWriter:
        asked.append(num_rows)
        if num_rows > PLAIN.count("\n") + 1:
            raise MemoryError
        return BlockWriter(num_rows, num_columns)

    monkeypatch.setattr(wide_text, "BlockWriter", scarce)
    assert facts(read(tmp_path / "a.csv")) == plain
    assert asked == [len(PLAIN) // 5 + 1, PLAIN.count("\n") + 1]


def test_a_file_of_nothing_but_marks_has_room(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEAD + ",,,,\n" * 60)
    found = read_wide_text(tmp_path / "a.csv", ",", HEAD.strip().split(","), NUMBERS, MISSING)
    assert found is not None and found[1] == 60
    assert [column.null_count for column in found[0][1:]] == [60] * 4


def test_no_more_of_a_text_is_held_than_threads_can_read() -> None:
    taken = 0

    def pieces() -> Iterator[int]:
        nonlocal taken
        for piece in range(1, 101):
            taken = piece
            yield piece

    for place, made in enumerate(wide_text._in_threads(lambda piece: -piece, pieces(), 2)):
        assert made == -(place + 1) and taken - place <= 3


def test_numbers_stand_side_by_side_in_one_matrix(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(PLAIN)
    columns = read(tmp_path / "a.csv").columns
    matrix = columns["a"].matrix
    assert matrix.dtype == np.float32 and matrix.shape == (60, 4) and matrix.flags.c_contiguous
    assert all(columns[name].matrix is matrix for name in NUMBERS)
    assert not np.signbit(matrix).any()


def test_a_table_is_wide_by_its_numbers_and_not_by_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_text, "FEWEST_NUMBERS", 1000)
    monkeypatch.setattr(wide_text, "FEWEST_FOR_EACH_TEXT", 50)
    assert is_wide(1000, 20) and not is_wide(999, 0) and not is_wide(1000, 21) and is_wide(6775, 2)
