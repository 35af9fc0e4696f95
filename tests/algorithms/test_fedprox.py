from __future__ import annotations

import pytest
import torch

from isthmus.algorithms import FedAvg, FedProx
from isthmus.algorithms.fedavg import TrainModel
from isthmus.learn.optimizers import SGD, read_params
from isthmus.models import GCN, ModelSpec
from isthmus.testing import toy_client

from .reference import assert_close, assert_equal, gradient_descent, gradients


def test_penalty_is_half_mu_times_the_squared_distance() -> None:
    client = toy_client()
    params = read_params(client.model)
    penalty = FedProx(mu=0.6).penalty(TrainModel(params), client)
    assert penalty is not None
    live = {name: tensor + 0.5 for name, tensor in params.items()}
    expected = 0.3 * 0.25 * sum(tensor.numel() for tensor in params.values())
    assert float(penalty(live)) == pytest.approx(expected, rel=1e-5)
    assert float(penalty(params)) == 0.0


def test_two_steps_by_hand() -> None:
    client = toy_client()
    start = read_params(client.model)
    first = gradients(client.data, start)
    middle = {n: w - 0.2 * first[n] for n, w in start.items()}
    second = gradients(client.data, middle)
    mu = 3.0
    expected = {n: w - 0.2 * (second[n] + mu * (w - start[n])) for n, w in middle.items()}
    reply = FedProx(mu=mu, local_steps=2, optimizer=SGD(lr=0.2)).train(TrainModel(start), client)
    assert_close(reply.params, expected, 1e-5)


def test_train_follows_the_proximal_gradient() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = FedProx(mu=0.7, local_steps=5, optimizer=SGD(lr=0.2, weight_decay=0.01))
    expected = gradient_descent(client.data, start, 5, 0.2, 0.01, mu=0.7)
    assert_close(algorithm.train(TrainModel(start), client).params, expected, 1e-5)


def test_the_term_moves_the_parameters_and_a_stronger_one_keeps_them_nearer() -> None:
    client = toy_client()
    start = read_params(client.model)
    distances = []
    for mu in (0.0, 0.5, 2.0):
        algorithm = FedProx(mu=mu, local_steps=5, optimizer=SGD(lr=0.2))
        after = algorithm.train(TrainModel(start), client).params
        distances.append(float(sum((after[n] - w).square().sum() for n, w in start.items())))
    assert distances[0] > 1.05 * distances[1] > 1.05**2 * distances[2] > 0


def test_buffers_are_not_held_back() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, dropout=0.0, batch_norm=True)))
    start = read_params(client.model)
    near = FedProx(mu=4.9, local_steps=3, optimizer=SGD(lr=0.2)).train(TrainModel(start), client).params
    assert not torch.allclose(near["gnn.norms.0.running_mean"], start["gnn.norms.0.running_mean"], atol=1e-3)


def test_mu_zero_has_no_penalty_and_trains_as_fedavg() -> None:
    client = toy_client()
    start = TrainModel(read_params(client.model))
    assert FedProx(mu=0.0).penalty(start, client) is None
    assert_equal(FedProx(mu=0.0).train(start, client).params, FedAvg().train(start, client).params)


def test_negative_mu_is_refused() -> None:
    with pytest.raises(ValueError, match="mu is -1"):
        FedProx(mu=-1.0)
    with pytest.raises(ValueError, match="local_steps is 0"):
        FedProx(local_steps=0)
