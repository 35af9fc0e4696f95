from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from isthmus.core.client import Client
from isthmus.core.federation import Federation, Position
from isthmus.core.protocol import (
    Algorithm,
    EvaluateModel,
    Evaluation,
    KeepBest,
    Kept,
    ModelState,
    Request,
    improves,
    on,
    reply_type,
)
from isthmus.core.record import Params, Record

T = TypeVar("T", bound=Record)


@dataclass(frozen=True)
class Answer(Record):
    text: str


@dataclass(frozen=True)
class Greet(Request[Answer]):
    name: str


@dataclass(frozen=True)
class GreetLoudly(Greet):
    pass


@dataclass(frozen=True)
class Part(Request[Kept]):
    pass


@dataclass(frozen=True)
class Unsaid(Request):  # type: ignore[type-arg]
    pass


@dataclass(frozen=True)
class Open(Request[T]):
    pass


@dataclass(frozen=True)
class Polite(Algorithm[ModelState]):
    def setup(self, fed: Federation) -> ModelState:
        return ModelState({})

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        return state

    @on(Greet)
    def greet(self, request: Greet, client: Any) -> Answer:
        return Answer(f"hello {request.name}")


@dataclass(frozen=True)
class Rude(Polite):
    def greet(self, request: Greet, client: Any) -> Answer:
        return Answer("go away")


@dataclass(frozen=True)
class Renamed(Polite):
    @on(Greet)
    def welcome(self, request: Greet, client: Any) -> Answer:
        return Answer("welcome")


@dataclass(frozen=True)
class Reused(Polite):
    @on(Part)
    def greet(self, request: Part, client: Any) -> Kept:  # type: ignore[override]
        return Kept()


@dataclass(frozen=True)
class Larger(Polite):
    personal: ClassVar[tuple[str, ...]] = ("head", "absent")

    @on(Part)
    def part(self, request: Part, client: Any) -> Kept:
        return Kept()

    def client_params(self, params: Params, state: Any) -> Params:
        return {**params, **state.get("head", {})}


class NoteTaker(Client):
    def evaluate(self, params: Params, splits: tuple[str, ...]) -> Any:
        return {split: {"sum": sum(float(t.sum()) for t in params.values())} for split in splits}, {"val": 2}


def answer(algorithm: Algorithm[Any], request: Request[Any], client: Any = None) -> Any:
    return getattr(algorithm, type(algorithm).handlers()[type(request)])(request, client)


# ---- handlers


def test_handlers_are_found_by_request_with_those_every_algorithm_has() -> None:
    assert Polite.handlers() == {EvaluateModel: "evaluate", KeepBest: "keep_best", Greet: "greet"}
    assert Larger.handlers() == {**Polite.handlers(), Part: "part"}


def test_a_subclass_that_overrides_a_handler_answers_with_its_own() -> None:
    assert answer(Polite(), Greet("bo")) == Answer("hello bo")
    assert answer(Rude(), Greet("bo")) == Answer("go away")
    assert Rude.handlers() == Polite.handlers()


def test_a_subclass_may_answer_a_request_by_another_name() -> None:
    assert answer(Renamed(), Greet("bo")) == Answer("welcome")
    assert answer(Polite(), Greet("bo")) == Answer("hello bo")


def test_a_name_that_a_subclass_uses_for_another_request_no_longer_answers_the_first() -> None:
    assert Reused.handlers()[Part] == "greet"
    assert Greet not in Reused.handlers()


def test_a_request_of_a_subclass_has_no_handler_of_its_own() -> None:
    assert GreetLoudly not in Polite.handlers()


# ---- which reply, which state


def test_a_request_names_its_reply_also_through_inheritance() -> None:
    assert reply_type(Greet) is Answer
    assert reply_type(GreetLoudly) is Answer
    assert reply_type(EvaluateModel) is Evaluation


@pytest.mark.parametrize("kind", [Unsaid, Open, Request])
def test_a_request_without_a_reply_type_is_an_error_that_says_what_to_write(kind: type[Request[Any]]) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} does not say .* write Request\[ReplyType\]"):
        reply_type(kind)


def test_the_state_type_is_what_setup_returns() -> None:
    assert Polite.state_type() is ModelState
    assert Rude.state_type() is ModelState


def test_a_setup_without_annotation_is_an_error_that_says_what_to_write() -> None:
    @dataclass(frozen=True)
    class Unannotated(Polite):
        def setup(self, fed):  # type: ignore[no-untyped-def]
            return ModelState({})

    with pytest.raises(TypeError, match=r"Unannotated\.setup does not say which record it returns; annotate it"):
        Unannotated.state_type()


def test_a_setup_whose_annotation_cannot_be_found_is_a_clear_error() -> None:
    @dataclass(frozen=True)
    class Hidden(Record):
        pass

    @dataclass(frozen=True)
    class Elsewhere(Polite):
        def setup(self, fed: Federation) -> Hidden:  # type: ignore[override]
            return Hidden()

    with pytest.raises(TypeError, match=r"Elsewhere\.setup .*'Hidden'"):
        Elsewhere.state_type()


def test_an_algorithm_needs_both_server_methods() -> None:
    @dataclass(frozen=True)
    class Half(Algorithm[ModelState]):
        def setup(self, fed: Federation) -> ModelState:
            return ModelState({})

    with pytest.raises(TypeError, match="round"):
        Half()  # type: ignore[abstract]


# ---- what every algorithm does


def test_evaluation_uses_the_clients_own_model_and_the_best_one_when_asked() -> None:
    client = NoteTaker("c")
    client.state = {"head": {"h": torch.tensor([5.0])}, "best": {"head": {"h": torch.tensor([7.0])}}}
    now = answer(Larger(), EvaluateModel({"w": torch.tensor([1.0])}, ("val",), "sum", best=False), client)
    best = answer(Larger(), EvaluateModel({"w": torch.tensor([1.0])}, ("val",), "sum", best=True), client)
    plain = answer(Polite(), EvaluateModel({"w": torch.tensor([1.0])}, ("val", "train"), "sum", best=False), client)
    assert now == Evaluation({"val": {"sum": 6.0}}, {"val": 2})
    assert best.metrics == {"val": {"sum": 8.0}}
    assert plain.metrics == {"val": {"sum": 1.0}, "train": {"sum": 1.0}}


def test_keep_best_keeps_the_personal_parts_of_now_and_nothing_else() -> None:
    client = NoteTaker("c")
    client.state = {"head": 1, "other": 2}
    assert answer(Larger(), KeepBest(), client) == Kept()
    client.state["head"] = 3
    assert client.state == {"head": 3, "other": 2, "best": {"head": 1}}


def test_personal_models_are_known_by_their_method() -> None:
    assert Larger().has_personal_models and not Rude().has_personal_models


def test_the_global_model_is_the_states_params_or_none() -> None:
    state = ModelState({"w": torch.ones(1)})
    assert Polite().global_params(state) is state.params
    assert Polite().global_params(Kept()) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "score", "best", "better"),
    [
        ("accuracy", 0.5, None, True),
        ("accuracy", 0.5, 0.4, True),
        ("accuracy", 0.5, 0.5, False),
        ("accuracy", 0.3, 0.4, False),
        ("loss", 0.3, 0.4, True),
        ("loss", 0.4, 0.4, False),
        ("loss", 0.5, 0.4, False),
        ("rmse", 0.3, 0.4, True),
        ("mae", 0.3, 0.4, True),
        ("accuracy", math.nan, None, False),
        ("loss", math.nan, 0.4, False),
    ],
)
def test_better_is_strictly_higher_or_lower_as_the_metric_wants(
    metric: str, score: float, best: float | None, better: bool
) -> None:
    assert improves(metric, score, best) is better


def test_a_clients_random_stream_depends_on_place_client_and_purpose() -> None:
    def drawn(id: str, position: Position, purpose: str) -> float:
        client = NoteTaker(id)
        client.position = position
        return float(torch.rand(1, generator=client.generator(purpose)))

    cases = [
        ("a", Position(0, 1, 0), "fit"),
        ("b", Position(0, 1, 0), "fit"),
        ("a", Position(1, 1, 0), "fit"),
        ("a", Position(0, 2, 0), "fit"),
        ("a", Position(0, 1, 1), "fit"),
        ("a", Position(0, 1, 0), "noise"),
    ]
    values = [drawn(*case) for case in cases]
    assert len(set(values)) == len(values)
    assert values == [drawn(*case) for case in cases]
