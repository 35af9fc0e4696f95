from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.folders.schema.schema import (
    Category,
    Feature,
    Number,
    Schema,
    Text,
    Vector,
    compare_schemas,
    parse_schema,
    read_schema,
    to_yaml,
    write_schema,
)
from isthmus.data.folders.tables.reading import Problems
from tests.data.strategies import many

SCHEMA = Schema(
    (
        Number("age", mean=40.0, std=12.0),
        Category("country", ("AT", "NO")),
        Category("plan", ("a", "b"), unknown="drop"),
        Text("notes", ("late", "loan")),
        Vector("embedding", 2),
    ),
    ("business", "private"),
)


def told(raw: object) -> list[str]:
    with pytest.raises(BadInput) as caught:
        parse_schema(raw, "schema.yaml")
    return str(caught.value).split("\n  ")


def differences(own: Schema, wanted: Schema) -> list[str]:
    problems = Problems("a folder")
    compare_schemas(own, wanted, "schema.yaml", problems)
    return problems.lines


def test_columns_are_named_after_features_and_values() -> None:
    assert SCHEMA.columns == (
        *("age", "country=AT", "country=NO", "country=(other)", "plan=a", "plan=b"),
        *("notes:late", "notes:loan", "embedding[0]", "embedding[1]"),
    )


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).map(str.strip).filter(bool)
numbers = st.floats(-1e6, 1e6)
vocabularies = st.lists(names, unique=True, max_size=4).map(tuple)
lower = st.lists(st.text("abcde0123", min_size=2, max_size=5), unique=True, max_size=4).map(tuple)
features = st.one_of(
    st.builds(Number, names, numbers, st.floats(1e-6, 1e6), st.none() | numbers),
    st.builds(Category, names, st.none() | vocabularies, st.sampled_from(["other", "drop", "refuse"])),
    st.builds(Text, names, st.none() | lower, st.integers(1, 9), st.integers(1, 9)),
    st.builds(Vector, names, st.integers(1, 4)),
)
schemas = st.builds(
    Schema, st.lists(features, max_size=5, unique_by=lambda feature: feature.name).map(tuple), vocabularies
).filter(lambda schema: len(set(schema.columns)) == len(schema.columns))


@many
@given(schemas)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> None:
    path = tmp_path_factory.mktemp("schemas") / "schema.yaml"
    write_schema(schema, path)
    read = read_schema(path)
    assert read == schema and read.digest == schema.digest
    assert [file.name for file in path.parent.iterdir()] == ["schema.yaml"]


@many
@given(schemas, schemas)
def test_a_schema_differs_from_all_but_itself(one: Schema, other: Schema) -> None:
    assert differences(one, one) == []
    assert (one.digest == other.digest) == (one == other)


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text("mine")
    with pytest.raises(BadInput, match=r"schema.yaml exists already; choose another file, or follow it with --schema"):
        write_schema(SCHEMA, tmp_path / "schema.yaml")
    assert (tmp_path / "schema.yaml").read_text() == "mine"


def test_everything_that_is_wrong_is_told_at_once() -> None:
    raw = {
        "features": [
            {"name": "age", "type": "nummer"},
            {"name": "height", "type": "number", "std": 0, "mean": "x", "means": 1},
            {"name": "country", "type": "category", "vocabulary": ["AT", False], "unknown": "dropp"},
            {"name": "plan", "type": "category", "vocabulary": ["a", "a"]},
            {"name": "notes", "type": "text", "vocabulary": ["Loan"], "min_count": 0},
            {"name": "embedding", "type": "vector", "size": 1.5},
            {"type": "number"},
            "age",
        ],
        "classes": "a,b",
        "clases": ["a"],
    }
    assert told(raw) == [
        "schema.yaml: 14 problems",
        "clases: is not a known key; known: classes, features. Did you mean 'classes'?",
        "feature 'age': type is 'nummer'; known: category, number, text, vector. Did you mean 'number'?",
        "feature 'height': means is not a known key; known: count, fill, mean, name, std, type. Did you mean 'mean'?",
        "feature 'height': mean is 'x'; a finite number is needed",
        "feature 'height': std is 0; a number above 0 is needed",
        "feature 'country': vocabulary: has False; write it in quotes if it is meant as text",
        "feature 'country': unknown is 'dropp'; known: drop, other, refuse. Did you mean 'drop'?",
        "feature 'plan': vocabulary: has 'a' more than once",
        "feature 'notes': min_count is 0; a whole number from 1 is needed",
        "feature 'notes': vocabulary has 'Loan', which no text is cut into; one word in small letters is needed",
        "feature 'embedding': size is 1.5; a whole number from 1 is needed",
        "features[6]: name is None; the name of a column is needed, in quotes if it is a number",
        "features[7]: is 'age'; a name and a type are needed, as in {name: age, type: number}",
        "classes: is 'a,b'; a list is needed",
    ]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ([], "schema.yaml: is no schema; a list of features is needed, each with a name and a type"),
        ({"features": {}}, "schema.yaml: is no schema; a list of features is needed, each with a name and a type"),
        (
            {"features": [{"name": "a", "type": "number"}] * 2},
            "features: more than one has the name 'a'",
        ),
        (
            {
                "features": [
                    {"name": "a=b", "type": "number"},
                    {"name": "a", "type": "category", "vocabulary": ["b"]},
                ]
            },
            "columns: more than one has the name 'a=b'",
        ),
    ],
)
def test_what_is_no_schema_is_told(raw: object, line: str) -> None:
    assert line in told(raw)


@pytest.mark.parametrize(
    ("content", "words"),
    [("features: [", "line [12]: is not YAML: "), (None, ": cannot be read: No such file or directory")],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "schema.yaml").write_text(content)
    with pytest.raises(BadInput, match=words):
        read_schema(tmp_path / "schema.yaml")


def test_words_that_yaml_takes_for_something_else_are_written_in_quotes() -> None:
    assert "vocabulary: [AT, 'NO']" in to_yaml(SCHEMA)


def test_differences_are_told_column_by_column() -> None:
    changed: tuple[Feature, ...] = (
        Category("country", ("AT", "LI", "NO"), unknown="drop"),
        Number("age", mean=41.0, std=12.0),
        Number("plan"),
        Text("notes", ("late", "loan")),
    )
    assert differences(Schema(changed, ("private", "retail")), SCHEMA) == [
        "schema.yaml: column 'country=(other)' is missing; it is number 4 of the schema",
        "schema.yaml: column 'plan=a' is missing; it is number 5 of the schema",
        "schema.yaml: column 'plan=b' is missing; it is number 6 of the schema",
        "schema.yaml: column 'embedding[0]' is missing; it is number 9 of the schema",
        "schema.yaml: column 'embedding[1]' is missing; it is number 10 of the schema",
        "schema.yaml: column 'country=LI' (number 2) is not in the schema",
        "schema.yaml: column 'plan' (number 5) is not in the schema",
        "schema.yaml: feature 'country': unknown is 'drop', 'other' in the schema",
        "schema.yaml: feature 'age': mean is 41.0, 40.0 in the schema",
        "schema.yaml: feature 'plan' is of type number, category in the schema",
        "schema.yaml: class 'business' is missing",
        "schema.yaml: class 'retail' is not in the schema",
    ]


def test_another_order_is_told() -> None:
    own = Schema((Number("b"), Number("a")), ("y", "x"))
    assert differences(own, Schema((Number("a"), Number("b")), ("x", "y"))) == [
        "schema.yaml: column 'a' is number 2, number 1 in the schema",
        "schema.yaml: column 'b' is number 1, number 2 in the schema",
        "schema.yaml: classes are in the order y, x; in the schema x, y",
    ]


def test_many_differences_are_counted_not_listed() -> None:
    lines = differences(Schema((Number("a"),)), Schema((Number("a"), Vector("x", 12))))
    assert len(lines) == 6 and lines[-1] == "schema.yaml: 7 more like these"


WORDS = ["w1", "yes", "Null", "NO", "e1", "1e5", "y", "N", "_a", "true"]


@given(st.lists(st.text(max_size=45) | st.sampled_from(WORDS), max_size=4), st.booleans())
def test_the_text_of_a_file_is_what_yaml_makes_of_it_as_a_whole(names: list[str], more: bool) -> None:
    schema = Schema(tuple(Number(name) for name in names) + (SCHEMA.features if more else ()), ("a", "b"))
    head, _, body = to_yaml(schema).partition("\n")
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 110}
    assert head.startswith("#") and body == yaml.dump(schema.plain(), Dumper=yaml.CSafeDumper, **options)


def test_thousands_of_numbers_are_written_without_a_step_of_yaml_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    dump = yaml.dump

    def noted(plain: object, **options: Any) -> Any:
        seen.append(plain)
        return dump(plain, **options)

    monkeypatch.setattr(yaml, "dump", noted)
    to_yaml(Schema(tuple(Number(f"w{number}") for number in range(5000)), ("a",)))
    assert seen == [{"classes": ["a"]}]


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"name": "a", "type": []}, r"type is \[\]"),
        ({"name": "a", "type": {"number": 1}}, "type is "),
        ({"name": "a", "type": "number", "mean": 10**400}, "mean is 1000.*; a finite number is needed"),
        ({"name": "a", "type": "number", "std": -(10**400)}, "a finite number is needed"),
        ({"name": "a", "type": "category", "unknown": {}}, r"unknown is \{\}"),
    ],
)
def test_values_of_any_kind_are_refused_in_words(feature: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_schema({"features": [feature]}, "schema.yaml")
