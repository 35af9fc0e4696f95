from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx
import pytest

from isthmus.data.folders.tables.reading import Problems, RawGraph
from isthmus.data.imports.network import read_network


def network(directed: bool = False) -> Any:
    graph = networkx.DiGraph() if directed else networkx.Graph()
    graph.add_node("a", age=30.0, group="red", label="Ann", number=10)
    graph.add_node("b", age=41.5, group="blue", label="Bo", number=20)
    graph.add_node("c", group="red", label="Cy", number=30)
    graph.add_edge("a", "b", weight=2.5)
    graph.add_edge("b", "c", weight=1.0)
    return graph


def write(path: Path, graph: Any) -> Path:
    (networkx.write_graphml if path.suffix == ".graphml" else networkx.write_gexf)(graph, path)
    return path


def read(path: Path, id_attribute: str = "", label_attribute: str = "") -> RawGraph:
    problems = Problems("import")
    raw = read_network(path, id_attribute, label_attribute, problems)
    problems.raise_if_any()
    assert raw is not None
    return raw


def told(path: Path, id_attribute: str = "") -> str:
    problems = Problems("import")
    assert read_network(path, id_attribute, "", problems) is None
    (line,) = problems.lines
    return line


def values(raw: RawGraph) -> dict[str, list[Any]]:
    return {name: column.to_pylist() for name, column in (raw.edges.columns | raw.nodes.columns).items()}


@pytest.mark.parametrize("ending", [".graphml", ".gexf"])
def test_attributes_become_columns(tmp_path: Path, ending: str) -> None:
    found = values(read(write(tmp_path / f"g{ending}", network())))
    assert found["id"] == ["a", "b", "c"] and found["group"] == ["red", "blue", "red"]
    assert found["age"] == [30.0, 41.5, None]
    ends = {frozenset(pair): w for *pair, w in zip(found["source"], found["target"], found["weight"], strict=True)}
    assert ends == {frozenset("ab"): 2.5, frozenset("bc"): 1.0}


def test_the_display_name_of_gexf_is_left_out_unless_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "g.gexf", network())
    raw = read(path)
    assert "label" not in raw.nodes.columns
    assert raw.notes == (
        "left out: label (in GEXF, the name that a picture shows; --label label takes it for the class)",
    )
    assert values(read(path, label_attribute="label"))["label"] == ["Ann", "Bo", "Cy"]
    assert values(read(write(tmp_path / "g.graphml", network())))["label"] == ["Ann", "Bo", "Cy"]


def test_nodes_may_be_known_by_an_attribute(tmp_path: Path) -> None:
    raw = read(write(tmp_path / "g.graphml", network()), "number")
    assert values(raw)["id"] == [10, 20, 30] and values(raw)["source"] == [10, 20]
    assert "number" not in raw.nodes.columns and raw.nodes.name("id") == "number"


def test_directions_are_told(tmp_path: Path) -> None:
    raw = read(write(tmp_path / "g.graphml", network(directed=True)))
    assert raw.notes == ("the file's edges have a direction; --directed keeps to it",)
    assert values(raw)["source"] == ["a", "b"]


def test_several_edges_between_two_nodes_are_all_read(tmp_path: Path) -> None:
    graph = networkx.MultiGraph()
    graph.add_edge("a", "b", weight=1.0)
    graph.add_edge("a", "b", weight=2.0)
    assert values(read(write(tmp_path / "g.graphml", graph)))["weight"] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("g.graphml", "no XML", "is no GraphML file: syntax error: line 1, column 0"),
        ("g.gexf", "<gexf><graph", "is no GEXF file: "),
        ("g.graphml", "<html></html>", "is no GraphML file that networkx can read: "),
        ("g.gexf", "<html></html>", "is no GEXF file that networkx can read: "),
        ("g.graphml", None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert told(tmp_path / name).startswith(f"{tmp_path / name}: {words}")


def test_an_attribute_that_no_node_has_is_told_with_the_nearest(tmp_path: Path) -> None:
    line = told(write(tmp_path / "g.graphml", network()), "numbr")
    known = "known: age, group, label, number. Did you mean 'number'?"
    assert line == f"g.graphml: no node has the attribute 'numbr'; {known}"
