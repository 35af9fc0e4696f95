from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, Scaffold
from isthmus.algorithms.scaffold import ClientWeight, CorrectedUpdate, ScaffoldState, ShareWeight, TrainCorrected
from isthmus.core.protocol import Position
from isthmus.core.random import UniformSampling
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, AdamW, StepDecay, read_params
from isthmus.models import GCN, SAGE, ModelSpec
from isthmus.testing import ScriptedClients, check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_close, trace_course

from .quadratics import Well, Wells
from .reference import assert_close, assert_equal, gradients

WELLS = {"a": Well(1.0, 1.0, 1), "b": Well(4.0, -2.0, 3), "c": Well(0.5, 6.0, 2)}


def reference(
    algorithm: Scaffold, wells: dict[str, Well], cohorts: list[list[str]], lr: float
) -> tuple[float, float, dict[str, float]]:
    """Algorithm 1 of the paper with option II, number by number, with weights."""
    x, c, own = 3.0, 0.0, dict.fromkeys(wells, 0.0)
    weights = {n: float(w.num_examples) if algorithm.weighting == "examples" else 1.0 for n, w in wells.items()}
    for cohort in cohorts:
        heard = sum(weights[name] for name in cohort)
        mean_y = mean_c = 0.0
        for name in cohort:
            well, y = wells[name], x
            for _ in range(algorithm.local_steps):
                y = y - lr * (well.curvature * (y - well.bottom) - own[name] + c)
            new = own[name] - c + (x - y) / (algorithm.local_steps * lr)
            mean_y += weights[name] / heard * y
            mean_c += weights[name] / heard * (new - own[name])
            own[name] = new
        x = x + algorithm.server_lr * (mean_y - x)
        c = c + heard / sum(weights.values()) * mean_c
    return x, c, own


ALL, TWO = ["a", "b", "c"], ["a", "c"]


@pytest.mark.meet(2)
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
@pytest.mark.parametrize(
    "cohorts", [[ALL], [ALL, ALL, ALL], [TWO, ["b"], ["b", "c"], TWO]], ids=["one round", "three", "absences"]
)
def test_a_course_is_the_papers(cohorts: list[list[str]], server_lr: float, weighting: str) -> None:
    algorithm = Scaffold(local_steps=5, optimizer=SGD(lr=0.1), server_lr=server_lr, weighting=weighting)
    course = Wells(algorithm, WELLS)
    for cohort in cohorts:
        course.advance(*cohort)
    x, c, own = reference(algorithm, WELLS, cohorts, 0.1)
    assert course.w == pytest.approx(x, abs=1e-12)
    assert float(course.state.variate["w"]) == pytest.approx(c, abs=1e-12)
    for name in WELLS:
        asked = any(name in cohort for cohort in cohorts)
        assert course.memory(name, "variate") == (pytest.approx(own[name], abs=1e-12) if asked else None)


def test_the_servers_variate_is_the_weighted_mean_of_all_clients() -> None:
    course = Wells(Scaffold(local_steps=3, optimizer=SGD(lr=0.1)), WELLS)
    for cohort in (TWO, ["b"], ["b", "c"], ALL):
        course.advance(*cohort)
        total = sum(w.num_examples * (course.memory(n, "variate") or 0.0) for n, w in WELLS.items())
        assert float(course.state.variate["w"]) == pytest.approx(total / 6, abs=1e-12)


def test_it_reaches_the_joint_optimum_where_fedavg_does_not() -> None:
    wells = {"a": Well(1.0, 1.0), "b": Well(9.0, -2.0)}
    optimum = (1.0 * 1.0 + 9.0 * -2.0) / 10.0
    steps: dict[str, Any] = {"local_steps": 3, "optimizer": SGD(lr=0.1)}
    scaffold, fedavg = Wells(Scaffold(**steps), wells), Wells(FedAvg(**steps), wells)
    scaffold.advance(rounds=30)
    fedavg.advance(rounds=30)
    assert scaffold.w == pytest.approx(optimum, abs=1e-6)
    assert abs(fedavg.w - optimum) > 0.3
    # Each variate is the client's own slope at the optimum, which is what it has to be corrected by.
    assert scaffold.memory("a", "variate") == pytest.approx(optimum - 1.0, abs=1e-6)
    assert scaffold.memory("b", "variate") == pytest.approx(9.0 * (optimum + 2.0), abs=1e-6)


def test_it_reaches_the_joint_optimum_with_half_of_the_clients_too() -> None:
    wells = {"a": Well(1.0, 1.0), "b": Well(3.0, -2.0)}
    course = Wells(Scaffold(local_steps=5, optimizer=SGD(lr=0.05)), wells)
    for round in range(60):
        course.advance("ab"[round % 2])
    assert course.w == pytest.approx((1.0 - 6.0) / 4.0, abs=1e-6)


def test_the_weighted_optimum_is_that_of_all_examples() -> None:
    wells = {"a": Well(1.0, 1.0, 3), "b": Well(2.0, -2.0, 1)}
    course = Wells(Scaffold(local_steps=10, optimizer=SGD(lr=0.05)), wells)
    course.advance(rounds=40)
    assert course.w == pytest.approx((3 * 1.0 - 2 * 2.0) / 5.0, abs=1e-6)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.5), Adam(lr=0.05), AdamW(lr=0.05, weight_decay=0.0)])
def test_with_other_optimisers_a_variate_is_the_mean_of_the_gradients_on_the_way(optimizer: Any) -> None:
    course = Wells(Scaffold(local_steps=4, optimizer=optimizer), WELLS)
    course.advance()
    course.advance()
    own = course.memory("b", "variate")
    server = float(course.state.variate["w"])
    assert own is not None
    # One more round by hand: the same optimiser on the corrected slope, gradients noted on the way.
    y, slopes = course.state.params["w"].clone(), []
    state = optimizer.start([y])
    for _ in range(4):
        slope = 4.0 * (float(y) + 2.0)
        slopes.append(slope)
        optimizer.step([y], [torch.full_like(y, slope - own + server)], state, optimizer.lr)
    request = TrainCorrected(course.state.params, course.state.variate)
    course.clients["b"].position = Position(0, 3, 0)
    reply = course.algorithm.train(request, course.clients["b"])  # type: ignore[attr-defined]
    assert float(reply.params["w"]) == pytest.approx(float(y), abs=1e-9)
    assert course.memory("b", "variate") == pytest.approx(sum(slopes) / 4, abs=1e-9)
    assert float(reply.variate_change["w"]) == pytest.approx(sum(slopes) / 4 - own, abs=1e-9)


def test_moments_that_are_kept_go_on_and_hold_no_sum_of_gradients() -> None:
    optimizer = SGD(lr=0.05, momentum=0.5)
    course = Wells(Scaffold(local_steps=2, optimizer=optimizer, keep_moments=True), {"a": Well(2.0, 1.0)})
    course.advance(rounds=2)
    w, b = 3.0, 0.0  # one client: its variate is the server's, so nothing is corrected
    for _ in range(4):
        b = 0.5 * b + 2.0 * (w - 1.0)
        w -= 0.05 * b
    assert course.w == pytest.approx(w, abs=1e-12)
    assert course.clients["a"].state["optimizer"].keys() == {"step", "momentum"}


@pytest.mark.parametrize(
    ("optimizer", "decays"),
    [(SGD(lr=0.1, weight_decay=0.3), True), (Adam(lr=0.1, weight_decay=0.3), True), (AdamW(weight_decay=0.3), False)],
)
def test_weight_decay_is_part_of_a_variate_where_it_is_part_of_the_gradient(optimizer: Any, decays: bool) -> None:
    course = Wells(Scaffold(local_steps=1, optimizer=optimizer), {"a": Well(1.0, 1.0)})
    course.advance()
    assert course.memory("a", "variate") == pytest.approx((3.0 - 1.0) + (0.3 * 3.0 if decays else 0.0))


def test_a_variate_goes_by_the_learning_rate_of_the_round() -> None:
    optimizer = SGD(lr=0.1, schedule=StepDecay(every=1, gamma=0.5))
    course = Wells(Scaffold(local_steps=1, optimizer=optimizer), {"a": Well(1.0, 1.0)})
    course.advance(rounds=2)
    at = 3.0 - 0.1 * 2.0  # where the second round starts: its only gradient is the slope there
    assert course.memory("a", "variate") == pytest.approx(at - 1.0)


def test_buffers_are_averaged_and_have_no_variates() -> None:
    course = Wells(Scaffold(local_steps=1, server_lr=0.5), WELLS)
    state = course.advance()
    assert state.variate.keys() == {"w"} and course.clients["a"].state["variate"].keys() == {"w"}
    assert float(state.params["seen"]) == pytest.approx((0.5 - 3.0 + 6.0) / 6)  # half of each bottom, by weight


def test_a_resumed_course_goes_on_as_if_nothing_had_happened() -> None:
    courses = [Wells(Scaffold(local_steps=3, optimizer=SGD(lr=0.1)), WELLS) for _ in range(2)]
    for course in courses:
        course.advance("a", "b")
    courses[1].restart()
    for course in courses:
        course.advance("b", "c")
        course.advance()
    assert courses[0].w == courses[1].w
    assert courses[0].memory("a", "variate") == courses[1].memory("a", "variate")


def test_a_client_without_examples_changes_nothing() -> None:
    algorithm = Scaffold(local_steps=3, optimizer=SGD(lr=0.1))
    idle, plain = Wells(algorithm, {**WELLS, "d": Well(1.0, 50.0, 0)}), Wells(algorithm, WELLS)
    idle.advance(rounds=2)
    plain.advance(rounds=2)
    assert idle.w == plain.w and idle.state.total == 6.0
    assert idle.clients["d"].state == {}


def test_a_client_that_missed_the_setup_never_counts_for_more_than_all() -> None:
    clients = ScriptedClients({"a": CorrectedUpdate({"w": torch.ones(1)}, {"w": torch.ones(1)}, 5.0)})
    state = ScaffoldState({"w": torch.zeros(1)}, {"w": torch.zeros(1)}, 2.0)
    after = Scaffold().round(state, clients.federation())
    assert after.total == 5.0 and float(after.variate["w"]) == 1.0


def test_the_setup_asks_everybody_for_weights_alone() -> None:
    clients = ScriptedClients({"a": ClientWeight(2.0), "b": ClientWeight(3.0)})
    state = Scaffold().setup(clients.federation({"w": torch.ones(2), "m": torch.ones(1)}, buffers=("m",), round=0))
    assert [type(request) for _, request in clients.sent] == [ShareWeight, ShareWeight]
    assert state.total == 5.0 and state.variate.keys() == {"w"} and not state.variate["w"].any()


# ---- on graphs


def test_one_round_on_a_graph_by_hand() -> None:
    client = toy_client()
    start = read_params(client.model)
    generator = torch.Generator().manual_seed(0)
    server = {n: 0.05 * torch.randn(w.shape, generator=generator) for n, w in start.items()}
    own = {n: 0.05 * torch.randn(w.shape, generator=generator) for n, w in start.items()}
    client.state["variate"] = own
    algorithm = Scaffold(local_steps=3, optimizer=SGD(lr=0.2))
    reply = algorithm.train(TrainCorrected(start, server), client)
    y = start
    for _ in range(3):
        grads = gradients(client.data, y)
        y = {n: w - 0.2 * (grads[n] - own[n] + server[n]) for n, w in y.items()}
    after = {n: own[n] - server[n] + (w - y[n]) / 0.6 for n, w in start.items()}
    assert_close(reply.params, y, 1e-5)
    assert_close(client.state["variate"], after, 1e-5)
    assert_close(reply.variate_change, {n: c - own[n] for n, c in after.items()}, 1e-5)


@pytest.mark.meet(1)
@pytest.mark.parametrize(
    "fields",
    [{}, {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))}],
    ids=["full", "sampled"],
)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.25, weight_decay=5e-4), Adam(lr=0.01)], ids=["sgd", "adam"])
def test_the_first_round_is_that_of_fedavg_to_the_bit(fields: dict[str, Any], optimizer: Any) -> None:
    scenario = toy_scenario()
    states = []
    for algorithm in (FedAvg(optimizer=optimizer), Scaffold(optimizer=optimizer)):
        trace = trace_course(toy_course(algorithm, rounds=2, **fields), scenario)
        states.append([trace.standings[round].state.params for round in (1, 2)])  # type: ignore[attr-defined]
    assert_equal(states[0][0], states[1][0])
    assert any(not torch.allclose(states[0][1][n], w, atol=1e-4) for n, w in states[1][1].items())


def test_one_client_alone_is_not_corrected() -> None:
    """c = c_1 then, so that every round is FedAvg's."""
    scenario = toy_scenario(1)
    model = ModelSpec(GCN(hidden=5, dropout=0.0))
    last = []
    for algorithm in (FedAvg(), Scaffold()):
        trace = trace_course(toy_course(algorithm, num_clients=1, model=model), scenario)
        last.append(trace.standings[3].state.params)  # type: ignore[attr-defined]
    assert_close(last[0], last[1], 1e-5)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_clients_that_answer_together_keep_the_variates_they_would_keep_alone(sparse: bool) -> None:
    scenario = toy_scenario(4, num_nodes=60, sparse=sparse)
    algorithm = Scaffold(optimizer=SGD(lr=0.1, schedule=StepDecay(every=1, gamma=0.7), weight_decay=0.01))
    fields: dict[str, Any] = {"num_clients": 4, "sampling": UniformSampling(fraction=0.75)}
    loop = trace_course(toy_course(algorithm, **fields), scenario)
    together = trace_course(toy_course(algorithm, runtime="auto", **fields), scenario)
    assert together.together["TrainCorrected"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "variates")


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": Adam(lr=0.01, eps=1e-3)},
        {"optimizer": Adam(lr=0.01, eps=1e-3, weight_decay=0.01), "keep_moments": True},
        {"optimizer": AdamW(lr=0.01, eps=1e-3, weight_decay=0.1)},
        {"optimizer": SGD(lr=0.1, momentum=0.9, weight_decay=0.01), "keep_moments": True},
    ],
    ids=["adam", "adam with kept moments", "adamw", "momentum"],
)
def test_also_with_moments_where_a_change_is_no_mean_of_gradients(fields: dict[str, Any], sparse: bool) -> None:
    course = toy_course(Scaffold(local_steps=3, **fields), num_clients=4, rounds=2, runtime="auto")
    scenario = toy_scenario(4, num_nodes=60, sparse=sparse)
    trace = trace_course(course, scenario)
    assert trace.together["TrainCorrected"] == 8 and not trace.notes
    alone = trace_course(replace(course, runtime="loop"), scenario)
    require_close(alone.values(), trace.values(), "variates")


def test_what_is_not_shared_is_trained_without_a_correction() -> None:
    shared = ("*", "!gnn.layers.1.*")
    trace = trace_course(toy_course(Scaffold(), shared=shared), toy_scenario())
    assert trace.ended_by is None and not any(report.failures for report in trace.exchanges)
    state = trace.standings[3].state
    assert isinstance(state, ScaffoldState)
    assert state.variate.keys() == state.params.keys() == {"gnn.layers.0.weight", "gnn.layers.0.bias"}
    together = trace_course(toy_course(Scaffold(), shared=shared, runtime="auto"), toy_scenario())
    require_close(trace.values(), together.values(), "with personal parameters")


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [Scaffold(server_lr=0.5, weighting="uniform", local_steps=2), Scaffold(keep_moments=True)],
    ids=["uniform", "moments"],
)
def test_other_configurations_pass_all_checks(algorithm: Scaffold) -> None:
    check_algorithm(algorithm)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bad_server_lr_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="server_lr is"):
        Scaffold(server_lr=value)
