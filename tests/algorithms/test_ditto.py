from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import run
from isthmus.algorithms import Ditto, FedAvg, Local
from isthmus.algorithms.fedavg import TrainModel
from isthmus.core.codec import decode
from isthmus.core.protocol import EvaluateModel, KeepBest, Position
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params, State
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, proximal, read_params
from isthmus.models import GCN, SAGE, MLPDecoder, ModelSpec
from isthmus.runs.folder import RunFolder, load_model_file
from isthmus.testing import check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import Trace, require_close, require_same, trace_course

from .quadratics import Well, Wells
from .reference import assert_close, assert_equal, gradients

WELLS = {"a": Well(1.0, 1.0, 1), "b": Well(4.0, -2.0, 3), "c": Well(0.5, 6.0, 2)}
STILL = ModelSpec(GCN(hidden=5, dropout=0.0))
HEADED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4))
SAMPLED = {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))}


def reference(algorithm: Ditto, cohorts: list[str]) -> tuple[float, dict[str, float]]:
    """Algorithm 1 of the paper, number by number."""
    lr, own = algorithm.optimizer.lr, {}
    w = 3.0
    for cohort in cohorts:
        total = mean = 0.0
        for name in cohort:
            well, u, v = WELLS[name], w, own.get(name, w)
            for _ in range(algorithm.local_steps):
                u = u - lr * well.curvature * (u - well.bottom)
            for _ in range(algorithm.personal_steps or algorithm.local_steps):
                v = v - lr * (well.curvature * (v - well.bottom) + algorithm.strength * (v - w))
            own[name] = v
            mean += well.num_examples * u
            total += well.num_examples
        w = mean / total
    return w, own


def memory(trace: Trace, client: str, round: int | None = None) -> State:
    found: State = decode(trace.memories[trace.last if round is None else round][client], State)
    return found


# ---- numbers


@pytest.mark.meet(1)
@pytest.mark.parametrize("personal_steps", [None, 1, 7])
@pytest.mark.parametrize("cohorts", [["abc"], ["abc", "abc", "abc"], ["ac", "b", "bc", "ac"]], ids=["1", "3", "absent"])
def test_a_course_is_the_papers(cohorts: list[str], personal_steps: int | None) -> None:
    algorithm = Ditto(strength=0.7, local_steps=3, personal_steps=personal_steps, optimizer=SGD(lr=0.1))
    course = Wells(algorithm, WELLS)
    for cohort in cohorts:
        course.advance(*cohort)
    w, own = reference(algorithm, cohorts)
    assert course.w == pytest.approx(w, abs=1e-12)
    for name in WELLS:
        expected = pytest.approx(own[name], abs=1e-12) if name in own else None
        assert course.memory(name, "model") == expected


def test_own_models_end_between_the_clients_bottom_and_the_global_model() -> None:
    """At the minimum of 1/2 c (v - b)^2 + lambda/2 (v - w)^2, v = (c b + lambda w) / (c + lambda)."""
    course = Wells(Ditto(strength=2.0, local_steps=3, personal_steps=5, optimizer=SGD(lr=0.15)), WELLS)
    course.advance(rounds=20)
    for name, well in WELLS.items():
        expected = (well.curvature * well.bottom + 2.0 * course.w) / (well.curvature + 2.0)
        assert course.memory(name, "model") == pytest.approx(expected, abs=1e-3)


def test_a_large_lambda_comes_near_the_global_model() -> None:
    gaps = []
    for strength in (0.1, 1.0, 10.0, 100.0):
        algorithm = Ditto(strength=strength, local_steps=1, personal_steps=20, optimizer=SGD(lr=0.01))
        course = Wells(algorithm, WELLS)
        course.advance(rounds=5)
        gaps.append(max(abs(course.memory(name, "model") - course.w) for name in WELLS))  # type: ignore[operator]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < 0.03 * gaps[0]


def test_a_resumed_course_goes_on_as_if_nothing_had_happened() -> None:
    courses = [Wells(Ditto(local_steps=3, optimizer=SGD(lr=0.1)), WELLS) for _ in range(2)]
    for course in courses:
        course.advance("a", "b")
    courses[1].restart()
    for course in courses:
        course.advance("b", "c")
        course.advance()
    assert courses[0].w == courses[1].w
    assert [c.memory("a", "model") for c in courses] == [courses[0].memory("a", "model")] * 2


def test_a_client_without_examples_has_no_model_of_its_own() -> None:
    algorithm = Ditto(local_steps=3, optimizer=SGD(lr=0.1))
    course = Wells(algorithm, {**WELLS, "d": Well(1.0, 50.0, 0)})
    course.advance(rounds=2)
    assert course.clients["d"].state == {}
    assert algorithm.client_params(course.state.params, {}) is course.state.params


# ---- on graphs


def test_one_round_on_a_graph_by_hand() -> None:
    client = toy_client()
    start = read_params(client.model)
    generator = torch.Generator().manual_seed(0)
    own = {n: w + 0.3 * torch.randn(w.shape, generator=generator) for n, w in start.items()}
    client.state["model"] = own
    algorithm = Ditto(strength=0.8, local_steps=2, personal_steps=3, optimizer=SGD(lr=0.2, weight_decay=0.01))
    reply = algorithm.train(TrainModel(start), client)
    v = own
    for _ in range(3):
        grads = gradients(client.data, v, 0.8, start)
        v = {n: w - 0.2 * (grads[n] + 0.01 * w) for n, w in v.items()}
    assert_close(client.state["model"], v, 1e-5)
    plain = FedAvg(local_steps=2, optimizer=algorithm.optimizer).train(TrainModel(start), toy_client())
    assert_equal(reply.params, plain.params)


@pytest.mark.parametrize(
    "fields", [{}, SAMPLED, {"model": HEADED, "shared": ("gnn.*",)}], ids=["full", "sampled", "head"]
)
def test_the_global_model_is_that_of_fedavg_to_the_bit(fields: dict[str, Any]) -> None:
    scenario = toy_scenario()
    fedavg = trace_course(toy_course(FedAvg(local_steps=3), **fields), scenario)
    ditto = trace_course(toy_course(Ditto(local_steps=3, strength=0.5), **fields), scenario)
    for round, standing in fedavg.standings.items():
        require_same({"it": standing.state}, {"it": ditto.standings[round].state}, f"round {round}")
    for client in fedavg.clients:
        first, second = memory(fedavg, client), memory(ditto, client)
        assert_equal(first.get("personal", {}), second.get("personal", {}))


@pytest.mark.meet(1)
@pytest.mark.parametrize(
    "fields", [{}, SAMPLED, {"model": HEADED, "shared": ("gnn.*",)}], ids=["full", "sampled", "head"]
)
@pytest.mark.parametrize(
    ("optimizer", "keep_moments"),
    [(SGD(lr=0.2, weight_decay=5e-4), False), (SGD(lr=0.1, momentum=0.9), True), (Adam(lr=0.01), True)],
    ids=["sgd", "momentum", "adam"],
)
def test_with_lambda_zero_own_models_are_those_of_local_training_to_the_bit(
    fields: dict[str, Any], optimizer: Any, keep_moments: bool
) -> None:
    scenario = toy_scenario(client_with_one_training_node=True)
    local = trace_course(toy_course(Local(local_steps=3, optimizer=optimizer), **fields), scenario)
    algorithm = Ditto(strength=0.0, local_steps=3, optimizer=optimizer, keep_moments=keep_moments)
    ditto = trace_course(toy_course(algorithm, **fields), scenario)
    assert ditto.ended_by is None
    for round in (1, 2, 3):
        for client in local.clients:
            assert_equal(memory(ditto, client, round)["model"], memory(local, client, round)["running"])
    apart = trace_course(toy_course(replace(algorithm, strength=1.0), **fields), scenario)
    gap = [
        float((memory(apart, c)["model"][n] - t).abs().max())
        for c in local.clients
        for n, t in memory(local, c)["running"].items()
    ]
    assert max(gap) > 1e-3


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling": UniformSampling(fraction=0.6)},
        {"model": ModelSpec(SAGE(hidden=5, batch_norm=True))},
        {"model": HEADED, "shared": ("*", "!decoder.*", "!*.norms.*")},
    ],
    ids=["all", "some for the first time", "batch norm", "own heads and norms"],
)
def test_clients_that_answer_together_give_what_they_would_alone(fields: dict[str, Any], sparse: bool) -> None:
    scenario = toy_scenario(5, num_nodes=70, sparse=sparse, client_with_one_training_node=True)
    algorithm = Ditto(strength=0.8, personal_steps=3, optimizer=SGD(lr=0.1))
    course = toy_course(algorithm, num_clients=5, **fields)
    loop = trace_course(course, scenario)
    together = trace_course(replace(course, runtime="auto"), scenario)
    assert together.together["TrainModel"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "together")


def test_what_is_not_shared_is_drawn_to_nothing() -> None:
    """With everything but the head held to the received model, only the head of v moves far."""
    fields: dict[str, Any] = {"model": ModelSpec(GCN(hidden=5, dropout=0.0), decoder=MLPDecoder(hidden=4))}
    algorithm = Ditto(strength=1e4, local_steps=3, optimizer=SGD(lr=1e-5))
    for runtime in ("loop", "auto"):
        course = toy_course(algorithm, shared=("gnn.*",), rounds=1, runtime=runtime, **fields)
        trace = trace_course(course, toy_scenario())
        for client in trace.clients:
            own = memory(trace, client)
            assert own["model"].keys() == {*trace.initial, *own["personal"]}
    client = toy_client(model=fields["model"])
    whole = read_params(client.model)
    penalty = proximal(algorithm.strength, {n: t for n, t in whole.items() if n.startswith("gnn.")})
    assert penalty is not None
    moved = {n: t + 1.0 for n, t in whole.items()}
    count = sum(t.numel() for n, t in whole.items() if n.startswith("gnn."))
    assert float(penalty(moved)) == pytest.approx(0.5e4 * count)


# ---- what a client uses, and what is kept


def test_a_client_is_evaluated_with_its_own_model_and_keeps_it_with_the_best_round() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = Ditto(strength=0.1, optimizer=SGD(lr=0.3))
    before = algorithm.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    assert before.metrics == client.evaluate(start, ("val",))[0]
    algorithm.train(TrainModel(start), client)
    kept = client.state["model"]
    algorithm.keep_best(KeepBest(), client)
    client.position = Position(0, 2, 0)
    algorithm.train(TrainModel(start), client)
    now = algorithm.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    best = algorithm.evaluate(EvaluateModel(start, ("val",), "loss", True), client)
    assert now.metrics == client.evaluate(client.state["model"], ("val",))[0]
    assert best.metrics == client.evaluate(kept, ("val",))[0] != now.metrics


def test_own_models_are_in_the_result_and_in_the_run_folder(tmp_path: Path) -> None:
    course = toy_course(Ditto(), model=HEADED, shared=("*", "!*.norms.*"))
    result = run(course, scenario=toy_scenario(), run_dir=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert len(result.client_params) == 3 and "local_model/local_graph" in result.metrics
    for client, params in result.client_params.items():
        saved: Params = load_model_file(folder.client_model(client))[0]
        assert_equal(saved, params)
        assert params.keys() == HEADED.build(6, 3).state_dict().keys()
    first, second, _ = result.client_params.values()
    assert not torch.equal(first["gnn.layers.0.weight"], second["gnn.layers.0.weight"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        Ditto(strength=0.0),
        Ditto(strength=2.0, personal_steps=1, weighting="uniform"),
        Ditto(optimizer=SGD(lr=0.1, momentum=0.5), keep_moments=True),
    ],
    ids=["zero", "uniform", "moments"],
)
def test_other_configurations_pass_all_checks(algorithm: Ditto) -> None:
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strength": -0.5}, "strength is -0.5; it must be at least 0"),
        ({"strength": float("nan")}, "strength is nan"),
        ({"personal_steps": 0}, "personal_steps is 0; it must be at least 1, or null"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ditto(**fields)
