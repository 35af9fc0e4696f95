"""Parameters that are made when somebody looks at them are like any other dict of tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isthmus.core.codec import decode, encode, encoded_size
from isthmus.core.errors import BadMessage
from isthmus.core.record import Params, Record, State, check_record, check_value, leaves
from isthmus.core.replies import (
    Combination,
    MemberParams,
    Stacked,
    StackedParams,
    StackedTensor,
    common_stack,
    gathered,
)

VALUES = {"w": torch.arange(24.0).view(4, 3, 2), "b": torch.arange(4.0).view(4, 1)}


class Counting(StackedTensor):
    """Counts how often somebody looks."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__(values)
        self.looks = 0

    def member(self, position: int) -> torch.Tensor:
        self.looks += 1
        return super().member(position)


def stack() -> tuple[StackedParams, dict[str, Counting]]:
    each = {name: Counting(values) for name, values in VALUES.items()}
    return StackedParams(each, 4), each


def plain(position: int) -> Params:
    return {name: values[position] for name, values in VALUES.items()}


def same(found: Any, expected: Params) -> bool:
    return list(found) == list(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


LOOKS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "stars": lambda params: {**params},
    "or": lambda params: params | {},
    "or from the right": lambda params: {} | params,
    "copy": lambda params: params.copy(),
    "items": lambda params: dict(params.items()),
    "pairs": lambda params: dict(zip(params.keys(), params.values(), strict=True)),
    "iteration": lambda params: {name: params[name] for name in params},
    "get": lambda params: {"w": params.get("w"), "b": params.get("b")},
    "codec": lambda params: decode(encode({"it": params}), State)["it"],
    "leaves": lambda params: {name[2:-2]: tensor for name, tensor in leaves(params).items()},
}


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_sees_the_clients_own_numbers_in_order(look: str) -> None:
    members = stack()[0].members()
    assert isinstance(members[2], dict)
    assert same(LOOKS[look](members[2]), plain(2))


def test_a_look_at_one_parameter_first_leaves_the_order_as_it_was() -> None:
    member = stack()[0].members()[1]
    assert torch.equal(member["b"], VALUES["b"][1])
    assert list(member) == ["w", "b"] and next(iter(member.items()))[0] == "w" and list(reversed(member)) == ["b", "w"]


def test_names_and_checks_need_no_numbers() -> None:
    made, each = stack()
    member = made.members()[0]
    assert len(member) == 2 and "w" in member and "v" not in member and list(member.keys()) == ["w", "b"]
    assert member.get("v") is None and bool(member) and "MemberParams" in repr(member)
    check_value({"params": member}, State, "a memory")
    check_record(Update(member, 1.0))
    assert not any(stacked.looks for stacked in each.values())
    with pytest.raises(KeyError):
        member["v"]


def test_a_stack_of_what_no_message_can_hold_is_refused_like_its_parts() -> None:
    odd = StackedParams({"w": StackedTensor(torch.zeros(2, 3, dtype=torch.complex64))}, 2).members()[0]
    with pytest.raises(BadMessage, match="expected a dense tensor"):
        check_record(Update(odd, 1.0))


CHANGES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "set": (lambda params: params.__setitem__("c", torch.ones(1)), ["w", "b", "c"]),
    "delete": (lambda params: params.__delitem__("w"), ["b"]),
    "pop": (lambda params: params.pop("b"), ["w"]),
    "popitem": (lambda params: params.popitem(), ["w"]),
    "update": (lambda params: params.update(c=torch.ones(1)), ["w", "b", "c"]),
    "setdefault": (lambda params: params.setdefault("c", torch.ones(1)), ["w", "b", "c"]),
    "clear": (lambda params: params.clear(), []),
    "ior": (lambda params: params.__ior__({"c": torch.ones(1)}), ["w", "b", "c"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_concerns_one_client_and_nobody_else(change: str) -> None:
    made, _ = stack()
    members = made.members()
    do, names = CHANGES[change]
    do(members[1])
    assert list(members[1]) == names and len(members[1]) == len(names) and members[1].stack is None
    assert same(members[2], plain(2))
    assert common_stack(members) is None
    for name in names:
        if name in VALUES:
            assert torch.equal(members[1][name], VALUES[name][1])


def test_equality_is_that_of_dicts() -> None:
    first, second = StackedParams({"w": StackedTensor(torch.tensor([1.0, 1.0]))}, 2).members()
    assert first == {"w": torch.tensor(1.0)} and first == second


def test_a_members_tensor_is_not_a_view_that_keeps_all_clients_alive() -> None:
    tensor = stack()[0].members()[3]["w"]
    assert tensor.untyped_storage().nbytes() == tensor.numel() * 4


def test_a_stack_is_mostly_gone_when_most_clients_have_let_go_of_it() -> None:
    made, _ = stack()
    members = made.members()
    assert not made.is_mostly_gone
    del members[0]
    gc.collect()
    assert not made.is_mostly_gone
    del members[1:]
    gc.collect()
    assert made.is_mostly_gone
    members[0].settle()
    assert members[0].stack is None and same(members[0], plain(1))


# ---- replies as one


@dataclass(frozen=True)
class Part(Record):
    """A record in a record."""

    params: Params
    """Of a stack."""
    size: int
    """Of each."""


@dataclass(frozen=True)
class Update(Record):
    """A reply."""

    params: Params
    """Of a stack."""
    weight: float
    """Of each."""


@dataclass(frozen=True)
class Whole(Record):
    """A reply with a reply in it."""

    part: Part
    """It."""
    others: dict[str, float]
    """Of each."""


CLIENTS = ("a", "b", "c", "d")


def test_replies_that_hold_a_stacks_parts_go_as_one_and_nobody_looks() -> None:
    made, each = stack()
    replies = [Update(member, float(k)) for k, member in enumerate(made.members())]
    found = gathered(CLIENTS, replies)
    assert found is not None and found.record.params == each and not any(s.looks for s in each.values())
    for k, reply in enumerate(found):
        assert same(reply.params, plain(k)) and reply.weight == float(k)


def test_records_in_records_are_joined_too_and_what_is_the_same_for_all_is_there_once() -> None:
    made, _ = stack()
    replies = [Whole(Part(member, k), {"x": 2.0 * k, "y": 1.0}) for k, member in enumerate(made.members())]
    found = gathered(CLIENTS, replies)
    assert found is not None
    for k, reply in enumerate(found):
        assert same(reply.part.params, plain(k)) and reply.part.size == k and reply.others == {"x": 2.0 * k, "y": 1.0}


def test_replies_that_are_no_stack_are_left_apart() -> None:
    made, _ = stack()
    members = made.members()
    swapped = [members[1], members[0], *members[2:]]
    assert gathered(CLIENTS, [Update(member, 1.0) for member in swapped]) is None
    assert gathered(CLIENTS[:2], [Update(member, 1.0) for member in members[:2]]) is None
    assert gathered(CLIENTS, [Update(plain(k), 1.0) for k in range(4)]) is None
    mixed = [Update(members[0], 1.0), *(Update(plain(k), 1.0) for k in range(1, 4))]
    assert gathered(CLIENTS, mixed) is None
    kinds = [Update(members[0], 1.0), *(Part(members[k], 1) for k in range(1, 4))]
    assert gathered(CLIENTS, kinds) is None
    keys = [Whole(Part(member, 1), {"x" if k else "z": 1.0}) for k, member in enumerate(made.members())]
    assert gathered(CLIENTS, keys) is None


# ---- sums


def test_a_combination_is_the_sum_of_its_terms_however_it_is_looked_at() -> None:
    values, common = VALUES["w"], torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    found: Stacked = Combination([(2.0, StackedTensor(values)), (-0.5, common)])
    expected = 2.0 * values - 0.5 * common
    assert len(found) == 4 and found.shape == (3, 2) and found.dtype == torch.float32
    torch.testing.assert_close(found.whole(), expected)
    for k in range(4):
        torch.testing.assert_close(found.member(k), expected[k])
    assert bool((found.bound() >= expected.abs().flatten(1).max(dim=1).values).all())
    weights = torch.tensor([1.0, 0.0, 2.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(found.weighted_sum(weights), torch.tensordot(weights, expected.double(), dims=1))


def test_a_combination_of_combinations_is_one_and_when_it_is_kept_it_is_added_up() -> None:
    first = Combination([(1.0, StackedTensor(VALUES["w"])), (1.0, torch.ones(3, 2))])
    second = Combination([(3.0, first), (1.0, torch.ones(3, 2))])
    assert [factor for factor, _ in second.terms] == [3.0, 3.0, 1.0]
    expected = 3.0 * (VALUES["w"] + 1.0) + 1.0
    torch.testing.assert_close(second.whole(), expected)
    kept = StackedParams({"w": second, "b": StackedTensor(VALUES["b"])}, 4)
    kept.condense()
    assert {type(each) for each in kept.each.values()} == {StackedTensor}
    torch.testing.assert_close(kept.members()[2]["w"], expected[2])


def test_who_asks_for_a_sum_may_add_to_it() -> None:
    stacked, weights = StackedTensor(VALUES["w"]), torch.ones(4, dtype=torch.float64)
    first = stacked.weighted_sum(weights)
    expected = first.clone()
    first.add_(1.0)
    assert torch.equal(stacked.weighted_sum(weights), expected)
    assert torch.equal(stacked.weighted_sum(2.0 * weights), 2.0 * expected)


def test_members_are_known_by_their_stack_and_place() -> None:
    made, _ = stack()
    members = made.members()
    assert common_stack(members) is made and common_stack(members[::-1]) is None and common_stack([{}]) is None
    assert isinstance(members[0], MemberParams) and members[0].position == 0


def test_what_was_looked_at_before_a_sum_was_added_up_is_looked_at_anew() -> None:
    """The sum that is kept is what the stack goes on from, and it may differ in the last bits."""

    class Rounded(Combination):
        def condensed(self) -> Stacked:
            return StackedTensor(self.whole().round())

    made = StackedParams({"w": Rounded([(0.3, StackedTensor(VALUES["w"]))]), "b": StackedTensor(VALUES["b"])}, 4)
    members = made.members()
    before, kept = members[1]["w"], members[1]["b"]
    made.condense()
    assert torch.equal(members[1]["w"], before.round()) and not torch.equal(members[1]["w"], before)
    assert members[1]["b"] is kept
    members[2].settle()
    own = members[2]["w"]
    made.condense()
    assert members[2]["w"] is own  # who has left the stack keeps what it has


def test_writing_parameters_down_leaves_them_where_they_are() -> None:
    made, each = stack()
    members = made.members()
    assert same(decode(encode({"it": members[2]}), State)["it"], plain(2))
    assert common_stack(members) is made and not dict.__len__(members[2])
    looks = each["w"].looks
    assert encoded_size(Update(members[1], 1.0)) == encoded_size(Update(plain(1), 1.0))
    assert each["w"].looks == looks  # a size needs no numbers


def test_what_occurs_several_times_in_a_sum_is_one_term() -> None:
    one, other = StackedTensor(VALUES["w"]), StackedTensor(VALUES["w"] + 1.0)
    found = Combination([(2.0, Combination([(1.0, one), (3.0, other)])), (-1.5, one)])
    assert [(factor, term is one) for factor, term in found.terms] == [(0.5, True), (6.0, False)]
    torch.testing.assert_close(found.whole(), 0.5 * VALUES["w"] + 6.0 * (VALUES["w"] + 1.0))


def test_members_are_checked_against_each_annotation_and_anew_once_they_are_changed() -> None:
    held, each = stack()
    first, second, *_ = held.members()
    for member in (first, second, first):
        check_value(member, Params, "here")
        with pytest.raises(BadMessage, match="here: found the key 'w', expected keys of type int"):
            check_value(member, dict[int, torch.Tensor], "here")
        with pytest.raises(BadMessage, match=r"here\['w'\]: found a strided tensor"):
            check_value(member, dict[str, int], "here")
    assert not any(one.looks for one in each.values())
    first["w"] = "no tensor"
    with pytest.raises(BadMessage, match="expected a dense tensor"):
        check_value(first, Params, "here")
    check_value(second, Params, "here")
