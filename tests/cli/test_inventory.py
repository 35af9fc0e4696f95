import json

import pytest

from isthmus.config.registry import FAMILIES

from .command import call


def test_every_kind_of_part_is_listed() -> None:
    code, text = call("list", "--json")
    assert code == 0
    listed = json.loads(text)
    assert {name: set(parts) for name, parts in listed.items()} == {
        family.name: {*family.table, *family.also} for family in FAMILIES.values()
    }
    assert all(summary for parts in listed.values() for summary in parts.values())


@pytest.mark.parametrize("kind", ["algorithms", "algorithm"])
def test_one_kind_is_listed_by_singular_or_plural(kind: str) -> None:
    code, text = call("list", kind)
    assert code == 0 and "fedprox" in text and "cora" not in text


def test_an_algorithm_shows_fields_messages_and_who_sees_what() -> None:
    code, text = call("show", "algorithm", "fedavg", "--json")
    assert code == 0
    shown = json.loads(text)
    fields = {"local_steps", "step_unit", "optimizer", "weighting", "keep_moments", "fold"}
    assert {row["field"] for row in shown["fields"]} == fields
    sees = {message["request"]: message["server_sees"] for message in shown["messages"]}
    assert sees == {
        "TrainModel": "only the fold",
        "EvaluateModel": "each client's",
        "KeepBest": "nothing but a receipt",
    }
    assert "TrainModel(params)" in shown["text"]
    code, text = call("show", "algorithm", "local")
    assert code == 0 and "nothing but a receipt" in text


@pytest.mark.parametrize("family", sorted({family.name for family in FAMILIES.values()}))
def test_every_part_can_be_shown(family: str) -> None:
    table = next(f.table for f in FAMILIES.values() if f.name == family)
    for name in table:
        assert call("show", family, name)[0] == 0


def test_the_course_shows_every_key() -> None:
    code, text = call("show", "course")
    assert code == 0 and "num_clients: 5" in text


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["list", "algoritms"], "Did you mean 'algorithms'?"),
        (["show", "algorithm", "fedav"], "Did you mean 'fedavg'?"),
        (["show", "algorithm"], "name one of the algorithms"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(args: list[str], part: str) -> None:
    code, text = call(*args)
    assert code == 2 and part in text
