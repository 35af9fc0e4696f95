from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.core.federation.judging import MAX_INTEGER, MAX_WEIGHT, judged, judged_stack
from isthmus.core.protocol import EvaluateModel, Evaluation, Failure, Holdings, Kept, Known, Request
from isthmus.core.record import Params, Record, largest
from isthmus.core.replies import Each, Stack, Stacked, StackedTensor

from .toys import stack_of

CLIENTS = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Update(Record):
    params: Params
    weight: float
    steps: int
    name: str
    scores: dict[str, float]
    maybe: float | None = None


@dataclass(frozen=True)
class Train(Request[Update]):
    params: Params


class Counting(Stacked):
    """Notes who is taken out."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors, self.taken = tensors, []  # type: ignore[var-annotated]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensors[0].shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    def __len__(self) -> int:
        return len(self.tensors)

    def member(self, position: int) -> Tensor:
        self.taken.append(position)
        return self.tensors[position]

    def bound(self) -> Tensor:
        return torch.tensor([largest(tensor) for tensor in self.tensors], dtype=torch.float64)


def model(*shape: int) -> Params:
    return {"w": torch.ones(shape or (2,))}


def update(**changes: Any) -> Update:
    fields = {"params": model(), "weight": 1.0, "steps": 3, "name": "x", "scores": {"loss": 0.5}, "maybe": None}
    return Update(**{**fields, **changes})  # type: ignore[arg-type]


def verdicts(
    stack: Stack, requests: Mapping[str, Request[Any]], expected: type[Record] = Update
) -> tuple[list[bool], list[Failure]]:
    """Judge a stack, and see that every member gets the very verdict that it would get alone."""
    kinds = dict.fromkeys(stack.clients, expected)
    sound, failures = judged_stack(stack, requests, kinds)
    assert sound.dtype == torch.bool and sound.shape == (len(stack),)
    alone = [judged(c, stack.member(k), requests[c], expected) for k, c in enumerate(stack.clients)]
    assert failures == [verdict for verdict in alone if isinstance(verdict, Failure)]
    assert sound.tolist() == [not isinstance(verdict, Failure) for verdict in alone]
    return sound.tolist(), failures


def requests_of(params: Params | None = None) -> dict[str, Request[Any]]:
    return dict.fromkeys(CLIENTS, Train(model() if params is None else params))


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "NaN in a tensor": (
        {"params": {"w": torch.tensor([1.0, math.nan])}},
        "not_finite",
        "1 of 2 entries that are NaN or infinite: diverged; a",
    ),
    "infinity in a tensor": ({"params": {"w": torch.tensor([-math.inf, 0.0])}}, "not_finite", "1 of 2 entries"),
    "NaN in a number": ({"scores": {"loss": math.nan}}, "not_finite", r"scores['loss'] is nan"),
    "NaN in an optional number": ({"maybe": math.nan}, "not_finite", "maybe is nan"),
    "NaN for a weight": ({"weight": math.nan}, "not_finite", "weight is nan"),
    "a negative weight": ({"weight": -0.5}, "malformed", "weight is -0.5"),
    "a weight too large": ({"weight": 2 * MAX_WEIGHT}, "malformed", "weight is 2e+15"),
    "a whole weight too large": ({"weight": 10**16}, "malformed", "weight is 1e+16"),
    "a weight beyond floats": ({"weight": 10**400}, "malformed", "too large"),
    "an integer too large": ({"steps": MAX_INTEGER}, "malformed", "integer of 64 bits"),
    "an integer too small": ({"steps": -(2**70)}, "malformed", "integer of 71 bits"),
    "a word for a number": ({"scores": {"loss": "low"}}, "malformed", "expected float"),
    "a word for a weight": ({"weight": "much"}, "malformed", "expected float"),
    "a number for a word": ({"name": 5}, "malformed", "expected str"),
    "a float for an integer": ({"steps": 3.0}, "malformed", "expected int"),
    "a truth value for an integer": ({"steps": True}, "malformed", "expected int"),
    "a truth value for a float": ({"weight": True}, "malformed", "expected float"),
    "nothing for a number": ({"scores": {"loss": None}}, "malformed", "expected float"),
    "a number too large": ({"scores": {"loss": -1e300}}, "malformed", "beyond 1e+18"),
    "a parameter too large": (
        {"params": {"w": torch.tensor([0.0, 1e37])}},
        "malformed",
        "1e+37, which is beyond 2e+10",
    ),
    "a parameter too small": ({"params": {"w": torch.tensor([-2.1e10, 0])}}, "malformed", ": diverged; a smaller"),
    "a list": ({"name": ["x"]}, "malformed", "expected str"),
}


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_in_the_member_that_has_it_and_in_no_other(fault: str, position: int) -> None:
    changes, kind, reason = FAULTS[fault]
    members = {client: update() for client in CLIENTS}
    members[CLIENTS[position]] = update(**changes)
    sound, failures = verdicts(stack_of(members), requests_of())
    assert sound == [k != position for k in range(4)]
    (failure,) = failures
    assert (failure.client, failure.kind) == (CLIENTS[position], kind) and reason in failure.reason


def test_each_of_several_faults_is_named() -> None:
    members = {
        "a": update(weight=-1.0),
        "b": update(),
        "c": update(params={"w": torch.tensor([math.nan, math.nan])}, weight=-1.0),
        "d": update(steps=2**64),
    }
    sound, failures = verdicts(stack_of(members), requests_of())
    assert sound == [False, True, False, False]
    assert [(failure.client, failure.kind) for failure in failures] == [
        ("a", "malformed"),
        ("c", "malformed"),
        ("d", "malformed"),
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_all_is_every_members_failure(fault: str) -> None:
    changes, kind, _ = FAULTS[fault]
    sound, failures = verdicts(stack_of({client: update(**changes) for client in CLIENTS}), requests_of())
    assert sound == [False] * 4
    assert [(failure.client, failure.kind) for failure in failures] == [(client, kind) for client in CLIENTS]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"w": torch.ones(3)}, "has shape (3,)"),
        ({"v": torch.ones(2)}, "in the request or in the reply only"),
        ({"w": torch.ones(2), "v": torch.ones(1)}, "'v' is in the request or in the reply only"),
        ({"w": torch.ones(2, dtype=torch.float64)}, "of torch.float64"),
        ({"w": torch.ones(2).long()}, "of torch.int64"),
    ],
    ids=["shape", "key", "more", "precision", "integers"],
)
def test_models_of_another_kind_than_were_sent_are_everybodys_failure(params: Params, reason: str) -> None:
    sound, failures = verdicts(stack_of({client: update(params=params) for client in CLIENTS}), requests_of())
    assert sound == [False] * 4
    assert {failure.kind for failure in failures} == {"malformed"} and reason in failures[0].reason


def test_only_the_client_that_was_sent_another_model_fails_when_requests_differ() -> None:
    requests = {client: Train(model()) for client in CLIENTS}
    requests["c"] = Train(model(5))
    sound, failures = verdicts(stack_of({client: update() for client in CLIENTS}), requests)
    assert sound == [True, True, False, True] and [failure.client for failure in failures] == ["c"]


def test_a_record_of_another_type_is_everybodys_failure() -> None:
    stack = Stack(CLIENTS, Kept())
    sound, failures = verdicts(stack, requests_of())
    assert sound == [False] * 4
    assert all("found the record Kept, expected Update" in failure.reason for failure in failures)


def test_a_subclass_of_the_reply_is_another_type() -> None:
    @dataclass(frozen=True)
    class More(Update):
        pass

    members = {client: More(**vars(update())) for client in CLIENTS}
    assert verdicts(stack_of(members), requests_of())[0] == [False] * 4


@pytest.mark.parametrize(
    "changes",
    [
        [{"weight": 1}, {"weight": 1.0}, {"weight": 0}, {"weight": 0.0}],
        [{"maybe": None}, {"maybe": 1.0}, {"maybe": 2}, {"maybe": None}],
        [{"weight": MAX_WEIGHT}, {}, {"steps": MAX_INTEGER - 1}, {"steps": -(MAX_INTEGER - 1)}],
        [{"scores": {"loss": 1}}, {"scores": {"loss": -1e17}}, {}, {}],
        [{"params": {"w": torch.tensor([1.9e10, -1.9e10])}}, {}, {}, {}],
    ],
    ids=["whole weights", "optional numbers", "limits", "whole numbers", "large parameters"],
)
def test_odd_but_sound_replies_are_sound(changes: list[dict[str, Any]]) -> None:
    members = {client: update(**change) for client, change in zip(CLIENTS, changes, strict=True)}
    assert verdicts(stack_of(members), requests_of()) == ([True] * 4, [])


def test_what_is_the_same_for_all_is_checked_too() -> None:
    good = update(params={"w": StackedTensor(torch.ones(4, 2))})
    assert verdicts(Stack(CLIENTS, good), requests_of()) == ([True] * 4, [])
    for changes in ({"weight": -1.0}, {"weight": math.nan}, {"weight": 1e300}, {"name": 5}, {"weight": "much"}):
        bad = replace(good, **changes)  # type: ignore[arg-type]
        assert verdicts(Stack(CLIENTS, bad), requests_of())[0] == [False] * 4


@pytest.mark.parametrize(
    "changes",
    [{"params": {"w": torch.tensor([1.0, math.nan])}}, {"scores": {"loss": math.inf}}, {"steps": 2**70}],
    ids=repr,
)
def test_impossible_numbers_that_are_the_same_for_all_are_everybodys_failure(changes: dict[str, Any]) -> None:
    bad = replace(update(weight=Each((1.0, 2.0, 3.0, 4.0))), **changes)
    assert verdicts(Stack(CLIENTS, bad), requests_of())[0] == [False] * 4


# ---- nobody is taken out without need


def test_a_sound_stack_is_not_taken_apart_and_one_odd_reply_only_is_taken_out() -> None:
    good = Counting(*(torch.ones(2) for _ in CLIENTS))
    kinds = dict.fromkeys(CLIENTS, Update)
    weight = Each((1.0, 2.0, 0.0, 4.0))
    sound, failures = judged_stack(Stack(CLIENTS, update(params={"w": good}, weight=weight)), requests_of(), kinds)
    assert sound.tolist() == [True] * 4 and not failures and good.taken == []
    one = Counting(torch.ones(2), torch.ones(2), torch.tensor([1.0, math.nan]), torch.ones(2))
    sound, failures = judged_stack(Stack(CLIENTS, update(params={"w": one}, weight=weight)), requests_of(), kinds)
    assert sound.tolist() == [True, True, False, True] and one.taken == [2]
    assert [failure.client for failure in failures] == ["c"]


# ---- what the request itself finds wrong


@dataclass(frozen=True)
class TrainAtMost(Request[Update]):
    """Looks at its replies: no more steps than were asked for."""

    params: Params
    steps: int

    def problem(self, reply: Update) -> str:
        if reply.name == "odd":
            raise ValueError("cannot even be looked at")
        return f"{reply.steps} steps, asked were {self.steps}" if reply.steps > self.steps else ""


def test_a_request_has_no_problem_with_its_reply_unless_it_says_so() -> None:
    assert Train(model()).problem(update()) == ""
    reply = update()
    assert judged("a", reply, Train(model()), Update) is reply


def test_a_reply_that_the_request_has_a_problem_with_is_malformed_and_says_why() -> None:
    good, bad = update(steps=3), update(steps=4)
    request = TrainAtMost(model(), 3)
    assert judged("a", good, request, Update) is good
    assert judged("a", bad, request, Update) == Failure("a", "malformed", "Update: 4 steps, asked were 3")
    assert judged("a", update(name="odd"), request, Update) == Failure("a", "malformed", "cannot even be looked at")


def test_the_request_looks_only_at_replies_of_the_right_type_and_fields_and_before_numbers_are_judged() -> None:
    request = TrainAtMost(model(), 3)
    failure = judged("a", Kept(), request, Update)
    assert isinstance(failure, Failure) and "found the record Kept" in failure.reason
    failure = judged("a", update(steps="many"), request, Update)
    assert isinstance(failure, Failure) and "expected int" in failure.reason
    both = update(steps=9, params={"w": torch.tensor([1.0, math.nan])})
    failure = judged("a", both, request, Update)
    assert isinstance(failure, Failure) and failure.kind == "malformed"
    assert judged("a", Failure("a", "lost", "gone"), request, Update) == Failure("a", "lost", "gone")


def test_every_reply_of_a_stack_is_looked_at_by_its_own_request() -> None:
    members = {client: update(steps=steps) for client, steps in zip(CLIENTS, (1, 2, 3, 4), strict=True)}
    requests = {c: TrainAtMost(model(), limit) for c, limit in zip(CLIENTS, (1, 1, 3, 3), strict=True)}
    sound, failures = verdicts(stack_of(members), requests)
    assert sound == [True, False, True, False]
    assert [failure.reason for failure in failures] == [
        "Update: 2 steps, asked were 1",
        "Update: 4 steps, asked were 3",
    ]
    shared = dict.fromkeys(CLIENTS, TrainAtMost(model(), 2))
    assert verdicts(stack_of(members), shared)[0] == [True, True, False, False]
    assert verdicts(stack_of(members), dict.fromkeys(CLIENTS, TrainAtMost(model(), 9))) == ([True] * 4, [])


HELD = Known({client: Holdings(nodes=40, examples={"train": 20, "val": 10}) for client in CLIENTS})


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        (20.0, ""),
        (40.0, ""),
        (41.0, "weight is 41; it must be in [0, 40]"),
        (1e15, "weight is 1e+15; it must be in [0"),
    ],
)
def test_a_weight_is_bounded_by_what_a_client_agreed_to_hold(weight: float, problem: str) -> None:
    members = {client: update(weight=weight if client == "b" else 1.0) for client in CLIENTS}
    alone = judged("b", members["b"], Train(model()), Update, HELD)
    sound, failures = judged_stack(stack_of(members), requests_of(), dict.fromkeys(CLIENTS, Update), HELD)
    assert sound.tolist() == [client != "b" or not problem for client in CLIENTS]
    if problem:
        assert isinstance(alone, Failure) and failures == [alone] and alone.kind == "malformed"
        assert problem in alone.reason and "the client holds 40 nodes and as examples 20 train, 10 val" in alone.reason
    else:
        assert not isinstance(alone, Failure)


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ({"train": 20, "val": 10}, ""),
        ({"train": 21}, "Evaluation.counts['train'] is 21; the client holds 40 nodes"),
        ({"val": 2**62}, "Evaluation.counts['val'] is 4.61169e+18"),
        ({"test": 1}, "Evaluation.counts['test'] is 1"),
    ],
)
def test_counts_of_examples_are_bounded_by_what_a_client_agreed_to_hold(counts: dict[str, int], problem: str) -> None:
    metrics = {split: {"loss": 0.5} for split in counts}
    found = judged(
        "b", Evaluation(metrics, counts), EvaluateModel(model(), tuple(counts), "loss", best=False), Evaluation, HELD
    )
    if problem:
        assert isinstance(found, Failure) and found.kind == "malformed" and problem in found.reason
    else:
        assert not isinstance(found, Failure)
