from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from isthmus.core.errors import BadMessage
from isthmus.core.record import (
    DTYPES,
    Record,
    State,
    check_record,
    check_value,
    field_types,
    fields_of,
    leaves,
    nested_records,
    non_finite_leaf,
    with_leaves,
)

from .toys import Inner, Outer, memories, outer, outers, quick, same


@dataclass(frozen=True)
class Losses(Record):
    loss: float
    by_split: dict[str, float]
    pair: tuple[int, float]
    several: tuple[float, ...]
    either: int | float
    maybe: float | None


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        outer().name = "other"  # type: ignore[misc]


def test_field_types_are_resolved_and_each_class_has_its_own() -> None:
    @dataclass(frozen=True)
    class Longer(Inner):
        more: int = 0

    Longer.__annotations__["more"] = int
    assert field_types(Inner) == {"values": torch.Tensor, "label": str | None}
    assert list(field_types(Longer)) == ["values", "label", "more"]
    assert list(field_types(Inner)) == ["values", "label"]


def test_nested_records_are_found_at_any_depth_of_an_annotation() -> None:
    assert list(nested_records(dict[str, tuple[Inner | None, ...]])) == [Inner]
    assert list(nested_records(Outer)) == [Outer]
    assert list(nested_records(Any)) == []


def test_fields_of_gives_the_very_objects() -> None:
    record = outer()
    assert fields_of(record)["params"] is record.params


@quick
@given(outers)
def test_every_well_typed_record_is_accepted(record: Outer) -> None:
    check_record(record)


@quick
@given(memories)
def test_every_storable_value_is_accepted_as_memory(value: Any) -> None:
    check_value({"entry": value}, State, "state")


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("params", {"w": [1.0]}, "Outer.params['w']"),
        ("params", {3: torch.ones(1)}, "Outer.params"),
        ("params", {True: torch.ones(1)}, "Outer.params"),
        ("params", None, "Outer.params"),
        ("weight", "1", "Outer.weight"),
        ("weight", True, "Outer.weight"),
        ("weight", np.float64(1.0), "Outer.weight"),
        ("count", 1.0, "Outer.count"),
        ("count", True, "Outer.count"),
        ("sure", 1, "Outer.sure"),
        ("name", b"x", "Outer.name"),
        ("inner", None, "Outer.inner"),
        ("inner", {"values": torch.ones(1), "label": None}, "Outer.inner"),
        ("inner", Inner(torch.ones(1), 3), "Outer.inner.label"),  # type: ignore[arg-type]
        ("several", [Inner(torch.ones(1), None)], "Outer.several"),
        ("several", (Inner(torch.ones(1), None), 1), "Outer.several[1]"),
        ("pair", (1,), "Outer.pair"),
        ("pair", (1, 2.0, 3.0), "Outer.pair"),
        ("pair", (1.0, 2.0), "Outer.pair[0]"),
        ("by_number", {"4": Inner(torch.ones(1), None)}, "Outer.by_number"),
        ("anything", [1], "Outer.anything"),
        ("anything", {"x": Inner(torch.ones(1), None)}, "Outer.anything['x']"),
        ("anything", {(1,): 1}, "Outer.anything"),
        ("anything", (object(),), "Outer.anything[0]"),
        ("maybe", "x", "Outer.maybe"),
        ("maybe", False, "Outer.maybe"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_and_its_place_named(field: str, value: Any, place: str) -> None:
    with pytest.raises(BadMessage) as caught:
        check_record(outer(**{field: value}))
    assert str(caught.value).startswith(f"{place}: found ")


def test_a_record_of_a_subclass_is_another_record() -> None:
    @dataclass(frozen=True)
    class Sub(Inner):
        pass

    with pytest.raises(BadMessage, match="found the record Sub, expected the record Inner"):
        check_value(Sub(torch.ones(1), None), Inner, "reply")


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.ones(2, dtype=torch.complex64)],
    ids=["coo", "csr", "complex"],
)
def test_a_tensor_that_the_codec_cannot_store_is_refused_in_fields_and_in_memory(tensor: torch.Tensor) -> None:
    with pytest.raises(BadMessage, match=r"params\['w'\]: found .* expected a dense tensor"):
        check_record(outer(params={"w": tensor}))
    with pytest.raises(BadMessage, match=r"state\['w'\]"):
        check_value({"w": tensor}, State, "state")


def test_dense_tensors_of_every_listed_type_are_accepted() -> None:
    for dtype in DTYPES.values():
        check_value(torch.zeros(2, dtype=dtype), torch.Tensor, "tensor")


def test_an_ordered_dict_is_a_dict() -> None:
    check_record(outer(params=OrderedDict(w=torch.ones(1))))


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": math.nan}, "x['a'] is nan"),
        ((1.0, -math.inf), "x[1] is -inf"),
        (torch.tensor([1.0, math.nan, math.inf]), "x has 2 of 3 entries that are NaN or infinite"),
        (torch.tensor(math.nan, dtype=torch.bfloat16), "x has 1 of 1 entries that are NaN or infinite"),
    ],
)
def test_non_finite_numbers_are_found_and_counted(value: Any, place: str) -> None:
    assert non_finite_leaf(leaves(value, "x")) == place


@pytest.mark.parametrize(
    "value",
    [
        torch.full((3,), 60000.0, dtype=torch.float16),  # whose sum is infinite
        torch.full((3,), 3e38),
        torch.tensor([1, 2]),
        torch.zeros(0),
        {"a": (1, "nan", None, True, 0.0)},
    ],
)
def test_finite_numbers_are_not_taken_for_infinite_ones(value: Any) -> None:
    assert non_finite_leaf(leaves(value, "x")) is None


def test_leaves_are_named_by_their_path_in_order() -> None:
    assert list(leaves(outer())) == [
        ".params['w']",
        ".params['flags']",
        ".weight",
        ".count",
        ".sure",
        ".name",
        ".inner.values",
        ".inner.label",
        ".several[0].values",
        ".several[0].label",
        ".pair[0]",
        ".pair[1]",
        ".by_number[4].values",
        ".by_number[4].label",
        ".anything['x'][0]",
        ".anything['x'][1]",
        ".anything['x'][2]",
        ".maybe",
    ]


def test_a_whole_number_in_a_field_of_floats_is_a_float_leaf() -> None:
    found = leaves(Losses(loss=1, by_split={"val": 2}, pair=(3, 4), several=(5, 6), either=7, maybe=8))
    assert {path: type(leaf) for path, leaf in found.items()} == {
        ".loss": float,
        ".by_split['val']": float,
        ".pair[0]": int,
        ".pair[1]": float,
        ".several[0]": float,
        ".several[1]": float,
        ".either": int,
        ".maybe": float,
    }
    assert list(found.values()) == [1, 2, 3, 4, 5, 6, 7, 8]


@quick
@given(outers)
def test_a_record_is_the_same_after_its_leaves_are_put_back(record: Outer) -> None:
    again = with_leaves(record, leaves(record))
    assert type(again) is Outer
    floats = with_leaves(record, {**leaves(record), ".weight": record.weight})  # a whole weight has become a float
    assert same(floats, record)


def test_changed_leaves_take_the_place_of_the_old_and_the_record_is_left_alone() -> None:
    record = outer()
    changed = with_leaves(record, {**leaves(record), ".several[0].label": "new", ".pair[1]": 9.0})
    assert changed.several[0].label == "new" and changed.pair == (1, 9.0)
    assert record.several[0].label == "a" and record.pair == (1, 2.5)
