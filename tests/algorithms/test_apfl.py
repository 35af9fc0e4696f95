from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus import run
from isthmus.algorithms import APFL, FedAvg, Local
from isthmus.algorithms.apfl import mixture
from isthmus.algorithms.fedavg import TrainModel
from isthmus.core.codec import decode
from isthmus.core.protocol import EvaluateModel, KeepBest
from isthmus.core.record import State
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, read_params
from isthmus.models import GCN, SAGE, MLPDecoder, ModelSpec
from isthmus.testing import check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.conformance import check_stacked_equals_loop, odd_scenarios
from isthmus.testing.traces import Trace, require_same, trace_course

from .quadratics import START, Well, Wells
from .reference import assert_close, assert_equal, gradients

WELLS = {"a": Well(1.0, 1.0, 1), "b": Well(4.0, -2.0, 3), "c": Well(0.5, 6.0, 2)}
HEADED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4))
SAMPLED = {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))}
# A bias before batch norm has a slope that is nothing but rounding, and Adam's steps are of full length above eps.
EPS = 1e-3
COURSES = [{}, SAMPLED, {"model": HEADED, "shared": ("gnn.*",)}]


def reference(algorithm: APFL, cohorts: list[str]) -> tuple[float, dict[str, float], dict[str, float]]:
    """Algorithm 1 of the paper, number by number; the share moves at the first step of a round."""
    lr, own, shares = algorithm.optimizer.lr, {}, {}
    w = 3.0
    for cohort in cohorts:
        total = mean = 0.0
        for name in cohort:
            well, u, v, alpha = WELLS[name], w, own.get(name, w), shares.get(name, algorithm.alpha)
            for step in range(algorithm.local_steps):
                mixed = alpha * v + (1 - alpha) * u
                slope = well.curvature * (mixed - well.bottom)
                moved = v - lr * alpha * slope
                if step == 0:
                    alpha = min(1.0, max(0.0, alpha - algorithm.alpha_lr * (v - u) * slope))
                u = u - lr * well.curvature * (u - well.bottom)
                v = moved
            own[name], shares[name] = v, alpha
            mean += well.num_examples * u
            total += well.num_examples
        w = mean / total
    return w, own, shares


def memory(trace: Trace, client: str, round: int | None = None) -> State:
    found: State = decode(trace.memories[trace.last if round is None else round][client], State)
    return found


# ---- numbers


@pytest.mark.meet(1)
@pytest.mark.parametrize("alpha_lr", [0.0, 0.03, 10.0])
@pytest.mark.parametrize("cohorts", [["abc"], ["abc", "abc", "abc"], ["ac", "b", "bc", "ac"]], ids=["1", "3", "absent"])
def test_a_course_is_the_papers(cohorts: list[str], alpha_lr: float) -> None:
    algorithm = APFL(alpha=0.3, alpha_lr=alpha_lr, local_steps=3, optimizer=SGD(lr=0.1))
    course = Wells(algorithm, WELLS)
    for cohort in cohorts:
        course.advance(*cohort)
    w, own, shares = reference(algorithm, cohorts)
    assert course.w == pytest.approx(w, abs=1e-12)
    for name in WELLS:
        assert course.memory(name, "model") == (pytest.approx(own[name], abs=1e-12) if name in own else None)
        share = course.clients[name].state.get("alpha")
        assert share == (pytest.approx(shares[name], abs=1e-12) if name in own else None)
        if name in own:
            used = algorithm.client_params(course.state.params, course.clients[name].state)
            assert float(used["w"]) == pytest.approx(shares[name] * own[name] + (1 - shares[name]) * w, abs=1e-12)


def test_the_share_goes_where_the_loss_is_lower_and_stays_a_share() -> None:
    course = Wells(APFL(alpha=0.5, alpha_lr=0.05, local_steps=4, optimizer=SGD(lr=0.05)), WELLS)
    course.advance(rounds=12)
    shares = [course.clients[name].state["alpha"] for name in WELLS]
    assert all(0.0 <= share <= 1.0 for share in shares) and max(shares) > 0.55


def test_a_resumed_course_goes_on_as_if_nothing_had_happened() -> None:
    courses = [Wells(APFL(alpha_lr=0.1, local_steps=3, optimizer=SGD(lr=0.1)), WELLS) for _ in range(2)]
    for course in courses:
        course.advance("a", "b")
    courses[1].restart()
    for course in courses:
        course.advance("b", "c")
        course.advance()
    assert courses[0].w == courses[1].w
    assert courses[0].memory("a", "model") == courses[1].memory("a", "model")
    assert courses[0].clients["a"].state["alpha"] == courses[1].clients["a"].state["alpha"] != 0.5


def test_a_client_without_examples_has_no_model_of_its_own() -> None:
    algorithm = APFL(alpha_lr=0.1, optimizer=SGD(lr=0.1))
    course = Wells(algorithm, {**WELLS, "d": Well(1.0, 50.0, 0)})
    course.advance(rounds=2)
    assert course.clients["d"].state == {}
    assert algorithm.client_params(course.state.params, {}) is course.state.params


def test_each_model_has_the_buffers_of_its_own_passes() -> None:
    course = Wells(APFL(alpha=0.25, local_steps=1), {"a": Well(1.0, 8.0)})
    course.advance()
    course.advance()
    # Each pass brings a buffer halfway to the bottom: w's is sent back whole, v's stays with the client.
    assert float(course.state.params["seen"]) == pytest.approx(6.0)
    assert float(course.clients["a"].state["model"]["seen"]) == pytest.approx(6.0)
    used = course.algorithm.client_params(START, course.clients["a"].state)
    assert float(used["seen"]) == pytest.approx(0.25 * 6.0)


def test_a_mixture_has_both_ends_to_the_bit_and_whole_numbers_of_the_larger_share() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = ({"x": torch.randn(50, generator=generator), "n": torch.tensor(n)} for n in (3, 8))
    assert_equal(mixture(a, b, 0.0), a)
    assert_equal(mixture(a, b, 1.0), b)
    middle = mixture(a, b, 0.3)
    torch.testing.assert_close(middle["x"], 0.3 * b["x"] + 0.7 * a["x"])
    assert int(middle["n"]) == 3 and int(mixture(a, b, 0.7)["n"]) == 8


# ---- on graphs


def test_one_round_on_a_graph_by_hand() -> None:
    client = toy_client()
    start = read_params(client.model)
    generator = torch.Generator().manual_seed(0)
    v = {n: w + 0.3 * torch.randn(w.shape, generator=generator) for n, w in start.items()}
    alpha, w = 0.4, start
    client.state.update(model=v, alpha=alpha)
    algorithm = APFL(alpha=0.9, alpha_lr=0.05, local_steps=3, optimizer=SGD(lr=0.2, weight_decay=0.01))
    reply = algorithm.train(TrainModel(start), client)
    for step in range(3):
        slope = gradients(client.data, w)
        mixed = gradients(client.data, {n: alpha * v[n] + (1 - alpha) * w[n] for n in w})
        rise = sum(float(((v[n] - w[n]) * mixed[n]).sum()) for n in w)
        v = {n: t - 0.2 * (alpha * mixed[n] + 0.01 * t) for n, t in v.items()}
        w = {n: t - 0.2 * (slope[n] + 0.01 * t) for n, t in w.items()}
        alpha = alpha - 0.05 * rise if step == 0 else alpha
    assert_close(reply.params, w, 1e-5)
    assert_close(client.state["model"], v, 1e-5)
    assert client.state["alpha"] == pytest.approx(alpha, abs=1e-5) and abs(alpha - 0.4) > 1e-3


@pytest.mark.meet(1)
@pytest.mark.parametrize("fields", COURSES, ids=["full", "sampled", "head"])
@pytest.mark.parametrize("algorithm", [APFL(alpha=0.0), APFL(alpha=0.6, alpha_lr=0.2)], ids=["zero", "mixed"])
def test_the_global_model_is_that_of_fedavg_to_the_bit(fields: dict[str, Any], algorithm: APFL) -> None:
    scenario = toy_scenario()
    fedavg = trace_course(toy_course(FedAvg(), **fields), scenario)
    apfl = trace_course(toy_course(algorithm, **fields), scenario)
    for round, standing in fedavg.standings.items():
        assert_equal(standing.state.params, apfl.standings[round].state.params)  # type: ignore[attr-defined]
    same = [r.evaluations for r in fedavg.rounds] == [r.evaluations for r in apfl.rounds]
    assert same == (algorithm.alpha == 0.0)  # alpha = 0 is FedAvg for the clients as well


@pytest.mark.meet(1)
@pytest.mark.parametrize("fields", COURSES, ids=["full", "sampled", "head"])
@pytest.mark.parametrize(
    ("optimizer", "keep_moments"),
    [(SGD(lr=0.2, weight_decay=5e-4), False), (Adam(lr=0.01), True)],
    ids=["sgd", "adam"],
)
def test_with_alpha_one_own_models_are_those_of_local_training_to_the_bit(
    fields: dict[str, Any], optimizer: Any, keep_moments: bool
) -> None:
    scenario = toy_scenario()
    local = trace_course(toy_course(Local(local_steps=3, optimizer=optimizer), **fields), scenario)
    algorithm = APFL(alpha=1.0, local_steps=3, optimizer=optimizer, keep_moments=keep_moments)
    apfl = trace_course(toy_course(algorithm, **fields), scenario)
    models = apfl.models(algorithm)
    for client in local.clients:
        for round in (1, 2, 3):
            assert_equal(memory(apfl, client, round)["model"], memory(local, client, round)["running"])
        running = memory(local, client)["running"]
        assert_equal({name: models[client][name] for name in running}, running)


def test_clients_with_settings_of_their_own_have_shares_of_their_own() -> None:
    settings = {"client-1": {"alpha": 0.9}}
    trace = trace_course(toy_course(APFL(alpha=0.2), client_settings=settings, rounds=1), toy_scenario())
    assert [memory(trace, client)["alpha"] for client in trace.clients] == [0.2, 0.9, 0.2]


def test_a_client_keeps_share_and_model_of_the_best_round() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = APFL(alpha_lr=0.5, optimizer=SGD(lr=0.3))
    algorithm.train(TrainModel(start), client)
    algorithm.keep_best(KeepBest(), client)
    kept = {name: client.state[name] for name in ("model", "alpha")}
    assert client.state["best"] == kept
    algorithm.train(TrainModel(start), client)
    best = algorithm.evaluate(EvaluateModel(start, ("val",), "loss", True), client)
    assert best.metrics == client.evaluate(mixture(start, kept["model"], kept["alpha"]), ("val",))[0]
    assert client.state["alpha"] != kept["alpha"]


def test_mixtures_are_in_the_result_and_no_two_are_the_same() -> None:
    result = run(toy_course(APFL(alpha_lr=0.1), model=HEADED, shared=("*", "!*.norms.*")), scenario=toy_scenario())
    assert all(params.keys() == HEADED.build(6, 3).state_dict().keys() for params in result.client_params.values())
    assert len({tuple(p["gnn.layers.0.weight"].flatten().tolist()) for p in result.client_params.values()}) == 3


def test_loop_and_strict_agree_with_kept_moments() -> None:
    course = toy_course(APFL(alpha_lr=0.1, keep_moments=True, optimizer=Adam(lr=0.01)))
    loop, strict = (trace_course(replace(course, runtime=runtime), toy_scenario()) for runtime in ("loop", "strict"))
    require_same(loop.values(), strict.values(), "loop and strict")


@pytest.mark.parametrize("fields", COURSES, ids=["full", "sampled", "head"])
@pytest.mark.parametrize(
    "algorithm",
    [
        APFL(alpha=0.3, alpha_lr=0.5, keep_moments=True, optimizer=Adam(lr=0.01, weight_decay=1e-3, eps=EPS)),
        APFL(alpha=0.6, alpha_lr=9.0, local_steps=3, step_unit="epoch", optimizer=SGD(lr=0.2, momentum=0.5)),
        APFL(alpha=0.6, optimizer=Adam(lr=0.01, eps=EPS)),
    ],
    ids=["kept moments", "epochs", "adam"],
)
def test_many_clients_train_as_each_alone(fields: dict[str, Any], algorithm: APFL) -> None:
    scenarios = odd_scenarios()[1:2] if "batching" not in fields else [toy_scenario(4, num_nodes=90)]
    check_stacked_equals_loop(algorithm, toy_course(algorithm, rounds=3, **fields), scenarios=scenarios)


def test_shares_move_apart_together_and_only_at_a_rounds_first_step() -> None:
    course = toy_course(APFL(alpha_lr=2.0, local_steps=3), runtime="auto", rounds=2, num_clients=4)
    together = trace_course(course, toy_scenario(4, num_nodes=60))
    alone = trace_course(replace(course, runtime="loop"), toy_scenario(4, num_nodes=60))
    assert together.together["TrainModel"] and not together.notes
    for name in (f"client-{k}" for k in range(4)):
        ours, theirs = (memory(trace, name)["alpha"] for trace in (together, alone))
        assert ours == pytest.approx(theirs, abs=1e-5) and ours != 0.5
    assert len({memory(together, f"client-{k}")["alpha"] for k in range(4)}) == 4


@pytest.mark.slow
def test_another_configuration_passes_all_checks() -> None:
    check_algorithm(
        APFL(alpha=0.7, alpha_lr=0.05, weighting="uniform", keep_moments=True, optimizer=SGD(lr=0.1, momentum=0.5))
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": -0.1}, r"alpha is -0.1; it must be in \[0, 1\]"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha_lr": -1.0}, "alpha_lr is -1.0; it must be at least 0"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        APFL(**fields)
