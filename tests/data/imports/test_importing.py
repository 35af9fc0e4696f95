from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import GraphFolder, read_graph_folder
from isthmus.data.folders.schema.derive import Choices
from isthmus.data.folders.schema.schema import Category, Number, Schema, Text, Vector
from isthmus.data.folders.schema.vocabulary import words
from isthmus.data.folders.tables.reading import Problems, RawGraph, Table
from isthmus.data.imports.importing import EdgeRules, Prepared, Roles, Wishes, prepare
from tests.data.strategies import many


def table(file: str, columns: dict[str, list[Any]], problems: Problems) -> Table:
    arrays = {name: pa.chunked_array([pa.array(values)]) for name, values in columns.items()}
    return Table(file, arrays, len(next(iter(columns.values()))), problems)


def ready(nodes: dict[str, list[Any]], edges: dict[str, list[Any]] | None = None, **wishes: Any) -> Prepared:
    problems = Problems("import")
    links = table("links.csv", edges or {"source": ["a"], "target": ["b"]}, problems)
    return prepare(RawGraph(table("people.csv", nodes, problems), links), Wishes(**wishes), problems)


def folder(path: Path, prepared: Prepared, **options: Any) -> GraphFolder:
    prepared.write(path / "graph")
    return read_graph_folder(path / "graph", **options)


def told(nodes: dict[str, list[Any]], edges: dict[str, list[Any]] | None = None, **wishes: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        ready(nodes, edges, **wishes)
    head, *lines = str(caught.value).split("\n  ")
    assert head.startswith(f"import: {len(lines)} problem")
    return lines


AB = {"id": ["a", "b"], "x": [1.0, 2.0]}


def test_columns_of_all_kinds_become_features(tmp_path: Path) -> None:
    nodes = {
        "id": ["a", "b", "c", "d"],
        "age": ["30", " 40", "50", "60"],
        "member": [True, False, True, True],
        "country": ["AT", "DE", "AT", "DE"],
        "embedding": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
        "about": ["likes red wine", "likes red cars", "a red wine", "wine and more Wine"],
        "name": ["Jo", "Al", "Cy", "Di"],
        "none": [None, None, None, None],
        "label": ["x", "y", None, "x"],
    }
    prepared = ready(nodes)
    assert prepared.schema == Schema(
        (
            Number("age"),
            Number("member"),
            Category("country", ("AT", "DE")),
            Vector("embedding", 2),
            Text("about", ("likes", "red", "wine")),
        ),
        ("x", "y"),
    )
    assert prepared.notes == (
        "left out: name (4 distinct values in 4 rows; --category or --text takes it in)",
        "left out: none (empty)",
        "about: 3 of 12 words not in the vocabulary, dropped: 'and' 1, 'cars' 1, 'more' 1",
    )
    read = folder(tmp_path, prepared)
    assert read.graph.x.tolist() == [
        [30, 1, 1, 0, 0, 1, 2, 1, 1, 1],
        [40, 0, 0, 1, 0, 3, 4, 1, 1, 0],
        [50, 1, 1, 0, 0, 5, 6, 0, 1, 1],
        [60, 1, 0, 1, 0, 7, 8, 0, 0, 2],
    ]
    assert read.feature_names == prepared.schema.columns and read.schema == prepared.schema
    assert read.graph.y.tolist() == [0, 1, -1, 0] and read.graph.class_names == ("x", "y")
    assert (tmp_path / "graph" / "features.npz").is_file()


def test_numbers_are_standardised_by_the_data_and_the_next_silo_by_the_first() -> None:
    first = ready({"id": ["a", "b"], "x": [1.0, 3.0], "same": [5, 5]}, choices=Choices(standardize=True))
    assert first.schema.features == (Number("x", 2.0, 1.0), Number("same", 5.0, 1.0))
    assert first.nodes["x"].to_pylist() == [-1.0, 1.0] and first.nodes["same"].to_pylist() == [0.0, 0.0]
    second = ready({"id": ["a", "b"], "same": [6, 7], "x": [2.0, 9.0], "more": [1, 2]}, schema=first.schema)
    assert second.nodes.column_names == ["id", "x", "same"] and second.nodes["x"].to_pylist() == [0.0, 7.0]
    assert second.notes == ("left out: more (not in the schema)",)


@pytest.mark.parametrize(
    ("unknown", "columns", "rows", "notes"),
    [
        (
            "other",
            ["c=AT", "c=(other)"],
            [[1, 0], [0, 1], [0, 1], [0, 0]],
            [
                "c: 2 values not in the vocabulary, counted in 'c=(other)': 'LI' 2",
                "c: 1 missing value, given on as zeros",
            ],
        ),
        (
            "drop",
            ["c=AT"],
            [[1], [0], [0], [0]],
            ["c: 2 values not in the vocabulary, dropped: 'LI' 2", "c: 1 missing value, given on as zeros"],
        ),
    ],
)
def test_values_not_in_the_vocabulary_are_counted(
    unknown: str, columns: list[str], rows: list[list[float]], notes: list[str]
) -> None:
    nodes = {"id": ["a", "b", "e", "f"], "c": ["AT", "LI", "LI", None]}
    prepared = ready(nodes, schema=Schema((Category("c", ("AT",), unknown),)))
    assert prepared.nodes.column_names == ["id", *columns]
    assert [list(row.values())[1:] for row in prepared.nodes.to_pylist()] == rows
    assert list(prepared.notes) == notes


def test_a_category_can_be_refused_by_row() -> None:
    schema = Schema((Category("c", ("AT", "DE"), "refuse"),))
    assert told({"id": ["a", "b"], "c": ["AT", "LI"]}, schema=schema) == [
        "people.csv row 2: c is 'LI', which is none of the schema's values 'AT', 'DE'"
    ]


def test_missing_numbers_are_refused_or_filled_in() -> None:
    nodes = {"id": ["a", "b", "c"], "x": ["1", "NA", ""]}
    assert told(nodes) == [
        "people.csv row 2: x is nan; a finite number is needed",
        "people.csv row 3: x is nan; a finite number is needed",
    ]
    prepared = ready(nodes, schema=Schema((Number("x", fill=7.0),)))
    assert prepared.nodes["x"].to_pylist() == [1.0, 7.0, 7.0]
    assert prepared.notes == ("x: 2 missing numbers, filled in with 7",)


def test_all_problems_are_told_at_once_with_the_owner_s_names() -> None:
    nodes = {
        "customer": ["a", "b", "a", ""],
        "age": ["1", "2", "forty", "nan"],
        "group": ["red", "blue", "pink", "red"],
        "part": ["train", "dev", "test", ""],
    }
    edges = {"from": ["a", "b", "b"], "to": ["z", "a", "a"], "amount": ["1", "much", "2"]}
    roles = Roles("customer", "group", "part", "from", "to", "amount")
    schema = Schema((Number("age"), Number("agee")), ("red", "blue"))
    assert told(nodes, edges, roles=roles, schema=schema) == [
        "people.csv row 4: customer is empty",
        "people.csv row 3: customer 'a' is taken by row 1",
        "people.csv row 3: age is 'forty'; a number is needed",
        "people.csv row 4: age is nan; a finite number is needed",
        "people.csv: no column 'agee', which the schema has as number; known: age. Did you mean 'age'?",
        "people.csv row 3: group 'pink' is none of the class names 'red', 'blue'",
        "people.csv row 2: part is 'dev'; known: train, val, test, or nothing",
        "links.csv row 1: to 'z' is no id of people.csv",
        "links.csv row 2: amount is 'much'; a number is needed",
    ]


@pytest.mark.parametrize(
    ("nodes", "edges", "wishes", "line"),
    [
        (
            AB,
            None,
            {"roles": Roles(id="idd")},
            "people.csv: no column 'idd'; known: id, x. Did you mean 'id'?",
        ),
        (
            {"customer": ["a"], "x": [1]},
            None,
            {},
            "people.csv: no column 'id'; known: customer, x. Name the column that has it: --id COLUMN",
        ),
        (AB, {"from": ["a"], "target": ["b"]}, {}, "links.csv: no column 'source'; known: from, target."),
        ({"id": [], "x": []}, None, {}, "people.csv: the table is empty; at least one node is needed"),
        ({"id": ["a", "b"]}, None, {}, "people.csv: no column that can be a feature; a graph needs at least one"),
        (
            {"id": ["a", "b"], "c": ["(other)", "u"]},
            None,
            {"choices": Choices(category=("c",))},
            "people.csv: more than one feature column would have the name 'c=(other)'; rename or ignore a column",
        ),
        (AB, None, {"choices": Choices(ignore=("y",))}, "people.csv: --ignore names 'y'; known: x."),
        (AB, None, {"renamed": {"y": "x"}}, "people.csv: --rename names 'y'; known: x."),
        (
            {"id": ["a", "b"], "x": [1, 2], "y": [1, 2]},
            None,
            {"renamed": {"y": "x"}},
            "people.csv: more than one column named 'x'",
        ),
        (
            {"id": ["a", "b"], "x": [1, 2], "label": [1, 2], "group": ["u", "v"]},
            None,
            {"roles": Roles(label="group")},
            "people.csv: the feature 'label' has a name that a graph folder keeps for something else; "
            "give the column another name, or leave it out",
        ),
        (
            {"id": ["a", "b"], "x": [1, 2], "label": ["u", "v"]},
            None,
            {"schema": Schema((Number("x"),))},
            "people.csv: has labels (label), but the schema names no classes",
        ),
        (
            AB,
            None,
            {"schema": Schema((Category("x"),))},
            "schema: feature 'x' has no vocabulary yet; --write-schema takes one from the data",
        ),
        (
            {"id": ["a", "b"], "v": [[1.0, 2.0], [1.0]]},
            None,
            {"schema": Schema((Vector("v", 2),))},
            "people.csv row 2: v is of length 1; 2 numbers are needed",
        ),
        (
            {"id": ["a", "b"], "v": ["1", "2"]},
            None,
            {"schema": Schema((Vector("v", 2),))},
            "people.csv: column 'v' is of type string; lists of numbers are needed",
        ),
        (
            {"id": ["a", "b"], "v": [[1], [2]]},
            None,
            {"schema": Schema((Number("v"),))},
            "people.csv: column 'v' is of type list<item: int64>; numbers are needed",
        ),
        ({"id": ["a", "b"], "x": [1e300, 1]}, None, {}, "people.csv row 1: x is 1e+300; a finite number is needed"),
        (
            AB,
            {"source": ["a", "b"], "target": ["b", "a"], "weight": [1, 2]},
            {},
            "links.csv row 2: weight is 2.0, but row 1 tells the same edge with 1.0",
        ),
        (
            AB,
            {"source": ["a"], "target": ["b"], "weight": [0]},
            {"edge_rules": EdgeRules(repeated="sum")},
            "links.csv row 1: weight is 0.0; a finite number above 0 is needed",
        ),
    ],
)
def test_each_problem_names_its_place(
    nodes: dict[str, list[Any]], edges: dict[str, list[Any]] | None, wishes: dict[str, Any], line: str
) -> None:
    assert any(found.startswith(line) for found in told(nodes, edges, **wishes)), told(nodes, edges, **wishes)


def test_a_renamed_column_is_told_by_the_owner_s_name() -> None:
    nodes = {"id": ["a", "b"], "alter": ["x", "2"]}
    assert told(nodes, renamed={"alter": "age"}, schema=Schema((Number("age"),))) == [
        "people.csv row 1: alter is 'x'; a number is needed"
    ]


def test_a_draft_gets_its_vocabularies_from_the_data() -> None:
    draft = Schema((Number("x", 3.0, 2.0), Number("y"), Category("c", unknown="drop"), Text("t", None, 1, 2)), ())
    nodes = {"id": ["a", "b"], "x": [1, 2], "y": [0, 2], "c": [2, 10], "t": ["so so it", "it is"], "label": ["u", "v"]}
    prepared = ready(nodes, schema=draft, fill=True, choices=Choices(standardize=True))
    assert prepared.schema == Schema(
        (
            Number("x", 3.0, 2.0),
            Number("y", 1.0, 1.0),
            Category("c", ("2", "10"), "drop"),
            Text("t", ("is", "it"), 1, 2),
        ),
        ("u", "v"),
    )


@pytest.mark.parametrize(
    ("labels", "classes", "y"),
    [
        ([1, 3, -1], ("1", "3"), [0, 1, -1]),
        (["1.0", "", "3.0"], ("1", "3"), [0, -1, 1]),
        (["10", "9", "10"], ("9", "10"), [1, 0, 1]),
        ([True, False, None], ("false", "true"), [1, 0, -1]),
        (["b", "a", " "], ("a", "b"), [1, 0, -1]),
    ],
)
def test_classes_are_the_labels_in_order(
    tmp_path: Path, labels: list[Any], classes: tuple[str, ...], y: list[int]
) -> None:
    read = folder(tmp_path, ready({"id": ["a", "b", "c"], "x": [1, 2, 3], "label": labels}))
    assert read.graph.class_names == classes and read.graph.y.tolist() == y


def test_given_classes_stand_also_those_not_seen(tmp_path: Path) -> None:
    read = folder(tmp_path, ready({**AB, "label": ["u", "v"]}, classes=("w", "v", "u")))
    assert read.graph.y.tolist() == [2, 1] and read.graph.num_classes == 3


EDGES = {"source": ["a", "b", "b", "a"], "target": ["b", "a", "c", "b"], "weight": [1.0, 2.0, 5.0, 4.0]}


@pytest.mark.parametrize(
    ("rules", "rows"),
    [
        (EdgeRules(repeated="sum"), [("a", "b", 7.0), ("b", "c", 5.0)]),
        (EdgeRules(repeated="max"), [("a", "b", 4.0), ("b", "c", 5.0)]),
        (EdgeRules(repeated="mean"), [("a", "b", 7 / 3), ("b", "c", 5.0)]),
        (EdgeRules(directed=True, repeated="sum"), [("a", "b", 5.0), ("b", "a", 2.0), ("b", "c", 5.0)]),
    ],
)
def test_edges_told_again_are_put_together(rules: EdgeRules, rows: list[tuple[str, str, float]]) -> None:
    prepared = ready({"id": ["a", "b", "c"], "x": [1, 2, 3]}, EDGES, edge_rules=rules)
    found = [tuple(row.values()) for row in prepared.edges.to_pylist()]
    assert [row[:2] for row in found] == [row[:2] for row in rows]
    assert np.allclose([row[2] for row in found], [row[2] for row in rows])


def test_without_weights_the_sum_is_how_often_an_edge_is_told() -> None:
    edges = {"source": ["a", "b"], "target": ["b", "a"]}
    assert ready(AB, edges, edge_rules=EdgeRules(repeated="sum")).edges.to_pylist() == [
        {"source": "a", "target": "b", "weight": 2.0}
    ]


def test_edges_to_unknown_nodes_and_loops_are_dropped_and_counted() -> None:
    edges = {"source": ["a", "a", "a", "z"], "target": ["b", "z", "a", "z"], "weight": [1.0, 2.0, 3.0, 4.0]}
    prepared = ready(AB, edges, edge_rules=EdgeRules(unknown_ends="drop"))
    assert prepared.edges.to_pylist() == [{"source": "a", "target": "b", "weight": 1.0}]
    assert prepared.notes == (
        "links.csv: 2 edges to unknown nodes dropped",
        "links.csv: 1 edge from a node to itself dropped",
    )


def test_directions_are_kept_for_whoever_reads_them(tmp_path: Path) -> None:
    prepared = ready(AB, {"source": ["b"], "target": ["a"]})
    assert folder(tmp_path, prepared, undirected=False).graph.edge_index.tolist() == [[1], [0]]


texts = st.text("ab cé,.", max_size=12)
rows = st.lists(
    st.tuples(
        st.floats(-1e6, 1e6, width=32),
        st.sampled_from(["AT", "DE", "NO", "1", ""]),
        texts,
        st.sampled_from(["u", "v", ""]),
    ),
    min_size=1,
    max_size=12,
)


@many
@given(rows, st.sampled_from(["csv", "parquet"]), st.data())
def test_two_silos_with_one_schema_have_the_same_columns(
    tmp_path_factory: pytest.TempPathFactory,
    people: list[tuple[float, str, str, str]],
    format: str,
    data: st.DataObject,
) -> None:
    """The second silo has the first one's rows in another order: its features must be the same, row by row."""
    order = data.draw(st.permutations(range(len(people))))
    choices = Choices(category=("c",), text=("t",), min_count=1, standardize=True)
    place = tmp_path_factory.mktemp("silos")

    def silo(name: str, chosen: list[int], **wishes: Any) -> GraphFolder:
        columns = zip(*(people[row] for row in chosen), strict=True)
        nodes: dict[str, list[Any]] = {"id": [f"n{row}" for row in chosen]}
        nodes |= {key: list(values) for key, values in zip(("x", "c", "t", "label"), columns, strict=True)}
        prepared = ready(nodes, {"source": ["n0"], "target": [f"n{len(people) - 1}"]}, **wishes)
        prepared.write(place / name, format)
        return read_graph_folder(place / name)

    first = silo("first", list(range(len(people))), choices=choices)
    assert first.schema is not None
    second = silo("second", order, schema=first.schema)
    assert first.feature_names == second.feature_names and first.graph.class_names == second.graph.class_names
    one, two = (np.asarray(read.graph.x.to_dense()) for read in (first, second))
    assert np.array_equal(one[order], two)
    assert np.array_equal(first.graph.y.numpy()[order], second.graph.y.numpy())
    bags = one[:, [name.startswith("t:") for name in first.feature_names]]
    assert bags.sum(axis=1).tolist() == [len(words(person[2])) for person in people]
