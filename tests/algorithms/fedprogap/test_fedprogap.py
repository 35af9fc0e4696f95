"""FedProGAP: what is sent in which stage, a course against a slow one, and that each set of sums is made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from isthmus.algorithms import FedAvg, FedProGAP
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedgap import summed_once
from isthmus.algorithms.fedgap.noisy_sums import bounded, network_of
from isthmus.algorithms.fedgap.summed_once import MEMORY, SumNeighbors
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.guards.line import GuardLine
from isthmus.core.guards.settled import SettledFile
from isthmus.core.protocol import EvaluateModel
from isthmus.core.random import Secret
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, read_params
from isthmus.models import GCN, ModelSpec, ProGAP
from isthmus.models.gnn.progap import StageRows
from isthmus.privacy.noise.graph_dp import EdgeDP, NodeDP
from isthmus.testing import check_algorithm, toy_client, toy_course, toy_graph, toy_scenario, trace_course

HOPS = 2
SPEC = ModelSpec(ProGAP(hidden=5, dim=4, hops=HOPS))
METHOD = FedProGAP(local_steps=2, stage_rounds=2, optimizer=SGD(lr=0.2))
HEAD = ("gnn.head.layers.0.bias", "gnn.head.layers.0.weight")


def client_of(data: Any = None, *guards: Any) -> GraphClient:
    client = toy_client(data, model=SPEC)
    client.guards = GuardLine(guards)
    return client


def base(params: Params, stage: int) -> Params:
    return {name: slot for name, slot in params.items() if name.startswith(f"gnn.bases.{stage}.")}


def of_stage(params: Params, stage: int) -> Params:
    """Return what is trained in a stage."""
    later = tuple(f"gnn.bases.{k}." for k in range(stage + 1, HOPS + 1))
    return {name: slot for name, slot in params.items() if not name.startswith(later)}


def summed(client: GraphClient, sets: int = HOPS) -> Params:
    """Have a client make so many sets of sums, by the model as it begins; return its parameters."""
    params = read_params(client.model)
    for stage in range(sets):
        METHOD.sum_neighbors(SumNeighbors(base(params, stage)), client)
    return params


def without_edges(data: Any) -> Any:
    return replace(data, edge_index=data.edge_index[:, :0])


def same(first: Params, second: Params) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---- special cases


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_one_stage_is_fedavg_of_a_perceptron(runtime: str) -> None:
    alone = ModelSpec(ProGAP(dim=4, hops=0))
    theirs, mine = (
        trace_course(toy_course(method, model=alone, runtime=runtime), toy_scenario())
        for method in (FedAvg(local_steps=2), FedProGAP(local_steps=2))
    )
    for round in (1, 2, 3):
        assert same(mine.standings[round].state.params, theirs.standings[round].state.params)  # type: ignore[attr-defined]
    assert mine.rounds[-1].metrics == theirs.rounds[-1].metrics and mine.said == theirs.said


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_with_any_other_network_it_is_fedavg_to_the_bit(runtime: str) -> None:
    theirs, mine = (
        trace_course(toy_course(method, model=ModelSpec(GCN(hidden=5)), runtime=runtime), toy_scenario())
        for method in (FedAvg(local_steps=2), FedProGAP(local_steps=2))
    )
    assert same(mine.state.params, theirs.state.params)  # type: ignore[union-attr]
    assert mine.rounds[-1].metrics == theirs.rounds[-1].metrics
    assert "there are no stages: this is FedAvg" in mine.said[0]


# ---- against a slow course by dense matrices


def directions(rows: Tensor) -> Tensor:
    """Return rows as long as one, and nothing for a row of zeros, which has none."""
    found = [row / row.norm() if bool(row.any()) else torch.zeros_like(row) for row in rows]
    return torch.stack(found)


class Slowly:
    """A client of the slow course: its graph as matrices, and the sums that it has made."""

    def __init__(self, data: Graph) -> None:
        self.x, self.y, self.train = data.x, data.y, data.mask("train") & (data.y >= 0)
        self.a = torch.zeros(data.num_nodes, data.num_nodes)
        self.a[data.edge_index[1], data.edge_index[0]] = 1.0
        self.given = [self.x]

    def embedding(self, params: Params, stage: int) -> Tensor:
        weight, bias = (params[f"gnn.bases.{stage}.layers.0.{part}"] for part in ("weight", "bias"))
        return functional.selu(self.given[stage] @ weight + bias)

    def add_up(self, params: Params) -> None:
        rows = directions(self.embedding(params, len(self.given) - 1))
        self.given.append(directions(self.a @ rows))

    def scores(self, params: Params) -> Tensor:
        h = torch.cat([directions(self.embedding(params, k)) for k in range(len(self.given))], dim=1)
        bias, weight = (params[name] for name in HEAD)
        return h @ weight[: h.shape[1]] + bias

    def trained(self, params: Params, moving: set[str]) -> Params:
        params = {name: slot.clone().requires_grad_(name in moving) for name, slot in params.items()}
        for _ in range(2):
            loss = functional.cross_entropy(self.scores(params)[self.train], self.y[self.train])
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for name in moving:
                    slope = params[name].grad
                    if slope is not None:
                        params[name] -= 0.2 * slope
                        params[name].grad = None
        return {name: slot.detach() for name, slot in params.items()}


def slow_course(initial: Params, parts: list[Graph], layerwise: bool, rounds: int) -> tuple[Params, list[Slowly]]:
    clients, params = [Slowly(data) for data in parts], dict(initial)
    for stage in range(HOPS + 1):
        for name in HEAD:
            params[name] = initial[name]
        bases = range(stage, stage + 1) if layerwise else range(stage + 1)
        moving = {*HEAD, *(name for k in bases for name in base(params, k))}
        for _ in range(2 if stage < HOPS else rounds):
            found = [(client.trained(params, moving), int(client.train.sum())) for client in clients]
            total = sum(weight for _, weight in found)
            params = {name: sum(weight / total * each[name] for each, weight in found) for name in params}  # type: ignore[misc]
        if stage < HOPS:
            for client in clients:
                client.add_up(params)
    return params, clients


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_without_noise_it_is_the_slow_course(layerwise: bool, runtime: str) -> None:
    scenario = toy_scenario()
    method = replace(METHOD, layerwise=layerwise)
    trace = trace_course(toy_course(method, model=SPEC, runtime=runtime), scenario)
    expected, clients = slow_course(trace.initial, [*scenario.parts.values()], layerwise, 3)
    found = method.global_params(trace.state)  # type: ignore[arg-type]
    assert found.keys() == expected.keys()
    for name, slot in expected.items():
        # weights of the head that meet embeddings of later stages begin anew in each, and move in the last alone
        torch.testing.assert_close(found[name], slot, rtol=2e-4, atol=2e-5)
    right = [client.scores(expected).argmax(1).eq(client.y) for client in clients]
    masks = [data.mask("val") & (data.y >= 0) for data in scenario.parts.values()]
    counts = [int(mask.sum()) for mask in masks]
    shares = [float(hit[mask].float().mean()) for hit, mask in zip(right, masks, strict=True)]
    mean = sum(share * count for share, count in zip(shares, counts, strict=True)) / sum(counts)
    assert trace.rounds[-1].metrics["val/accuracy"] == pytest.approx(mean, abs=1e-6)


# ---- what is sent


def test_stages_come_one_after_the_other_each_with_a_new_head() -> None:
    trace = trace_course(toy_course(METHOD, model=SPEC), toy_scenario())
    sent = [
        message.request
        for message in trace.messages
        if message.client == "client-0" and not isinstance(message.request, EvaluateModel)
    ]
    kinds = [type(request).__name__ for request in sent]
    one = ["TrainModel", "TrainModel", "SumNeighbors"]
    assert kinds == [*one, *one, "TrainModel", "TrainModel", "TrainModel"]
    stages = [sent[0:2], sent[3:5], sent[6:]]
    for stage, requests in enumerate(stages):
        assert all(request.params.keys() == of_stage(trace.initial, stage).keys() for request in requests)  # type: ignore[attr-defined]
        first, second = requests[:2]
        assert all(torch.equal(first.params[name], trace.initial[name]) for name in HEAD)  # type: ignore[attr-defined]
        assert not any(torch.equal(second.params[name], trace.initial[name]) for name in HEAD)  # type: ignore[attr-defined]
        assert same(base(first.params, stage), base(trace.initial, stage))  # type: ignore[attr-defined]
    for place, stage in ((2, 0), (5, 1)):
        assert same(sent[place].encoder, base(sent[place + 1].params, stage))  # type: ignore[attr-defined]
        assert not same(sent[place].encoder, base(sent[place - 1].params, stage))  # type: ignore[attr-defined]
    # the first base is trained in every stage
    assert not same(base(sent[7].params, 0), base(sent[6].params, 0))  # type: ignore[attr-defined]
    for message in trace.messages:
        if isinstance(message.request, TrainModel):
            assert message.outcome.reply.params.keys() == message.request.params.keys()  # type: ignore[union-attr]


def test_layer_by_layer_each_base_is_sent_in_its_own_stage_alone() -> None:
    method = replace(METHOD, layerwise=True)
    trace = trace_course(toy_course(method, model=SPEC), toy_scenario())
    for message in trace.messages:
        if isinstance(message.request, TrainModel):
            stage = 2 if message.position.round else message.position.exchange // 3
            assert message.request.params.keys() == {*HEAD, *base(trace.initial, stage)}
    # sums are made by the bases of the end, so that the network gives on a client's graph what its sums gave it
    params = method.global_params(trace.state)  # type: ignore[arg-type]
    for client, data in toy_scenario().parts.items():
        fresh = toy_client(data, model=SPEC, id=client)
        plain = fresh.evaluate(params, ("val", "test"))[0]
        for stage in range(HOPS):
            method.sum_neighbors(SumNeighbors(base(params, stage)), fresh)
        assert method.evaluate(EvaluateModel(params, ("val", "test"), "accuracy", False), fresh).metrics == plain


# ---- edges


def test_no_message_before_the_first_sums_depends_on_an_edge() -> None:
    whole, bare = client_of(), client_of(without_edges(toy_graph()))
    params = read_params(whole.model)
    replies = [METHOD.train(TrainModel(of_stage(params, 0)), client).params for client in (whole, bare)]
    assert same(*replies) and not same(replies[0], of_stage(params, 0))
    request = EvaluateModel(params, ("val",), "accuracy", False)
    assert METHOD.evaluate(request, whole).metrics == METHOD.evaluate(request, bare).metrics


@pytest.mark.parametrize("sets", [1, 2])
def test_all_that_leaves_after_sums_is_made_of_them(sets: int) -> None:
    whole, other = client_of(None, EdgeDP(1.0)), client_of(without_edges(toy_graph()), EdgeDP(1.0))
    params = summed(whole, sets)
    summed(other, sets)
    rows: Any = METHOD.data_of(whole)
    other.prepared.with_sums = (other.state[MEMORY], replace(METHOD.data_of(other), graph=rows.graph))  # type: ignore[type-var]
    answers = [METHOD.train(TrainModel(of_stage(params, sets)), client).params for client in (whole, other)]
    assert same(*answers)
    # and of nothing else: without these rows the other client answers otherwise
    del other.prepared.with_sums
    assert not same(METHOD.train(TrainModel(of_stage(params, sets)), other).params, answers[0])


def test_sums_of_earlier_stages_stay_as_they_were_made() -> None:
    client = client_of(None, EdgeDP(1.0))
    params = summed(client, 1)
    first: Any = METHOD.data_of(client)
    moved = {name: slot + 0.1 for name, slot in params.items()}
    METHOD.sum_neighbors(SumNeighbors(base(moved, 1)), client)
    second: Any = METHOD.data_of(client)
    assert isinstance(second.graph, StageRows) and second.graph.num_edges == 0
    assert torch.equal(second.graph.sums[:, :4], first.graph.sums)
    again = client_of(None, EdgeDP(1.0))
    again.state = dict(client.state)
    assert torch.equal(METHOD.data_of(again).graph.sums, second.graph.sums)  # type: ignore[attr-defined]


def test_the_noise_on_each_set_is_what_is_promised_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = NodeDP(sum_noise=0.5, max_degree=8, fraction=0.5, steps=2)
    client = client_of(without_edges(toy_graph(num_nodes=4000)), guard)
    monkeypatch.setattr("isthmus.models.gnn.progap.unit_rows", lambda rows: rows)
    summed(client)
    sums: Tensor = METHOD.data_of(client).graph.sums  # type: ignore[attr-defined]
    assert sums.shape == (4000, 8)  # without edges they are noise alone: 0.5 sqrt(8) sqrt(2)
    assert float(sums[:, :4].std()) == pytest.approx(2.0, rel=0.02)
    assert float(sums[:, 4:].std()) == pytest.approx(2.0, rel=0.02)
    assert abs(float((sums[:, :4] * sums[:, 4:]).mean())) < 0.05 * 4.0


def test_nodes_keep_the_same_edges_in_all_stages() -> None:
    client = client_of(None, NodeDP(sum_noise=0.0, max_degree=1, cut=True, fraction=0.5, steps=2))
    params = summed(client)
    network: Any = network_of(client.model, "ProGAP")
    sums: Tensor = METHOD.data_of(client).graph.sums  # type: ignore[attr-defined]
    kept, seen = [], client.state[MEMORY]
    for each in seen:
        stream = summed_once.memory_of_sums.__globals__["ProtectingStream"].kept(each["key"])
        kept.append(bounded(client.data.edge_index, client.data.num_nodes, 1, stream))
    assert not torch.equal(*kept)  # each key by itself would leave other edges out
    embedded = [network.embedded(0, client.data.x, client.prepared.graph, None)]
    embedded.append(network.embedded(1, sums[:, :4], client.prepared.graph, None))
    a = torch.zeros(client.data.num_nodes, client.data.num_nodes)
    a[kept[0][1], kept[0][0]] = 1.0
    for stage in range(HOPS):
        expected = functional.normalize(a @ functional.normalize(embedded[stage]))
        torch.testing.assert_close(sums[:, 4 * stage : 4 * stage + 4], expected, atol=1e-5, rtol=1e-4)
    assert params


# ---- each set once, in its turn


def test_a_set_of_sums_is_made_once_and_in_its_turn() -> None:
    client = client_of()
    params = read_params(client.model)
    with pytest.raises(BadInput, match=r"its next sums, set 1, by bases.0.\*, and was sent .*each set is made once"):
        METHOD.sum_neighbors(SumNeighbors(base(params, 1)), client)
    METHOD.sum_neighbors(SumNeighbors(base(params, 0)), client)
    with pytest.raises(BadInput, match=r"set 2, by bases.1.\*"):
        METHOD.sum_neighbors(SumNeighbors(base(params, 0)), client)
    METHOD.sum_neighbors(SumNeighbors(base(params, 1)), client)
    for stage in range(HOPS + 1):
        with pytest.raises(BadInput, match="a second time would tell more of its edges"):
            METHOD.sum_neighbors(SumNeighbors(base(params, stage)), client)
    assert len(client.state[MEMORY]) == HOPS


def test_who_has_not_made_its_sums_takes_no_part_in_a_later_stage() -> None:
    client = client_of()
    params = read_params(client.model)
    with pytest.raises(BadInput, match=r"made 0 of 2 sets of sums, and this is for another stage: gnn.bases.1"):
        METHOD.train(TrainModel(of_stage(params, 1)), client)
    summed(client)
    with pytest.raises(BadInput, match=r"made 2 of 2 sets of sums, .*another stage: gnn.bases.2"):
        METHOD.train(TrainModel(of_stage(params, 1)), client)
    METHOD.train(TrainModel(of_stage(params, 2)), client)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_memory_that_is_taken_back_makes_the_same_sums_or_none(stage: int, tmp_path: Path) -> None:
    """Also after many secure sums, and in another process."""
    keys = []
    for shift in (0.0, 0.0, 0.1):
        book = SettledFile(tmp_path / "settled")
        for number in range(100):
            book.open(str(number))
        client = client_of(None, EdgeDP(1.0))
        client.secret, client.course, client.book = Secret(b"s" * 32), "a course", book
        params = read_params(client.model)
        for k in range(stage + 1):
            at = shift if k == stage else 0.0
            request = SumNeighbors({name: slot + at for name, slot in base(params, k).items()})
            client.begin(client.position, request)
            if at:
                with pytest.raises(BadMessage, match="settled in another way"):
                    METHOD.sum_neighbors(request, client)
            else:
                METHOD.sum_neighbors(request, client)
        keys += [client.state[MEMORY][stage]["key"]] if not shift else []
    assert torch.equal(*keys)


def test_personal_parameters_of_the_network_are_refused() -> None:
    client = client_of()
    client.own = {"gnn.bases.0.layers.0.weight": torch.ones(1)}
    with pytest.raises(BadInput, match="is personal: leave shared out"):
        METHOD.require_able(client)
    METHOD.require_able(toy_client())


def test_rounds_of_a_stage_are_no_fewer_than_none() -> None:
    with pytest.raises(ValueError, match="stage_rounds is -1; it must be at least 0"):
        FedProGAP(stage_rounds=-1)


@pytest.mark.parametrize("layerwise", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("guards", [pytest.param((), marks=pytest.mark.slow), (EdgeDP(4.0),)], ids=["plain", "edge_dp"])
def test_it_keeps_to_what_every_algorithm_must_keep_to(layerwise: bool, guards: Any) -> None:
    method = replace(METHOD, layerwise=layerwise)
    check_algorithm(method, toy_course(method, guards=guards))
