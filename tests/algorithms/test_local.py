from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus.algorithms import Local
from isthmus.algorithms.local import Nothing, StartFrom, TrainAlone
from isthmus.core.client import Client
from isthmus.core.protocol import EvaluateModel, Kept, Position
from isthmus.learn.optimizers import SGD, Adam, Optimizer, read_params
from isthmus.runs.simulation import Scenario
from isthmus.testing import ScriptedClients, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import trace_course
from tests.side_by_side import Block, Written, side_by_side

from .reference import assert_close, assert_equal, gradients

# ---- server


def test_setup_gives_everybody_the_same_start_and_round_asks_the_cohort() -> None:
    clients = ScriptedClients({"a": Kept(), "b": Kept(), "c": Kept()})
    params = {"w": torch.ones(1)}
    state = Local().setup(clients.federation(params, round=0))
    assert [(client, type(request)) for client, request in clients.sent] == [(c, StartFrom) for c in "abc"]
    assert all(isinstance(request, StartFrom) and request.params is params for _, request in clients.sent)
    clients.sent.clear()
    assert Local().round(state, clients.federation(params, cohort=("b",))) == Nothing()
    assert clients.sent == [("b", TrainAlone())]
    assert Local().global_params(state) == {}


# ---- client


def started(optimizer: Optimizer, **fields: Any) -> tuple[Local, Any]:
    algorithm, client = Local(optimizer=optimizer, **fields), toy_client()
    algorithm.start(StartFrom(read_params(client.model)), client)
    return algorithm, client


def trained(algorithm: Local, client: Any, rounds: int) -> Any:
    for round in range(1, rounds + 1):
        client.position = Position(0, round, 0)
        algorithm.train(TrainAlone(), client)
    return client.state["running"]


def test_momentum_goes_on_from_round_to_round() -> None:
    algorithm, client = started(SGD(lr=0.1, momentum=0.9))
    start = client.state["running"]
    current, velocity = start, {n: torch.zeros_like(w) for n, w in start.items()}
    for _ in range(4):
        grads = gradients(client.data, current)
        velocity = {n: 0.9 * velocity[n] + grads[n] for n in current}
        current = {n: w - 0.1 * velocity[n] for n, w in current.items()}
    assert_close(trained(algorithm, client, 4), current, 1e-5)
    assert client.state["optimizer"]["step"] == 4


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.05)], ids=["sgd", "adam"])
def test_rounds_of_one_step_are_one_round_of_many_steps(optimizer: Optimizer) -> None:
    one, client = started(optimizer)
    many, other = started(optimizer, local_steps=5)
    assert_equal(trained(one, client, 5), trained(many, other, 1))


def test_training_changes_nothing_that_was_in_memory_before() -> None:
    algorithm, client = started(Adam(lr=0.05))
    trained(algorithm, client, 1)
    before = client.state["optimizer"]
    kept = [tensor.clone() for tensor in before["first"]]
    running = {name: tensor.clone() for name, tensor in client.state["running"].items()}
    old = client.state["running"]
    trained(algorithm, client, 1)
    assert all(torch.equal(a, b) for a, b in zip(before["first"], kept, strict=True))
    assert before["step"] == 1
    assert_equal(old, running)


class ScoredClient(Client):
    """A client whose evaluation is written down: the score of a model is its one parameter."""

    def __init__(self, metric: str = "accuracy", has_validation: bool = True, id: str = "client") -> None:
        super().__init__(id)
        self.metric, self.has_validation = metric, has_validation

    def complete(self, params: Any) -> Any:
        return params

    def run_at(self, value: float) -> None:
        self.state["running"] = {"w": torch.tensor(value, dtype=torch.float64)}

    def evaluate(self, params: Any, splits: tuple[str, ...]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        has_score = self.has_validation and not bool(params["w"].isnan())  # NaN stands for a diverged model
        value = {self.metric: float(params["w"])} if has_score else {}
        counts = dict.fromkeys(splits, 5 if self.has_validation else 0)
        found: tuple[dict[str, dict[str, float]], dict[str, int]]
        found = self.do(Written(({split: dict(value) for split in splits}, counts)))
        return found


def kept_after(
    client: ScoredClient, values: list[float], metric: str = "accuracy", together: bool = False
) -> list[float]:
    """Return the score of the kept model after each evaluation; `together` with one that only gets better."""
    algorithm: Any = Local()
    other = ScoredClient(metric, id="other")
    for each in (client, other):
        algorithm.start(StartFrom({"w": torch.tensor(0.0, dtype=torch.float64)}), each)
    kept = []
    for place, value in enumerate(values):
        client.run_at(value)
        request = EvaluateModel({}, ("train", "val"), metric, False)
        if together:
            other.run_at(-float(place) if metric == "loss" else float(place))
            reply, _ = side_by_side(
                algorithm.evaluate, [request, request], Block([client, other]), together=["Written"]
            )
            assert abs(float(other.state["params"]["w"])) == place
        else:
            reply = algorithm.evaluate(request, client)
        kept.append(float(client.state["params"]["w"]))
        if client.has_validation and kept[-1] == kept[-1]:
            assert reply.metrics["val"][metric] == kept[-1]
    return kept


def test_a_client_keeps_its_best_model_by_its_own_validation() -> None:
    assert kept_after(ScoredClient(), [0.3, 0.5, 0.4, 0.5, 0.6]) == [0.3, 0.5, 0.5, 0.5, 0.6]


def test_a_lower_loss_is_better() -> None:
    assert kept_after(ScoredClient("loss"), [0.9, 0.5, 0.7, 0.4], "loss") == [0.9, 0.5, 0.5, 0.4]


def test_a_client_without_validation_keeps_its_latest_model() -> None:
    assert kept_after(ScoredClient(has_validation=False), [0.3, 0.5, 0.4]) == [0.3, 0.5, 0.4]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_a_diverged_model_takes_the_place_of_none_that_had_a_score(metric: str, together: bool) -> None:
    nan = float("nan")
    assert kept_after(ScoredClient(metric), [0.5, nan, nan], metric, together) == [0.5, 0.5, 0.5]
    first, second = kept_after(ScoredClient(metric), [nan, 0.4], metric, together)
    assert first != first and second == 0.4


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_as_long_as_no_model_had_a_score_the_latest_is_kept(together: bool) -> None:
    found = kept_after(ScoredClient(has_validation=False), [0.5, 0.4, 0.3], together=together)
    assert found == [0.5, 0.4, 0.3]


def test_the_question_for_the_best_changes_nothing() -> None:
    client = ScoredClient()
    kept_after(client, [0.3])
    client.run_at(0.9)
    reply = Local().evaluate(EvaluateModel({}, ("val",), "accuracy", True), client)  # type: ignore[arg-type]
    assert reply.metrics == {"val": {"accuracy": 0.3}}
    assert float(client.state["params"]["w"]) == 0.3


def test_client_params_are_the_kept_ones() -> None:
    client = ScoredClient()
    kept_after(client, [0.5, 0.4])
    assert float(Local().client_params({}, client.state)["w"]) == 0.5


def test_clients_do_not_influence_one_another() -> None:
    scenario = toy_scenario(3)
    course = toy_course(Local(local_steps=2))
    together = trace_course(course, scenario)
    alone = trace_course(course, Scenario(scenario.whole, {"client-1": scenario.parts["client-1"]}))
    assert together.memories[3]["client-1"] == alone.memories[3]["client-1"]


def test_bad_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="local_steps is -1"):
        Local(local_steps=-1)
    with pytest.raises(ValueError, match="step_unit is 'week'"):
        Local(step_unit="week")
