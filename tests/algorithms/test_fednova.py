from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, FedNova, FedProx
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fednova import NormalizedChange, TrainNormalized
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Algorithm, ModelState
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, StepDecay, read_params
from isthmus.models import GCN, SAGE, ModelSpec
from isthmus.testing import ScriptedClients, check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_close, trace_course

from .quadratics import Well, Wells
from .reference import assert_close, assert_equal, gradient_descent

WELLS = {"a": Well(1.0, 1.0, 1, 2), "b": Well(4.0, -2.0, 3, 7), "c": Well(0.5, 6.0, 2, 1)}


def closed_form(tau: int, momentum: float, pull: float) -> float:
    """|a|_1 as the paper has it, for momentum or for the proximal term."""
    assert not (momentum and pull)
    if momentum:
        return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
    return (1 - (1 - pull) ** tau) / pull if pull else float(tau)


def reference(algorithm: FedNova, cohorts: list[list[str]]) -> float:
    """Equation 8 of the paper, number by number: w - tau_eff sum_k p_k lr d_k with d_k = (w - w_k) / (lr |a_k|)."""
    assert isinstance(algorithm.optimizer, SGD)
    lr, rho, mu = algorithm.optimizer.lr, algorithm.optimizer.momentum, algorithm.mu
    w = 3.0
    for cohort in cohorts:
        total = sum(WELLS[name].num_examples for name in cohort)
        direction = effective = 0.0
        for name in cohort:
            well, y, b = WELLS[name], w, 0.0
            tau = algorithm.local_steps * well.num_batches
            for _ in range(tau):
                b = rho * b + well.curvature * (y - well.bottom) + mu * (y - w)
                y = y - lr * b
            size = closed_form(tau, rho, lr * mu)
            share = well.num_examples / total
            direction += share * (w - y) / (lr * size)
            effective += share * size
        w = w - effective * lr * direction
    return w


@pytest.mark.meet(1)
@pytest.mark.parametrize("fields", [{}, {"mu": 0.4}], ids=["plain", "proximal"])
@pytest.mark.parametrize("cohorts", [["abc"], ["abc", "abc", "abc"], ["ac", "b", "bc"]], ids=["one", "three", "absent"])
def test_a_course_is_the_papers(cohorts: list[str], fields: dict[str, float]) -> None:
    algorithm = FedNova(local_steps=2, step_unit="epoch", optimizer=SGD(lr=0.05), **fields)
    course = Wells(algorithm, WELLS)
    for cohort in cohorts:
        course.advance(*cohort)
    assert course.w == pytest.approx(reference(algorithm, [list(cohort) for cohort in cohorts]), abs=1e-12)


def test_a_course_with_momentum_is_the_papers() -> None:
    algorithm = FedNova(local_steps=2, step_unit="epoch", optimizer=SGD(lr=0.05, momentum=0.7))
    course = Wells(algorithm, WELLS)
    course.advance(rounds=3)
    assert course.w == pytest.approx(reference(algorithm, [["a", "b", "c"]] * 3), abs=1e-12)


@pytest.mark.parametrize("tau", [1, 2, 5, 30])
@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.3, 0.0), (0.0, 2.0)])
def test_accumulated_steps_are_the_papers_closed_forms(tau: int, momentum: float, mu: float) -> None:
    algorithm = FedNova(optimizer=SGD(lr=0.1, momentum=momentum), mu=mu)
    found = algorithm.accumulated(tau, toy_client())
    assert found == pytest.approx(closed_form(tau, momentum, 0.1 * mu), rel=1e-9)


def test_accumulated_steps_with_momentum_and_proximal_term_are_the_sum_of_the_factors() -> None:
    """Each gradient's factor by a course in which that one is 1 and all others 0."""
    lr, rho, mu, tau = 0.1, 0.6, 1.5, 6
    total = 0.0
    for which in range(tau):
        moved = b = 0.0
        for step in range(tau):
            b = rho * b + (1.0 if step == which else 0.0) + mu * moved
            moved -= lr * b
        total += -moved / lr
    found = FedNova(optimizer=SGD(lr=lr, momentum=rho), mu=mu).accumulated(tau, toy_client())
    assert found == pytest.approx(total, rel=1e-9)


def test_accumulated_steps_go_by_the_learning_rate_of_the_round() -> None:
    client = toy_client()
    algorithm = FedNova(mu=2.0, optimizer=SGD(lr=0.1, schedule=StepDecay(every=1, gamma=0.5)))
    client.position = type(client.position)(0, 3, 0)
    assert algorithm.accumulated(4, client) == pytest.approx(closed_form(4, 0.0, 0.1 * 0.25 * 2.0))


def test_adams_steps_count_one_each() -> None:
    assert FedNova(optimizer=Adam(lr=0.01)).accumulated(7, toy_client()) == 7.0


def test_it_minimises_the_true_objective_where_fedavg_leans_to_who_takes_more_steps() -> None:
    """Small steps: a client's change is tau_k times its slope, which FedAvg takes for its weight."""
    wells = {"a": Well(1.0, 1.0, 1, 1), "b": Well(1.0, -1.0, 1, 5)}
    steps: dict[str, Any] = {"local_steps": 1, "step_unit": "epoch", "optimizer": SGD(lr=0.01)}
    nova, fedavg = Wells(FedNova(**steps), wells), Wells(FedAvg(**steps), wells)
    nova.advance(rounds=200)
    fedavg.advance(rounds=200)
    assert abs(nova.w) < 0.02  # the minimum of both together
    assert fedavg.w == pytest.approx(-4 / 6, abs=0.02)


# ---- server


def test_round_goes_the_mean_steps_along_the_mean_change() -> None:
    clients = ScriptedClients(
        {
            "a": NormalizedChange({"w": torch.tensor([1.0])}, {"m": torch.tensor([2.0])}, 2.0, 1.0),
            "b": NormalizedChange({"w": torch.tensor([-3.0])}, {"m": torch.tensor([6.0])}, 10.0, 3.0),
        }
    )
    after = FedNova(local_steps=10).round(
        ModelState({"m": torch.zeros(1), "w": torch.tensor([0.5])}), clients.federation(buffers=["m"])
    )
    assert list(after.params) == ["m", "w"]
    assert float(after.params["w"]) == pytest.approx(0.5 + (2 + 30) / 4 * (1 - 9) / 4)
    assert float(after.params["m"]) == pytest.approx((2 + 18) / 4)
    assert [type(request) for _, request in clients.sent] == [TrainNormalized] * 2


# ---- client


def test_train_tells_the_change_per_step() -> None:
    client = toy_client()
    start = read_params(client.model)
    reply = FedNova(local_steps=3, optimizer=SGD(lr=0.3, weight_decay=0.01)).train(TrainNormalized(start), client)
    after = gradient_descent(client.data, start, 3, 0.3, 0.01)
    assert_close(reply.change, {n: (w - start[n]) / 3 for n, w in after.items()}, 1e-5)
    assert reply.steps == 3.0 and reply.buffers == {} and reply.weight == client.num_examples


def test_buffers_are_sent_whole_and_apart() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, dropout=0.0, batch_norm=True)))
    start = read_params(client.model)
    reply = FedNova(local_steps=3).train(TrainNormalized(start), client)
    plain = FedAvg(local_steps=3).train(TrainModel(start), client).params
    assert_equal(reply.buffers, {name: plain[name] for name in reply.buffers})
    assert reply.buffers.keys() == {"gnn.norms.0.running_mean", "gnn.norms.0.running_var"}
    assert reply.change.keys() | reply.buffers.keys() == start.keys()
    assert not torch.allclose(reply.buffers["gnn.norms.0.running_mean"], start["gnn.norms.0.running_mean"], atol=1e-3)


def test_a_client_without_training_nodes_weighs_nothing_and_divides_by_nothing() -> None:
    client = toy_client(toy_scenario(client_without_training=True).parts["client-2"])
    reply = FedNova().train(TrainNormalized(read_params(client.model)), client)
    assert reply.weight == 0.0 and reply.steps == 0.0
    assert not any(bool(change.any()) for change in reply.change.values())


def test_steps_that_undo_each_other_are_refused() -> None:
    client = toy_client()
    algorithm = FedNova(mu=9.0, local_steps=6, optimizer=SGD(lr=0.1, momentum=0.98))
    with pytest.raises(BadInput, match=r"momentum 0.98 and mu times lr 0.9, 6 steps undo each other"):
        algorithm.train(TrainNormalized(read_params(client.model)), client)
    assert algorithm.accumulated(0, client) == 0.0


# ---- identities


def last(algorithm: Algorithm[Any], num_clients: int = 3, **fields: Any) -> Params:
    trace = trace_course(toy_course(algorithm, num_clients=num_clients, rounds=2, **fields), toy_scenario(num_clients))
    assert trace.ended_by is None and not any(report.failures for report in trace.exchanges)
    params: Params = trace.standings[trace.last].state.params  # type: ignore[attr-defined]
    return params


@pytest.mark.meet(1)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": ModelSpec(SAGE(hidden=5)), "batching": NeighborBatch(8, (2, 2))},
        {"num_clients": 4, "sampling": UniformSampling(fraction=0.5)},
        {"runtime": "auto"},
    ],
    ids=["full", "sampled", "half", "together"],
)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.2, momentum=0.9), Adam(lr=0.01)], ids=["sgd", "adam"])
def test_with_equal_steps_it_is_fedavg(fields: dict[str, Any], optimizer: Any) -> None:
    fedavg = last(FedAvg(optimizer=optimizer), **fields)
    assert_close(last(FedNova(optimizer=optimizer), **fields), fedavg, 1e-5)


def test_with_equal_steps_and_batch_norm_it_is_fedavg() -> None:
    model = ModelSpec(SAGE(hidden=5, batch_norm=True))
    assert_close(last(FedNova(), model=model), last(FedAvg(), model=model), 1e-5)


def test_with_equal_steps_and_a_proximal_term_it_is_fedprox() -> None:
    assert_close(last(FedNova(mu=0.5)), last(FedProx(mu=0.5)), 1e-5)


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "auto"])
@pytest.mark.parametrize("steps", [1, 5, 6])
def test_with_equal_steps_momentum_and_a_strong_pull_it_is_fedprox(steps: int, runtime: str) -> None:
    """Five steps are worth 0.41 plain ones here, six 0.24."""
    fields: dict[str, Any] = {"mu": 9.0, "local_steps": steps, "optimizer": SGD(lr=0.1, momentum=0.9)}
    if steps > 1:
        assert 0.0 < FedNova(**fields).accumulated(steps, toy_client()) < 0.5
    assert_close(last(FedNova(**fields), runtime=runtime), last(FedProx(**fields), runtime=runtime), 1e-5)


def test_with_unequal_steps_it_is_not_fedavg() -> None:
    fields: dict[str, Any] = {"model": ModelSpec(SAGE(hidden=5)), "batching": NeighborBatch(4, (2, 2))}
    epochs: dict[str, Any] = {"step_unit": "epoch", "local_steps": 2}
    fedavg, nova = last(FedAvg(**epochs), **fields), last(FedNova(**epochs), **fields)
    assert max(float((fedavg[n] - w).abs().max()) for n, w in nova.items()) > 1e-3


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("algorithm", [FedNova(optimizer=SGD(lr=0.1, momentum=0.5)), FedNova(mu=0.5)], ids=repr)
def test_clients_that_answer_together_give_what_they_would_alone(algorithm: FedNova, sparse: bool) -> None:
    scenario = toy_scenario(5, num_nodes=70, sparse=sparse, client_without_training=True)
    loop = trace_course(toy_course(algorithm, num_clients=5, rounds=2), scenario)
    together = trace_course(toy_course(algorithm, num_clients=5, rounds=2, runtime="auto"), scenario)
    assert together.together["TrainNormalized"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "together")


def test_what_is_not_shared_stays() -> None:
    trace = trace_course(toy_course(FedNova(mu=0.1), shared=("gnn.layers.0.*",)), toy_scenario())
    assert trace.ended_by is None and not any(report.failures for report in trace.exchanges)
    assert trace.standings[3].state.params.keys() == {"gnn.layers.0.weight", "gnn.layers.0.bias"}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_another_configuration_passes_all_checks() -> None:
    check_algorithm(FedNova(mu=0.5, weighting="uniform", optimizer=SGD(lr=0.1, momentum=0.5)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mu": -0.1}, "mu is -0.1; it must be at least 0"),
        ({"mu": float("nan")}, "mu is nan"),
        ({"mu": 4.0}, r"mu is 4.0 and the optimiser's lr 0.25.*below 1"),
        ({"keep_moments": True}, "leave keep_moments at False"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedNova(**fields)
