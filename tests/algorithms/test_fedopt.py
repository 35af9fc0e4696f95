from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from isthmus.algorithms import FedOpt
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedopt import OptimizedState
from isthmus.core.codec import decode, encode
from isthmus.core.protocol import Request
from isthmus.testing import ScriptedClients

START = {"w": torch.tensor([0.5, -1.0, 2.0]), "b": torch.tensor([0.1]), "mean": torch.tensor([3.0])}
BUFFERS = ("mean",)
WEIGHTS = {"one": 1.0, "two": 3.0}


def answer(client: str, request: Request[Any]) -> ModelUpdate:
    """A client whose change depends on the model it gets, so that errors would show in later rounds."""
    assert isinstance(request, TrainModel)
    target = 1.0 if client == "one" else -2.0
    params = {name: w + 0.1 * (target - w) + 0.05 * w.cos() for name, w in request.params.items()}
    return ModelUpdate(params, WEIGHTS[client])


def reference(algorithm: FedOpt, rounds: int) -> dict[str, np.ndarray[Any, Any]]:
    """Algorithm 2 of Reddi et al. (2021) in numpy, double precision."""
    w = {name: tensor.double().numpy() for name, tensor in START.items()}
    m = {name: np.zeros_like(w[name]) for name in ("w", "b")}
    v = {name: np.full_like(w[name], algorithm.tau**2) for name in ("w", "b")}
    for _ in range(rounds):
        trained = {
            client: {n: x + 0.1 * (goal - x) + 0.05 * np.cos(x) for n, x in w.items()}
            for client, goal in (("one", 1.0), ("two", -2.0))
        }
        mean = {n: (trained["one"][n] + 3.0 * trained["two"][n]) / 4.0 for n in w}
        w = {**w, "mean": mean["mean"]}
        for n in ("w", "b"):
            d = mean[n] - w[n]
            if algorithm.server == "sgd":
                m[n] = algorithm.beta1 * m[n] + d
                w[n] = w[n] + algorithm.server_lr * m[n]
                continue
            m[n] = algorithm.beta1 * m[n] + (1 - algorithm.beta1) * d
            if algorithm.server == "adagrad":
                v[n] = v[n] + d**2
            elif algorithm.server == "yogi":
                v[n] = v[n] - (1 - algorithm.beta2) * d**2 * np.sign(v[n] - d**2)
            else:
                v[n] = algorithm.beta2 * v[n] + (1 - algorithm.beta2) * d**2
            w[n] = w[n] + algorithm.server_lr * m[n] / (np.sqrt(v[n]) + algorithm.tau)
    return w


def run(algorithm: FedOpt, rounds: int) -> OptimizedState:
    clients = ScriptedClients(answer, ("one", "two"))
    state = algorithm.setup(clients.federation(START, buffers=BUFFERS, round=0))
    for round in range(1, rounds + 1):
        state = algorithm.round(state, clients.federation(START, buffers=BUFFERS, round=round))
    return state


@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedOpt(server="sgd", server_lr=0.7, beta1=0.8),
        FedOpt(server="sgd", server_lr=1.0, beta1=0.0),
        FedOpt(server="adam", server_lr=0.1, beta1=0.9, beta2=0.95, tau=1e-2),
        FedOpt(server="yogi", server_lr=0.1, beta1=0.6, beta2=0.9, tau=1e-1),
        FedOpt(server="adagrad", server_lr=0.3, beta1=0.0, tau=1e-3),
        FedOpt(server="adagrad", server_lr=0.3, beta1=0.5, tau=1e-3),
    ],
    ids=lambda a: f"{a.server}-{a.beta1}" if isinstance(a, FedOpt) else str(a),
)
def test_server_step_is_the_papers(algorithm: FedOpt, rounds: int) -> None:
    found, expected = run(algorithm, rounds).params, reference(algorithm, rounds)
    for name in START:
        np.testing.assert_allclose(found[name].numpy(), expected[name], atol=1e-5, err_msg=name)


def test_setup_has_no_momentum_and_v_at_tau_squared_and_leaves_buffers_out() -> None:
    state = run(FedOpt(server="yogi", tau=0.2), 0)
    assert state.params is START
    assert state.momentum.keys() == state.second.keys() == {"w", "b"}
    assert all(bool((m == 0).all()) for m in state.momentum.values())
    assert all(torch.allclose(v, torch.tensor(0.04)) for v in state.second.values())
    assert run(FedOpt(server="sgd"), 0).second == {}


def test_buffers_take_the_plain_mean() -> None:
    state = run(FedOpt(server="adam", server_lr=0.1), 1)
    replies = [answer(client, TrainModel(START)).params["mean"] for client in WEIGHTS]
    assert torch.allclose(state.params["mean"], (replies[0] + 3 * replies[1]) / 4)


def test_round_leaves_the_state_it_was_given_alone() -> None:
    algorithm = FedOpt(server="adam")
    before = run(algorithm, 2)
    kept = encode(before)
    algorithm.round(before, ScriptedClients(answer, ("one", "two")).federation(START, buffers=BUFFERS))
    assert encode(before) == kept


def test_state_is_a_record_that_survives_its_bytes() -> None:
    state = run(FedOpt(server="yogi"), 2)
    assert FedOpt.state_type() is OptimizedState
    again: OptimizedState = decode(encode(state), OptimizedState)
    for part in ("params", "momentum", "second"):
        assert all(torch.equal(t, getattr(again, part)[n]) for n, t in getattr(state, part).items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"server": "lamb"}, "server is 'lamb'; choose from sgd, adam, yogi, adagrad"),
        ({"server_lr": 0.0}, "server_lr is 0.0"),
        ({"tau": 0.0}, "tau 0.0"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"beta2": -0.1}, "beta2 -0.1"),
        ({"weighting": "age"}, "weighting is 'age'"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedOpt(**fields)
