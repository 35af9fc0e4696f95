"""The steps of an agreement, each by a small table: who is refused, which group stands, what is agreed on."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.core.errors import CourseFailed
from isthmus.sites.courses.agreement import (
    OTHER_COLUMNS,
    Agreement,
    Freedom,
    Group,
    _agreement_of,
    _differing,
    _largest_group,
    _most_common,
    _named_by_position,
    _scale_notes,
    _unwilling,
    agree,
    outputs_of,
)
from isthmus.sites.courses.messages import Terms

RED, BLUE = ("red", "green"), ("blue", "green")


def terms(
    input_dim: int = 3, class_names: tuple[str, ...] = RED, features: str = "f", refusal: str = "", **more: Any
) -> Terms:
    facts = {"version": "1", "output_dim": len(class_names) or 2, "holds": f"{input_dim} wide", **more}
    return Terms(refusal=refusal, input_dim=input_dim, class_names=class_names, features=features, **facts)


@pytest.mark.parametrize(
    ("found", "stated", "reason"),
    [
        (terms(), (), ""),
        (terms(), RED, ""),
        (terms(refusal="policy: no"), (), "policy: no"),
        (terms(version="2"), (), "it runs isthmus 2, the server runs 1; install the same version"),
        (terms(refusal="policy: no", version="2"), BLUE, "policy: no"),  # its own word first
        (terms(version="2"), BLUE, "it runs isthmus 2, the server runs 1; install the same version"),
        (terms(), BLUE, "it has the class 'red', the others do not; it lacks the class 'blue'"),
        (terms(), ("red", "green", "blue"), "it lacks the class 'blue'; state the same"),
        (terms(), ("green", "red"), "it has its classes in the order red, green, the others in the order green, red"),
    ],
)
def test_who_takes_no_part_whatever_the_others_say(found: Terms, stated: tuple[str, ...], reason: str) -> None:
    refused = _unwilling({"a": terms(class_names=stated or RED), "b": found}, "1", stated)
    assert set(refused) == ({"b"} if reason else set())
    assert refused.get("b", "").startswith(reason)


@pytest.mark.parametrize(
    ("having", "free", "group"),
    [
        ([terms(3), terms(4), terms(4)], Freedom(), ((4, "f"), (2, RED))),
        ([terms(3), terms(4)], Freedom(), ((3, "f"), (2, RED))),  # of equals the first
        ([terms(3), terms(3, features="g"), terms(3, features="g")], Freedom(), ((3, "g"), (2, RED))),
        ([terms(3, BLUE), terms(4), terms(5, BLUE)], Freedom(features=True), (None, (2, BLUE))),
        ([terms(3, BLUE), terms(4), terms(4, BLUE)], Freedom(classes=True), ((4, "f"), None)),
        ([terms(3), terms(4)], Freedom(classes=True, features=True), (None, None)),
    ],
)
def test_the_group_that_most_are_of_stands(having: list[Terms], free: Freedom, group: Group) -> None:
    assert _largest_group(having, free) == group


@pytest.mark.parametrize(
    ("found", "group", "reason"),
    [
        (terms(), ((3, "f"), (2, RED)), ""),
        (terms(4, BLUE, "g"), (None, None), ""),
        (terms(4), ((3, "f"), (2, RED)), "its nodes have 4 features, the others' have 3; silos may have their own"),
        (terms(features="g"), ((3, "f"), (2, RED)), OTHER_COLUMNS),
        (terms(features=""), ((3, "f"), (2, RED)), "its feature columns have no names, those of the others have; give"),
        (terms(), ((3, ""), (2, RED)), "its feature columns have names, those of the others have none; give all"),
        (terms(4, BLUE), ((3, "f"), (2, RED)), "its nodes have 4 features"),  # one reason is enough
        (terms(4, BLUE), (None, (2, RED)), "it has the class 'blue', the others do not; it lacks the class 'red'"),
        (
            terms(class_names=(), output_dim=5),
            (None, (2, ())),
            "its labels ask for a model with 5 outputs, the others'",
        ),
    ],
)
def test_who_is_not_of_the_group_is_told_by_what(found: Terms, group: Group, reason: str) -> None:
    refused = _differing({"a": found}, group)
    assert set(refused) == ({"a"} if reason else set())
    assert refused.get("a", "").startswith(reason)


@pytest.mark.parametrize(
    ("free", "own", "inputs", "features"),
    [
        (Freedom(), {}, {}, "f"),
        (Freedom(models=frozenset({"b", "z"})), {"b": (2, BLUE)}, {"b": 4}, "f"),
        (Freedom(classes=True), {"a": (2, RED), "b": (2, BLUE)}, {}, "f"),
        (Freedom(features=True), {}, {"a": 3, "b": 4}, ""),
    ],
)
def test_what_is_agreed_on_is_what_the_first_has_and_what_each_may_have(
    free: Freedom, own: dict[str, Any], inputs: dict[str, int], features: str
) -> None:
    agreed = {"a": terms(3), "b": terms(4, BLUE)}
    assert _agreement_of(agreed, agreed["a"], {"c": "policy: no"}, free) == Agreement(
        input_dim=3,
        output_dim=2,
        class_names=RED,
        refused={"c": "policy: no"},
        holds={"a": "3 wide", "b": "4 wide"},
        own=own,
        inputs=inputs,
        features=features,
    )


@pytest.mark.parametrize(
    ("having", "features", "classes"),
    [
        ([terms(features="", class_names=())], [""], [()]),  # nobody has names
        ([terms(), terms(features="", class_names=())], ["f", "f"], [RED, RED]),
        ([terms(), terms(4, features="", class_names=(), output_dim=3)], ["f", ""], [RED, ()]),  # of another number
        (
            [terms(class_names=BLUE, features="g"), terms(), terms(), terms(features="", class_names=())],
            ["g", "f", "f", "f"],
            [BLUE, RED, RED, RED],
        ),
    ],
)
def test_what_has_no_names_gets_those_of_most_others_of_its_number(
    having: list[Terms], features: list[str], classes: list[tuple[str, ...]]
) -> None:
    named = _named_by_position({f"{k}": found for k, found in enumerate(having)})
    assert [found.features for found in named.values()] == features
    assert [found.class_names for found in named.values()] == classes


def test_the_most_common_names_are_of_each_number_apart_and_the_first_among_equals() -> None:
    having = [terms(class_names=BLUE), terms(), terms(class_names=("x", "y", "z")), terms(class_names=())]
    assert _most_common(having, outputs_of) == {2: BLUE, 3: ("x", "y", "z")}


@pytest.mark.parametrize(
    ("schemas", "odd"),
    [
        (["", ""], ""),
        (["s", "s"], ""),
        (["s", ""], ""),
        (["s", "s", "t"], "c"),
        (["t", "s", "s"], "a"),
        (["s", "t"], "b"),
    ],
)
def test_another_schema_with_the_same_columns_is_noted(schemas: list[str], odd: str) -> None:
    agreed = {site: terms(schema=schema) for site, schema in zip("abc", schemas, strict=False)}
    assert "".join(_scale_notes(agreed)) == odd


@pytest.mark.parametrize(
    ("having", "stated", "free", "refused", "input_dim"),
    [
        ({"a": terms(), "b": terms()}, (), Freedom(), set(), 3),
        ({"a": terms(4), "b": terms(), "c": terms()}, (), Freedom(), {"a"}, 3),
        ({"a": terms(class_names=BLUE), "b": terms()}, RED, Freedom(classes=True), {"a"}, 3),  # a stated list stands
        ({"a": terms(4), "b": terms()}, (), Freedom(models=frozenset("a")), set(), 3),  # one with a model of its own
        ({"a": terms(4), "b": terms()}, (), Freedom(models=frozenset("ab")), set(), 4),  # all have one: the first's
        ({"a": terms(features=""), "b": terms()}, (), Freedom(by_position=True), set(), 3),
    ],
)
def test_the_steps_in_their_order(
    having: dict[str, Terms], stated: tuple[str, ...], free: Freedom, refused: set[str], input_dim: int
) -> None:
    found = agree(having, "1", stated, free)
    assert (set(found.refused), set(found.holds), found.input_dim) == (refused, set(having) - refused, input_dim)


def test_when_nobody_is_left_every_reason_is_told() -> None:
    with pytest.raises(CourseFailed, match="no silo takes part: a: policy: no; b: it runs isthmus 2, the server"):
        agree({"a": terms(refusal="policy: no"), "b": terms(version="2")}, "1")
