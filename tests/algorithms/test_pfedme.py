from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus import run
from isthmus.algorithms import FedAvg, PFedMe
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.codec import decode
from isthmus.core.protocol import EvaluateModel, KeepBest, ModelState
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params, State
from isthmus.data.graph import Graph
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, read_params
from isthmus.models import GCN, SAGE, MLPDecoder, ModelSpec
from isthmus.testing import ScriptedClients, check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import trace_course

from .quadratics import START, Well, Wells
from .reference import assert_close, assert_equal, gradients

WELLS = {"a": Well(1.0, 1.0, 1), "b": Well(4.0, -2.0, 3), "c": Well(0.5, 6.0, 2)}
STILL = ModelSpec(GCN(hidden=5, dropout=0.0))
HEADED = ModelSpec(GCN(hidden=5, dropout=0.0), decoder=MLPDecoder(hidden=4))


def reference(algorithm: PFedMe, cohorts: list[str]) -> tuple[float, dict[str, float]]:
    """Algorithm 1 of the paper, number by number, with weights."""
    lr, own = algorithm.optimizer.lr, {}
    w = 3.0
    for cohort in cohorts:
        total = mean = 0.0
        for name in cohort:
            well, u = WELLS[name], w
            for _ in range(algorithm.local_steps):
                theta = u
                for _ in range(algorithm.inner_steps):
                    theta = theta - lr * (well.curvature * (theta - well.bottom) + algorithm.strength * (theta - u))
                u = u - algorithm.eta * algorithm.strength * (u - theta)
                own[name] = theta
            weight = float(well.num_examples) if algorithm.weighting == "examples" else 1.0
            mean += weight * u
            total += weight
        w = (1 - algorithm.beta) * w + algorithm.beta * mean / total
    return w, own


# ---- numbers


@pytest.mark.meet(1)
@pytest.mark.parametrize("fields", [{}, {"beta": 1.7, "weighting": "uniform"}, {"eta": 0.2, "inner_steps": 1}])
@pytest.mark.parametrize("cohorts", [["abc"], ["abc", "abc", "abc"], ["ac", "b", "bc", "ac"]], ids=["1", "3", "absent"])
def test_a_course_is_the_papers(cohorts: list[str], fields: dict[str, Any]) -> None:
    algorithm = PFedMe(**{"strength": 0.8, "local_steps": 3, "optimizer": SGD(lr=0.1), **fields})
    course = Wells(algorithm, WELLS)
    for cohort in cohorts:
        course.advance(*cohort)
    w, own = reference(algorithm, cohorts)
    assert course.w == pytest.approx(w, abs=1e-12)
    for name in WELLS:
        expected = pytest.approx(own[name], abs=1e-12) if name in own else None
        assert course.memory(name, "model") == expected


def test_it_reaches_the_minimum_of_the_sum_of_the_envelopes() -> None:
    """The envelope of 1/2 c (w - b)^2 is 1/2 c lambda / (c + lambda) (w - b)^2."""
    wells = {"a": Well(1.0, 1.0, 1), "b": Well(4.0, -2.0, 3)}
    algorithm = PFedMe(strength=2.0, eta=0.2, local_steps=1, inner_steps=30, optimizer=SGD(lr=0.1))
    course = Wells(algorithm, wells)
    course.advance(rounds=60)
    shares = {n: w.num_examples * w.curvature * 2.0 / (w.curvature + 2.0) for n, w in wells.items()}
    best = sum(shares[n] * w.bottom for n, w in wells.items()) / sum(shares.values())
    assert course.w == pytest.approx(best, abs=1e-3)
    for name, well in wells.items():
        own = (well.curvature * well.bottom + 2.0 * best) / (well.curvature + 2.0)
        assert course.memory(name, "model") == pytest.approx(own, abs=1e-3)


def test_a_large_lambda_keeps_own_models_near_the_received_one() -> None:
    gaps = []
    for strength in (0.1, 1.0, 10.0, 100.0):
        algorithm = PFedMe(strength=strength, local_steps=1, inner_steps=60, optimizer=SGD(lr=0.01))
        course = Wells(algorithm, WELLS)
        course.advance()
        gaps.append(abs(course.memory("b", "model") - float(START["w"])))  # type: ignore[operator]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < 0.1 * gaps[0]


def test_round_by_written_replies() -> None:
    replies = {
        "a": ModelUpdate({"w": torch.tensor([1.0]), "seen": torch.tensor([2.0])}, 1.0),
        "b": ModelUpdate({"w": torch.tensor([4.0]), "seen": torch.tensor([5.0])}, 2.0),
    }
    state = ModelState({"w": torch.tensor([2.0]), "seen": torch.tensor([9.0])})
    fed = ScriptedClients(replies).federation(state.params, buffers=("seen",))
    after = PFedMe(beta=1.5).round(state, fed)
    assert float(after.params["w"]) == pytest.approx(-0.5 * 2.0 + 1.5 * 3.0)
    assert float(after.params["seen"]) == pytest.approx(4.0)


def test_a_resumed_course_goes_on_as_if_nothing_had_happened() -> None:
    courses = [Wells(PFedMe(local_steps=3, optimizer=SGD(lr=0.1)), WELLS) for _ in range(2)]
    for course in courses:
        course.advance("a", "b")
    courses[1].restart()
    for course in courses:
        course.advance("b", "c")
    assert courses[0].w == courses[1].w
    assert courses[0].memory("a", "model") == courses[1].memory("a", "model")


def test_a_client_without_examples_has_no_model_of_its_own() -> None:
    algorithm = PFedMe(optimizer=SGD(lr=0.1))
    course = Wells(algorithm, {**WELLS, "d": Well(1.0, 50.0, 0)})
    course.advance(rounds=2)
    assert course.clients["d"].state == {}
    assert algorithm.client_params(course.state.params, {}) is course.state.params


# ---- on graphs


def descent(graph: Graph, start: Params, algorithm: PFedMe, personal: tuple[str, ...] = ()) -> tuple[Params, Params]:
    """Return w and theta of a client after a round, densely."""
    lr, w, theta = algorithm.optimizer.lr, dict(start), dict(start)
    for _ in range(algorithm.local_steps):
        theta = {n: theta[n] if n in personal else w[n] for n in w}
        for _ in range(algorithm.inner_steps):
            grads = gradients(graph, theta)
            pull = {n: 0.0 if n in personal else algorithm.strength * (theta[n] - w[n]) for n in w}
            theta = {n: t - lr * (grads[n] + pull[n]) for n, t in theta.items()}
        w = {n: t - algorithm.eta * algorithm.strength * (t - theta[n]) for n, t in w.items()}
    return w, theta


def test_one_round_on_a_graph_by_hand() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = PFedMe(strength=0.7, eta=0.6, inner_steps=3, local_steps=2, optimizer=SGD(lr=0.2))
    reply = algorithm.train(TrainModel(start), client)
    w, theta = descent(client.data, start, algorithm)
    assert_close(reply.params, w, 1e-5)
    assert_close(client.state["model"], theta, 1e-5)


def test_what_is_not_shared_belongs_to_the_clients_own_model() -> None:
    client = toy_client()
    start = read_params(client.model)
    last = tuple(name for name in start if name.startswith("gnn.layers.1"))
    client.own = {name: start[name] for name in last}
    algorithm = PFedMe(strength=0.7, eta=0.6, inner_steps=3, local_steps=2, optimizer=SGD(lr=0.2))
    shared = {name: tensor for name, tensor in start.items() if name not in last}
    reply = algorithm.train(TrainModel(shared), client)
    w, theta = descent(client.data, start, algorithm, last)
    assert_close(reply.params, {name: w[name] for name in shared}, 1e-5)
    assert_close(client.state["model"], theta, 1e-5)
    assert_equal(client.state["personal"], {name: client.state["model"][name] for name in last})


@pytest.mark.parametrize(
    "fields",
    [{}, {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))}],
    ids=["full", "sampled"],
)
def test_with_one_inner_step_it_is_fedavg_at_the_rate_eta_lambda_lr(fields: dict[str, Any]) -> None:
    """Also with fresh batches: each step of w takes one."""
    scenario = toy_scenario()
    algorithm = PFedMe(inner_steps=1, eta=0.5, strength=0.8, local_steps=3, optimizer=SGD(lr=0.5))
    pfedme = trace_course(toy_course(algorithm, **fields), scenario)
    fedavg = trace_course(toy_course(FedAvg(local_steps=3, optimizer=SGD(lr=0.2)), **fields), scenario)
    first, second = (t.standings[t.last].state.params for t in (pfedme, fedavg))  # type: ignore[attr-defined]
    assert_close(first, second, 2e-5)
    assert max(float((first[n] - t).abs().max()) for n, t in pfedme.initial.items()) > 1e-2


def test_buffers_are_those_of_the_own_model() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, dropout=0.0, batch_norm=True)))
    start = read_params(client.model)
    reply = PFedMe(local_steps=2, inner_steps=2, optimizer=SGD(lr=0.1)).train(TrainModel(start), client)
    name = "gnn.norms.0.running_mean"
    assert torch.equal(reply.params[name], client.state["model"][name]) and not torch.equal(
        reply.params[name], start[name]
    )
    assert not torch.equal(reply.params["gnn.norms.0.weight"], client.state["model"]["gnn.norms.0.weight"])


# ---- what a client uses, and what is kept


def test_a_client_is_evaluated_with_its_own_model_and_keeps_it_with_the_best_round() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = PFedMe(optimizer=SGD(lr=0.3))
    assert (
        algorithm.evaluate(EvaluateModel(start, ("val",), "loss", False), client).metrics
        == (client.evaluate(start, ("val",))[0])
    )
    algorithm.train(TrainModel(start), client)
    kept = client.state["model"]
    algorithm.keep_best(KeepBest(), client)
    client.state["model"] = {n: t + 0.5 for n, t in kept.items()}
    now = algorithm.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    best = algorithm.evaluate(EvaluateModel(start, ("val",), "loss", True), client)
    assert best.metrics == client.evaluate(kept, ("val",))[0] != now.metrics


def test_an_absent_client_keeps_its_model_and_all_are_in_the_result() -> None:
    algorithm = PFedMe(optimizer=SGD(lr=0.1))
    fields: dict[str, Any] = {"num_clients": 4, "sampling": UniformSampling(fraction=0.5), "rounds": 4}
    trace = trace_course(toy_course(algorithm, **fields), toy_scenario(4))
    for client in trace.clients:
        asked = [r.round for r in trace.rounds if client in r.cohort]
        for round in (2, 3, 4):
            before: State = decode(trace.memories[round - 1][client], State)
            after: State = decode(trace.memories[round][client], State)
            if round not in asked:
                assert_equal(before.get("model", {}), after.get("model", {}))
    result = run(toy_course(algorithm, model=HEADED, shared=("gnn.*",)), scenario=toy_scenario())
    assert len(result.client_params) == 3
    assert all(params.keys() == HEADED.build(6, 3).state_dict().keys() for params in result.client_params.values())


@pytest.mark.slow
def test_another_configuration_passes_all_checks() -> None:
    check_algorithm(
        PFedMe(strength=15.0, eta=0.005, beta=2.0, inner_steps=3, weighting="uniform", optimizer=SGD(lr=0.05))
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strength": 0.0}, "strength is 0.0; it must be positive"),
        ({"eta": -1.0}, "eta is -1.0; it must be positive"),
        ({"beta": float("inf")}, "beta is inf; it must be positive"),
        ({"inner_steps": 0}, "inner_steps is 0; it must be at least 1"),
        ({"keep_moments": True}, "keep_moments is true, but with pFedMe"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PFedMe(**fields)
