from __future__ import annotations

import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.errors import CourseFailed, TooFewReplies
from isthmus.core.federation import Position
from isthmus.core.protocol import Failure, ModelState
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.fit import read_params
from isthmus.learn.optimizers import SGD, StepDecay
from isthmus.testing import ScriptedClients, toy_client, toy_graph, toy_scenario

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
