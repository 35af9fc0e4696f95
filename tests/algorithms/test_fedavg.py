from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from isthmus.algorithms import FedAvg, FedProx
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.codec import decode, encode
from isthmus.core.errors import CourseFailed, TooFewReplies
from isthmus.core.protocol import Failure, ModelState, Position
from isthmus.core.random import UniformSampling
from isthmus.core.record import State
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, AdamW, StepDecay, read_params
from isthmus.models import GCN, MLPDecoder, ModelSpec
from isthmus.testing import ScriptedClients, toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import require_close, trace_course

from .reference import assert_close, assert_equal, gradient_descent


def update(value: float, weight: float) -> ModelUpdate:
    return ModelUpdate({"w": torch.tensor([value, 10.0 * value])}, weight)


# ---- server


def test_setup_starts_from_the_initial_model_without_asking_anybody() -> None:
    clients = ScriptedClients({"a": update(1.0, 1.0)})
    params = {"w": torch.ones(2)}
    assert FedAvg().setup(clients.federation(params, round=0)) == ModelState(params)
    assert clients.sent == []


def test_round_sends_the_model_to_the_cohort_and_takes_the_weighted_mean() -> None:
    clients = ScriptedClients({"a": update(1.0, 1.0), "b": update(100.0, 5.0), "c": update(4.0, 2.0)})
    params = {"w": torch.zeros(2)}
    after = FedAvg().round(ModelState(params), clients.federation(cohort=("a", "c")))
    assert torch.allclose(after.params["w"], torch.tensor([3.0, 30.0]))  # (1 * 1 + 2 * 4) / 3
    assert [(client, type(request)) for client, request in clients.sent] == [("a", TrainModel), ("c", TrainModel)]
    assert all(isinstance(request, TrainModel) and request.params is params for _, request in clients.sent)


def test_a_client_that_fails_is_left_out_of_the_mean() -> None:
    clients = ScriptedClients({"a": update(1.0, 1.0), "b": Failure("b", "error", "ill"), "c": update(4.0, 2.0)})
    after = FedAvg().round(ModelState({"w": torch.zeros(2)}), clients.federation())
    assert torch.allclose(after.params["w"], torch.tensor([3.0, 30.0]))
    assert [f.client for report in clients.reports for f in report.failures] == ["b"]


def test_a_client_of_weight_zero_leaves_no_trace() -> None:
    clients = ScriptedClients({"a": update(1.0, 0.0), "b": update(7.0, 3.0)})
    after = FedAvg().round(ModelState({"w": torch.zeros(2)}), clients.federation())
    assert_equal(after.params, update(7.0, 3.0).params)


def test_a_cohort_with_nothing_to_train_on_ends_the_course() -> None:
    clients = ScriptedClients({"a": update(1.0, 0.0), "b": update(2.0, 0.0)})
    with pytest.raises(CourseFailed, match="no client in the cohort has training examples"):
        FedAvg().round(ModelState({"w": torch.zeros(2)}), clients.federation())


def test_too_few_replies_end_the_course() -> None:
    clients = ScriptedClients({"a": update(1.0, 1.0), "b": Failure("b", "lost", "gone")})
    with pytest.raises(TooFewReplies, match=r"1 of 2 clients replied, 2 needed \(b: lost: gone\)"):
        FedAvg().round(ModelState({"w": torch.zeros(2)}), clients.federation(min_replies=2))


# ---- client


def test_train_takes_the_steps_of_gradient_descent() -> None:
    client = toy_client()
    params = read_params(client.model)
    algorithm = FedAvg(local_steps=3, optimizer=SGD(lr=0.3, weight_decay=0.01))
    reply = algorithm.train(TrainModel(params), client)
    assert_close(reply.params, gradient_descent(client.data, params, 3, 0.3, 0.01), 1e-5)
    assert reply.weight == client.num_examples == int(client.data.mask("train").sum())


def test_train_uses_the_learning_rate_of_the_round() -> None:
    client = toy_client()
    params = read_params(client.model)
    algorithm = FedAvg(local_steps=2, optimizer=SGD(lr=0.4, schedule=StepDecay(every=2, gamma=0.5)))
    for round, lr in ((1, 0.4), (2, 0.4), (3, 0.2), (5, 0.1)):
        client.position = Position(0, round, 0)
        reply = algorithm.train(TrainModel(params), client)
        assert_close(reply.params, gradient_descent(client.data, params, 2, lr), 1e-5)


def test_train_starts_anew_every_round_and_remembers_nothing() -> None:
    client = toy_client()
    params = read_params(client.model)
    algorithm = FedAvg(local_steps=2, optimizer=SGD(lr=0.1, momentum=0.9))
    first = algorithm.train(TrainModel(params), client)
    assert client.state == {}
    assert_equal(algorithm.train(TrainModel(params), client).params, first.params)


# ---- moments that are kept

STILL = ModelSpec(GCN(hidden=5, dropout=0.0))


@pytest.mark.parametrize("name", ["adam", "adamw", "momentum"])
def test_kept_moments_are_those_of_one_optimiser_that_goes_on(name: str) -> None:
    """Three rounds of two steps are six steps of torch.optim."""
    ours, theirs = {
        "adam": (Adam(lr=0.02, weight_decay=1e-3), lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=1e-3)),
        "adamw": (AdamW(lr=0.02, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1)),
        "momentum": (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    }[name]
    client = toy_client(model=STILL)
    model = copy.deepcopy(client.model)
    params, optimizer = read_params(model), theirs(model.parameters())
    train = client.data.mask("train")
    kept, fresh = FedAvg(local_steps=2, optimizer=ours, keep_moments=True), FedAvg(local_steps=2, optimizer=ours)
    anew = params
    for round in (1, 2, 3):
        for _ in range(2):
            optimizer.zero_grad()
            scores = model(client.prepared.graph, None)
            torch.autograd.backward(F.cross_entropy(scores[train], client.data.y[train]))
            optimizer.step()
        client.position = Position(0, round, 0)
        params = kept.train(TrainModel(params), client).params
        assert client.state["optimizer"]["step"] == 2 * round
        assert_close(params, read_params(model), 1e-5)
        anew = fresh.train(TrainModel(anew), toy_client(model=STILL)).params
    assert max(float((anew[name] - params[name]).abs().max()) for name in params) > 1e-3


def test_kept_moments_are_not_changed_in_place() -> None:
    client = toy_client()
    request = TrainModel(read_params(client.model))
    algorithm = FedAvg(keep_moments=True, optimizer=Adam(lr=0.02))
    algorithm.train(request, client)
    before, bits = client.state["optimizer"], encode(dict(client.state["optimizer"]))
    algorithm.train(request, client)
    assert encode(dict(before)) == bits and encode(dict(client.state["optimizer"])) != bits


HEADED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4), activate=True)


# A bias before a batch norm has no gradient but rounding, which Adam takes for a direction unless eps is far above it.
BLUNT = Adam(lr=0.02, eps=1e-2)
OWN_HEADS = {"model": HEADED, "shared": ("*", "!decoder.*")}
HALF = {"sampling": UniformSampling(fraction=0.5)}


@pytest.mark.meet(1)
@pytest.mark.parametrize("algorithm", [FedAvg, FedProx], ids=["fedavg", "fedprox"])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9), BLUNT], ids=["momentum", "adam"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": HEADED},
        HALF,
        OWN_HEADS,
        {**OWN_HEADS, **HALF},
    ],
    ids=["all", "activated", "half", "own heads", "own heads, half"],
)
def test_moments_are_kept_by_clients_that_answer_together_as_by_each_alone(
    fields: dict[str, Any], optimizer: Any, algorithm: type[FedAvg]
) -> None:
    scenario = toy_scenario(5, num_nodes=64, client_without_training=True)
    method = algorithm(local_steps=2, optimizer=optimizer, keep_moments=True)
    course = toy_course(method, num_clients=5, rounds=4, **fields)
    loop, auto = (trace_course(replace(course, runtime=runtime), scenario) for runtime in ("loop", "auto"))
    failures = [failure for report in auto.exchanges for failure in report.failures]
    assert "TrainModel" in auto.together and auto.ended_by is None and not failures, failures
    require_close(loop.values(), auto.values(), "alone and together", tolerance=1e-3)
    kept = {client: decode(memory, State) for client, memory in auto.memories[auto.last].items()}
    visits = {client: sum(client in report.cohort for report in auto.rounds) for client in kept}
    busy = [client for client in kept if client != "client-4" and visits[client]]
    assert {client: kept[client]["optimizer"]["step"] for client in busy} == {c: 2 * visits[c] for c in busy}
    forgetful = trace_course(replace(course, algorithm=replace(method, keep_moments=False)), scenario)
    found, other = (trace.standings[trace.last].state.params for trace in (loop, forgetful))  # type: ignore[attr-defined]
    assert max(float((found[name] - other[name]).abs().max()) for name in found) > 1e-3


# ---- odd clients


def test_a_client_without_training_nodes_gives_the_model_back_with_weight_zero() -> None:
    client = toy_client(toy_scenario(client_without_training=True).parts["client-2"])
    params = read_params(client.model)
    for weighting in ("examples", "nodes", "uniform"):
        reply = FedAvg(weighting=weighting).train(TrainModel(params), client)
        assert reply.weight == 0.0
        assert_equal(reply.params, params)


def test_weight_is_what_the_weighting_says() -> None:
    graph = toy_graph(20, unlabelled_fraction=0.3)
    client = toy_client(graph)
    examples = int((graph.mask("train") & (graph.y >= 0)).sum())
    assert examples != 20
    assert FedAvg(weighting="examples").weight(client) == float(examples)
    assert FedAvg(weighting="nodes").weight(client) == 20.0
    assert FedAvg(weighting="uniform").weight(client) == 1.0


def test_an_epoch_of_sampled_batches_is_as_many_steps_as_there_are_batches() -> None:
    client = toy_client(batching=NeighborBatch(batch_size=5, fanouts=(-1, -1)))  # 24 training nodes
    params = read_params(client.model)
    optimizer = SGD(lr=0.1)
    epoch = FedAvg(local_steps=2, step_unit="epoch", optimizer=optimizer).train(TrainModel(params), client)
    batches = FedAvg(local_steps=10, step_unit="batch", optimizer=optimizer).train(TrainModel(params), client)
    assert_equal(epoch.params, batches.params)
    fewer = FedAvg(local_steps=9, step_unit="batch", optimizer=optimizer).train(TrainModel(params), client)
    assert not torch.equal(fewer.params["gnn.layers.0.weight"], epoch.params["gnn.layers.0.weight"])


# ---- fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_steps": 0}, "local_steps is 0"),
        ({"step_unit": "hour"}, "step_unit is 'hour'; choose from batch, epoch"),
        ({"weighting": "age"}, "weighting is 'age'; choose from examples, nodes, uniform"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedAvg(**fields)  # type: ignore[arg-type]
