"""Spaces: what is drawn from them, what their points are, and what is no space."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isthmus.core.errors import BadInput
from isthmus.tune.space import Dimension, Space, read_space

CLIENTS = ("client-0", "client-1")


def space(**dimensions: Any) -> Space:
    return read_space({key.replace("__", "."): said for key, said in dimensions.items()}, CLIENTS, "s.yaml")


def test_ends_are_in_a_range_and_nothing_beyond_them() -> None:
    for dimension in (Dimension(low=2, high=5), Dimension(low=2.0, high=5.0), Dimension(low=2, high=5, log=True)):
        assert dimension.at(0.0) == 2 and dimension.at(1 - 1e-16) == pytest.approx(5)
        assert all(2 <= dimension.at(place / 99) <= 5 for place in range(99))


def test_whole_numbers_and_choices_are_as_likely_as_each_other() -> None:
    shares = [place / 3000 for place in range(3000)]
    whole = [Dimension(low=1, high=3).at(share) for share in shares]
    assert {value: whole.count(value) for value in (1, 2, 3)} == {1: 1000, 2: 1000, 3: 1000}
    chosen = [Dimension(choices=("a", "b", [1])).at(share) for share in shares]
    assert chosen.count("a") == chosen.count("b") == chosen.count([1]) == 1000


def test_choices_have_an_order_where_they_are_numbers_that_rise() -> None:
    assert Dimension(choices=(0.1, 1, 3.5)).ordered and not Dimension(choices=(1, 0.1)).ordered
    assert not any(Dimension(choices=each).ordered for each in ((False, True), (1, "a"), ("a", "b"), (1,)))


def test_a_range_of_logarithms_has_its_middle_at_the_geometric_mean() -> None:
    assert Dimension(low=0.01, high=1.0, log=True).at(0.5) == pytest.approx(0.1)
    whole = [Dimension(low=1, high=15, log=True).at(place / 10000) for place in range(10000)]
    # From 0.5 to 15.5: what is below 1.5 is drawn as 1.
    assert whole.count(1) / 10000 == pytest.approx(math.log(3) / math.log(31), abs=1e-3)


def test_a_key_s_draws_are_its_own_whichever_others_there_are() -> None:
    few, more = space(a=[1, 2, 3]), space(b={"low": 0.0, "high": 1.0}, a=[1, 2, 3])
    assert [few.draw(0, i)["a"] for i in range(20)] == [more.draw(0, i)["a"] for i in range(20)]
    assert len({more.draw(0, i)["b"] for i in range(20)}) == 20


def test_a_condition_decides_whether_a_key_is_there() -> None:
    found = space(algorithm__name=["fedavg", "fedprox"], mu={"choices": [1, 2], "when": {"algorithm.name": "fedprox"}})
    assert found.listed == (
        {"algorithm.name": "fedavg"},
        {"algorithm.name": "fedprox", "mu": 1},
        {"algorithm.name": "fedprox", "mu": 2},
    )
    drawn = [found.draw(0, number) for number in range(40)]
    assert all(("mu" in point) == (point["algorithm.name"] == "fedprox") for point in drawn)
    assert {len(point) for point in drawn} == {1, 2}


def test_points_of_ranges_go_from_end_to_end() -> None:
    found = space(lr={"low": 0.01, "high": 1.0, "log": True}, n={"low": 1, "high": 2})
    assert [tuple(point.values()) for point in found.points(3)] == [
        (pytest.approx(lr), n) for lr in (0.01, 0.1, 1.0) for n in (1, 2)
    ]
    assert not found.finite and space(n={"low": 1, "high": 40}).finite
    assert len(space(n={"low": 1, "high": 40}).listed) == 40


def test_each_client_may_have_a_key_of_its_own() -> None:
    found = read_space({"optimizer.lr": {"choices": [1, 2], "each": "client"}}, CLIENTS, "s.yaml")
    assert list(found.dimensions) == [f"client_settings.client-{n}.optimizer.lr" for n in (0, 1)]
    assert len(found.listed) == 4


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, r"s\.yaml: space is \{\}, expected keys of a course"),
        ({"a": 3}, r"space\.a is 3, expected a list of choices"),
        ({"a": []}, r"space\.a: it has no choices"),
        ({"a": [1, 2, 1]}, r"space\.a: it has the choice 1 twice"),
        ({"a": {"low": 2, "high": 1}}, r"low is 2 and high 1, between which there is nothing"),
        ({"a": {"low": 0, "high": 1, "log": True}}, r"begins above 0"),
        ({"a": {"low": 1}}, r"it has one end of a range"),
        ({"a": {"low": 1, "high": 2, "choices": [1]}}, r"choices beside a range"),
        ({"a": {"low": "x", "high": 1}}, r"space\.a\.low is 'x', expected a number"),
        ({"a": {"lo": 1, "high": 2}}, r"space\.a\.lo is not a known key; known: choices"),
        ({"a": {"choices": [1], "when": {"b": 1}}}, r"space\.a\.when has 'b', which does not stand before it"),
        ({"a": {"choices": [1], "each": "round"}}, r"it can be 'client'"),
        ({"a": {"low": float("nan"), "high": 1}}, r"between which there is nothing"),
    ],
)
def test_what_is_no_space_is_told(said: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_space(said, CLIENTS, "s.yaml")
    assert read_space({"a": {"low": "1e-3", "high": 1}}, CLIENTS, "s.yaml").dimensions["a"].low == 0.001
