"""The tap: everything goes through as it came, and each client's last usable model can be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.federation import Outcome, StackOutcome
from isthmus.core.protocol import EvaluateModel, Evaluation, Failure, Kept, Position, Request
from isthmus.core.record import Params, Record
from isthmus.core.replies import Each, Stack, StackedTensor
from isthmus.monitors.tapped_runtime import TappedRuntime

CLIENTS = ("a", "b", "c")
LIKE: Params = {"w": torch.zeros(2)}


@dataclass(frozen=True)
class PretrainGenerator(Request[ModelUpdate]):
    """Asks for parameters of another kind of model."""


class Written:
    """Carries what a test wrote down."""

    def __init__(self, *outcomes: Outcome | StackOutcome) -> None:
        self.outcomes, self.calls = list(outcomes), list[Any]()

    clients = CLIENTS

    def exchange(
        self, position: Position, requests: Mapping[str, Request[Any]], timeout_seconds: float | None
    ) -> Iterator[Outcome | StackOutcome]:
        self.calls.append((position, requests, timeout_seconds))
        yield from self.outcomes

    def mark(self, round: int) -> None:
        self.calls.append(("mark", round))

    def undo(self, client: str) -> None:
        pass

    def abandon_round(self) -> int:
        return 7

    def save_clients(self) -> dict[str, bytes]:
        return {"a": b"memory"}

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        self.calls.append(memories)


def update(*weights: float) -> ModelUpdate:
    return ModelUpdate({"w": torch.tensor(weights, dtype=torch.float32)}, 1.0)


def outcome(client: str, reply: Record | Failure) -> Outcome:
    return Outcome(client, reply, 1, 2, 0.5)


class Counted(StackedTensor):
    """Knows how often it was taken apart."""

    taken = 0

    def member(self, position: int) -> torch.Tensor:
        Counted.taken += 1
        return super().member(position)


def stack(clients: tuple[str, ...], *rows: tuple[float, float]) -> StackOutcome:
    weights = Each((1.0,) * len(clients))
    return StackOutcome(
        Stack.of(clients, ModelUpdate, params={"w": Counted(torch.tensor(rows, dtype=torch.float32))}, weight=weights),
        1,
        2,
        3,
    )


def told(
    tap: TappedRuntime, inner: Written, round: int, request: Request[Any], *outcomes: Outcome | StackOutcome
) -> list[Outcome | StackOutcome]:
    inner.outcomes = list(outcomes)
    return list(tap.exchange(Position(0, round, 0), dict.fromkeys(CLIENTS, request), 1.5))


def found(tap: TappedRuntime, round: int) -> dict[str, list[float]]:
    return {client: trained.params["w"].tolist() for client, trained in tap.models(round, LIKE).items()}


def started(tap: TappedRuntime, round: int) -> dict[str, list[float]]:
    return {c: trained.start["w"].tolist() if trained.start else [] for c, trained in tap.models(round, LIKE).items()}


def test_outcomes_pass_as_the_same_objects_in_the_same_order() -> None:
    inner = Written()
    sent = (outcome("c", update(5, 6)), stack(("b",), (3, 4)), outcome("a", Failure("a", "lost", "gone")))
    back = told(TappedRuntime(inner, lambda round: True), inner, 1, TrainModel(LIKE), *sent)
    assert len(back) == 3 and all(one is two for one, two in zip(back, sent, strict=True))
    assert inner.calls[0][2] == 1.5


def test_an_outcome_is_passed_on_before_the_next_is_made() -> None:
    made = []

    class Slow(Written):
        def exchange(self, *args: Any) -> Iterator[Outcome | StackOutcome]:
            for client in CLIENTS:
                made.append(client)
                yield outcome(client, update(1, 2))

    heard = TappedRuntime(Slow(), lambda round: True).exchange(
        Position(0, 1, 0), dict.fromkeys(CLIENTS, TrainModel(LIKE)), None
    )
    next(heard)
    assert made == ["a"]


def test_the_last_usable_model_of_each_client_is_kept_in_the_order_of_the_clients() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: True)
    told(tap, inner, 1, TrainModel(LIKE), outcome("b", update(1, 1)), outcome("a", update(2, 2)))
    told(tap, inner, 1, TrainModel(LIKE), outcome("b", update(3, 3)), outcome("a", Failure("a", "error", "no")))
    assert found(tap, 1) == {"a": [2, 2], "b": [3, 3]}
    assert found(tap, 2) == {} and found(tap, 0) == {}


def test_a_reply_that_the_server_could_not_use_is_no_model() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: True)
    told(
        tap,
        inner,
        1,
        TrainModel(LIKE),
        outcome("a", update(1, float("nan"))),
        outcome("b", update(1)),
        outcome("c", Kept()),
    )
    assert found(tap, 1) == {}
    told(tap, inner, 2, TrainModel(LIKE), stack(CLIENTS, (1, 2), (float("inf"), 0), (5, 6)))
    assert found(tap, 2) == {"a": [1, 2], "c": [5, 6]}


def test_a_model_was_trained_from_what_had_been_sent_last_before_it() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: round > 1)
    evaluated = EvaluateModel({"w": torch.full((2,), 9.0)}, ("val",), "accuracy", False)
    told(tap, inner, 1, TrainModel({"w": torch.full((2,), 1.0)}), outcome("a", update(1, 2)))
    told(tap, inner, 1, evaluated, outcome("a", Evaluation({}, {})))
    told(tap, inner, 2, PretrainGenerator(), outcome("a", update(3, 4)))  # sends nothing; round 1 was not kept
    assert started(tap, 2) == {"a": [1, 1]}
    told(tap, inner, 2, TrainModel({"w": torch.full((2,), 5.0)}), outcome("b", update(1, 2)))
    assert started(tap, 2) == {"a": [1, 1], "b": [5, 5]}
    told(tap, inner, 3, TrainModel({"w": torch.ones(3)}), outcome("a", update(1, 2, 3)))
    told(tap, inner, 3, PretrainGenerator(), outcome("a", update(1, 2)))
    assert started(tap, 3) == {"a": []}  # what was sent last is a model of another kind


def test_a_model_comes_with_the_weight_that_its_client_asked_for() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: True)
    heavy = ModelUpdate({"w": torch.ones(2)}, 3.0)
    told(tap, inner, 1, TrainModel(LIKE), outcome("a", heavy), stack(("b",), (3, 4)))
    assert {client: trained.weight for client, trained in tap.models(1, LIKE).items()} == {"a": 3.0, "b": 1.0}


def test_a_course_that_goes_on_knows_what_was_sent_before() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: True, known={"w": torch.full((2,), 7.0)})
    told(tap, inner, 4, PretrainGenerator(), outcome("a", update(3, 4)))
    assert started(tap, 4) == {"a": [7, 7]}


def test_parameters_of_another_kind_of_model_are_passed_over() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: True)
    told(tap, inner, 1, TrainModel(LIKE), outcome("a", update(1, 2)))
    told(tap, inner, 1, PretrainGenerator(), outcome("a", update(1, 2, 3)), outcome("b", update(1, 2, 3)))
    assert found(tap, 1) == {"a": [1, 2]}


def test_a_stack_is_taken_apart_only_when_somebody_asks() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: True)
    Counted.taken = 0
    for round in range(1, 5):
        told(tap, inner, round, TrainModel(LIKE), stack(CLIENTS, (1, 2), (3, 4), (5, round)))
    assert Counted.taken == 0
    assert found(tap, 4) == {"a": [1, 2], "b": [3, 4], "c": [5, 4]}
    assert Counted.taken == 3


def test_rounds_that_nobody_will_ask_for_are_not_kept() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: round == 2)
    told(tap, inner, 1, TrainModel(LIKE), outcome("a", update(1, 2)))
    assert found(tap, 1) == {} and not tap._heard
    told(tap, inner, 2, TrainModel(LIKE), outcome("a", update(1, 2)))
    assert found(tap, 2) == {"a": [1, 2]}
    told(tap, inner, 3, TrainModel(LIKE), outcome("a", update(1, 2)))
    assert not tap._heard  # the replies of round 2 are not held any longer


def test_replies_without_parameters_are_not_kept_and_the_evaluated_model_is_known() -> None:
    inner = Written()
    tap = TappedRuntime(inner, lambda round: True)
    request = EvaluateModel({"w": torch.ones(2)}, ("val",), "accuracy", False)
    told(tap, inner, 1, request, outcome("a", Evaluation({}, {})))
    assert not tap._heard and tap.shared(1) is request.params and tap.shared(2) == {}
    assert list(tap.exchange(Position(0, 2, 0), {}, None)) == inner.outcomes  # nobody is asked
    assert tap.shared(2) == {}


def test_everything_else_is_the_other_runtime_s_and_marks_are_told_after_they_are_made() -> None:
    inner = Written()
    marks = []
    tap = TappedRuntime(inner, lambda round: True, lambda round: marks.append((round, list(inner.calls))))
    tap.mark(3)
    assert marks == [(3, [("mark", 3)])]
    assert (tap.clients, tap.abandon_round(), tap.save_clients()) == (CLIENTS, 7, {"a": b"memory"})
    tap.load_clients({"a": b"x"})
    assert inner.calls[-1] == {"a": b"x"}
