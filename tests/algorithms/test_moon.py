from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.algorithms import MOON, FedAvg
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.moon import Watched, contrast
from isthmus.core.errors import BadInput
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, read_params
from isthmus.models import GAT, GCN, SAGE, GraphInput, ModelSpec
from isthmus.models.decoders import MLPDecoder
from isthmus.testing import check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_close, require_same, trace_course

from .reference import assert_close, assert_equal, gcn_loss

SAMPLED = {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))}
STILL = ModelSpec(GCN(hidden=5, dropout=0.0))


def hidden(graph: Graph, params: Params) -> Tensor:
    """The hidden layer of the GCN, densely: relu(S X W0 + b0)."""
    adjacency = torch.eye(graph.num_nodes)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1.0
    scale = adjacency.sum(dim=1).rsqrt()
    operator = scale[:, None] * adjacency * scale[None, :]
    return (operator @ graph.x @ params["gnn.layers.0.weight"] + params["gnn.layers.0.bias"]).relu()


def moon_descent(graph: Graph, start: Params, previous: Params, steps: int, lr: float, mu: float, tau: float) -> Params:
    """Gradient descent on equation 4 of the paper, example by example."""
    train = graph.mask("train").nonzero().flatten().tolist()
    g, p = hidden(graph, start).detach(), hidden(graph, previous).detach()
    current = start
    for _ in range(steps):
        live = {name: w.clone().requires_grad_() for name, w in current.items()}
        z = hidden(graph, live)
        terms = []
        for i in train:
            near = torch.exp(F.cosine_similarity(z[i], g[i], dim=0) / tau)
            far = torch.exp(F.cosine_similarity(z[i], p[i], dim=0) / tau)
            terms.append(-torch.log(near / (near + far)))
        loss = gcn_loss(graph, live) + mu * torch.stack(terms).mean()
        grads = torch.autograd.grad(loss, list(live.values()))
        current = {name: w - lr * grad for (name, w), grad in zip(current.items(), grads, strict=True)}
    return current


def shaken(params: Params, scale: float = 0.3) -> Params:
    generator = torch.Generator().manual_seed(4)
    return {name: w + scale * torch.randn(w.shape, generator=generator) for name, w in params.items()}


def test_contrast_is_the_papers() -> None:
    z, g, p = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    for tau in (0.1, 0.5, 3.0):
        near, far = ((torch.cosine_similarity(z, side) / tau).exp() for side in (g, p))
        torch.testing.assert_close(contrast(z, g, p, tau), -(near / (near + far)).log(), rtol=1e-4, atol=1e-5)
    even = contrast(z, g, g, 0.5)
    torch.testing.assert_close(even, torch.full((6,), 2.0).log())


def test_steps_follow_the_papers_objective() -> None:
    client = toy_client()
    start = read_params(client.model)
    previous = shaken(start)
    client.state["previous"] = previous
    reply = MOON(mu=2.0, tau=0.4, local_steps=3, optimizer=SGD(lr=0.2)).train(TrainModel(start), client)
    expected = moon_descent(client.data, start, previous, 3, 0.2, 2.0, 0.4)
    assert_close(reply.params, expected, 1e-5)
    without = moon_descent(client.data, start, previous, 3, 0.2, 0.0, 0.4)
    assert max(float((expected[n] - w).abs().max()) for n, w in without.items()) > 1e-3


def test_a_client_remembers_what_it_trained_last() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = MOON(local_steps=2)
    first = algorithm.train(TrainModel(start), client)
    assert_equal(client.state["previous"], first.params)
    second = algorithm.train(TrainModel(start), client)
    assert_equal(client.state["previous"], second.params)
    expected = moon_descent(client.data, start, first.params, 2, 0.25, 1.0, 0.5)
    assert_close(
        MOON(local_steps=2, optimizer=SGD(lr=0.25)).train(TrainModel(start), replay(first.params)).params,
        expected,
        1e-5,
    )


def replay(previous: Params) -> Any:
    client = toy_client()
    client.state["previous"] = previous
    return client


def test_the_first_time_is_that_of_the_paper_where_both_sides_are_the_received_model() -> None:
    start = read_params(toy_client().model)
    algorithm = MOON(mu=5.0, optimizer=SGD(lr=0.2))
    fresh = algorithm.train(TrainModel(start), toy_client())
    assert_close(fresh.params, algorithm.train(TrainModel(start), replay(start)).params, 1e-6)
    fedavg = FedAvg(optimizer=SGD(lr=0.2)).train(TrainModel(start), toy_client())
    assert_equal(fresh.params, fedavg.params)


def test_representations_of_the_frozen_models_are_computed_once_for_full_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import isthmus.algorithms.moon as module

    calls: list[GraphInput] = []
    plain = module._representations

    def counted(model: nn.Module, params: Params, graph: GraphInput) -> Tensor:
        calls.append(graph)
        return plain(model, params, graph)

    monkeypatch.setattr(module, "_representations", counted)
    start = read_params(toy_client().model)
    MOON(local_steps=6).train(TrainModel(start), replay(shaken(start)))
    assert len(calls) == 2
    calls.clear()
    client = toy_client(batching=NeighborBatch(8, (2, 2)))
    client.state["previous"] = shaken(start)
    MOON(local_steps=3).train(TrainModel(start), client)
    assert len(calls) == 6


def test_batch_norm_statistics_move_once_a_step() -> None:
    """Scores and representations come of one pass, as in the paper; a second one would move the statistics twice."""
    model = ModelSpec(GCN(hidden=5, dropout=0.0, batch_norm=True))
    client = toy_client(model=model)
    start = read_params(client.model)
    client.state["previous"] = shaken(start, 0.01)
    moon = MOON(local_steps=1).train(TrainModel(start), client).params
    fedavg = FedAvg(local_steps=1).train(TrainModel(start), toy_client(model=model)).params
    for name in ("gnn.norms.0.running_mean", "gnn.norms.0.running_var"):
        torch.testing.assert_close(moon[name], fedavg[name])


@pytest.mark.parametrize(
    "spec",
    [
        STILL,
        ModelSpec(GAT(hidden=4, heads=2, dropout=0.0)),
        ModelSpec(SAGE(hidden=5), decoder=MLPDecoder()),
        ModelSpec(SAGE(hidden=5), decoder=MLPDecoder(), activate=True),
        ModelSpec(GCN(hidden=5, batch_norm=True), decoder=MLPDecoder(), activate=True),
    ],
    ids=["gcn", "gat", "decoder", "activate", "activate with batch norm"],
)
def test_a_watched_model_gives_the_models_scores_and_what_its_last_part_saw(spec: ModelSpec) -> None:
    client = toy_client(model=spec)
    watched = Watched(client.model)
    graph = client.prepared.graph
    torch.testing.assert_close(watched(graph, None), client.model(graph, None))
    torch.testing.assert_close(watched.seen, client.model.embed(graph, None))  # type: ignore[operator]


# ---- courses


@pytest.mark.meet(1)
@pytest.mark.parametrize(
    "fields",
    [{}, SAMPLED, {"num_clients": 4, "sampling": UniformSampling(fraction=0.5)}],
    ids=["full", "sampled", "half"],
)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.2, momentum=0.9), Adam(lr=0.01)], ids=["sgd", "adam"])
def test_with_mu_zero_it_is_fedavg_to_the_bit(fields: dict[str, Any], optimizer: Any) -> None:
    scenario = toy_scenario(fields.get("num_clients", 3))
    fedavg = trace_course(toy_course(FedAvg(optimizer=optimizer), **fields), scenario)
    moon = trace_course(toy_course(MOON(mu=0.0, optimizer=optimizer), **fields), scenario)
    require_same({**fedavg.values(), **fedavg.history()}, {**moon.values(), **moon.history()}, "MOON with mu = 0")


def test_the_first_round_is_that_of_fedavg_and_the_second_is_not() -> None:
    scenario = toy_scenario()
    found = []
    for algorithm in (FedAvg(), MOON(mu=5.0)):
        trace = trace_course(toy_course(algorithm, rounds=2, model=STILL), scenario)
        found.append([trace.standings[round].state.params for round in (1, 2)])  # type: ignore[attr-defined]
    assert_equal(found[0][0], found[1][0])
    assert max(float((found[0][1][n] - w).abs().max()) for n, w in found[1][1].items()) > 1e-3


def test_a_client_that_was_absent_goes_by_the_model_it_trained_last() -> None:
    from isthmus.core.codec import decode
    from isthmus.core.record import State

    fields: dict[str, Any] = {"num_clients": 4, "sampling": UniformSampling(fraction=0.5), "rounds": 4}
    trace = trace_course(toy_course(MOON(), **fields), toy_scenario(4))
    last: dict[str, Params] = {}
    for message in trace.messages:
        if isinstance(message.request, TrainModel):
            last[message.client] = message.outcome.reply.params  # type: ignore[union-attr]
    rounds = {client: [r.round for r in trace.rounds if client in r.cohort] for client in trace.clients}
    assert any(asked and max(asked) < 4 for asked in rounds.values())
    for client in trace.clients:
        memory: State = decode(trace.memories[4][client], State)
        assert ("previous" in memory) == (client in last)
        if client in last:
            assert_equal(memory["previous"], last[client])


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling": UniformSampling(fraction=0.6)},
        {"model": ModelSpec(SAGE(hidden=5, batch_norm=True))},
        {"model": ModelSpec(SAGE(hidden=5, batch_norm=True), decoder=MLPDecoder(), activate=True)},
    ],
    ids=["all", "some for the first time", "batch norm", "activate"],
)
def test_clients_that_answer_together_give_what_they_would_alone(fields: dict[str, Any], sparse: bool) -> None:
    scenario = toy_scenario(5, num_nodes=70, sparse=sparse, client_with_one_training_node=True)
    course = toy_course(MOON(mu=2.0, optimizer=SGD(lr=0.1)), num_clients=5, rounds=4, **fields)
    loop = trace_course(course, scenario)
    together = trace_course(replace(course, runtime="auto"), scenario)
    assert together.together["TrainModel"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "together")


@pytest.mark.parametrize("personal", ["gnn.layers.2.*", "gnn.layers.0.*"], ids=["head", "first layer"])
def test_with_personal_parameters_the_frozen_models_have_the_clients_own(personal: str) -> None:
    fields: dict[str, Any] = {"shared": ("*", f"!{personal}"), "model": ModelSpec(GCN(hidden=5, layers=3)), "rounds": 4}
    loop = trace_course(toy_course(MOON(mu=5.0), **fields), toy_scenario())
    assert loop.ended_by is None and not any(report.failures for report in loop.exchanges)
    together = trace_course(toy_course(MOON(mu=5.0), runtime="auto", **fields), toy_scenario())
    assert not together.notes
    require_close(loop.values(), together.values(), "with personal parameters")


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        MOON(mu=0.3, tau=0.2, weighting="uniform", local_steps=2),
        MOON(optimizer=SGD(lr=0.1, momentum=0.5), keep_moments=True),
    ],
    ids=["uniform", "moments"],
)
def test_other_configurations_pass_all_checks(algorithm: MOON) -> None:
    check_algorithm(algorithm)


# ---- bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mu": -0.5}, "mu is -0.5; it must be at least 0"),
        ({"mu": float("nan")}, "mu is nan"),
        ({"tau": 0.0}, "tau is 0.0; a temperature is above 0"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MOON(**fields)


def test_a_model_in_one_piece_is_refused() -> None:
    client = toy_client()
    start = read_params(client.model)
    client.state["previous"] = start
    client.model = nn.Linear(2, 2)
    with pytest.raises(BadInput, match=r"in two pieces.*Linear is none of this package's"):
        MOON().train(TrainModel(start), client)
