"""Silos agree on one schema: the union of theirs, whoever makes it, from schemas and not from data."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_graph_folder, write_graph_folder
from isthmus.data.folders.schema.schema import (
    Category,
    Feature,
    Number,
    Schema,
    Text,
    Vector,
    parse_schema,
    read_schema,
    to_yaml,
)
from isthmus.data.folders.schema.schema_union import of_folder, union, without_counts
from isthmus.data.zoo import LinkFolder
from isthmus.testing import toy_graph
from tests.cli.command import call
from tests.learn.tasks.link_toys import toy_facts

OWN_DATA = Path(__file__).parents[3] / "examples" / "own_data"


def schema(*features: Feature, classes: tuple[str, ...] = ()) -> Schema:
    return Schema(features, classes)


words = st.lists(st.sampled_from(["loan", "rent", "late", "salary", "über"]), unique=True).map(tuple)


@st.composite
def a_text(draw: st.DrawFn) -> Text:
    vocabulary = draw(words)
    counts = draw(st.none() | st.just(tuple(draw(st.integers(0, 9)) for _ in vocabulary)))
    return Text("notes", vocabulary, draw(st.integers(1, 4)), draw(st.integers(1, 9)), counts)


numbers = st.builds(
    Number,
    st.just("age"),
    st.floats(-1e3, 1e3, width=32),
    st.floats(0.125, 1e3, width=32),
    st.sampled_from([None, 40.0]),
    st.none() | st.integers(0, 1000),
)
values = st.lists(st.sampled_from(["AT", "CH", "LI", "10", "9"]), unique=True).map(tuple)
kinds = st.builds(Category, st.just("country"), values, st.sampled_from(["other", "drop", "refuse"]))
schemas = st.builds(
    lambda features, classes, turn: Schema(tuple(sorted(features, key=lambda f: f.name, reverse=turn)), classes),
    st.tuples(numbers, kinds, a_text()).flatmap(lambda f: st.lists(st.sampled_from(f), unique_by=lambda x: x.name)),
    values,
    st.booleans(),
)


@settings(deadline=None, max_examples=25)
@given(st.lists(schemas, min_size=1, max_size=4), st.randoms(use_true_random=False), st.none() | st.integers(1, 3))
def test_the_union_is_the_same_in_whatever_order_the_silos_come(
    found: list[Schema], chance: random.Random, limit: int | None
) -> None:
    named = {f"silo-{number}": each for number, each in enumerate(found)}
    turned = list(named.items())
    chance.shuffle(turned)
    made = union(named, limit)
    assert union(dict(turned), limit) == made
    chance.shuffle(found)  # nor does it matter which of them has which name
    assert union({f"silo-{number}": each for number, each in enumerate(found)}, limit) == made
    assert parse_schema(yaml.safe_load(to_yaml(made)), "made") == made
    assert {f.name for f in made.features} == {f.name for each in found for f in each.features}
    assert set(made.classes) == {name for each in found for name in each.classes}


def test_means_and_deviations_are_those_of_all_rows_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, 50), rng.normal(-7, 5, 200)]
    made = union(
        {str(i): schema(Number("age", float(p.mean()), float(p.std()), count=len(p))) for i, p in enumerate(parts)}
    )
    (age,) = made.features
    every = np.concatenate(parts)
    assert isinstance(age, Number) and age.count == 250
    assert age.mean == pytest.approx(every.mean(), rel=1e-8) and age.std == pytest.approx(every.std(), rel=1e-8)
    uncounted = union({str(i): schema(Number("age", float(p.mean()), float(p.std()))) for i, p in enumerate(parts)})
    assert uncounted.features[0] != age and isinstance(uncounted.features[0], Number)
    assert uncounted.features[0].mean == pytest.approx((parts[0].mean() + parts[1].mean()) / 2, rel=1e-8)


def test_a_number_that_only_some_standardise_is_standardised_as_they_do() -> None:
    made = union({"a": schema(Number("age", 40.0, 2.0, count=5)), "b": schema(Number("age", count=7))})
    assert made.features == (Number("age", 40.0, 2.0, count=12),)
    assert union({"a": schema(Number("x")), "b": schema(Number("x"))}).features == (Number("x"),)


def test_words_of_all_are_kept_and_a_limit_keeps_those_in_most_rows() -> None:
    one = Text("notes", ("late", "loan"), 2, 2, (3, 9))
    other = Text("notes", ("loan", "rent"), 3, 2, (1, 5))
    named = {"a": schema(one), "b": schema(other)}
    (found,) = union(named).features
    assert found == Text("notes", ("late", "loan", "rent"), 2, 3, (3, 10, 5))
    (found,) = union(named, max_words=2).features
    assert found == Text("notes", ("loan", "rent"), 2, 2, (10, 5))
    named["b"] = schema(replace(other, counts=None))
    (found,) = union(named, max_words=1).features  # in most silos, where one does not say its rows
    assert found == Text("notes", ("loan",), 2, 1)


def test_orders_that_are_the_same_stand_and_others_give_way_to_the_alphabet() -> None:
    a = schema(Number("b"), Number("a"), classes=("red", "blue"))
    assert union({"one": a, "two": a}) == a
    other = schema(Number("a"), Number("b"), classes=("blue", "red", "green"))
    made = union({"one": a, "two": other})
    assert [f.name for f in made.features] == ["a", "b"] and made.classes == ("blue", "green", "red")
    assert union({"x": schema(classes=("10", "9")), "y": schema(classes=("9",))}).classes == ("9", "10")


def test_everything_that_contradicts_is_told_at_once() -> None:
    a = schema(Number("age", fill=1.0), Number("land"), Vector("v", 3), Category("c", None))
    b = schema(Number("age", fill=2.0), Category("land", ("AT",)), Vector("v", 4), Category("c", ("x",)))
    with pytest.raises(BadInput) as caught:
        union({"a.yaml": a, "b.yaml": b})
    text = str(caught.value)
    assert "4 problems" in text and "'age': fill is 1 and 2" in text and "vectors of 3 and 4 numbers" in text
    assert "'land': is number in a.yaml, category in b.yaml" in text and "no vocabulary in 'a.yaml'" in text


def test_features_that_not_all_have_are_taken_in_or_left_out() -> None:
    named = {"a": schema(Number("age"), Number("income")), "b": schema(Number("age"))}
    assert [f.name for f in union(named).features] == ["age", "income"]
    assert [f.name for f in union(named, common=True).features] == ["age"]


def imported(where: Path, bank: str, *words: str) -> None:
    """Import one of the two example banks."""
    named = {
        "north": ["--id", "customer", "--label", "segment", "--source", "payer", "--target", "payee", "--weight",
                  "amount"],
        "south": ["--id", "client", "--label", "kind", "--source", "from", "--target", "to", "--weight", "euros",
                  "--rename", "land=country"],
    }  # fmt: skip
    tables = ["--nodes", str(OWN_DATA / f"{bank}_customers.csv"), "--edges", str(OWN_DATA / f"{bank}_payments.csv")]
    code, text = call("data", "import", *tables, *named[bank], "--out", str(where), *words)
    assert code == 0, text


def test_two_banks_agree_on_a_union_without_giving_away_their_data(tmp_path: Path) -> None:
    for bank in ("north", "south"):
        imported(tmp_path / bank, bank, "--text", "notes", "--standardize")
        code, text = call("data", "schema", str(tmp_path / bank), "-o", str(tmp_path / f"{bank}.yaml"))
        assert code == 0 and "schema digest: " in text
    files = [str(tmp_path / f"{bank}.yaml") for bank in ("north", "south")]
    code, text = call("data", "schema", *files, "-o", str(tmp_path / "union.yaml"))
    assert code == 0 and f"{files[0]}: country: 1 it has not seen: 'LI'" in text
    code, text = call("data", "schema", *reversed(files), "-o", str(tmp_path / "again.yaml"))
    assert (tmp_path / "again.yaml").read_text() == (tmp_path / "union.yaml").read_text()
    both = tuple(str(tmp_path / bank) for bank in ("south", "north"))
    assert call("data", "schema", *both, "-o", str(tmp_path / "folders.yaml"))[0] == 0
    assert (tmp_path / "folders.yaml").read_text() == (tmp_path / "union.yaml").read_text()
    made = read_schema(tmp_path / "union.yaml")
    assert "country=LI" in made.columns
    ages = [read_graph_folder(folder).graph.num_nodes for folder in both]
    assert next(f.count for f in made.features if isinstance(f, Number)) == sum(ages)
    for bank in ("north", "south"):
        imported(tmp_path / f"{bank}-again", bank, "--schema", str(tmp_path / "union.yaml"))
    again = [read_graph_folder(tmp_path / f"{bank}-again") for bank in ("north", "south")]
    assert again[0].feature_names == again[1].feature_names == made.columns
    place = made.columns.index("country=LI")
    assert [int(read.graph.x.to_dense()[:, place].sum()) for read in again] == [0, 3]
    age = np.concatenate([read.graph.x.to_dense()[:, made.columns.index("age")].numpy() for read in again])
    assert abs(age.mean()) < 1e-5 and abs(age.std() - 1) < 1e-5  # pooled, over both banks


def test_a_folder_that_follows_another_s_scale_tells_its_own_mean(tmp_path: Path) -> None:
    imported(tmp_path / "north", "north", "--standardize", "--write-schema", str(tmp_path / "north.yaml"),
             "--ignore", "notes")  # fmt: skip
    imported(tmp_path / "south", "south", "--schema", str(tmp_path / "north.yaml"))
    imported(tmp_path / "alone", "south", "--standardize", "--ignore", "notes")
    found = {f.name: f for f in of_folder(tmp_path / "south").features}
    expected = {f.name: f for f in read_graph_folder(tmp_path / "alone").schema.features}  # type: ignore[union-attr]
    for name in ("age", "income"):
        mine, alone = found[name], expected[name]
        assert isinstance(mine, Number) and isinstance(alone, Number)
        assert mine.mean == pytest.approx(alone.mean, rel=1e-5) and mine.std == pytest.approx(alone.std, rel=1e-5)


@pytest.mark.parametrize(
    ("rules", "stands"),
    [
        (("other", "drop", "refuse"), "other"),
        (("refuse", "drop"), "drop"),
        (("refuse", "other"), "other"),
        (("refuse", "refuse"), "refuse"),
    ],
)
def test_what_is_unknown_is_kept_where_one_keeps_it_and_refused_only_where_all_refuse_it(
    rules: tuple[str, ...], stands: str
) -> None:
    silos = {f"silo-{i}": schema(Category("country", ("AT", "CH"), rule)) for i, rule in enumerate(rules)}
    for owners in (silos, dict(reversed(silos.items()))):
        (joint,) = union(owners).features
        assert isinstance(joint, Category) and joint.unknown == stands


def test_counts_are_told_only_if_wanted_and_change_no_digest(tmp_path: Path) -> None:
    imported(tmp_path / "north", "north", "--text", "notes")
    told, kept = of_folder(tmp_path / "north"), of_folder(tmp_path / "north", counts=False)
    assert told != kept and told.digest == kept.digest and without_counts(told) == kept
    code, text = call("data", "schema", str(tmp_path / "north"), "--no-counts")
    assert code == 0 and "count:" not in text.replace("min_count", "") and "counts" not in text
    assert parse_schema(yaml.safe_load(text), "printed") == kept
    (notes,) = [f for f in told.features if isinstance(f, Text)]
    assert notes.counts is not None and min(notes.counts) >= notes.min_count


def test_a_folder_without_a_schema_has_its_columns_as_they_are(tmp_path: Path) -> None:
    write_graph_folder(replace(toy_graph(), class_names=("r", "g", "b")), tmp_path / "mine")
    assert of_folder(tmp_path / "mine", counts=False) == schema(
        *(Number(f"x{i}") for i in range(6)), classes=("b", "g", "r")
    )
    write_graph_folder(toy_graph(sparse=True), tmp_path / "nameless")
    assert of_folder(tmp_path / "nameless") == schema(Vector("x", 6))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{name: t, type: text, vocabulary: [loan], counts: [1, 2]}", "not one number of rows for each of the 1 words"),
        ("{name: t, type: text, vocabulary: [loan], counts: [a]}", "not one number of rows"),
        ("{name: n, type: number, count: -1}", "count is -1"),
    ],
)
def test_counts_that_cannot_be_are_told(text: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(f"features: [{text}]\n")
    with pytest.raises(BadInput, match=part):
        read_schema(tmp_path / "odd.yaml")


def test_what_is_no_graph_folder_and_what_is_named_twice_is_told(tmp_path: Path) -> None:
    LinkFolder.write(toy_facts(), tmp_path / "links")
    code, text = call("data", "schema", str(tmp_path / "links"))
    assert code == 2 and "is a link folder; only graph folders have a schema" in text
    write_graph_folder(toy_graph(), tmp_path / "mine")
    code, text = call("data", "schema", str(tmp_path / "mine"), str(tmp_path / "mine"))
    assert code == 2 and "is named twice" in text
    (tmp_path / "s.yaml").write_text("features: []\n")
    code, text = call("data", "schema", str(tmp_path / "mine"), "-o", str(tmp_path / "s.yaml"))
    assert code == 2 and "exists already" in text
