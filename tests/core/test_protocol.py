from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from isthmus.algorithms import ALGORITHMS, GFLAPPNP, FedAvg, FedGL, FedSagePlus
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedgl import TrainWithGuidance
from isthmus.core.client import Client
from isthmus.core.federation import Federation, Outcome
from isthmus.core.protocol import (
    Algorithm,
    EvaluateModel,
    Evaluation,
    Failure,
    KeepBest,
    Kept,
    ModelState,
    Position,
    Request,
    cohort,
    improves,
    on,
    reply_type,
    told,
)
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import GraphClient
from isthmus.runtime.loop import StackedRuntime
from isthmus.testing import toy_course
from isthmus.testing.toys import toy_scenario
from isthmus.testing.traces import Trace, require_close, same, trace_course
from tests.side_by_side import Block, Written, side_by_side

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
        total = sum(float(t.sum()) for t in params.values())
        return self.do(Written(({split: {"sum": total} for split in splits}, {"val": 2})))


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


# ---- handlers for many clients at once


@dataclass(frozen=True)
class Chorus(Polite):
    @on(Greet)
    def greet(self, request: Greet, client: Any) -> Answer:
        return Answer(f"hello {request.name}")

    @cohort(Greet)
    def greet_together(self, requests: Any, clients: Any) -> list[Answer]:
        return [self.greet(request, client) for request, client in zip(requests, clients, strict=True)]


@dataclass(frozen=True)
class Solo(Chorus):
    @on(Greet)
    def greet(self, request: Greet, client: Any) -> Answer:
        return Answer(f"hello {request.name}, I am {client.id}")


@dataclass(frozen=True)
class SameChorus(Chorus):
    pass


def test_handlers_for_many_are_found_by_request() -> None:
    assert Chorus.cohort_handlers() == {Greet: "greet_together"}
    assert FedGL.cohort_handlers() == {TrainWithGuidance: "train_together"}


def test_the_evaluation_and_all_but_three_algorithms_have_none_and_need_none() -> None:
    assert Polite.cohort_handlers() == {}
    assert {kind for kind in ALGORITHMS.values() if kind.cohort_handlers()} == {FedGL, FedSagePlus, GFLAPPNP}


def test_a_handler_for_many_does_not_answer_a_single_client() -> None:
    assert Chorus.handlers() == Polite.handlers()


@dataclass(frozen=True)
class Doubled(FedAvg):
    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        update = super().train(request, client)
        return replace(update, params={name: 2 * tensor for name, tensor in update.params.items()})


@dataclass(frozen=True)
class DoubledUnmarked(FedAvg):
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        update = super().train(request, client)
        return replace(update, params={name: 2 * tensor for name, tensor in update.params.items()})


@dataclass(frozen=True)
class Pulled(FedAvg):
    def penalty(self, request: TrainModel, client: GraphClient) -> Any:
        return lambda live: sum(tensor.square().sum() for tensor in live.values())


@dataclass(frozen=True)
class Louder(FedAvg):
    def weight(self, client: GraphClient) -> float:
        return float(len(client.id) + int(client.id[-1]) ** 2)


@dataclass(frozen=True)
class Unchanged(FedAvg):
    pass


@dataclass(frozen=True)
class Flattering(FedAvg):
    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: Any) -> Evaluation:
        found = super().evaluate(request, client)
        return Evaluation({split: {"accuracy": 0.75} for split in found.metrics}, found.counts)


@dataclass(frozen=True)
class Judging(FedAvg):
    """Answers the evaluation by another name."""

    @on(EvaluateModel)
    def judge(self, request: EvaluateModel, client: Any) -> Evaluation:
        return Evaluation({split: {"accuracy": 0.75} for split in request.splits}, dict.fromkeys(request.splits, 4))


@dataclass(frozen=True)
class OwnModels(FedAvg):
    """Every client is judged by its own multiple of the model."""

    def client_params(self, params: Params, state: Any) -> Params:
        return {name: state.get("factor", 1.0) * tensor for name, tensor in params.items()}

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        client.state["factor"] = 1.0 + int(client.id[-1])
        return super().train(request, client)


@dataclass(frozen=True)
class TwiceRemoved(Doubled):
    pass


SUBCLASSES = [Doubled, DoubledUnmarked, Pulled, Louder, Unchanged, Flattering, OwnModels, TwiceRemoved]


@pytest.mark.parametrize("kind", [Solo, SameChorus])
def test_a_handler_for_many_is_never_inherited(kind: type[Chorus]) -> None:
    assert Greet in kind.handlers()
    assert kind.cohort_handlers() == {}
    clients = [NoteTaker(name) for name in "abc"]
    runtime = StackedRuntime(kind(), clients, lambda chosen: ([Block(chosen)], []))
    outcomes = runtime.exchange(Position(0, 1, 0), {client.id: Greet("bo") for client in clients}, None)
    replies = [outcome.reply for outcome in outcomes if isinstance(outcome, Outcome)]
    assert replies == [answer(kind(), Greet("bo"), client) for client in clients]


@pytest.mark.parametrize("kind", [FedGL, GFLAPPNP])
def test_nor_by_a_subclass_of_an_algorithm_of_the_table(kind: type[Algorithm[Any]]) -> None:
    heir = dataclass(frozen=True)(type("Heir", (kind,), {"__annotations__": {}}))
    assert kind.cohort_handlers() and heir.cohort_handlers() == {}


def test_a_changed_handler_for_many_without_its_mark_is_not_used() -> None:
    @dataclass(frozen=True)
    class Unmarked(Chorus):
        def greet_together(self, requests: Any, clients: Any) -> Any:
            raise AssertionError

    assert Unmarked.cohort_handlers() == {}


@cache
def traces_of(algorithm: Algorithm[Any], **changes: Any) -> tuple[Trace, Trace]:
    scenario = toy_scenario(4, num_nodes=64)
    loop, auto = (
        trace_course(toy_course(algorithm, runtime=runtime, num_clients=4, **changes), scenario)
        for runtime in ("loop", "auto")
    )
    assert loop.ended_by is None and auto.ended_by is None
    return loop, auto


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_a_subclass_that_is_simulated_together_gives_what_it_gives_alone(kind: type[FedAvg]) -> None:
    loop, auto = traces_of(kind())
    require_close({**loop.values(), **loop.history(sizes=False)}, {**auto.values(), **auto.history(sizes=False)}, "all")
    # Every subclass is simulated as itself, and its clients' work is done together all the same.
    assert auto.together == {"TrainModel": 12, "EvaluateModel": 12} and not auto.notes


def test_the_subclasses_do_differ_from_their_parent() -> None:
    """Otherwise the test above could not fail."""
    parents = traces_of(FedAvg())
    for kind in SUBCLASSES:
        for parent, child in zip(parents, traces_of(kind()), strict=True):
            alike = same({**parent.values(), **parent.history()}, {**child.values(), **child.history()})
            assert alike == (kind is Unchanged)


def test_an_evaluation_by_another_name_is_simulated_as_it_is() -> None:
    assert Judging.handlers()[EvaluateModel] == "judge"
    loop, auto = traces_of(Judging())
    require_close(loop.history(sizes=False), auto.history(sizes=False), "evaluations")


@dataclass(frozen=True)
class Grading(FedAvg):
    """Sends each client another model to evaluate."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        scaled = {c: {n: (k + 1) * t for n, t in state.params.items()} for k, c in enumerate(fed.clients)}
        grades = fed.ask({c: EvaluateModel(p, ("train",), "loss", False) for c, p in scaled.items()})
        losses = [grades[client].metrics["train"]["loss"] for client in fed.clients]
        return ModelState({name: tensor + sum(losses) for name, tensor in state.params.items()})


def test_clients_that_are_sent_different_models_to_evaluate_evaluate_their_own() -> None:
    loop, auto = traces_of(Grading(), rounds=1)
    require_close(loop.values(), auto.values(), "grades")


@pytest.mark.parametrize("best", [False, True])
def test_evaluating_together_uses_each_clients_own_model_and_the_best_one_when_asked(best: bool) -> None:
    clients = Block(NoteTaker(name) for name in "abc")
    for k, client in enumerate(clients[:2]):
        client.state = {"head": {"h": torch.tensor([5.0 + k])}, "best": {"head": {"h": torch.tensor([7.0 + 2 * k])}}}
    request = EvaluateModel({"w": torch.tensor([1.0])}, ("val", "test"), "sum", best)
    for algorithm in (Larger(), Polite()):
        found = side_by_side(algorithm.evaluate, [request] * 3, clients, together=["Written"])
        assert found == [answer(algorithm, request, client) for client in clients]
        assert all("best" not in client.state or len(client.state) == 2 for client in clients)


def test_failures_are_told_by_reason() -> None:
    same = [Failure(f"client-{k}", "error", "BadInput: full batches only") for k in range(5)]
    assert told([*same, Failure("client-9", "late", "after 3 s")]) == [
        "client-0, client-1, client-2 and 2 more: error: BadInput: full batches only",
        "client-9: late: after 3 s",
    ]
