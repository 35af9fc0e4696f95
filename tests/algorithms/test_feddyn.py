from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, FedDyn, FedProx
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.feddyn import DynState
from isthmus.core.random import UniformSampling
from isthmus.learn.optimizers import SGD, Adam, read_params
from isthmus.models import GCN, ModelSpec
from isthmus.testing import ScriptedClients, check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_close, trace_course

from .quadratics import Well, Wells
from .reference import assert_close, assert_equal, gradients

WELLS = {"a": Well(1.0, 1.0, 1), "b": Well(4.0, -2.0, 3), "c": Well(0.5, 6.0, 2)}


def reference(algorithm: FedDyn, cohorts: list[str]) -> tuple[float, float, dict[str, float]]:
    """Algorithm 1 of the paper, number by number, with weights; minimisation by as many steps of descent."""
    alpha, lr = algorithm.alpha, algorithm.optimizer.lr
    w, h, own = 3.0, 0.0, dict.fromkeys(WELLS, 0.0)
    weights = {n: float(well.num_examples) if algorithm.weighting == "examples" else 1.0 for n, well in WELLS.items()}
    for cohort in cohorts:
        heard = sum(weights[name] for name in cohort)
        moved = mean = 0.0
        for name in cohort:
            well, v = WELLS[name], w
            for _ in range(algorithm.local_steps):
                v = v - lr * (well.curvature * (v - well.bottom) - own[name] + alpha * (v - w))
            own[name] = own[name] - alpha * (v - w)
            moved += weights[name] / sum(weights.values()) * (v - w)
            mean += weights[name] / heard * v
        h = h - alpha * moved
        w = mean - h / alpha
    return w, h, own


@pytest.mark.meet(1)
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("cohorts", [["abc"], ["abc", "abc", "abc"], ["ac", "b", "bc", "ac"]], ids=["1", "3", "absent"])
def test_a_course_is_the_papers(cohorts: list[str], weighting: str) -> None:
    algorithm = FedDyn(alpha=0.7, local_steps=5, optimizer=SGD(lr=0.1), weighting=weighting)
    course = Wells(algorithm, WELLS)
    for cohort in cohorts:
        course.advance(*cohort)
    w, h, own = reference(algorithm, cohorts)
    assert course.w == pytest.approx(w, abs=1e-12)
    assert float(course.state.linear["w"]) == pytest.approx(h, abs=1e-12)
    for name in WELLS:
        asked = any(name in cohort for cohort in cohorts)
        assert course.memory(name, "linear") == (pytest.approx(own[name], abs=1e-12) if asked else None)


def test_the_servers_term_is_the_weighted_mean_of_all_clients() -> None:
    course = Wells(FedDyn(local_steps=3, optimizer=SGD(lr=0.1)), WELLS)
    for cohort in ("ac", "b", "bc", "abc"):
        course.advance(*cohort)
        total = sum(w.num_examples * (course.memory(n, "linear") or 0.0) for n, w in WELLS.items())
        assert float(course.state.linear["w"]) == pytest.approx(total / 6, abs=1e-12)


def test_it_reaches_the_joint_optimum_where_fedavg_does_not() -> None:
    wells = {"a": Well(1.0, 1.0, 1), "b": Well(9.0, -2.0, 2)}
    optimum = (1.0 - 36.0) / 19.0
    steps: dict[str, Any] = {"local_steps": 10, "optimizer": SGD(lr=0.1)}
    dyn, fedavg = Wells(FedDyn(alpha=1.0, **steps), wells), Wells(FedAvg(**steps), wells)
    dyn.advance(rounds=30)
    fedavg.advance(rounds=30)
    assert dyn.w == pytest.approx(optimum, abs=1e-5)
    assert abs(fedavg.w - optimum) > 0.3
    # Each linear term is then the client's own slope at the optimum.
    assert dyn.memory("a", "linear") == pytest.approx(optimum - 1.0, abs=1e-5)
    assert float(dyn.state.linear["w"]) == pytest.approx(0.0, abs=1e-5)


def test_as_alpha_goes_to_zero_clients_train_as_in_fedavg_and_the_server_adds_all_changes_so_far() -> None:
    steps: dict[str, Any] = {"local_steps": 4, "optimizer": SGD(lr=0.05)}
    dyn = Wells(FedDyn(alpha=1e-9, **steps), WELLS)
    w, changes = 3.0, 0.0
    for _ in range(3):
        fedavg = Wells(FedAvg(**steps), WELLS)
        fedavg.state = type(fedavg.state)({**fedavg.state.params, "w": torch.tensor([w], dtype=torch.float64)})
        fedavg.advance()
        changes += fedavg.w - w
        w = fedavg.w + changes
        dyn.advance()
        assert dyn.w == pytest.approx(w, abs=1e-6)


def test_buffers_are_averaged_and_have_no_terms() -> None:
    course = Wells(FedDyn(local_steps=1), WELLS)
    state = course.advance()
    assert state.linear.keys() == {"w"} and course.clients["a"].state["linear"].keys() == {"w"}
    assert float(state.params["seen"]) == pytest.approx((0.5 - 3.0 + 6.0) / 6)


def test_a_resumed_course_goes_on_as_if_nothing_had_happened() -> None:
    courses = [Wells(FedDyn(local_steps=3, optimizer=SGD(lr=0.1)), WELLS) for _ in range(2)]
    for course in courses:
        course.advance("a", "b")
    courses[1].restart()
    for course in courses:
        course.advance("b", "c")
        course.advance()
    assert courses[0].w == courses[1].w
    assert courses[0].memory("a", "linear") == courses[1].memory("a", "linear")


def test_a_client_without_examples_changes_nothing() -> None:
    algorithm = FedDyn(local_steps=3, optimizer=SGD(lr=0.1))
    idle, plain = Wells(algorithm, {**WELLS, "d": Well(1.0, 50.0, 0)}), Wells(algorithm, WELLS)
    idle.advance(rounds=2)
    plain.advance(rounds=2)
    assert idle.w == plain.w and idle.state.total == 6.0
    assert idle.clients["d"].state == {}


def test_round_by_written_replies() -> None:
    clients = ScriptedClients(
        {"a": ModelUpdate({"w": torch.tensor([1.0])}, 1.0), "b": ModelUpdate({"w": torch.tensor([4.0])}, 2.0)}
    )
    state = DynState({"w": torch.tensor([2.0])}, {"w": torch.tensor([0.3])}, 6.0)
    after = FedDyn(alpha=0.5).round(state, clients.federation())
    h = 0.3 - 0.5 * (3 / 6) * (3.0 - 2.0)
    assert float(after.linear["w"]) == pytest.approx(h)
    assert float(after.params["w"]) == pytest.approx(3.0 - h / 0.5)
    assert float(state.linear["w"]) == pytest.approx(0.3)
    assert FedDyn().round(DynState(state.params, state.linear, 1.0), clients.federation()).total == 3.0


# ---- on graphs


def test_one_round_on_a_graph_by_hand() -> None:
    client = toy_client()
    start = read_params(client.model)
    generator = torch.Generator().manual_seed(0)
    own = {n: 0.05 * torch.randn(w.shape, generator=generator) for n, w in start.items()}
    client.state["linear"] = own
    algorithm = FedDyn(alpha=0.8, local_steps=3, optimizer=SGD(lr=0.2))
    reply = algorithm.train(TrainModel(start), client)
    v = start
    for _ in range(3):
        grads = gradients(client.data, v, 0.8, start)
        v = {n: w - 0.2 * (grads[n] - own[n]) for n, w in v.items()}
    assert_close(reply.params, v, 1e-5)
    assert_close(client.state["linear"], {n: own[n] - 0.8 * (v[n] - w) for n, w in start.items()}, 1e-5)


def test_a_client_that_trains_for_the_first_time_is_one_of_fedprox() -> None:
    client = toy_client()
    request = TrainModel(read_params(client.model))
    prox = FedProx(mu=0.4, local_steps=5).train(request, client)
    assert_close(FedDyn(alpha=0.4, local_steps=5).train(request, client).params, prox.params, 1e-6)


def test_the_first_round_is_that_of_fedprox_with_the_step_doubled() -> None:
    scenario = toy_scenario()
    model = ModelSpec(GCN(hidden=5, dropout=0.0))
    found = {}
    for name, algorithm in {"dyn": FedDyn(alpha=0.4), "prox": FedProx(mu=0.4)}.items():
        trace = trace_course(toy_course(algorithm, rounds=1, model=model), scenario)
        found[name] = trace.standings[1].state.params  # type: ignore[attr-defined]
        initial = trace.initial
    assert_close(found["dyn"], {n: 2 * w - initial[n] for n, w in found["prox"].items()}, 1e-5)


@pytest.mark.meet(1)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.5), Adam(lr=0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_clients_that_answer_together_give_what_they_would_alone(sparse: bool, optimizer: Any) -> None:
    scenario = toy_scenario(5, num_nodes=70, sparse=sparse, client_without_training=True)
    fields: dict[str, Any] = {"num_clients": 5, "sampling": UniformSampling(fraction=0.8)}
    algorithm = FedDyn(alpha=0.5, optimizer=optimizer)
    loop = trace_course(toy_course(algorithm, **fields), scenario)
    together = trace_course(toy_course(algorithm, runtime="auto", **fields), scenario)
    assert together.together["TrainModel"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "together")


def test_what_is_not_shared_has_no_terms() -> None:
    shared = ("gnn.layers.0.*",)
    trace = trace_course(toy_course(FedDyn(), shared=shared), toy_scenario())
    assert trace.ended_by is None and not any(report.failures for report in trace.exchanges)
    state = trace.standings[3].state
    assert isinstance(state, DynState)
    assert state.linear.keys() == state.params.keys() == {"gnn.layers.0.weight", "gnn.layers.0.bias"}
    together = trace_course(toy_course(FedDyn(), shared=shared, runtime="auto"), toy_scenario())
    require_close(trace.values(), together.values(), "with personal parameters")


def test_training_leaves_the_memory_it_found_alone() -> None:
    client = toy_client()
    request = TrainModel(read_params(client.model))
    FedDyn().train(request, client)
    before = client.state["linear"]
    kept = {name: h.clone() for name, h in before.items()}
    FedDyn().train(request, client)
    assert client.state["linear"] is not before
    assert_equal(before, kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        FedDyn(alpha=0.2, weighting="uniform", local_steps=2),
        FedDyn(optimizer=SGD(lr=0.1, momentum=0.5), keep_moments=True),
    ],
    ids=["uniform", "moments"],
)
def test_other_configurations_pass_all_checks(algorithm: FedDyn) -> None:
    check_algorithm(algorithm)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bad_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha is .*must be positive"):
        FedDyn(alpha=alpha)
