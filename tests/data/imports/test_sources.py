"""Where a graph to import may be, and that nothing is left half written."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_following, read_graph_folder
from isthmus.data.folders.tables.reading import Problems
from isthmus.data.imports.importing import Prepared, Wishes, prepare
from isthmus.data.imports.sources import read_source, write_imported

WISHES = Wishes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "nodes.csv").write_text("id,label,age\na,x,1\nb,y,2\nc,x,4\n")
    (tmp_path / "mine" / "edges.csv").write_text("source,target\na,b\nb,c\n")
    return tmp_path / "mine"


def imported(folder: Path) -> Prepared:
    problems = Problems("import")
    return prepare(read_source(str(folder), "", WISHES, problems), WISHES, problems)


def test_a_folder_with_two_tables_becomes_a_graph_folder_and_a_schema_that_it_follows(
    folder: Path, tmp_path: Path
) -> None:
    write_imported(imported(folder), tmp_path / "out", tmp_path / "schema.yaml", "csv")
    read = read_graph_folder(tmp_path / "out")
    assert read.ids == ("a", "b", "c") and read.graph.num_features == 1
    assert read_following(tmp_path / "out", tmp_path / "schema.yaml").schema == read.schema
    (tmp_path / "other.yaml").write_text((tmp_path / "schema.yaml").read_text().replace("age", "height"))
    with pytest.raises(BadInput, match=r"does not follow .*other\.yaml"):
        read_following(tmp_path / "out", tmp_path / "other.yaml")


def test_a_schema_is_not_left_alone_where_the_folder_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Prepared, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_imported(imported(folder), tmp_path / "out", tmp_path / "schema.yaml")
    assert not (tmp_path / "schema.yaml").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("postgresql://reader:secret@host/bank", "SOURCE is the address of a database"),
        ("graph.csv", "tables are given as --nodes and --edges"),
        ("graph.docx", "known: a folder, .gexf, .graphml, .pt, .pth"),
    ],
)
def test_what_is_no_graph_is_refused_with_what_would_do(source: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_source(source, "", WISHES, Problems("import"))
    assert words in str(refused.value) and "secret" not in str(refused.value)


def test_a_folder_without_one_of_the_tables_is_refused(folder: Path) -> None:
    (folder / "edges.csv").unlink()
    with pytest.raises(BadInput, match="has not one table of nodes and one of edges"):
        read_source(str(folder), "", WISHES, Problems("import"))
