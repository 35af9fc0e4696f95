"""GFL-APPNP: its numbers against a dense reference, its messages, and the graphs that it must cope with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isthmus
from isthmus.algorithms import GFLAPPNP
from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.algorithms.gfl_appnp import (
    HiddenShare,
    KeepOwnWeights,
    NeighborList,
    ReceiveAggregates,
    ShareHidden,
    ShareNeighbors,
    TrainWithAggregates,
)
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.protocol import EvaluateModel, Failure, Kept
from isthmus.core.random import torch_generator
from isthmus.core.record import Params, leaves
from isthmus.core.training import weighted_metric
from isthmus.data.graph import Graph
from isthmus.data.splitters import NodeHostsSplitter
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import LinkClassification, LinkPrediction, NodeSamples, Task
from isthmus.models import GCN, MLP, HadamardMLPDecoder, ModelSpec
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import CHECKS, ScriptedClients, check_algorithm, toy_client, toy_course, toy_graph
from isthmus.testing.traces import Trace, require_same, trace_course
from tests.algorithms.gfl_appnp import gfl_appnp_reference as reference
from tests.algorithms.reference import assert_close
from tests.learn.tasks.link_toys import toy_facts

PLAIN = SGD(lr=0.3)


def with_samples(graph: Graph, num_samples: int, labelled: bool = False, seed: int = 0) -> Graph:
    """Give each node several samples around its features; with a label and a split each, or its own."""
    draw = torch.Generator().manual_seed(seed)
    shape = (graph.num_nodes, num_samples)
    samples = graph.x[:, None] + 0.3 * torch.randn(*shape, graph.num_features, generator=draw)
    attributes = {"samples": samples}
    if labelled:
        attributes["sample_labels"] = torch.randint(graph.num_classes, shape, generator=draw)
        attributes["sample_split"] = torch.randint(3, shape, generator=draw)
    return replace(graph, attributes=attributes)


def hosts(graph: Graph, num_clients: int | None = None) -> Scenario:
    """Divide a graph among clients of one node, or of a few."""
    count = graph.num_nodes if num_clients is None else num_clients
    parts = NodeHostsSplitter().split(graph, count, np.random.default_rng(0))
    return Scenario(graph, {f"client-{k:02d}": part for k, part in enumerate(parts)})


def watch(algorithm: GFLAPPNP, scenario: Scenario, rounds: int = 1, **changes: Any) -> Trace:
    """Run a course of perceptrons without dropout and see every message."""
    fields: dict[str, Any] = {"model": ModelSpec(MLP(hidden=5, dropout=0.0)), "task": NodeSamples(), **changes}
    course = toy_course(algorithm, rounds=rounds, num_clients=len(scenario.parts), **fields)
    trace = trace_course(course, scenario)
    assert trace.ended_by is None, trace.ended_by
    assert not [f for report in trace.exchanges for f in report.failures]
    return trace


def sent(trace: Trace, kind: type[Any], round: int) -> dict[str, Any]:
    return {m.client: m.request for m in trace.messages if type(m.request) is kind and m.position.round == round}


def replied(trace: Trace, kind: type[Any], round: int) -> dict[str, Any]:
    return {m.client: m.outcome.reply for m in trace.messages if type(m.request) is kind and m.position.round == round}


def moved(trace: Trace, lr: float) -> Params:
    """The gradient that the first round followed."""
    after = trace.standings[1].state.params
    return {name: (tensor - after[name]) / lr for name, tensor in trace.initial.items()}


GRAPHS = {
    "one sample": toy_graph(10, seed=1),
    "weighted edges": toy_graph(10, weighted=True, seed=2),
    "many samples": with_samples(toy_graph(9, seed=3), 3),
    "labelled samples": with_samples(toy_graph(9, seed=4), 10, labelled=True),
}
# Edges of one weight and nodes of several samples with one label are between these; the slow set has them too.
SOME = ("weighted edges", "labelled samples")
NAMES = [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in GRAPHS]


# ---- the formulas


@pytest.mark.parametrize("name", NAMES)
def test_with_one_local_step_the_mean_gradient_is_that_of_centralised_appnp(name: str) -> None:
    graph = GRAPHS[name]
    trace = watch(GFLAPPNP(local_steps=1, optimizer=PLAIN, weighting="examples"), hosts(graph))
    expected = reference.gradient(trace.initial, graph, reference.walk_matrix(graph))
    assert_close(moved(trace, PLAIN.lr), expected, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_is_predicted_as_its_nodes_are_scored_in_a_course(name: str) -> None:
    graph = GRAPHS[name]
    trace = watch(GFLAPPNP(), hosts(graph))
    params = trace.standings[1].state.params
    model = ModelSpec(MLP(hidden=5, dropout=0.0)).build(graph.num_features, graph.num_classes)
    model.load_state_dict(params)
    found = GFLAPPNP().predict_with({}, NodeSamples(), model, graph).probabilities
    expected = reference.logits(params, graph, reference.walk_matrix(graph)).flatten(0, -2).softmax(dim=1)
    assert_close({"": found}, {"": expected}, 1e-6)


def test_clients_that_no_edge_joins_are_told_that_nothing_is_mixed() -> None:
    graph = toy_graph(16, seed=1)
    apart = {"a": graph.subgraph(torch.arange(8)), "b": graph.subgraph(torch.arange(8, 16))}

    def notes(scenario: Scenario) -> str:
        course = toy_course(GFLAPPNP(), rounds=1, num_clients=len(scenario.parts), task=NodeSamples())
        return " ".join(isthmus.run(course, scenario=scenario).notes)

    assert "no edge joins nodes of different clients" in notes(Scenario(graph, apart))
    assert "no edge joins" not in notes(hosts(graph))


@pytest.mark.meet(1)
@pytest.mark.parametrize("num_clients", [1, 3, 7])
@pytest.mark.parametrize("name", NAMES)
def test_who_hosts_a_node_does_not_change_the_first_gradient(name: str, num_clients: int) -> None:
    graph = GRAPHS[name]
    trace = watch(GFLAPPNP(local_steps=1, optimizer=PLAIN, weighting="examples"), hosts(graph, num_clients))
    expected = reference.gradient(trace.initial, graph, reference.walk_matrix(graph))
    assert_close(moved(trace, PLAIN.lr), expected, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_local_updates_are_those_of_the_equations(name: str) -> None:
    graph = GRAPHS[name]
    trace = watch(GFLAPPNP(local_steps=4, optimizer=PLAIN), hosts(graph))
    mixing = reference.walk_matrix(graph)
    for client, update in replied(trace, TrainWithAggregates, 1).items():
        node = int(client.removeprefix("client-"))
        if reference.split_of(graph, "train")[node].any():
            assert_close(update.params, reference.local_updates(trace.initial, graph, mixing, node, 4, PLAIN.lr), 1e-5)
        else:
            assert_close(update.params, trace.initial, 0.0)


def test_local_updates_on_batches_are_those_of_the_equations() -> None:
    graph = GRAPHS["labelled samples"]
    algorithm = GFLAPPNP(local_steps=5, batch_size=2, optimizer=PLAIN)
    trace = watch(algorithm, hosts(graph))
    mixing = reference.walk_matrix(graph)
    several = 0
    for message in trace.messages:
        if not isinstance(message.request, TrainWithAggregates):
            continue
        node, at = int(message.client.removeprefix("client-")), message.position
        count = int(reference.split_of(graph, "train")[node].sum())
        stream = torch_generator(at.seed, at.round, at.exchange, message.client, "batches")
        batches: list[Tensor] = []
        while count and len(batches) < 5:
            order = torch.randperm(count, generator=stream) if count > 2 else torch.arange(count)
            batches.extend(torch.split(order, 2))
        several += count > 2
        steps = 5 if count else 0
        expected = reference.local_updates(trace.initial, graph, mixing, node, steps, PLAIN.lr, batches=batches)
        assert_close(message.outcome.reply.params, expected, 1e-5)
    assert several >= 3


def test_without_compensation_others_are_constants() -> None:
    graph = GRAPHS["many samples"]
    trace = watch(GFLAPPNP(local_steps=3, optimizer=PLAIN, gradients="none"), hosts(graph))
    mixing = reference.walk_matrix(graph)
    for client, update in replied(trace, TrainWithAggregates, 1).items():
        node = int(client.removeprefix("client-"))
        if reference.split_of(graph, "train")[node].any():
            expected = reference.local_updates(trace.initial, graph, mixing, node, 3, PLAIN.lr, compensate=False)
            assert_close(update.params, expected, 1e-5)
    assert not any(reply.gradients for reply in replied(trace, ShareHidden, 0).values())
    assert not any(request.gradients for request in sent(trace, ReceiveAggregates, 0).values())


def test_one_client_that_hosts_all_nodes_is_centralised_training_whatever_the_number_of_steps() -> None:
    graph = GRAPHS["many samples"]
    trace = watch(GFLAPPNP(local_steps=5, optimizer=PLAIN), hosts(graph, 1))
    mixing = reference.walk_matrix(graph)
    expected = trace.initial
    for _ in range(5):
        slope = reference.gradient(expected, graph, mixing)
        expected = {name: tensor - PLAIN.lr * slope[name] for name, tensor in expected.items()}
    assert_close(trace.standings[1].state.params, expected, 1e-5)
    (request,) = sent(trace, ReceiveAggregates, 0).values()
    assert float(request.aggregate.abs().max()) == 0.0
    assert request.gradients == {}


def test_a_client_with_several_nodes_keeps_its_own_current() -> None:
    graph = GRAPHS["one sample"]
    scenario = hosts(graph, 4)
    trace = watch(GFLAPPNP(local_steps=3, optimizer=PLAIN, gradients="none"), scenario)
    mixing = reference.walk_matrix(graph)
    for client, update in replied(trace, TrainWithAggregates, 1).items():
        mine = scenario.parts[client].node_ids
        others = mixing[mine].clone()
        others[:, mine] = 0.0
        aggregate = others @ reference.hidden(trace.initial, graph)
        part = scenario.parts[client]
        current = dict(trace.initial)
        for _ in range(3):
            live = {name: tensor.clone().requires_grad_() for name, tensor in current.items()}
            z = mixing[mine][:, mine] @ reference.mlp(live, part.x) + aggregate
            slope = torch.autograd.grad(
                F.cross_entropy(z[part.mask("train")], part.y[part.mask("train")]), list(live.values())
            )
            current = {n: t - PLAIN.lr * g for (n, t), g in zip(current.items(), slope, strict=True)}
        assert_close(update.params, current, 1e-5)


@pytest.mark.meet(1)
@pytest.mark.parametrize("num_clients", [None, 4])
@pytest.mark.parametrize("name", NAMES)
def test_aggregates_are_products_with_the_dense_matrix(name: str, num_clients: int | None) -> None:
    graph = GRAPHS[name]
    scenario = hosts(graph, num_clients)
    trace = watch(GFLAPPNP(local_steps=2, optimizer=PLAIN), scenario, rounds=2)
    mixing = reference.walk_matrix(graph)
    for round in (0, 1, 2):
        params = trace.standings[round].state.params
        h, jacobians = reference.hidden(params, graph), reference.jacobians(params, graph)
        for client, request in sent(trace, ReceiveAggregates, round).items():
            mine = scenario.parts[client].node_ids
            others = mixing[mine].clone()
            others[:, mine] = 0.0
            torch.testing.assert_close(request.aggregate, others @ h, rtol=1e-5, atol=1e-5)
            trains = reference.split_of(graph, "train")[mine].any(dim=1)
            if not trains.any():
                assert request.gradients == {}
            for entry, found in request.gradients.items():
                dense = torch.tensordot(others[trains], jacobians[entry], dims=1)
                torch.testing.assert_close(found, dense[:, :-1] - dense[:, -1:], rtol=1e-4, atol=1e-5)


def test_all_clients_count_in_the_mean_unless_another_weighting_is_chosen() -> None:
    graph = GRAPHS["one sample"]
    mixing = reference.walk_matrix(graph)
    num_train = int(graph.mask("train").sum())
    trace = watch(GFLAPPNP(local_steps=1, optimizer=PLAIN), hosts(graph))
    expected = reference.gradient(trace.initial, graph, mixing)
    share = {name: tensor * num_train / graph.num_nodes for name, tensor in expected.items()}
    assert_close(moved(trace, PLAIN.lr), share, 1e-5)
    for weighting in ("uniform", "nodes"):
        trace = watch(GFLAPPNP(local_steps=1, optimizer=PLAIN, weighting=weighting), hosts(graph))
        assert_close(moved(trace, PLAIN.lr), expected, 1e-5)


@pytest.mark.parametrize("weighting", ["all", "uniform", "examples", "nodes"])
def test_clients_with_unequal_numbers_of_samples_count_as_the_weighting_says(weighting: str) -> None:
    graph = GRAPHS["labelled samples"]
    mixing = reference.walk_matrix(graph)
    trace = watch(GFLAPPNP(local_steps=1, optimizer=PLAIN, weighting=weighting), hosts(graph))
    sizes = reference.split_of(graph, "train").sum(dim=1).tolist()
    assert len(set(sizes)) > 2
    weights = [float(size) if weighting == "examples" else float(size > 0) for size in sizes]
    total = float(graph.num_nodes) if weighting == "all" else sum(weights)
    expected = {name: torch.zeros_like(tensor) for name, tensor in trace.initial.items()}
    for node, weight in enumerate(weights):
        if weight:
            for name, slope in reference.gradient(trace.initial, graph, mixing, [node]).items():
                expected[name] += weight / total * slope
    assert_close(moved(trace, PLAIN.lr), expected, 1e-5)


def test_coefficients_are_appnps_or_the_printed_ones() -> None:
    recursion = GFLAPPNP(alpha=0.2, hops=4).walk_weights
    z = torch.zeros(5)  # the polynomial's coefficients under Z <- (1 - alpha) S Z + alpha H
    z[0] = 1.0
    for _ in range(4):
        z = 0.8 * torch.cat([torch.zeros(1), z[:-1]]) + 0.2 * F.one_hot(torch.tensor(0), 5)
    torch.testing.assert_close(torch.tensor(recursion), z)
    printed = GFLAPPNP(alpha=0.2, hops=4, coefficients="printed").walk_weights
    torch.testing.assert_close(torch.tensor(printed), torch.tensor([(1 - 0.2 * (i != 4)) * 0.2**i for i in range(5)]))
    graph = GRAPHS["one sample"]
    trace = watch(GFLAPPNP(coefficients="printed"), hosts(graph))
    mixing = reference.walk_matrix(graph, alpha=0.9)
    own = [float(request.own) for request in sent(trace, KeepOwnWeights, 0).values()]
    torch.testing.assert_close(torch.tensor(own), mixing.diagonal())


def test_products_give_the_numbers_of_the_jacobian() -> None:
    graph = GRAPHS["many samples"]
    whole = replied(watch(GFLAPPNP(), hosts(graph)), ShareHidden, 0)
    single = replied(watch(GFLAPPNP(gradients="products"), hosts(graph)), ShareHidden, 0)
    assert any(share.gradients for share in whole.values())
    for client, share in whole.items():
        assert torch.equal(share.hidden, single[client].hidden)
        assert share.gradients.keys() == single[client].gradients.keys()
        for name, tensor in share.gradients.items():
            torch.testing.assert_close(tensor, single[client].gradients[name], rtol=1e-5, atol=1e-5)


def test_noise_has_the_variance_that_is_asked_for() -> None:
    graph = toy_graph(12, num_features=40, seed=5)
    clean = replied(watch(GFLAPPNP(), hosts(graph)), ShareHidden, 0)
    noisy = replied(watch(GFLAPPNP(noise_std=0.5), hosts(graph)), ShareHidden, 0)
    noise = torch.cat(
        [(noisy[c].gradients[n] - clean[c].gradients[n]).flatten(2)[0] for c in clean for n in clean[c].gradients],
        dim=1,
    )
    # Row c is eps_c - eps_last, so its variance is twice that of an entry, and two rows have eps_last in common.
    assert noise.shape[1] > 2000
    assert abs(float(noise.mean())) < 0.03
    assert float(noise.var(dim=1).mean()) == pytest.approx(2 * 0.5**2, rel=0.08)
    assert float((noise[0] * noise[1]).mean()) == pytest.approx(0.5**2, rel=0.15)
    assert all(torch.equal(clean[c].hidden, noisy[c].hidden) for c in clean)
    first, second, *_ = (share.gradients["gnn.layers.1.bias"] for share in noisy.values())
    assert not torch.equal(first, second)


# ---- evaluation


@pytest.mark.meet(1)
@pytest.mark.parametrize("num_clients", [None, 5])
@pytest.mark.parametrize("runtime", ["loop", "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_evaluations_are_those_of_the_global_model_on_the_whole_graph(
    name: str, runtime: str, num_clients: int | None
) -> None:
    graph = GRAPHS[name]
    trace = watch(GFLAPPNP(local_steps=2, optimizer=PLAIN), hosts(graph, num_clients), rounds=2, runtime=runtime)
    mixing = reference.walk_matrix(graph)
    for report in trace.rounds:
        z = reference.logits(trace.standings[report.round].state.params, graph, mixing)
        for split in ("train", "val"):
            chosen = reference.split_of(graph, split)
            found, labels = z[chosen], reference.labels_of(graph)[chosen]
            loss = weighted_metric(report.evaluations, split, "loss")
            assert loss == pytest.approx(float(F.cross_entropy(found, labels)), rel=1e-4)
            accuracy = weighted_metric(report.evaluations, split, "accuracy")
            assert accuracy == pytest.approx(float((found.argmax(dim=1) == labels).double().mean()))


def test_the_best_round_is_evaluated_with_its_own_aggregates() -> None:
    graph = GRAPHS["one sample"]
    algorithm = GFLAPPNP(local_steps=8, optimizer=SGD(lr=3.0))
    course = toy_course(algorithm, model=ModelSpec(MLP(hidden=5, dropout=0.0)), rounds=4, num_clients=16)
    trace = trace_course(course, hosts(graph))
    last = trace.standings[trace.last]
    assert last.best_round < last.round
    simulation = Simulation(course, hosts(graph))
    simulation.runtime.load_clients(trace.memories[trace.last])
    request = EvaluateModel(last.best_state.params, ("test",), "accuracy", True)
    found = {name: algorithm.evaluate(request, client) for name, client in simulation.clients.items()}
    z = reference.logits(last.best_state.params, graph, reference.walk_matrix(graph))[graph.mask("test")][:, 0]
    expected = float(F.cross_entropy(z, graph.y[graph.mask("test")]))
    assert weighted_metric(found, "test", "loss") == pytest.approx(expected, rel=1e-4)


def test_aggregates_of_another_model_are_refused() -> None:
    client = toy_client()
    algorithm = GFLAPPNP()
    params = {name: tensor.detach().clone() for name, tensor in client.model.state_dict().items()}
    with pytest.raises(CourseFailed, match="received no aggregates"):
        algorithm.evaluate(EvaluateModel(params, ("val",), "loss", False), client)
    algorithm.keep_own_weights(KeepOwnWeights(torch.eye(client.num_nodes)), client)
    algorithm.share(ShareHidden(params, False), client)
    algorithm.receive(ReceiveAggregates(torch.zeros(client.num_nodes, 3), {}), client)
    algorithm.evaluate(EvaluateModel(dict(params), ("val",), "loss", False), client)
    other = {name: tensor + 1.0 for name, tensor in params.items()}
    with pytest.raises(CourseFailed, match="missed the aggregates of the model that is evaluated"):
        algorithm.evaluate(EvaluateModel(other, ("val",), "loss", False), client)


# ---- what crosses


@pytest.mark.parametrize("num_clients", [None, 4])
def test_no_message_to_a_client_holds_what_another_one_shared(num_clients: int | None) -> None:
    graph = GRAPHS["labelled samples"]
    trace = watch(GFLAPPNP(local_steps=2, optimizer=PLAIN), hosts(graph, num_clients), rounds=2)
    for round in (0, 1, 2):
        shares = replied(trace, ShareHidden, round)
        for message in trace.messages:
            if message.position.round != round or isinstance(message.request, EvaluateModel):
                continue
            others = [share for client, share in shares.items() if client != message.client]
            for tensor in (leaf for leaf in leaves(message.request).values() if isinstance(leaf, Tensor)):
                for share in others:
                    # The gradient of the last bias is the same for everybody, whatever the data.
                    shared = [t for name, t in share.gradients.items() if name != "gnn.layers.1.bias"]
                    for theirs in (share.hidden, *shared):
                        assert not _contains(tensor, theirs)


def _contains(tensor: Tensor, theirs: Tensor) -> bool:
    """Whether some row of a message is a multiple of some row that was shared."""
    if tensor.ndim != theirs.ndim or tensor.shape[1:] != theirs.shape[1:] or tensor.ndim < 2:
        return False
    mine, other = F.normalize(tensor.flatten(1), dim=1), F.normalize(theirs.flatten(1), dim=1)
    return bool(((mine @ other.t()).abs() > 1 - 1e-6).any())


def test_only_clients_that_train_get_gradients_and_only_the_needed_are_asked_for() -> None:
    # Two components: 0-1-2, where 0 trains, and 3-4, where nobody does; nobody needs the gradients of 0, 3 and 4.
    graph = _chain(5, [(0, 1), (1, 2), (3, 4)], train=[0])
    trace = watch(GFLAPPNP(), hosts(graph))
    asked = {client: request.gradients for client, request in sent(trace, ShareHidden, 0).items()}
    assert [client for client, wanted in asked.items() if wanted] == ["client-01", "client-02"]
    got = {client for client, request in sent(trace, ReceiveAggregates, 0).items() if request.gradients}
    assert got == {"client-00"}


def test_an_aggregate_of_one_client_is_withheld_and_on_demand_sent_and_noted() -> None:
    graph = _chain(4, [(0, 1), (2, 3)], train=[0, 2])
    trace = watch(GFLAPPNP(min_sources=1), hosts(graph))
    assert any("aggregate of 4 nodes comes from one other client only" in text for text in trace.said)
    careful = watch(GFLAPPNP(), hosts(graph))
    assert any("4 nodes have less than 2 sources" in text for text in careful.said)
    for request in sent(careful, ReceiveAggregates, 0).values():
        assert float(request.aggregate.abs().max()) == 0.0
        assert request.gradients == {}


def test_as_printed_what_a_single_source_shared_is_sent_on() -> None:
    graph = _chain(2, [(0, 1)], train=[0])
    trace = watch(GFLAPPNP(min_sources=1), hosts(graph))
    share = replied(trace, ShareHidden, 0)["client-01"].hidden
    got = sent(trace, ReceiveAggregates, 0)["client-00"].aggregate
    torch.testing.assert_close(got, reference.walk_matrix(graph)[0, 1] * share)


def test_clients_with_one_class_answer_together() -> None:
    graph = toy_graph(8, num_classes=1, seed=2)
    trace = watch(GFLAPPNP(local_steps=2), hosts(graph), runtime="auto")
    assert not trace.notes and trace.together["ShareHidden"] > 0


def test_the_bytes_of_shared_gradients_are_those_of_all_classes_but_one() -> None:
    trace = watch(GFLAPPNP(), hosts(_chain(3, [(0, 1), (1, 2)], train=[0, 1, 2])))
    params = sent(trace, ShareHidden, 0)["client-00"].params
    numbers = sum(t.numel() for t in params.values())
    for share in replied(trace, ShareHidden, 0).values():
        width = share.hidden.shape[1]
        assert sum(t.numel() * t.element_size() for t in share.gradients.values()) == 4 * (width - 1) * numbers
        assert 0 < len(encode(share)) - 4 * (width - 1) * numbers - 4 * width < 1000  # names and shapes


def test_sources_are_clients_and_not_nodes() -> None:
    # Clients host 0 and 1, 2 and 3, 4 and 5. With one hop, 0 is near 2 and 3, two nodes of one client.
    graph = _chain(6, [(0, 2), (0, 3), (1, 2), (1, 4), (3, 5)], train=[0, 1, 2, 3, 4, 5])
    plain, careful = (watch(GFLAPPNP(hops=1, min_sources=least), hosts(graph, 3)) for least in (1, 2))
    assert any("aggregate of 4 nodes comes from one other client only" in text for text in plain.said)
    assert any("4 nodes have less than 2 sources" in text for text in careful.said)
    assert not any("one other client only" in text for text in careful.said)
    before, after = (
        torch.cat([request.aggregate for request in sent(trace, ReceiveAggregates, 0).values()])
        for trace in (plain, careful)
    )
    kept = after.abs().sum(dim=1) > 0
    assert kept.tolist() == [False, True, False, True, False, False]  # 1 and 3 hear of two clients
    torch.testing.assert_close(before[kept], after[kept])


def test_a_sum_that_is_left_to_one_client_is_withheld_too() -> None:
    def script(client: str, request: Any) -> Any:
        failed = client == "2" and isinstance(request, ShareHidden)
        return Failure("2", "error", "no") if failed else _sound(client, request)

    for least, there in ((1, True), (2, False)):
        clients = ScriptedClients(script, ["0", "1", "2"])
        GFLAPPNP(min_sources=least).setup(clients.federation(W, round=0))  # 0 - 1 - 2, with walks all hear of two
        received = {client: r for client, r in clients.sent if isinstance(r, ReceiveAggregates)}
        assert set(received) == {"0", "1"}
        assert all(bool(r.aggregate.any()) is there for r in received.values())
        assert bool(received["0"].gradients["w"].any()) is there


# ---- graphs


def _chain(num_nodes: int, pairs: Sequence[tuple[int, int]], train: Sequence[int]) -> Graph:
    graph = toy_graph(num_nodes, seed=6)
    both = sorted([*pairs, *((b, a) for a, b in pairs)])
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[list(train)] = True
    edges = torch.tensor(both, dtype=torch.int64).t() if both else torch.empty(2, 0, dtype=torch.int64)
    graph = replace(graph, edge_index=edges)
    return graph.with_masks({"train": mask, "val": ~mask, "test": ~mask})


def test_an_isolated_node_is_a_perceptron() -> None:
    graph = _chain(4, [(0, 1), (1, 2)], train=[0, 3])
    trace = watch(GFLAPPNP(local_steps=1, optimizer=PLAIN), hosts(graph))
    own = sent(trace, KeepOwnWeights, 0)["client-03"].own
    torch.testing.assert_close(own, torch.ones(1, 1))
    request = sent(trace, ReceiveAggregates, 0)["client-03"]
    assert float(request.aggregate.abs().max()) == 0.0
    update = replied(trace, TrainWithAggregates, 1)["client-03"]
    live = {name: tensor.clone().requires_grad_() for name, tensor in trace.initial.items()}
    slope = torch.autograd.grad(F.cross_entropy(reference.mlp(live, graph.x[3:]), graph.y[3:]), list(live.values()))
    expected = {n: t - PLAIN.lr * g for (n, t), g in zip(trace.initial.items(), slope, strict=True)}
    assert_close(update.params, expected, 1e-5)


def test_a_graph_without_any_edge_is_federated_averaging_of_perceptrons() -> None:
    graph = _chain(4, [], train=[0, 1, 2])
    trace = watch(GFLAPPNP(local_steps=1, optimizer=PLAIN, weighting="examples"), hosts(graph))
    assert_close(moved(trace, PLAIN.lr), reference.gradient(trace.initial, graph, torch.eye(4)), 1e-5)
    assert not any(request.gradients for request in sent(trace, ShareHidden, 0).values())


def test_components_do_not_mix() -> None:
    graph = _chain(6, [(0, 1), (1, 2), (3, 4), (4, 5)], train=[0, 3])
    state = watch(GFLAPPNP(), hosts(graph)).standings[0].state
    rows = torch.repeat_interleave(torch.arange(6), state.start.diff())
    assert {(int(r) // 3, int(c) // 3) for r, c in zip(rows, state.column, strict=True)} == {(0, 0), (1, 1)}


def test_one_client_with_one_node() -> None:
    graph = _chain(1, [], train=[0])
    trace = watch(GFLAPPNP(local_steps=2, optimizer=PLAIN), hosts(graph))
    assert not torch.equal(trace.standings[1].state.params["gnn.layers.0.weight"], trace.initial["gnn.layers.0.weight"])


def test_loops_in_the_input_change_nothing_and_edges_to_nobody_are_left_out() -> None:
    graph = GRAPHS["one sample"]
    plain = watch(GFLAPPNP(), hosts(graph))
    scenario = hosts(graph)
    for name, part in scenario.parts.items():
        more = torch.cat([part.attributes["neighbors"], part.node_ids[:, None], torch.full((1, 1), 999)], dim=1)
        scenario.parts[name] = replace(part, attributes={"neighbors": more})
    odd = watch(GFLAPPNP(), scenario)
    assert torch.equal(plain.standings[1].state.params["gnn.layers.0.weight"], _weight(odd))
    assert any(f"{graph.num_nodes} edges to nodes that no client hosts are left out" in text for text in odd.said)


def _weight(trace: Trace) -> Tensor:
    weight: Tensor = trace.standings[1].state.params["gnn.layers.0.weight"]
    return weight


def test_an_edge_that_one_side_does_not_name_is_left_out_and_both_sides_are_named() -> None:
    scenario = hosts(_chain(4, [(0, 1), (1, 2), (2, 3)], train=[0]))
    part = scenario.parts["client-02"]
    listed = part.attributes["neighbors"]
    scenario.parts["client-02"] = replace(part, attributes={"neighbors": listed[listed != 1][None]})
    trace = trace_course(toy_course(GFLAPPNP(), num_clients=4), scenario)
    assert trace.ended_by is None
    (said,) = [text for text in trace.said if "one side names only" in text]
    assert "client-01 names an edge from node 1 to node 2, and client-02, which hosts that node, does not name" in said
    assert "1 such edges" in said
    without = trace_course(toy_course(GFLAPPNP(), num_clients=4), hosts(_chain(4, [(0, 1), (2, 3)], train=[0])))
    require_same(trace.values(), without.values(), "the edge counts")


def test_an_edge_of_two_weights_is_left_out_and_named() -> None:
    scenario = hosts(GRAPHS["weighted edges"])
    name, part = next((n, p) for n, p in scenario.parts.items() if p.attributes["neighbors"].numel())
    weights = part.attributes["neighbor_weights"] * 2.0
    scenario.parts[name] = replace(part, attributes={**part.attributes, "neighbor_weights": weights})
    trace = trace_course(toy_course(GFLAPPNP(), num_clients=16), scenario)
    assert trace.ended_by is None
    assert any("gives it the weight" in text for text in trace.said)


def test_a_node_that_two_clients_host_counts_by_the_mean() -> None:
    graph = _chain(4, [(0, 1), (1, 2), (2, 3)], train=[0])
    first, second = graph.subgraph(torch.tensor([0, 1, 2])), graph.subgraph(torch.tensor([1, 2, 3]))
    scenario = Scenario(graph, {"a": first, "b": second})
    trace = watch(GFLAPPNP(optimizer=PLAIN, min_sources=1), scenario)
    mixing = reference.walk_matrix(graph)
    shares = replied(trace, ShareHidden, 0)
    got = sent(trace, ReceiveAggregates, 0)["a"].aggregate
    # Of a's rows 0, 1, 2: half of nodes 1 and 2 is b's, and all of node 3.
    weights = torch.stack([0.5 * mixing[:3, 1], 0.5 * mixing[:3, 2], mixing[:3, 3]], dim=1)
    torch.testing.assert_close(got, weights @ shares["b"].hidden, rtol=1e-5, atol=1e-6)
    own = sent(trace, KeepOwnWeights, 0)["a"].own
    torch.testing.assert_close(own, mixing[:3, :3] * torch.tensor([1.0, 0.5, 0.5]))


# ---- the server half against written replies


def _script(client: str, request: Any) -> Any:
    node = int(client)
    if isinstance(request, ShareNeighbors):
        near = torch.tensor([n for n in (node - 1, node + 1) if 0 <= n < 3])
        mine = torch.full((len(near),), node)
        return NeighborList(torch.tensor([node]), mine, near, torch.empty(0), torch.tensor([node == 0]))
    if isinstance(request, ShareHidden):
        found = {"w": torch.full((1, 1, 2), 10.0 * node)} if request.gradients else {}
        if client == "2":
            return HiddenShare(torch.ones(2, 2), found)
        return HiddenShare(torch.tensor([[1.0 + node, 0.0]]), found)
    return ModelUpdate({"w": torch.full((2,), 3.0)}, 1.0) if isinstance(request, TrainWithAggregates) else Kept()


def test_a_share_of_another_size_is_left_out() -> None:
    clients = ScriptedClients(_script, ["0", "1", "2"])
    state = GFLAPPNP(hops=1, alpha=0.5, min_sources=1).setup(clients.federation({"w": torch.zeros(2)}, round=0))
    assert state.ready == ("0", "1")
    received = {client: r for client, r in clients.sent if isinstance(r, ReceiveAggregates)}
    weight = 0.5 / (2 * 3) ** 0.5  # half of S_01
    torch.testing.assert_close(received["0"].aggregate, torch.tensor([[2.0 * weight, 0.0]]))
    torch.testing.assert_close(received["0"].gradients["w"], torch.full((1, 1, 2), 10.0 * weight))
    after = GFLAPPNP(weighting="examples").round(state, clients.federation(round=1))
    asked = [client for client, request in clients.sent if isinstance(request, TrainWithAggregates)]
    assert asked == ["0"]
    assert torch.equal(after.params["w"], torch.full((2,), 3.0))


W = {"w": torch.zeros(2)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden": torch.ones(3)}, "hidden has shape (3,) of torch.float32"),
        ({"hidden": torch.ones(1, 2).double()}, "hidden has shape (1, 2) of torch.float64"),
        ({"hidden": torch.ones(1, 0)}, "hidden has shape (1, 0)"),
        ({"hidden": torch.ones(1, 4)}, "gradients['w'] has shape (1, 1, 2) of torch.float32; with this hidden it must"),
        ({"hidden": torch.ones(2, 2)}, "it must be (2, 1, 2) of float32"),
        ({"gradients": {}}, "gradients: 'w' is in the request or in the reply only"),
        ({"gradients": {"w": torch.ones(1, 1, 2), "v": torch.ones(1, 1, 2)}}, "gradients: 'v' is in the request or in"),
        ({"gradients": {"w": torch.ones(1, 1, 3)}}, "gradients['w'] has shape (1, 1, 3)"),
        ({"gradients": {"w": torch.ones(1, 2)}}, "gradients['w'] has shape (1, 2)"),
        ({"gradients": {"w": torch.ones(1, 1, 2).double()}}, "of torch.float64"),
    ],
    ids=str,
)
def test_a_share_that_makes_no_sense_is_the_clients_failure_and_the_course_goes_on(
    change: dict[str, Any], reason: str
) -> None:
    sound = HiddenShare(torch.ones(1, 2), {"w": torch.ones(1, 1, 2)})
    assert ShareHidden(W, True).problem(sound) == ""
    assert reason in ShareHidden(W, True).problem(replace(sound, **change))

    def script(client: str, request: Any) -> Any:
        return (
            replace(sound, **change) if client == "1" and isinstance(request, ShareHidden) else _sound(client, request)
        )

    clients = ScriptedClients(script, ["0", "1", "2"])
    algorithm = GFLAPPNP(hops=2, alpha=0.5)
    state = algorithm.setup(clients.federation(W, round=0))
    assert state.ready == ("0", "2")
    (report,) = [report for report in clients.reports if report.request == "ShareHidden"]
    assert [(f.client, f.kind) for f in report.failures] == [("1", "malformed")] and reason in report.failures[0].reason
    algorithm.round(state, clients.federation(W, round=1))


def _sound(client: str, request: Any) -> Any:
    if isinstance(request, ShareHidden):
        return HiddenShare(torch.ones(1, 2), {"w": torch.ones(1, 1, 2)} if request.gradients else {})
    return _script(client, request)


def test_gradients_that_nobody_asked_for_are_a_failure() -> None:
    plain = ShareHidden(W, False)
    assert plain.problem(HiddenShare(torch.ones(1, 2), {})) == ""
    assert "not asked for" in plain.problem(HiddenShare(torch.ones(1, 2), {"w": torch.ones(1, 1, 2)}))


def test_a_share_of_another_number_of_classes_than_most_is_left_out() -> None:
    def script(client: str, request: Any) -> Any:
        if client == "1" and isinstance(request, ShareHidden):
            return HiddenShare(torch.ones(1, 3), {"w": torch.ones(1, 2, 2)} if request.gradients else {})
        return _sound(client, request)

    clients = ScriptedClients(script, ["1", "0", "2"])
    fed = clients.federation(W, round=0)
    assert GFLAPPNP().setup(fed).ready == ("0", "2")
    failures = [failure for report in clients.reports for failure in report.failures]
    assert [(failure.client, failure.kind) for failure in failures] == [("1", "malformed")]
    assert failures[0].reason == "its reply has 3, those of 2 of 3 clients have 2"
    received = {client: r for client, r in clients.sent if isinstance(r, ReceiveAggregates)}
    assert all(request.aggregate.shape == (1, 2) for request in received.values())


def test_a_cohort_in_which_nobody_trains_leaves_the_model_as_it_is() -> None:
    clients = ScriptedClients(_script, ["0", "1", "2"])
    algorithm = GFLAPPNP(weighting="examples")
    state = algorithm.setup(clients.federation({"w": torch.zeros(2)}, round=0))
    after = algorithm.round(state, clients.federation(cohort=["1"], round=1))
    assert torch.equal(after.params["w"], torch.zeros(2))


def test_only_clients_that_have_the_aggregates_are_asked_to_train() -> None:
    clients = ScriptedClients(_script, ["0", "1", "2"])
    state = GFLAPPNP().setup(clients.federation({"w": torch.zeros(2)}, round=0))
    GFLAPPNP().round(replace(state, ready=("1",)), clients.federation(round=1))
    assert [client for client, request in clients.sent if isinstance(request, TrainWithAggregates)] == ["1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodes": torch.tensor([1, 1])}, "2 nodes, of which 1 are different"),
        ({"nodes": torch.tensor([1.0, 2.0])}, "lists of int64"),
        ({"target": torch.tensor([2])}, "differ in length"),
        ({"weight": torch.tensor([1.0])}, "differ in length"),
        ({"weight": torch.tensor([1.0, -1.0])}, "negative weight"),
        ({"trains": torch.tensor([True])}, "truth value for each node"),
        ({"source": torch.tensor([1, 7])}, "starts at a node of somebody else"),
    ],
)
def test_a_list_that_makes_no_sense_is_the_clients_failure(change: dict[str, Tensor], reason: str) -> None:
    sound = NeighborList(
        torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([2, 1]), torch.empty(0), torch.tensor([True, False])
    )
    assert ShareNeighbors().problem(sound) == ""
    assert reason in ShareNeighbors().problem(replace(sound, **change))


# ---- courses that cannot be


@pytest.mark.parametrize(
    "fields",
    [
        {"alpha": 1.5},
        {"hops": -1},
        {"coefficients": "apnp"},
        {"gradients": "all"},
        {"weighting": "size"},
        {"batch_size": 0},
        {"noise_std": -1.0},
        {"min_sources": 0},
        {"local_steps": 0},
    ],
    ids=str,
)
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(ValueError, match=f"{name} is"):
        GFLAPPNP(**fields)


@pytest.mark.parametrize("runtime", ["loop", "auto"])
@pytest.mark.parametrize("task", [LinkClassification(), LinkPrediction()], ids=["classes", "links"])
def test_a_task_on_links_is_refused_by_name(task: Task, runtime: str) -> None:
    model = ModelSpec(GCN(hidden=4), decoder=HadamardMLPDecoder(hidden=4))
    course = toy_course(GFLAPPNP(), task=task, model=model, num_clients=2, runtime=runtime)
    parts: dict[str, Any] = {"a": toy_facts(), "b": toy_facts(seed=1)}
    trace = trace_course(course, Scenario(parts["a"], parts))
    message = f"GFL-APPNP classifies nodes or their samples; the task is {type(task).__name__}"
    assert message in str(trace.ended_by) and "Error" not in str(trace.ended_by)


def test_an_encoder_that_looks_at_other_samples_is_refused() -> None:
    client = toy_client(model=ModelSpec(MLP(hidden=5, batch_norm=True)))
    with pytest.raises(BadInput, match="batch_norm"):
        GFLAPPNP().name_neighbors(ShareNeighbors(), client)


def test_a_client_that_cannot_name_its_nodes_is_refused() -> None:
    client = toy_client()
    client.node_keys = None
    with pytest.raises(BadInput, match="cannot name its nodes"):
        GFLAPPNP().name_neighbors(ShareNeighbors(), client)


def test_neighbours_by_the_ids_of_one_whole_graph_are_refused_between_sites() -> None:
    (part, *_) = hosts(GRAPHS["one sample"]).parts.values()
    client = toy_client(part)
    client.node_keys = part.node_ids + 1000
    with pytest.raises(BadInput, match="mean nothing between sites"):
        GFLAPPNP().name_neighbors(ShareNeighbors(), client)


# ---- rules


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        GFLAPPNP(gradients="none", weighting="examples"),
        GFLAPPNP(local_steps=2, noise_std=0.1, weighting="uniform"),
        GFLAPPNP(local_steps=3, batch_size=2, optimizer=SGD(lr=0.1, momentum=0.9)),
    ],
    ids=repr,
)
def test_other_configurations_keep_to_the_rules(algorithm: GFLAPPNP) -> None:
    check_algorithm(algorithm)


@pytest.mark.meet(1)
@pytest.mark.parametrize(
    "algorithm",
    [
        GFLAPPNP(local_steps=4),
        GFLAPPNP(local_steps=2, step_unit="epoch", batch_size=1),
        GFLAPPNP(local_steps=3, batch_size=2),
        GFLAPPNP(local_steps=2, noise_std=0.3, weighting="examples"),
        GFLAPPNP(local_steps=2, gradients="products"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_clients", [None, 4])
def test_clients_that_answer_together_give_what_they_give_alone(
    name: str, algorithm: GFLAPPNP, num_clients: int | None
) -> None:
    model = ModelSpec(MLP(hidden=5, dropout=0.5))
    alone = watch(algorithm, hosts(GRAPHS[name], num_clients), rounds=2, model=model)
    together = watch(algorithm, hosts(GRAPHS[name], num_clients), rounds=2, model=model, runtime="auto")
    if together.notes:
        assert algorithm.step_unit == "epoch" and (name == "labelled samples" or num_clients)
        assert "different numbers of steps" in together.notes["train_all"]  # so they answered one by one
    else:
        assert together.notes == {}
        assert together.together["TrainWithAggregates"] > 0
    assert_close(alone.standings[2].state.params, together.standings[2].state.params, 1e-4)
    for mine, other in zip(alone.rounds, together.rounds, strict=True):
        for split in ("train", "val"):
            first, second = (weighted_metric(r.evaluations, split, "loss") for r in (mine, other))
            assert first == pytest.approx(second, rel=1e-3)


def test_every_rule_holds_with_clients_of_samples() -> None:
    algorithm = GFLAPPNP(local_steps=2)
    CHECKS["loop_equals_strict"](algorithm, toy_course(algorithm, task=NodeSamples(), rounds=2))


@pytest.mark.parametrize("num_clients", [None, 3])
def test_clients_that_answer_together_do_so_after_a_resume_too(num_clients: int | None) -> None:
    algorithm = GFLAPPNP(local_steps=2)
    scenario = hosts(GRAPHS["many samples"], num_clients)
    course = toy_course(algorithm, rounds=2, num_clients=len(scenario.parts), task=NodeSamples(), runtime="auto")
    whole = trace_course(course, scenario)
    for round in whole.standings:
        resumed = trace_course(course, scenario, resume_from=(whole, round))
        assert resumed.notes == {} and resumed.ended_by is None
        assert_close(resumed.standings[2].state.params, whole.standings[2].state.params, 0.0)


def test_the_rule_of_resuming_holds_for_clients_that_answer_together() -> None:
    algorithm = GFLAPPNP(local_steps=3, batch_size=2)
    CHECKS["resume"](algorithm, toy_course(algorithm, runtime="auto", rounds=2))


def test_the_defaults_are_those_of_the_papers_synthetic_graphs() -> None:
    """Section 5: learning rate 0.5 and full batches for DNC, I = 10 among those tried; c_i with APPNP's alpha and M."""
    algorithm = GFLAPPNP()
    assert algorithm.optimizer == SGD(lr=0.5) and algorithm.local_steps == 10 and algorithm.batch_size is None
    assert (algorithm.alpha, algorithm.hops, algorithm.weighting, algorithm.noise_std) == (0.1, 10, "all", 0.0)
