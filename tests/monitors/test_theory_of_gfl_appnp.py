"""The quantities of GFL-APPNP's theory against direct, dense formulas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

import isthmus as ist
from isthmus.algorithms import GFLAPPNP
from isthmus.algorithms.gfl_appnp.client_graph import normalized, polynomial
from isthmus.algorithms.gfl_appnp.hosted import Hosted
from isthmus.data.splitters import NodeHostsSplitter
from isthmus.learn.optimizers import SGD
from isthmus.models import MLP, ModelSpec
from isthmus.monitors.connectivity import Connectivity, client_adjacency, connectivity
from isthmus.monitors.gradient_smoothness import GradientSmoothness, propagated
from isthmus.monitors.hidden_error import HiddenError
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import trace_course

from .views import toy_view

MODEL = ModelSpec(MLP(hidden=4, dropout=0.0))
GRAPH = toy_graph(12, num_links=4, seed=1)


def hosts(num_clients: int = 12) -> Scenario:
    parts = NodeHostsSplitter().split(GRAPH, num_clients, np.random.default_rng(0))
    return Scenario(GRAPH, {f"client-{k:02d}": part for k, part in enumerate(parts)})


def models(num_clients: int = 12) -> dict[str, ist.Params]:
    found = {}
    for k in range(num_clients):
        draw = torch.Generator().manual_seed(k)
        found[f"client-{k:02d}"] = {
            "gnn.layers.0.weight": torch.randn(6, 4, generator=draw),
            "gnn.layers.0.bias": torch.randn(4, generator=draw),
            "gnn.layers.1.weight": torch.randn(4, 3, generator=draw),
            "gnn.layers.1.bias": torch.randn(3, generator=draw),
        }
    return found


def encoded(params: ist.Params, x: Tensor) -> Tensor:
    inner = (x @ params["gnn.layers.0.weight"] + params["gnn.layers.0.bias"]).relu()
    return inner @ params["gnn.layers.1.weight"] + params["gnn.layers.1.bias"]


def mean(given: dict[str, ist.Params], weights: dict[str, float]) -> ist.Params:
    share = {client: weights[client] if any(weights.values()) else 1.0 for client in given}
    total = sum(share.values())
    return {n: sum(share[c] / total * m[n] for c, m in given.items()) for n in given["client-00"]}  # type: ignore[misc]


def ring(size: int) -> np.ndarray:
    return np.roll(np.eye(size), 1, axis=1) + np.roll(np.eye(size), -1, axis=1)


@pytest.mark.parametrize("adjacency", [ring(5), ring(9), np.ones((6, 6)) - np.eye(6)], ids=["ring 5", "ring 9", "all"])
def test_connectivity_is_the_largest_eigenvalue_of_the_product(adjacency: np.ndarray) -> None:
    size = len(adjacency)
    laplacian = np.diag(adjacency.sum(axis=1)) - adjacency
    balance = np.eye(size) / size - np.ones((size, size)) / size**2
    expected = np.linalg.eigvals(balance @ np.linalg.pinv(laplacian)).real.max()
    assert connectivity(adjacency) == pytest.approx(expected, rel=1e-9)


def test_connectivity_of_special_graphs() -> None:
    assert connectivity(np.ones((7, 7)) - np.eye(7)) == pytest.approx(1 / 49)
    assert np.isnan(connectivity(np.kron(np.eye(2), ring(3))))
    assert connectivity(np.zeros((1, 1))) == 0.0


def test_clients_are_neighbours_where_an_edge_joins_them_or_a_node_is_with_both() -> None:
    dense = np.zeros((12, 12))
    dense[tuple(GRAPH.edge_index.numpy())] = 1.0
    assert (client_adjacency(GRAPH, hosts().parts) == dense).all()
    blocks = np.array([[dense[i : i + 4, j : j + 4].any() and i != j for j in (0, 4, 8)] for i in (0, 4, 8)])
    assert (client_adjacency(GRAPH, hosts(3).parts) == blocks).all()
    shared = toy_scenario(num_common=2)
    assert client_adjacency(shared.whole, shared.parts).sum() == 6


def test_the_monitor_of_connectivity_gives_one_number() -> None:
    view = toy_view({}, hosts(), model=MODEL, num_clients=12)
    found = Connectivity().measure(view)
    assert found.clients == ("all",)
    dense = np.zeros((12, 12))
    dense[tuple(GRAPH.edge_index.numpy())] = 1.0
    assert found.values[0] == pytest.approx(connectivity(dense), nan_ok=True)


WEIGHTS = {f"client-{k:02d}": float(k % 4) for k in range(12)}


@pytest.mark.meet(1)
@pytest.mark.parametrize("weights", [{}, WEIGHTS, dict.fromkeys(WEIGHTS, 0.0)], ids=["none", "given", "all zero"])
@pytest.mark.parametrize(
    ("algorithm", "recursion"),
    [
        (ist.FedAvg(), (0.1, 10)),
        (GFLAPPNP(), (0.1, 10)),
        (GFLAPPNP(alpha=0.3, hops=2), (0.3, 2)),
        (GFLAPPNP(alpha=0.3, hops=2, coefficients="printed"), (0.7, 2)),
    ],
    ids=["fedavg", "default", "other", "printed"],
)
def test_shares_of_kappa_squared_add_up_over_edges(
    algorithm: ist.Algorithm[Any], recursion: tuple[float, int], weights: dict[str, float]
) -> None:
    given = models()
    view = toy_view(given, hosts(), weights=weights, algorithm=algorithm, model=MODEL, num_clients=12)
    found = GradientSmoothness().measure(view)
    alpha, hops = recursion
    live = {name: tensor.requires_grad_() for name, tensor in mean(given, weights).items()}
    adjacency = torch.eye(12)
    adjacency[GRAPH.edge_index[0], GRAPH.edge_index[1]] = 1.0
    scale = adjacency.sum(dim=1).rsqrt()
    z = h = encoded(live, GRAPH.x)
    for _ in range(hops):
        z = (1 - alpha) * (scale[:, None] * adjacency * scale) @ z + alpha * h
    train = GRAPH.mask("train").nonzero().flatten().tolist()
    slopes = {}
    for node in train:
        loss = F.cross_entropy(z[node : node + 1], GRAPH.y[node : node + 1])
        grads = torch.autograd.grad(loss, list(live.values()), retain_graph=True)
        slopes[node] = torch.cat([g.flatten() for g in grads])
    kappa = sum(
        float((slopes[i] - slopes[j]).square().sum()) for i in train for j in train if i < j and adjacency[i, j] > 0
    )
    assert kappa > 0
    assert float(found.values.sum()) == pytest.approx(kappa, rel=1e-3)
    assert found.clients == tuple(f"client-{node:02d}" for node in train)
    assert len(found.absent) == 12 - len(train)


def test_predictions_propagate_without_a_dense_matrix_as_with_one() -> None:
    draw = torch.Generator().manual_seed(3)
    adjacency = np.zeros((12, 12))
    adjacency[tuple(GRAPH.edge_index.numpy())] = 1.0
    step, weights = normalized(sparse.csr_matrix(adjacency)), (0.2, 0.3, 0.1, 0.4)
    mixing = torch.from_numpy(polynomial(step, weights).toarray()).float()
    nothing = torch.empty(0, dtype=torch.int64)
    for owner in (torch.arange(12), torch.arange(12).repeat_interleave(torch.arange(1, 13))):
        h = torch.randn(len(owner), 3, generator=draw, requires_grad=True)
        hosted = Hosted(h, owner, torch.bincount(owner), nothing, nothing)
        expected = hosted.mixed(mixing, h, torch.zeros(12, 3))
        found = propagated(hosted, h, step, weights)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        way = torch.randn(len(owner), 3, generator=draw)
        slopes = [torch.autograd.grad((way * each).sum(), h)[0] for each in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-6)


def test_gradients_of_a_course_are_taken_at_its_weighted_mean() -> None:
    algorithm = GFLAPPNP(local_steps=3, weighting="examples", alpha=0.4, hops=3)
    course = toy_course(algorithm, model=MODEL, rounds=1, num_clients=3)
    trace = trace_course(course, hosts(3))
    after = trace.standings[1].state.params  # the mean that the course has made
    view = toy_view({"client-00": after}, hosts(3), algorithm=algorithm, model=MODEL, num_clients=3)
    event = watched(algorithm, 3)["gradient_smoothness"]
    assert event["values"] == pytest.approx(GradientSmoothness().measure(view).values, rel=1e-3, abs=2e-6)
    assert len({m.outcome.reply.weight for m in trace.messages if hasattr(m.outcome.reply, "weight")}) > 1


def test_hidden_error_is_the_worst_node_of_each_client() -> None:
    given = models()
    starts = {client: {name: tensor + 0.1 for name, tensor in models()["client-03"].items()} for client in given}
    starts["client-05"] = models()["client-07"]
    del starts["client-11"]
    found = HiddenError().measure(toy_view(given, hosts(), starts, model=MODEL, num_clients=12))
    expected = [
        max(
            float((encoded(given[client], GRAPH.x)[j] - encoded(start, GRAPH.x)[j]).square().sum())
            for j in range(GRAPH.num_nodes)
            if j not in hosts().parts[client].node_ids
        )
        for client, start in starts.items()
    ]
    assert found.values == pytest.approx(expected, rel=1e-4)
    assert found.clients == tuple(starts) and found.absent == ("client-11",)


def watched(algorithm: ist.Algorithm[Any], num_clients: int, **changes: Any) -> dict[str, dict[str, Any]]:
    monitors = ("hidden_error", "gradient_smoothness", "connectivity")
    fields = {"model": MODEL, "rounds": 1, "num_clients": num_clients, "monitors": monitors, **changes}
    result = ist.run(toy_course(algorithm, **fields), scenario=hosts(num_clients))
    events = {event["name"]: event for event in result.events if event["event"] == "monitor"}
    assert set(events) == set(monitors)
    return events


def test_hidden_error_grows_with_the_number_of_local_updates() -> None:
    errors = []
    for steps in (1, 10, 50):
        algorithm = GFLAPPNP(local_steps=steps, optimizer=SGD(lr=0.05))
        errors.append(watched(algorithm, 12)["hidden_error"]["largest"])
    assert errors[2] > 2 * errors[1] > 10 * errors[0] > 0


def test_a_client_that_hosts_all_nodes_has_no_hidden_error() -> None:
    assert watched(GFLAPPNP(local_steps=10), 1)["hidden_error"]["values"] == [0.0]


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "auto", "strict"])
@pytest.mark.parametrize("algorithm", [GFLAPPNP(local_steps=3), ist.FedAvg(local_steps=3)], ids=["shares", "sends"])
def test_the_error_of_a_course_is_against_the_model_of_the_round_before(
    algorithm: ist.Algorithm[Any], runtime: str
) -> None:
    course = toy_course(algorithm, model=MODEL, rounds=2, num_clients=3)
    trace = trace_course(course, hosts(3))
    before = encoded(trace.standings[1].state.params, GRAPH.x)
    updates = [m for m in trace.messages if m.position.round == 2 and hasattr(m.outcome.reply, "params")]
    parts = hosts(3).parts
    expected = []
    for message in updates:
        error = (encoded(message.outcome.reply.params, GRAPH.x) - before).square().sum(dim=1)
        expected.append(max(float(e) for j, e in enumerate(error) if j not in parts[message.client].node_ids))
    event = watched(algorithm, 3, rounds=2, runtime=runtime)["hidden_error"]
    assert event["values"] == pytest.approx(expected, rel=1e-3, abs=2e-6) and min(expected) > 1e-4


def test_a_resumed_course_measures_the_same_error(tmp_path: Path) -> None:
    course = ist.Course(
        algorithm=GFLAPPNP(local_steps=2), model=MODEL, num_clients=3, rounds=2, monitors=("hidden_error",)
    )
    whole = ist.run(course)
    ist.run(replace(course, rounds=1), run_dir=tmp_path / "run")
    resumed = ist.resume(tmp_path / "run", overrides=["rounds=2"])
    assert len(whole.monitors["hidden_error"]) == 3
    assert resumed.monitors["hidden_error"].equals(whole.monitors["hidden_error"])
