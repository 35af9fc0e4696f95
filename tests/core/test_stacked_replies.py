from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.codec import encode, encoded_size
from isthmus.core.record import Params, Record, largest, leaves
from isthmus.core.replies import SMALL, Each, Stack, Stacked, StackedTensor, join_small
from tests.core.toys import quick, same, stack_of


@dataclass(frozen=True)
class Inner(Record):
    name: str
    score: float


@dataclass(frozen=True)
class Report(Record):
    params: Params
    weight: float
    steps: int
    sure: bool
    scores: dict[str, dict[str, float]]
    pair: tuple[int, Inner]
    loss: float | None = None


@dataclass(frozen=True)
class Bare(Record):
    w: Tensor


class OneByOne(Stacked):
    """The least that a way to hold tensors must have; counts who is taken out."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors, self.taken = tensors, [0] * len(tensors)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensors[0].shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    def __len__(self) -> int:
        return len(self.tensors)

    def member(self, position: int) -> Tensor:
        self.taken[position] += 1
        return self.tensors[position]

    def finite(self) -> Tensor:
        return torch.tensor([bool(torch.isfinite(tensor).all()) for tensor in self.tensors])

    def bound(self) -> Tensor:
        return torch.tensor([largest(tensor) for tensor in self.tensors], dtype=torch.float64)


def report(k: int, **changes: Any) -> Report:
    """Return a reply in which every leaf is the client's own, and whole numbers stand where floats may."""
    fields: dict[str, Any] = {
        "params": {"w": torch.tensor([[k + 0.5, -k]]), "n": torch.tensor([k])},
        "weight": 10**k if k % 2 else k + 0.25,
        "steps": 7 * 10**k,
        "sure": k % 2 == 0,
        "scores": {"val": {"accuracy": 1 / (k + 1), "loss": k}, "train": {}},
        "pair": (k, Inner("é" * k + '"\n', 0.1 * k)),
        "loss": None if k == 1 else float(k),
    }
    return Report(**{**fields, **changes})


scalars = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**20), 10**20))


@st.composite
def some_reports(draw: st.DrawFn) -> dict[str, Report]:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    members = {}
    for k in range(draw(st.integers(1, 5))):
        members[f"client-{k}"] = Report(
            {"w": torch.full(shape, draw(st.floats(-1e3, 1e3, width=32)))},
            draw(scalars),
            draw(st.integers(-(10**30), 10**30)),
            draw(st.booleans()),
            {"val": {"accuracy": draw(scalars)}},
            (draw(st.integers()), Inner(draw(st.text(max_size=9)), draw(scalars))),
            draw(st.one_of(st.none(), scalars)),
        )
    return members


# ---- members


@quick
@given(some_reports())
def test_every_member_is_the_reply_that_the_stack_was_made_of_and_sizes_are_those_of_its_bytes(
    members: dict[str, Report],
) -> None:
    stack = stack_of(members)
    assert len(stack) == len(members)
    for position, member in enumerate(members.values()):
        assert same(stack.member(position), member)
    assert stack.sizes() == [len(encode(member)) for member in members.values()]


def test_iteration_gives_the_members_in_the_order_of_the_clients() -> None:
    members = {name: report(k) for k, name in enumerate("bca")}
    stack = stack_of(members)
    assert stack.clients == ("b", "c", "a")
    found = list(stack)
    assert len(found) == 3
    assert all(same(mine, member) for mine, member in zip(found, members.values(), strict=True))


def test_what_is_no_stack_of_values_is_the_same_for_all() -> None:
    w, n = torch.tensor([1.0]), StackedTensor(torch.tensor([[1], [2]]))
    stack = Stack.of(("a", "b"), Report, **vars(report(0, params={"w": w, "n": n}, weight=Each((1.0, 2.0)))))
    assert [member.params["w"] is w for member in stack] == [True, True]  # type: ignore[attr-defined]
    assert [member.params["n"].item() for member in stack] == [1, 2]  # type: ignore[attr-defined]
    assert [member.weight for member in stack] == [1.0, 2.0]  # type: ignore[attr-defined]
    assert [member.pair for member in stack] == [report(0).pair] * 2  # type: ignore[attr-defined]
    assert stack.sizes() == [encoded_size(member) for member in stack]


@pytest.mark.parametrize(
    "leaf", [StackedTensor(torch.zeros(3, 2)), Each((1.0, 2.0, 3.0)), Each(())], ids=["tensor", "scalars", "none"]
)
def test_a_leaf_of_another_number_of_clients_is_refused_with_its_place(leaf: Any) -> None:
    with pytest.raises(ValueError, match=rf"Report\.params\['w'\] holds {len(leaf)} of 2 clients"):
        Stack(("a", "b"), report(0, params={"w": leaf}))


# ---- outline


def test_the_outline_has_shapes_types_and_scalars_of_a_member_but_no_numbers() -> None:
    members = {name: report(k) for k, name in enumerate("abc")}
    stack = stack_of(members)
    for position, member in enumerate(members.values()):
        drawn, real = leaves(stack.outline(position)), leaves(member)
        assert drawn.keys() == real.keys()
        for path, leaf in drawn.items():
            if isinstance(leaf, Tensor):
                assert leaf.is_meta and leaf.shape == real[path].shape and leaf.dtype == real[path].dtype
            else:
                assert type(leaf) is type(real[path]) and leaf == real[path]
    assert same(stack.outline().pair, members["a"].pair)  # type: ignore[attr-defined]


def test_outline_weights_soundness_and_sizes_take_nobody_out() -> None:
    w = OneByOne(torch.ones(2), torch.ones(2), torch.tensor([1.0, math.nan]))
    stack = Stack.of(("a", "b", "c"), Report, **vars(report(0, params={"w": w})))
    stack.outline(), stack.weights(), stack.finite(), stack.sizes()
    assert w.taken == [0, 0, 0]
    stack.member(1)
    assert w.taken == [0, 1, 0]


# ---- weights


def test_weights_are_each_clients_own_in_double_precision() -> None:
    third = 1 / 3
    for weight, expected in [
        (Each((third, 2, 0.0)), [third, 2.0, 0.0]),
        (Each((1, 2, 3)), [1.0, 2.0, 3.0]),
        (third, [third] * 3),
        (4, [4.0] * 3),
    ]:
        found = Stack(("a", "b", "c"), report(0, weight=weight)).weights()
        assert found.dtype == torch.float64 and found.tolist() == expected
    bare = Stack(("a", "b"), Bare(StackedTensor(torch.zeros(2, 1))))  # type: ignore[arg-type]
    assert bare.weights().tolist() == [1.0, 1.0]


# ---- finite numbers


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["params", "weight", "scores", "inner", "loss"])
def test_a_number_that_is_not_finite_is_found_at_its_client_wherever_it_stands(place: str, bad: float) -> None:
    members = {name: report(k, loss=0.5) for k, name in enumerate("abcd")}
    changes: dict[str, Any] = {
        "params": {"w": torch.tensor([[0.0, bad]]), "n": torch.tensor([2])},
        "weight": bad,
        "scores": {"val": {"accuracy": 0.5, "loss": bad}, "train": {}},
        "pair": (2, Inner("x", bad)),
        "loss": bad,
    }
    name = "pair" if place == "inner" else place
    assert stack_of(members).finite().tolist() == [True] * 4
    for client in "ac":
        members[client] = replace(members[client], **{name: changes[name]})
    assert stack_of(members).finite().tolist() == [False, True, False, True]


def test_a_row_that_stands_for_many_clients_is_judged_for_all_of_them() -> None:
    for value, expected in ((1.0, True), (math.nan, False)):
        shared = StackedTensor(torch.tensor([1.0, value]).expand(3, 2))
        assert shared.finite().tolist() == [expected] * 3 and shared.finite().shape == (3,)


def test_tensors_of_integers_and_without_entries_are_finite() -> None:
    assert StackedTensor(torch.tensor([[1, 2], [3, 4]])).finite().tolist() == [True, True]
    assert StackedTensor(torch.zeros(2, 0, 3)).finite().tolist() == [True, True]
    assert StackedTensor(torch.tensor([1.0, math.nan])).finite().tolist() == [True, False]  # no axes of their own


@pytest.mark.parametrize("fields", [{"params": {"w": torch.tensor([math.nan])}}, {"loss": math.inf}], ids=repr)
def test_a_number_that_is_not_finite_is_found_also_where_it_is_the_same_for_all(fields: dict[str, Any]) -> None:
    stack = Stack(("a", "b"), report(0, **fields))
    assert stack.finite().tolist() == [False, False]


# ---- sums


tensors = [
    torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
    torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    torch.randint(-9, 9, (4, 3), generator=torch.Generator().manual_seed(2)),
    torch.randn(3, generator=torch.Generator().manual_seed(3)).expand(4, 3),
    torch.randn(4, generator=torch.Generator().manual_seed(4)),
]


@pytest.mark.parametrize("values", tensors, ids=lambda t: f"{t.dtype} {tuple(t.shape)} {t.stride(0)}")
@pytest.mark.parametrize("weights", [[1.0, 2.0, 0.5, 1e-3], [0.0, 3.0, 0.0, 1.0], [0.0] * 4], ids=repr)
def test_the_weighted_sum_is_the_sum_over_members(values: Tensor, weights: list[float]) -> None:
    stacked = StackedTensor(values)
    assert (len(stacked), stacked.shape, stacked.dtype) == (4, tuple(values.shape[1:]), values.dtype)
    expected = torch.zeros(values.shape[1:], dtype=torch.float64)
    for k, weight in enumerate(weights):
        expected = expected + weight * values[k].double()
    for way in (stacked, OneByOne(*values)):
        found = way.weighted_sum(torch.tensor(weights, dtype=torch.float64))
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_sums_in_single_precision_would_be_too_coarse() -> None:
    values = torch.tensor([[1e8], [1.0], [-1e8]])
    ones = torch.ones(3, dtype=torch.float64)
    for way in (StackedTensor(values), OneByOne(*values)):
        assert way.weighted_sum(ones).item() == 1.0


def test_a_member_of_weight_zero_is_not_taken_out_for_a_sum() -> None:
    way = OneByOne(torch.ones(1), torch.tensor([math.nan]), torch.ones(1))
    assert way.weighted_sum(torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)).item() == 3.0
    assert way.taken == [1, 0, 1]


def test_a_member_of_weight_zero_adds_nothing_whatever_it_holds() -> None:
    stacked = StackedTensor(torch.tensor([[1.0, 2.0], [math.nan, math.inf]]))
    assert stacked.weighted_sum(torch.tensor([2.0, 0.0], dtype=torch.float64)).tolist() == [2.0, 4.0]


# ---- sizes


def test_sizes_count_each_clients_own_digits_letters_and_words() -> None:
    members = {f"client-{k}": report(k) for k in range(6)}
    stack = stack_of(members)
    assert stack.sizes() == [encoded_size(member) for member in members.values()]
    assert len(set(stack.sizes())) > 3


@pytest.mark.parametrize("values", [(1.0, math.nan), (math.nan, 1.0), (1.0, -math.inf)], ids=repr)
def test_sizes_count_numbers_that_are_not_finite_as_they_are_encoded(values: tuple[float, ...]) -> None:
    stack = Stack(("a", "b"), report(0, loss=Each(values)))
    assert stack.sizes() == [encoded_size(member) for member in stack]


# ---- small tensors are looked at in one go


def small_ones() -> list[StackedTensor]:
    draw = torch.Generator().manual_seed(0)
    return [StackedTensor(torch.randn(3, *shape, generator=draw)) for shape in ((4, 2), (5,), ())]


def test_small_tensors_have_one_bound_and_the_sums_that_each_has_alone() -> None:
    alone, joined = small_ones(), small_ones()
    join_small(joined)
    largest_of_all = torch.stack([each.bound() for each in alone]).amax(dim=0)
    for weights in (torch.tensor([0.5, 2.0, 1.0]), torch.tensor([0.0, 2.0, 1.0]), torch.zeros(3)):
        for mine, theirs in zip(joined, alone, strict=True):
            assert torch.equal(mine.bound(), largest_of_all)
            torch.testing.assert_close(mine.weighted_sum(weights.double()), theirs.weighted_sum(weights.double()))


def test_who_asked_for_a_sum_may_add_to_it() -> None:
    joined, weights = small_ones(), torch.ones(3, dtype=torch.float64)
    join_small(joined)
    before = joined[1].weighted_sum(weights)
    joined[0].weighted_sum(weights).fill_(7.0)
    joined[1].weighted_sum(weights).fill_(7.0)
    assert torch.equal(joined[1].weighted_sum(weights), before)


def test_a_small_tensor_of_a_client_without_weight_may_hold_anything() -> None:
    joined = small_ones()
    joined[2].values[1] = math.nan
    join_small(joined)
    found = [each.weighted_sum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)) for each in joined]
    assert all(bool(each.isfinite().all()) for each in found)
    assert [each.finite().tolist() for each in joined] == [[True] * 3, [True] * 3, [True, False, True]]


def test_large_tensors_shared_ones_and_integers_are_looked_at_alone() -> None:
    large = StackedTensor(torch.ones(2, SMALL + 1))
    shared = StackedTensor(torch.ones(1, 3).expand(2, 3))
    counts = StackedTensor(torch.ones(2, dtype=torch.int64))
    small = [StackedTensor(torch.ones(2, 3)), StackedTensor(torch.ones(2))]
    join_small([large, shared, counts, *small])
    assert [each.joined is None for each in (large, shared, counts, *small)] == [True, True, True, False, False]
