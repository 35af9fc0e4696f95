"""Class probabilities that cannot be true, class by class, against counts made one node at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.algorithms import FedAvg, FedGL
from isthmus.config.course import Course
from isthmus.core.protocol import Request
from isthmus.core.record import Record
from isthmus.privacy import ClassSanity
from isthmus.testing import check_guard, toy_course, trace_course
from isthmus.testing.traces import require_same
from tests.privacy.checking.toys import Desk
from tests.quick import quick
from tests.testing.hostile.worlds import world_of


@dataclass(frozen=True)
class Nodes(Record):
    ids: Tensor


@dataclass(frozen=True)
class Inner(Record):
    predictions: Tensor


@dataclass(frozen=True)
class View(Record):
    view: Inner


@dataclass(frozen=True)
class AskNodes(Request[Nodes]):
    pass


@dataclass(frozen=True)
class AskView(Request[View]):
    pass


def view(labels: Any, num_classes: int = 3, sure: float = 0.8) -> View:
    rows = torch.full((len(labels), num_classes), (1 - sure) / (num_classes - 1))
    rows[torch.arange(len(labels)), torch.tensor(labels)] = sure
    return View(Inner(rows))


def slow_disagreements(
    labels: Mapping[str, list[int]], ids: Mapping[str, list[int]], least: float, common: int
) -> set[str]:
    """Return who is alone with a class, counted node by node; all are equally sure of what they say."""
    said = {c: dict(zip(ids[c], labels[c], strict=True)) for c in labels}
    odd = set()
    for client in labels:
        pairs = []
        for node, mine in said[client].items():
            votes = [said[other][node] for other in labels if other != client and node in said[other]]
            if votes:
                pairs.append((mine, min(range(3), key=lambda c: (-votes.count(c), c))))
        for label in range(3):
            either = [pair for pair in pairs if label in pair]
            both = [pair for pair in either if pair == (label, label)]
            if len(either) >= common and len(both) < least * len(either):
                odd.add(client)
    return odd


@pytest.mark.parametrize("seed", range(12))
def test_who_is_alone_with_a_class_is_suspicious(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, 3, size=40)
    ids = {c: sorted(draw.choice(40, size=int(draw.integers(10, 40)), replace=False).tolist()) for c in "abcd"}
    noise = {"a": 0.0, "b": 0.1, "c": 0.4, "d": 0.9}
    labels = {c: [int(truth[i] if draw.random() >= noise[c] else draw.integers(0, 3)) for i in ids[c]] for c in "abcd"}
    desk = Desk((ClassSanity(least_agreement=0.4, least_common=4),))
    held = {c: Nodes(torch.tensor(ids[c])) for c in "abcd"}
    assert not desk.reviewed(held, dict.fromkeys("abcd", AskNodes()))
    desk.next_round()
    found = desk.reviewed({c: view(labels[c]) for c in "abcd"}, dict.fromkeys("abcd", AskView()))
    assert set(found) == slow_disagreements(labels, ids, 0.4, 4)
    assert all("to both" in failure.reason for failure in found.values())


def reason(guard: ClassSanity, reply: View) -> str:
    found = Desk((guard,)).reviewed({"a": reply}, {"a": AskView()})
    return found["a"].reason if found else ""


def test_probabilities_that_do_not_add_up_are_suspicious() -> None:
    good = view([0, 1, 2])
    assert reason(ClassSanity(), good) == ""
    bad = View(Inner(good.view.predictions + torch.tensor([[0.0] * 3, [0.3, 0.0, 0.0], [0.0] * 3])))
    assert reason(ClassSanity(), bad) == "the class probabilities of its node 1 add up to 1.3"
    assert reason(ClassSanity(), View(Inner(torch.zeros(0, 3)))) == ""


def test_nearly_all_nodes_in_one_class_are_suspicious() -> None:
    labels = [1] * 19 + [0]
    assert reason(ClassSanity(0.9), view(labels)) == "to it 0.95 of its nodes are of class 1; at most 0.9"
    assert reason(ClassSanity(0.95), view(labels)) == ""
    assert reason(ClassSanity(0.9), view(labels[:10])) == ""  # of ten nodes nothing is said
    assert reason(ClassSanity(1.0), view([1] * 30)) == ""


def test_it_finds_the_one_that_says_another_class_in_a_course_of_fedgl() -> None:
    world = world_of("fedgl")
    plain = trace_course(world.course(quick("fedgl"), rounds=2), world.scenario)
    behind = trace_course(world.course(quick("fedgl"), rounds=2, guards=(ClassSanity(),)), world.scenario)
    require_same({"it": plain.state}, {"it": behind.state}, "a course with and without a check")


def test_it_keeps_to_the_rules_of_guards() -> None:
    check_guard(ClassSanity(least_agreement=0.01), algorithms=(FedGL(local_steps=1),), skip=("lies",))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ClassSanity(1.5), "largest_share is 1.5"),
        (lambda: ClassSanity(least_agreement=-1.0), "least_agreement is -1.0"),
        (lambda: ClassSanity(least_common=0), "least_common is 0"),
        (lambda: Course(guards=(ClassSanity(),)), "clients of FedAvg send no predictions"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
    assert toy_course(FedGL(), guards=(ClassSanity(),)) and FedAvg()
