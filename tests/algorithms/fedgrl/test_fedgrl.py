"""What one client of FedGRL does, and what the server makes of it."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus import run
from isthmus.algorithms import FedGRL
from isthmus.algorithms.fedgrl import EncoderUpdate, TrainEncoder
from isthmus.algorithms.fedgrl.encoder_learning import DescribeEncoder, EncoderWidth, FedGRLState
from isthmus.algorithms.fedgrl.selfsup import BGRL
from isthmus.config.course import Course
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Position
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, AdamW, Cosine
from isthmus.learn.tasks import GraphClassification, LinkPrediction
from isthmus.models import GCN, ModelSpec
from isthmus.testing import ScriptedClients, toy_client, toy_course, toy_graph, toy_scenario
from tests.algorithms.fedgrl.fedgrl_toys import (
    HEAD,
    LP1,
    LP2,
    MODEL,
    NO_VIEW,
    OBJECTIVES,
    QUICK,
    SMALL,
    gap,
    parts_of,
    quick,
    unlabelled,
    wise_client,
)
from tests.algorithms.reference import assert_close, assert_equal

# ---- one client


# A bias before a batch norm has no gradient but rounding, which Adam takes for a direction unless eps is far above it.
BLUNT = replace(QUICK, eps=1e-2)


class Reference:
    """BGRL as its paper has it: two modules, torch.optim, and an average in place; with labels as well where asked."""

    def __init__(self, client: GraphClient, params: Params, parts: Params, algorithm: FedGRL) -> None:
        self.client, self.algorithm = client, algorithm
        self.online = copy.deepcopy(client.model)
        self.online.load_state_dict({**client.own, **params})
        self.target = copy.deepcopy(self.online)
        self.own = algorithm.objective.build(5)
        self.own.load_state_dict(parts)
        lp2 = algorithm.protocol == "lp2"
        heads = [p for n, p in self.online.named_parameters() if n.startswith(HEAD) and lp2]
        others = [p for n, p in self.online.named_parameters() if not n.startswith(HEAD)]
        wanted = algorithm.optimizer
        self.optimizer = torch.optim.AdamW(
            [*others, *heads, *self.own.parameters()], lr=wanted.lr, weight_decay=wanted.weight_decay, eps=1e-2
        )

    def round(self, number: int, encoder: Params, parts: Params) -> None:
        """Take what came from the server and do the steps of a round."""
        self.online.load_state_dict({**self.online.state_dict(), **encoder})
        self.own.load_state_dict(parts)
        algorithm, data = self.algorithm, self.client.prepared
        objective = algorithm.objective
        assert isinstance(objective, BGRL)
        self.client.position = Position(seed=4, round=number, exchange=0)
        draw, drop = self.client.generator("views"), self.client.generator("fit")
        share = number / 2 if number <= 2 else 0.5 * (1 + math.cos(math.pi * min(1.0, (number - 2) / 6)))
        decay = 1 - 0.2 * (1 + math.cos(math.pi * min(1.0, number / 6))) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = 0.02 * share
        for _ in range(algorithm.local_steps):
            first, second = objective.first.view(data.graph, draw), objective.second.view(data.graph, draw)
            labelled = torch.zeros(())
            if algorithm.protocol == "lp2":
                labelled = self.labelled(data, drop)
            z = self.own["predictor"](first, self.online.embed(first, draw), draw)  # type: ignore[operator,index]
            with torch.no_grad():
                h = self.target.embed(second, draw)  # type: ignore[operator]
            lonely = -2 * F.cosine_similarity(z, h, dim=1).mean()
            strength = algorithm.strength if algorithm.protocol == "lp2" else 1.0
            self.optimizer.zero_grad()
            torch.autograd.backward(labelled + strength * lonely)
            self.optimizer.step()
            with torch.no_grad():
                theirs = dict(self.online.named_parameters())
                for name, slot in self.target.named_parameters():
                    slot.copy_(decay * slot + (1 - decay) * theirs[name])

    def labelled(self, data: Any, draw: torch.Generator) -> Tensor:
        if not self.algorithm.copy_gate:
            scores = self.online(data.graph, draw)
        else:
            with torch.no_grad():
                h = self.online.embed(data.graph, None)  # type: ignore[operator]
            scores = self.online.classify(data.graph, h, draw)  # type: ignore[operator]
        return F.cross_entropy(scores[data.index["train"]], data.labels["train"])


@pytest.mark.parametrize(
    "algorithm",
    [
        quick(optimizer=BLUNT),
        quick(optimizer=BLUNT, local_steps=1),
        quick(optimizer=BLUNT, protocol="lp2"),
        quick(optimizer=BLUNT, protocol="lp2", strength=0.3),
        quick(optimizer=BLUNT, protocol="lp2", strength=2.0, copy_gate=True),
    ],
    ids=["lp1", "lp1, one step", "lp2", "lp2, weak", "lp2, gated"],
)
def test_a_client_trains_as_the_paper_says_round_after_round(algorithm: FedGRL) -> None:
    """Learning rate, decay, moments, target and head over seven rounds, in two of which the client is away.

    In between, others have moved the encoder and the predictor.
    """
    client, params = wise_client()
    parts = parts_of(SMALL)
    wanted = Reference(client, params, parts, algorithm)
    draw = torch.Generator().manual_seed(9)
    for number in (1, 2, 3, 6, 7):
        wanted.round(number, params, parts)
        client.position = Position(seed=4, round=number, exchange=0)
        reply = algorithm.train(TrainEncoder(params, parts), client)
        assert reply.weight == 20.0
        whole = wanted.online.state_dict()
        assert_close(reply.params, {name: whole[name] for name in params}, 1e-4)
        assert_close(reply.objective, wanted.own.state_dict(), 1e-4)
        heads = {name: whole[name] for name in client.own}
        assert_close(client.state["personal"], heads, 1e-4)
        target = {n: t for n, t in wanted.target.state_dict().items() if not n.startswith(HEAD)}
        assert_close(client.state["objective"], target, 1e-4)
        assert client.state["optimizer"]["step"] == int(wanted.optimizer.state_dict()["state"][0]["step"])
        assert (gap(client.state["personal"], client.own) > 0) == (algorithm.protocol == "lp2")
        moved = {n: 0.1 * torch.rand(t.shape, generator=draw) for n, t in {**params, **parts}.items()}
        params = {name: tensor + moved[name] for name, tensor in reply.params.items()}
        parts = {name: tensor + moved[name] for name, tensor in reply.objective.items()}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_moves_the_encoder_and_its_own_parts_and_not_the_head(name: str) -> None:
    client, params = wise_client(model=MODEL)
    algorithm = quick(objective=OBJECTIVES[name])
    parts = parts_of(algorithm.objective)
    reply = algorithm.train(TrainEncoder(params, parts), client)
    still = [n for n, t in reply.params.items() if torch.equal(t, params[n])]
    assert still == [] and reply.params.keys() == params.keys()
    assert [n for n, t in reply.objective.items() if torch.equal(t, parts[n])] == []
    assert reply.objective.keys() == parts.keys()
    assert_equal(client.state["personal"], client.own)
    assert set(client.state["objective"]) == (set(params) if name == "bgrl" else set())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_goes_down_the_objective(name: str) -> None:
    client, params = wise_client()
    algorithm = quick(objective=OBJECTIVES[name], optimizer=SGD(lr=0.05), local_steps=1)
    parts = parts_of(algorithm.objective)
    model, own = copy.deepcopy(client.model), algorithm.objective.build(5)
    own.load_state_dict(parts)
    target = algorithm.objective.memory(model)
    found = algorithm.objective.loss(model, own, client.prepared.graph, target, client.generator("views"))  # type: ignore[arg-type]
    slots = {n: p for n, p in model.named_parameters() if not n.startswith(HEAD)}
    owned = dict(own.named_parameters())
    grads = torch.autograd.grad(found, [*slots.values(), *owned.values()])
    reply = algorithm.train(TrainEncoder(params, parts), client)
    for (place, slot), grad in zip([*slots.items(), *owned.items()], grads, strict=True):
        got = {**reply.params, **reply.objective}[place]
        torch.testing.assert_close(got, (slot - 0.05 * grad).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("round", [1, 2, 3, 5, 8, 20])
def test_the_learning_rate_is_that_of_the_round(round: int) -> None:
    """Up to round 2 it rises, at round 5 it is at half of the way down, from round 8 on nothing moves."""
    factor = {1: 0.5, 2: 1.0, 3: 0.5 * (1 + math.cos(math.pi / 6)), 5: 0.5, 8: 0.0, 20: 0.0}[round]
    client, params = wise_client()
    schedule = Cosine(rounds=8, warmup_rounds=2)
    objective = BGRL(hidden=7, first=NO_VIEW, second=NO_VIEW)
    parts = parts_of(objective)
    moves = []
    for optimizer in (SGD(lr=0.1, schedule=schedule), SGD(lr=0.1)):
        client.state, client.position = {}, Position(4, round, 0)
        algorithm = quick(objective=objective, optimizer=optimizer, local_steps=1)
        reply = algorithm.train(TrainEncoder(params, parts), client)
        moves.append({n: reply.params[n] - t for n, t in params.items() if "running" not in n})
    for name, move in moves[0].items():
        torch.testing.assert_close(move, factor * moves[1][name], rtol=1e-3, atol=1e-6)


def test_the_weight_is_what_the_weighting_says_and_nothing_for_whom_neither_term_is_about() -> None:
    client, _ = wise_client(toy_graph(20, unlabelled_fraction=0.3))
    idle, _ = wise_client(unlabelled(toy_graph(20)))
    examples = float(client.num_examples)
    for weighting, mine, theirs in (("nodes", 20.0, 20.0), ("examples", examples, 0.0), ("uniform", 1.0, 1.0)):
        for algorithm in (LP1, LP2):
            algorithm = replace(algorithm, weighting=weighting)
            assert (algorithm.weight(client), algorithm.weight(idle)) == (mine, theirs)
        without = quick(protocol="lp2", strength=0.0, weighting=weighting)
        assert (without.weight(client), without.weight(idle)) == (mine, 0.0)


def test_labels_never_reach_the_encoder_in_lp1_nor_through_the_gate() -> None:
    graph = toy_graph(20)
    other = replace(graph, y=(graph.y + 1) % 3)
    for algorithm, reaches in ((LP1, False), (quick(protocol="lp2", copy_gate=True), False), (LP2, True)):
        found = []
        for data in (graph, other):
            client, params = wise_client(data)
            reply = algorithm.train(TrainEncoder(params, parts_of(SMALL)), client)
            found.append({**reply.params, **reply.objective})
        assert (gap(*found) > 1e-6) == reaches


def test_only_labels_of_training_nodes_count() -> None:
    graph = toy_graph(20)
    other = replace(graph, y=torch.where(graph.mask("train"), graph.y, (graph.y + 1) % 3))
    found = []
    for data in (graph, other):
        client, params = wise_client(data)
        found.append(LP2.train(TrainEncoder(params, parts_of(SMALL)), client).params)
    assert_equal(*found)


def test_neither_request_nor_memory_is_changed_in_place() -> None:
    client, params = wise_client(model=MODEL)
    request = TrainEncoder(params, parts_of(SMALL))
    sent = encode(request)
    LP2.train(request, client)
    before, kept = dict(client.state), encode(client.state)
    LP2.train(request, client)
    assert encode(request) == sent and encode(before) == kept and encode(client.state) != kept


def test_without_steps_the_encoder_the_parts_and_the_target_stay() -> None:
    client, params = wise_client(model=MODEL)
    parts = parts_of(SMALL)
    for algorithm in (quick(local_steps=0), quick(local_steps=0, protocol="lp2")):
        reply = algorithm.train(TrainEncoder(params, parts), client)
        assert_equal(reply.params, params)
        assert_equal(reply.objective, parts)
        assert_equal(client.state["objective"], params)


@pytest.mark.parametrize("data", [toy_graph(1), replace(toy_graph(8), edge_index=torch.zeros(2, 0, dtype=torch.int64))])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_odd_graphs_give_finite_numbers(name: str, data: Graph) -> None:
    """One node, and nodes without edges."""
    client, params = wise_client(data)
    algorithm = quick(objective=OBJECTIVES[name], local_steps=3)
    reply = algorithm.train(TrainEncoder(params, parts_of(algorithm.objective)), client)
    assert all(bool(torch.isfinite(t).all()) for t in [*reply.params.values(), *reply.objective.values()])


# ---- the server


def test_the_setup_asks_everybody_for_the_width_and_makes_the_objectives_parts() -> None:
    clients = ScriptedClients({"a": EncoderWidth(5), "b": EncoderWidth(5)})
    start = {"gnn.w": torch.ones(2)}
    before = torch.random.get_rng_state()
    state = LP1.setup(clients.federation(start, round=0, cohort=("a",)))
    assert clients.sent == [("a", DescribeEncoder()), ("b", DescribeEncoder())]
    assert state.params is start
    assert {n: tuple(t.shape) for n, t in state.objective.items()} == {
        "predictor.layers.0.weight": (5, 7),
        "predictor.layers.0.bias": (7,),
        "predictor.layers.1.weight": (7, 5),
        "predictor.layers.1.bias": (5,),
    }
    again = LP1.setup(clients.federation(start, round=0))
    other = LP1.setup(clients.federation(start, round=0, seed=1))
    assert_equal(state.objective, again.objective)
    assert gap(state.objective, other.objective) > 0.1
    assert torch.equal(before, torch.random.get_rng_state())


def test_without_self_supervision_there_are_no_parts() -> None:
    clients = ScriptedClients({"a": EncoderWidth(5)})
    state = quick(protocol="lp2", strength=0.0).setup(clients.federation({"gnn.w": torch.ones(2)}, round=0))
    assert state.objective == {}


@pytest.mark.parametrize("width", [6, 0, -1, 2**40])
def test_an_encoder_of_another_width_than_those_of_most_clients_is_refused_and_named(width: int) -> None:
    clients = ScriptedClients({"a": EncoderWidth(width), "b": EncoderWidth(5), "c": EncoderWidth(5)})
    state = LP1.setup(clients.federation({"gnn.w": torch.ones(2)}, round=0))
    alone = LP1.setup(ScriptedClients({"b": EncoderWidth(5)}).federation({"gnn.w": torch.ones(2)}, round=0))
    assert_equal(state.objective, alone.objective)
    (failure,) = clients.reports[0].failures
    assert (failure.client, failure.kind) == ("a", "malformed")


def update(value: float, weight: float, width: int = 2) -> EncoderUpdate:
    return EncoderUpdate({"w": torch.full((2,), value)}, {"s": torch.full((width,), -value)}, weight)


def test_a_round_sends_both_and_takes_the_mean_of_both() -> None:
    clients = ScriptedClients({"a": update(1.0, 1.0), "b": update(100.0, 5.0), "c": update(4.0, 2.0)})
    before = FedGRLState({"w": torch.zeros(2)}, {"s": torch.zeros(2)})
    after = LP1.round(before, clients.federation(cohort=("a", "c")))
    assert torch.equal(after.params["w"], torch.full((2,), 3.0))  # (1 * 1 + 2 * 4) / 3
    assert torch.equal(after.objective["s"], torch.full((2,), -3.0))
    assert [client for client, _ in clients.sent] == ["a", "c"]
    request = clients.sent[0][1]
    assert isinstance(request, TrainEncoder)
    assert request.params is before.params and request.objective is before.objective


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (update(9.0, 9.0, width=3), r"objective\['s'\] has shape \(3,\)"),
        (replace(update(9.0, 9.0), objective={"s": torch.zeros(2, dtype=torch.float64)}), r"torch\.float64"),
        (replace(update(9.0, 9.0), objective={}), r"objective: 's' is in the request or in the reply only"),
        (
            replace(update(9.0, 9.0), objective={"s": torch.zeros(2), "t": torch.zeros(2)}),
            r"'t' is in the request or in the reply only",
        ),
    ],
    ids=["shape", "kind", "missing", "more"],
)
def test_a_reply_with_other_parts_is_a_named_failure_and_the_others_count(bad: EncoderUpdate, reason: str) -> None:
    clients = ScriptedClients({"a": update(1.0, 1.0), "b": bad})
    after = LP1.round(FedGRLState({"w": torch.zeros(2)}, {"s": torch.zeros(2)}), clients.federation())
    assert torch.equal(after.params["w"], torch.ones(2)) and torch.equal(after.objective["s"], -torch.ones(2))
    (failure,) = clients.reports[0].failures
    assert (failure.client, failure.kind) == ("b", "malformed")
    assert re.search(reason, failure.reason), failure.reason


# ---- what it cannot do


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"protocol": "lp3"}, r"protocol is 'lp3'; choose from lp1, lp2"),
        ({"strength": -0.1}, r"strength is -0.1; it must be at least 0"),
        ({"strength": float("inf")}, r"strength is inf"),
        ({"strength": float("nan")}, r"strength is nan"),
        ({"copy_gate": True}, r"copy_gate is true and protocol \"lp1\".*use \"lp2\""),
        ({"local_steps": -1}, r"local_steps is -1; it must be at least 0"),
        ({"local_steps": True}, r"local_steps is True"),
        ({"weighting": "age"}, r"weighting is 'age'; choose from examples, nodes, uniform"),
    ],
    ids=str,
)
def test_fields_outside_their_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedGRL(**fields)


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.decoder is null, but with FedGRL every client has a head of its own"):
        Course(algorithm=FedGRL(), model=ModelSpec(GCN()))
    plain = toy_client()
    with pytest.raises(BadInput, match=r"a head apart from its encoder; set model\.decoder\.name=mlp, or linear"):
        LP1.describe(DescribeEncoder(), plain)

    class Own(nn.Module):
        pass

    plain.model = Own()
    with pytest.raises(BadInput, match="needs a model with a head"):
        LP1.describe(DescribeEncoder(), plain)


@pytest.mark.parametrize("shared", [("*",), ("gnn.*", "decoder.layers.0.*")])
def test_sharing_a_head_is_refused(shared: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=r'heads stay with the clients; leave shared out, or end it with "!decoder\.\*"'):
        run(toy_course(LP1, model=MODEL, shared=shared), scenario=toy_scenario())


def test_other_tasks_and_batches_are_refused() -> None:
    client, params = wise_client()
    for task in (LinkPrediction(), GraphClassification()):
        client.task = task
        with pytest.raises(BadInput, match=f"learns representations of nodes; the task is {type(task).__name__}"):
            LP1.describe(DescribeEncoder(), client)
        with pytest.raises(BadInput, match="learns representations of nodes"):
            LP2.train(TrainEncoder(params, parts_of(SMALL)), client)
    sampled = toy_client(model=MODEL, batching=NeighborBatch(8, (2, 2)))
    with pytest.raises(BadInput, match=r"batching is NeighborBatch\(.*use full batches \(batching\.name=full\)"):
        LP1.describe(DescribeEncoder(), sampled)


def test_the_defaults_are_those_that_the_paper_states() -> None:
    """Section 5.4: AdamW, 1e-4, weight decay 1e-5, a tenth of the rounds to warm up, one local epoch, s of 512."""
    algorithm = FedGRL()
    assert (algorithm.protocol, algorithm.local_steps, algorithm.weighting) == ("lp1", 1, "nodes")
    optimizer = algorithm.optimizer
    assert isinstance(optimizer, AdamW) and (optimizer.lr, optimizer.weight_decay) == (1e-4, 1e-5)
    schedule = optimizer.schedule
    assert isinstance(schedule, Cosine) and schedule.warmup_rounds * 10 == schedule.rounds
    objective = algorithm.objective
    assert isinstance(objective, BGRL) and (objective.hidden, objective.decay) == (512, 0.99)
    assert objective.rounds == schedule.rounds and not objective.symmetric
