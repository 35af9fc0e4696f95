from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, FedProx, Local
from isthmus.core.client import Client
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.core.federation import ExchangeReport, Outcome, StackOutcome
from isthmus.core.protocol import Algorithm, Failure, Position, Request, cohort, on
from isthmus.core.random import UniformSampling
from isthmus.core.record import Record, State
from isthmus.core.replies import Each, Stack, StackedTensor
from isthmus.core.training import RoundReport, Standing, run_course
from isthmus.learn.optimizers import SGD, Adam
from isthmus.models import GCN, ModelSpec
from isthmus.runs.simulated import run
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.runtime.loop import LoopRuntime, StackedRuntime
from isthmus.testing import toy_course
from isthmus.testing.toys import toy_scenario
from isthmus.testing.traces import Trace, require_close, require_same, trace_course
from tests.runtime.toys import AT, Toy, ToyClient, Train, Unknown, Update, train

NAMES = ("a", "b", "c", "d", "e")


@dataclass(frozen=True)
class Choir(Toy):
    """Does for many clients what `Toy` does for one, and goes wrong as the request says after its work is done."""

    @cohort(Train)
    def train_together(self, requests: Sequence[Train], clients: Sequence[Client]) -> Any:
        replies = []
        for request, client in zip(requests, clients, strict=True):
            client.state["calls"] = client.state.get("calls", 0) + 1
            calls = client.state["calls"]
            reply = Update({name: tensor + calls for name, tensor in request.params.items()}, float(calls))
            client.state["params"] = reply.params
            replies.append(reply)
        return self.gone_wrong(requests[0].how, replies, clients)

    def gone_wrong(self, how: str, replies: list[Any], clients: Sequence[Client]) -> Any:
        names = tuple(client.id for client in clients)
        values = StackedTensor(torch.stack([reply.params["w"] for reply in replies]))
        weight = Each(tuple(reply.weight for reply in replies))
        if how == "together raises":
            raise ZeroDivisionError("nothing to divide by")
        if how == "together refuses":
            raise BadInput("the graphs do not fit")
        if how == "together lists":
            return replies
        if how == "together too few":
            return replies[:-1]
        if how == "together in another order":
            return Stack.of(names[::-1], Update, params={"w": values}, weight=weight)
        if how == "together for strangers":
            return Stack.of(("x", "y"), Update, params={"w": values}, weight=weight)
        if how == "together nothing":
            return None
        if how == "together remembers an object":
            clients[1].state["deep"] = {"x": (clients[1],)}
        if how == "together remembers a number":
            clients[1].state = 5  # type: ignore[assignment]
        if how == "together cannot be encoded":
            return Stack.of(names, Update, params={"w": values, "v": [1.0]}, weight=weight)
        return Stack.of(names, Update, params={"w": values}, weight=weight)


def in_pairs(clients: Sequence[Client]) -> tuple[list[tuple[Client, ...]], list[Client]]:
    """Put clients together two by two; the last of an odd number is alone."""
    pairs = [tuple(clients[i : i + 2]) for i in range(0, len(clients) - 1, 2)]
    return pairs, list(clients[2 * len(pairs) :])


def choir(names: Sequence[str] = NAMES) -> StackedRuntime:
    return StackedRuntime(Choir(), [ToyClient(name) for name in names], in_pairs)


def sing(
    runtime: Any, how: str = "well", names: Sequence[str] = NAMES, timeout_seconds: float | None = None
) -> list[Outcome | StackOutcome]:
    return list(runtime.exchange(AT, dict.fromkeys(names, train(how)), timeout_seconds))


def apart(outcomes: Sequence[Outcome | StackOutcome]) -> dict[str, Record]:
    """Return each client's reply, taken out of its stack."""
    found: dict[str, Record] = {}
    for outcome in outcomes:
        if isinstance(outcome, StackOutcome):
            found |= dict(zip(outcome.stack.clients, outcome.stack, strict=True))
        else:
            found[outcome.client] = outcome.reply
    return found


def told(replies: Mapping[str, Record]) -> dict[str, Any]:
    """Return replies as bytes, failures by kind and reason, in the order of names."""
    return {
        name: (reply.kind, reply.reason) if isinstance(reply, Failure) else encode(reply)
        for name, reply in sorted(replies.items())
    }


def memories(runtime: LoopRuntime) -> dict[str, bytes]:
    return {name: encode(site.client.state) for name, site in runtime.sites.items()}


# ---- together


def test_blocks_answer_as_one_and_the_rest_by_themselves() -> None:
    runtime = choir()
    outcomes = sing(runtime)
    assert [type(outcome) for outcome in outcomes] == [StackOutcome, StackOutcome, Outcome]
    assert [o.stack.clients for o in outcomes if isinstance(o, StackOutcome)] == [("a", "b"), ("c", "d")]
    assert runtime.together == {"Train": 4} and runtime.alone == {"Train": 1} and runtime.notes == {}
    assert runtime.clients == NAMES


@pytest.mark.parametrize("names", [NAMES, ("d", "b"), ("e", "a", "c"), ("b",)], ids="".join)
def test_replies_and_memories_are_those_of_the_loop(names: tuple[str, ...]) -> None:
    runtime, loop = choir(), LoopRuntime(Toy(), [ToyClient(name) for name in NAMES])
    for round in range(3):
        chosen = names if round != 1 else NAMES
        assert told(apart(sing(runtime, names=chosen))) == told(apart(sing(loop, names=chosen)))
        assert memories(runtime) == memories(loop)
    assert runtime.together["Train"] + runtime.alone["Train"] == 2 * len(names) + len(NAMES)
    assert runtime.alone["Train"] == 2 * (len(names) % 2) + 1


def test_each_client_of_a_block_gets_its_own_request_in_the_blocks_order() -> None:
    requests = {name: Train({"w": torch.tensor([10.0 * k])}) for k, name in enumerate("cab")}
    gather = lambda clients: ([tuple(sorted(clients, key=lambda client: client.id))], [])  # noqa: E731
    runtime = StackedRuntime(Choir(), [ToyClient(name) for name in NAMES], gather)
    (outcome,) = runtime.exchange(AT, requests, None)
    assert isinstance(outcome, StackOutcome) and outcome.stack.clients == ("a", "b", "c")
    assert [reply.params["w"].item() for reply in outcome.stack] == [11.0, 21.0, 1.0]  # type: ignore[attr-defined]


def test_sizes_are_those_of_the_encoded_messages_of_all() -> None:
    requests = {"a": train(), "b": Train({"w": torch.zeros(1)}, "quite " * 3)}
    (outcome,) = choir().exchange(AT, requests, None)
    assert isinstance(outcome, StackOutcome)
    assert outcome.bytes_down == sum(len(encode(request)) for request in requests.values())
    assert outcome.bytes_up == sum(len(encode(reply)) for reply in outcome.stack)
    assert outcome.seconds > 0


def test_a_list_of_replies_becomes_an_outcome_for_each_with_its_sizes_and_its_share_of_the_time() -> None:
    runtime = choir()
    outcomes = sing(runtime, "together lists")
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    for outcome in outcomes:
        assert isinstance(outcome, Outcome)
        assert outcome.bytes_down == len(encode(train("together lists")))
        assert outcome.bytes_up == len(encode(outcome.reply)) and outcome.seconds > 0
    assert runtime.together == {"Train": 4} and not runtime.notes
    assert told(apart(outcomes)) == told(apart(sing(choir())))


@dataclass(frozen=True)
class PlaceName(Toy):
    """Answers with where the client is."""

    @cohort(Train)
    def train_together(self, requests: Any, clients: Any) -> list[Update]:
        return [Update({"w": torch.tensor([c.position.seed, c.position.round])}, 1.0) for c in clients]


def test_clients_know_where_in_the_course_they_are() -> None:
    runtime = StackedRuntime(PlaceName(), [ToyClient(name) for name in NAMES], in_pairs)
    replies = apart(list(runtime.exchange(Position(7, 3, 1), dict.fromkeys("ab", train()), None)))
    assert [reply.params["w"].tolist() for reply in replies.values()] == [[7, 3], [7, 3]]  # type: ignore[attr-defined]


# ---- not together


def test_with_a_time_limit_every_client_answers_by_itself_and_may_be_late() -> None:
    runtime = choir()
    outcomes = sing(runtime, timeout_seconds=60.0)
    assert all(isinstance(outcome, Outcome) for outcome in outcomes) and len(outcomes) == 5
    assert not runtime.together and runtime.alone == {"Train": 5}
    (late,) = apart(sing(runtime, "dawdles", "b", timeout_seconds=0.01)).values()
    assert isinstance(late, Failure) and late.kind == "late"


def test_a_request_without_a_handler_for_many_is_answered_one_by_one() -> None:
    runtime = StackedRuntime(Toy(), [ToyClient(name) for name in NAMES], in_pairs)
    assert all(isinstance(outcome, Outcome) for outcome in sing(runtime))
    assert not runtime.together and runtime.alone == {"Train": 5} and not runtime.notes


def test_requests_of_several_kinds_and_unknown_ones_are_answered_one_by_one() -> None:
    runtime = choir()
    mixed: dict[str, Request[Any]] = {"a": train(), "b": Unknown(), "c": train(), "d": train()}
    replies = apart(list(runtime.exchange(AT, mixed, None)))
    assert replies["b"] == Failure("b", "error", "Choir has no handler for Unknown")
    assert all(isinstance(replies[name], Update) for name in "acd") and not runtime.together


def test_asking_nobody_gives_nothing() -> None:
    assert list(choir().exchange(AT, {}, None)) == []


# ---- a handler for many that fails is no client's failure

MISHAPS = {
    "together raises": "ZeroDivisionError: nothing to divide by",
    "together refuses": "BadInput: the graphs do not fit",
    "together too few": "ValueError: zip",
    "together nothing": "TypeError: ",
    "together in another order": "ValueError: the handler for many answered for other clients",
    "together for strangers": "ValueError: the handler for many answered for other clients",
    "together remembers an object": "BadMessage: state of client",
    "together remembers a number": "AttributeError: ",
    "together cannot be encoded": "BadMessage: ",
}


@pytest.mark.parametrize("how", MISHAPS)
def test_when_a_handler_for_many_goes_wrong_its_clients_answer_one_by_one(how: str) -> None:
    runtime, loop = choir(), LoopRuntime(Choir(), [ToyClient(name) for name in NAMES])
    sing(runtime), sing(loop)
    outcomes, expected = sing(runtime, how), sing(loop, how)
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert told(apart(outcomes)) == told(apart(expected))
    assert all(isinstance(reply, Update) for reply in apart(outcomes).values())
    assert memories(runtime) == memories(loop)
    assert runtime.notes.keys() == {"train_together"}
    assert runtime.notes["train_together"].startswith(MISHAPS[how])
    assert runtime.together == {"Train": 4} and runtime.alone == {"Train": 1 + 5}
    # The next exchange goes together again, from the memories that the loop's clients have.
    assert told(apart(sing(runtime))) == told(apart(sing(loop))) and runtime.together == {"Train": 8}


def test_who_fails_alone_is_named_and_the_others_reply() -> None:
    @dataclass(frozen=True)
    class OneFails(Choir):
        @on(Train)
        def train(self, request: Train, client: Any) -> Any:
            return super().train(replace(request, how="raises") if client.id == "b" else request, client)

        @cohort(Train)
        def train_together(self, requests: Any, clients: Any) -> Any:
            return [self.train(request, client) for request, client in zip(requests, clients, strict=True)]

    runtime = StackedRuntime(OneFails(), [ToyClient(name) for name in NAMES], in_pairs)
    replies = apart(sing(runtime))
    assert [name for name, reply in replies.items() if isinstance(reply, Failure)] == ["b"]
    assert runtime.together == {"Train": 2} and runtime.alone == {"Train": 3}  # only the block of b falls apart
    assert runtime.sites["a"].client.state["calls"] == 1 and runtime.sites["b"].client.state == {}
    assert "ZeroDivisionError" in runtime.notes["train_together"]


def test_a_reply_in_a_list_that_cannot_be_encoded_is_its_clients_failure() -> None:
    @dataclass(frozen=True)
    class Odd(Toy):
        @cohort(Train)
        def train_together(self, requests: Any, clients: Any) -> Any:
            return [Update({"w": torch.ones(1)}, 1.0), Update({"w": [1.0]}, 1.0)]  # type: ignore[dict-item]

    runtime = StackedRuntime(Odd(), [ToyClient(name) for name in NAMES], in_pairs)
    replies = apart(sing(runtime, names="ab"))
    assert isinstance(replies["a"], Update)
    assert isinstance(replies["b"], Failure) and replies["b"].kind == "malformed"


def test_an_interruption_is_not_taken_for_a_failure() -> None:
    @dataclass(frozen=True)
    class Interrupted(Toy):
        @cohort(Train)
        def train_together(self, requests: Any, clients: Any) -> Any:
            raise KeyboardInterrupt

    runtime = StackedRuntime(Interrupted(), [ToyClient(name) for name in NAMES], in_pairs)
    with pytest.raises(KeyboardInterrupt):
        sing(runtime)


def test_memories_are_marked_abandoned_saved_and_loaded_as_in_the_loop() -> None:
    runtime = choir()
    sing(runtime)
    runtime.mark(4)
    saved = memories(runtime)
    sing(runtime), sing(runtime, "together raises")
    assert memories(runtime) != saved
    assert runtime.save_clients() == saved
    assert runtime.abandon_round() == 4 and memories(runtime) == saved
    other = choir()
    other.load_clients(saved)
    assert told(apart(sing(other))) == told(apart(sing(runtime)))
    assert decode(saved["a"], State)["calls"] == 1


# ---- whole courses

COURSES: dict[str, tuple[Algorithm[Any], dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "fedprox, momentum": (FedProx(mu=0.5, optimizer=SGD(lr=0.1, momentum=0.9), local_steps=2), {}),
    "local, adam": (Local(optimizer=Adam(lr=0.01, eps=1e-3), local_steps=2), {}),
    "local, momentum, half of the clients": (
        Local(optimizer=SGD(lr=0.1, momentum=0.9)),
        {"sampling": UniformSampling(fraction=0.5)},
    ),
    "fedavg, half of the clients": (FedAvg(), {"sampling": UniformSampling(fraction=0.5)}),
}


def course_of(name: str, runtime: str = "auto") -> tuple[Any, Scenario]:
    algorithm, changes = COURSES[name]
    scenario = toy_scenario(6, num_nodes=96, sparse="local" not in name, client_without_training=True)
    return toy_course(algorithm, runtime=runtime, num_clients=6, rounds=4, **changes), scenario


def everything(trace: Trace) -> dict[str, Any]:
    assert trace.ended_by is None
    return {**trace.values(), **trace.history()}


@pytest.mark.parametrize("name", COURSES)
def test_together_and_one_by_one_agree_and_the_same_seed_gives_the_same_bits(name: str) -> None:
    course, scenario = course_of(name)
    first, again = trace_course(course, scenario), trace_course(course, scenario)
    require_same(everything(first), everything(again), "two courses with the same seed")
    assert first.together["TrainAlone" if "local" in name else "TrainModel"] > 0 and not first.notes
    loop = trace_course(*course_of(name, "loop"))
    require_close(
        {**loop.values(), **loop.history(sizes=False)},
        {**first.values(), **first.history(sizes=False)},
        "loop and auto",
    )


@pytest.mark.parametrize("name", COURSES)
def test_a_course_that_is_resumed_after_any_round_ends_with_the_same_bits(name: str) -> None:
    course, scenario = course_of(name)
    whole = trace_course(course, scenario)
    for round in range(4):
        resumed = trace_course(course, scenario, resume_from=(whole, round))
        require_same(whole.values(), resumed.values(), f"resumed after round {round}")
        assert {r.round: r.evaluations for r in resumed.rounds} == {
            r.round: r.evaluations for r in whole.rounds if r.round > round
        }


class Interrupting:
    """Interrupts a course at one exchange, as Ctrl-C would."""

    def __init__(self, at: int | None) -> None:
        self.at, self.seen, self.standing = at, 0, None  # type: ignore[var-annotated]

    def exchanged(self, report: ExchangeReport) -> None:
        self.seen += 1
        if self.seen == self.at:
            raise KeyboardInterrupt

    def round_done(self, report: RoundReport) -> None: ...

    def noted(self, round: int, text: str) -> None: ...

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        self.standing, self.memories = standing, dict(memories)


@pytest.mark.parametrize("name", COURSES)
def test_a_round_that_is_abandoned_and_done_again_gives_the_same_bits(name: str) -> None:
    course, scenario = course_of(name)

    def ended(interruptions: Iterator[int]) -> tuple[Standing, dict[str, bytes]]:
        simulation = Simulation(course, scenario)
        standing = None
        for at in [*interruptions, None]:
            heard = Interrupting(at)
            try:
                run_course(course.algorithm, simulation.runtime, course.plan(), simulation.initial, [heard], standing)
            except KeyboardInterrupt:
                assert heard.standing is not None
            standing = heard.standing
        assert standing is not None and standing.round == 4
        return standing, heard.memories

    setup = 1 if "local" in name else 0  # exchanges before the first round
    plain = ended(iter(()))
    for interruptions in ((setup + 3,), (setup + 4, 1), (setup + 5, 2, 3)):
        standing, kept = ended(iter(interruptions))
        assert encode(standing.state) == encode(plain[0].state) and kept == plain[1]
        assert (standing.best_round, standing.best_score) == (plain[0].best_round, plain[0].best_score)


def test_half_of_the_clients_answer_together_and_those_outside_the_cohort_are_not_touched() -> None:
    course, scenario = course_of("local, momentum, half of the clients")
    trace = trace_course(course, scenario)
    for round in range(1, 5):
        cohort = trace.rounds[round - 1].cohort
        assert len(cohort) == 3
        for client in set(trace.clients) - set(cohort):
            before, after = (decode(trace.memories[r][client], State) for r in (round - 1, round))
            assert encode(before["running"]) == encode(after["running"])


def diverging(sparse: bool) -> Scenario:
    """Return clients one of whom has a feature that is not a number, as a broken file would give it."""
    scenario = toy_scenario(4, num_nodes=64, sparse=sparse)
    part = scenario.parts["client-1"]
    x = part.x.to_dense() if sparse else part.x.clone()
    x[0, 0] = float("nan")
    return Scenario(scenario.whole, {**scenario.parts, "client-1": replace(part, x=x.to_sparse_csr() if sparse else x)})


@pytest.mark.parametrize("sparse", [False, True])
def test_a_client_that_diverges_is_named_as_in_the_loop(sparse: bool) -> None:
    for runtime in ("loop", "auto"):
        course = toy_course(FedAvg(), rounds=1, num_clients=4, runtime=runtime)
        trace = trace_course(course, diverging(sparse))
        named = [(f.client, f.kind) for report in trace.exchanges[:1] for f in report.failures]
        assert named == [("client-1", "not_finite")]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_client_that_diverges_does_not_spoil_the_global_model(sparse: bool) -> None:
    loop, auto = (
        trace_course(toy_course(FedAvg(), rounds=2, num_clients=4, runtime=runtime), diverging(sparse))
        for runtime in ("loop", "auto")
    )
    assert all(bool(torch.isfinite(t).all()) for t in loop.standings[2].state.params.values())  # type: ignore[attr-defined]
    require_close(loop.values(), auto.values(), "with a client that diverges")


@pytest.mark.parametrize("layers", [2, 3])
def test_layers_that_widen_are_trained_together_like_any(layers: int) -> None:
    model = ModelSpec(GCN(hidden=2, layers=layers, dropout=0.5))  # of three classes
    found = {
        way: run(toy_course(FedAvg(), model=model, runtime=way), scenario=toy_scenario()) for way in ("auto", "loop")
    }
    assert not [note for note in found["auto"].notes if "one by one" in note]
    assert all(torch.allclose(found["auto"].params[n], each, atol=1e-5) for n, each in found["loop"].params.items())
