"""FedGAP: each half by hand, what edges have a part in and when, and that sums are made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, FedGAP
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedgap import HeadState
from isthmus.algorithms.fedgap.summed_once import MEMORY, SumNeighbors
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.guards.line import GuardLine
from isthmus.core.guards.settled import SettledFile
from isthmus.core.protocol import EvaluateModel
from isthmus.core.random import Secret
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, read_params
from isthmus.models import GAP, GCN, MLP, ModelSpec
from isthmus.privacy.noise.graph_dp import EdgeDP
from isthmus.testing import check_algorithm, toy_client, toy_course, toy_graph, toy_scenario, trace_course

SPEC = ModelSpec(GAP(hidden=5, dim=4, dropout=0.0))
METHOD = FedGAP(local_steps=2, encoder_rounds=2, optimizer=SGD(lr=0.2))


def client_of(data: Any = None, *guards: Any) -> GraphClient:
    client = toy_client(data, model=SPEC)
    client.guards = GuardLine(guards)
    return client


def split(client: GraphClient) -> tuple[dict[str, Any], dict[str, Any]]:
    params = read_params(client.model)
    encoder = {name: slot for name, slot in params.items() if name.startswith("gnn.encoder.")}
    return encoder, {name: slot for name, slot in params.items() if name not in encoder}


def summed(client: GraphClient) -> tuple[dict[str, Any], dict[str, Any]]:
    encoder, head = split(client)
    METHOD.sum_neighbors(SumNeighbors(encoder), client)
    return encoder, head


def without_edges(data: Any) -> Any:
    return replace(data, edge_index=data.edge_index[:, :0])


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_with_any_other_network_it_is_fedavg_to_the_bit(runtime: str) -> None:
    theirs, mine = (
        trace_course(toy_course(method, model=ModelSpec(GCN(hidden=5)), runtime=runtime), toy_scenario())
        for method in (FedAvg(local_steps=2), FedGAP(local_steps=2))
    )
    for round in (1, 2, 3):
        ours, plain = mine.standings[round].state.params, theirs.standings[round].state.params  # type: ignore[attr-defined]
        assert all(torch.equal(ours[name], plain[name]) for name in plain)
    assert mine.rounds[-1].metrics == theirs.rounds[-1].metrics
    assert "this is FedAvg" in mine.said[0]


def test_the_encoder_is_learned_by_fedavg_of_a_perceptron_that_sees_no_edge() -> None:
    params = read_params(client_of().model)
    mine = METHOD.train(TrainModel(params), client_of()).params
    bare = client_of(without_edges(toy_graph()))
    theirs = FedAvg(local_steps=2, optimizer=SGD(lr=0.2)).train(TrainModel(params), bare).params
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert any(not torch.equal(mine[name], params[name]) for name in params if "encoder" in name)


def test_the_head_is_learned_on_the_sums_as_a_perceptron_on_these_features() -> None:
    client = client_of()
    encoder, head = summed(client)
    found = METHOD.train(TrainModel(head), client)
    assert found.params.keys() == head.keys() and found.weight == client.num_examples
    with torch.no_grad():
        rows = client.model.gnn.summed(toy_client(model=SPEC).prepared.graph, None)
    other = toy_client(replace(toy_graph(), x=rows), model=ModelSpec(MLP(hidden=5, dropout=0.0)))
    renamed = {name.replace("head.", ""): slot for name, slot in head.items()}
    theirs = FedAvg(local_steps=2, optimizer=SGD(lr=0.2)).train(TrainModel(renamed), other).params
    for name, slot in found.params.items():
        assert torch.allclose(slot, theirs[name.replace("head.", "")], atol=1e-6), name
    assert all(torch.equal(client.state[MEMORY][0]["encoder"][name], slot) for name, slot in encoder.items())


def test_scores_are_of_the_sums_that_were_made() -> None:
    client = client_of()
    encoder, head = summed(client)
    request = EvaluateModel({**encoder, **head}, ("val", "test"), "accuracy", False)
    plain = client_of()
    plain.guards = None
    noisy = client_of(None, EdgeDP(epsilon=0.01))
    summed(noisy)
    exact = plain.evaluate(request.params, ("val", "test"))
    assert METHOD.evaluate(request, client).metrics == exact[0]
    assert METHOD.evaluate(request, noisy).metrics != exact[0]


def test_no_message_before_the_sums_depends_on_an_edge() -> None:
    whole, bare = client_of(), client_of(without_edges(toy_graph()))
    params = read_params(whole.model)
    for request, handler in (
        (TrainModel(params), METHOD.train),
        (EvaluateModel(params, ("val",), "accuracy", False), METHOD.evaluate),
    ):
        answers = [handler(request, client) for client in (whole, bare)]  # type: ignore[operator]
        left = [answer.params if hasattr(answer, "params") else answer.metrics for answer in answers]
        if isinstance(request, EvaluateModel):
            assert left[0] == left[1]
        else:
            assert all(torch.equal(left[0][name], left[1][name]) for name in left[0])


def test_all_that_leaves_after_the_sums_is_made_of_them() -> None:
    # With the same noisy rows, two graphs give the same answers to the bit.
    whole, other = client_of(None, EdgeDP(1.0)), client_of(without_edges(toy_graph()), EdgeDP(1.0))
    encoder, head = summed(whole)
    summed(other)
    rows = METHOD.data_of(whole)
    other.prepared.with_sums = (other.state[MEMORY], replace(METHOD.data_of(other), graph=rows.graph))  # type: ignore[type-var,attr-defined]
    answers = [METHOD.train(TrainModel(head), client).params for client in (whole, other)]
    assert all(torch.equal(answers[0][name], answers[1][name]) for name in head)
    params = {**encoder, **head}
    scores = [METHOD.evaluate(EvaluateModel(params, ("val",), "accuracy", False), c) for c in (whole, other)]
    assert scores[0] == scores[1]


def test_sums_are_made_once_in_a_course() -> None:
    client = client_of()
    encoder, _ = summed(client)
    with pytest.raises(BadInput, match="a second time would tell more of its edges"):
        METHOD.sum_neighbors(SumNeighbors(encoder), client)


def test_a_memory_that_is_taken_back_makes_the_same_sums_or_none(tmp_path: Path) -> None:
    """Also after many secure sums, and in another process."""
    keys = []
    for shift in (0.0, 0.0, 0.1):
        book = SettledFile(tmp_path / "settled")
        for number in range(100):
            book.open(str(number))
        client = client_of(None, EdgeDP(1.0))
        client.secret, client.course, client.book = Secret(b"s" * 32), "a course", book
        encoder, _ = split(client)
        request = SumNeighbors({name: slot + shift for name, slot in encoder.items()})
        client.begin(client.position, request)
        if shift:
            with pytest.raises(BadMessage, match="settled in another way"):
                METHOD.sum_neighbors(request, client)
        else:
            METHOD.sum_neighbors(request, client)
            keys.append(client.state[MEMORY][0]["key"])
    assert torch.equal(*keys)


def test_a_round_sends_the_head_and_no_encoder() -> None:
    trace = trace_course(toy_course(METHOD), toy_scenario())
    found = [message for message in trace.messages if isinstance(message.request, TrainModel)]
    before = [message for message in found if message.position.round == 0]
    assert len(before) == 2 * 3  # rounds of the encoder, of each of three clients
    found = [message for message in found if message not in before]
    assert found and all(
        not [name for name in (*message.request.params, *message.outcome.reply.params) if "encoder" in name]  # type: ignore[attr-defined,union-attr]
        for message in found
    )


def test_the_state_holds_a_whole_model() -> None:
    state = HeadState({"gnn.head.a": torch.ones(1)}, {"gnn.encoder.a": torch.zeros(1)})
    assert sorted(METHOD.global_params(state)) == ["gnn.encoder.a", "gnn.head.a"]


def test_personal_parameters_of_the_network_are_refused() -> None:
    client = client_of()
    client.own = {"gnn.encoder.layers.0.weight": torch.ones(1)}
    with pytest.raises(BadInput, match="is personal: leave shared out"):
        METHOD.require_able(client)
    METHOD.require_able(toy_client())


def test_nodes_without_features_do_not_throw_the_encoder_far_away() -> None:
    data = toy_graph()
    bare = replace(data, x=torch.cat([torch.zeros(5, data.num_features), data.x[5:]]))
    # the first step moves the head's biases, and encoders without biases still give these nodes rows of zeros
    params = {name: slot + 0.1 * ("head" in name) for name, slot in read_params(client_of(bare).model).items()}
    found = METHOD.train(TrainModel(params), client_of(bare)).params
    assert max(float((found[name] - slot).abs().max()) for name, slot in params.items()) < 1.0


def test_batches_with_sampled_neighbours_are_refused_as_they_are_edges_again() -> None:
    client = client_of(None, EdgeDP(1.0))
    params = read_params(client.model)
    client.batching = NeighborBatch(8, (2, 2))
    with pytest.raises(BadInput, match=r"use full batches \(batching.name=full\)"):
        METHOD.train(TrainModel(params), client)
    with pytest.raises(BadInput, match="use full batches"):
        METHOD.require_able(client)


def test_rounds_of_the_encoder_are_no_fewer_than_none() -> None:
    with pytest.raises(ValueError, match="encoder_rounds is -1; it must be at least 0"):
        FedGAP(encoder_rounds=-1)


@pytest.mark.parametrize("gnn", [GAP(hidden=5, dim=4), GCN(hidden=5)], ids=["gap", "another"])
def test_it_keeps_to_what_every_algorithm_must_keep_to(gnn: Any) -> None:
    model, skip = ModelSpec(gnn), () if isinstance(gnn, GAP) else ("requests",)
    check_algorithm(METHOD, toy_course(METHOD, model=model), skip=skip)
