"""Each special case equals a simpler method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from isthmus.algorithms import FGSSL, FedAvg, FedGL, FedGRL, FedOpt, FedProx, Local, LocalGRL, Pooled
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedgl import Guidance, TrainWithGuidance
from isthmus.algorithms.fedgrl import TrainEncoder
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.algorithms.fedgrl.selfsup import BGRL, DGI, GAE
from isthmus.core.codec import decode
from isthmus.core.protocol import Algorithm, Position
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params, State
from isthmus.data.graph import Graph
from isthmus.data.zoo import Cora
from isthmus.learn.augment import Augmentation
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, AdamW, Cosine, read_params
from isthmus.models import GAT, GCN, SAGE, GraphInput, LinearDecoder, MLPDecoder, ModelSpec
from isthmus.runs.simulation import Scenario, build_model
from isthmus.testing import toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import Trace, require_same, trace_course

STILL = ModelSpec(GCN(hidden=5, dropout=0.0))
SAMPLED = {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))}


def run(algorithm: Algorithm[Any], scenario: Scenario, **fields: Any) -> Trace:
    """Two rounds, if not told otherwise: a first one, and one that begins with what the first left."""
    trace = trace_course(toy_course(algorithm, **{"rounds": 2, **fields}), scenario)
    assert trace.ended_by is None
    assert not any(report.failures for report in trace.exchanges)
    return trace


def final(trace: Trace) -> Params:
    state = trace.standings[trace.last].state
    params: Params = state.params  # type: ignore[attr-defined]
    return params


def running(trace: Trace, client: str) -> Params:
    memory: State = decode(trace.memories[trace.last][client], State)
    params: Params = memory["running"]
    return params


def assert_equal(first: Params, second: Params) -> None:
    require_same({"the model": first}, {"the model": second}, "two methods that should be one disagree")


def assert_close(first: Params, second: Params, atol: float) -> None:
    assert first.keys() == second.keys()
    gap = {name: float((first[name] - second[name]).abs().max()) for name in first}
    assert max(gap.values()) <= atol, gap


def assert_apart(first: Params, second: Params) -> None:
    """So that an identity does not hold only because nothing happens."""
    assert max(float((first[name] - second[name]).abs().max()) for name in first) > 1e-3


@pytest.mark.parametrize("fields", [{}, SAMPLED], ids=["full", "sampled"])
def test_fedprox_with_mu_zero_is_fedavg_to_the_bit(fields: dict[str, Any]) -> None:
    scenario = toy_scenario()
    fedavg = run(FedAvg(local_steps=3), scenario, **fields)
    fedprox = run(FedProx(local_steps=3, mu=0.0), scenario, **fields)
    require_same(
        {**fedavg.values(), **fedavg.history()}, {**fedprox.values(), **fedprox.history()}, "FedProx with mu = 0"
    )
    assert_apart(final(fedavg), final(run(FedProx(local_steps=3, mu=1.0), scenario, **fields)))


@pytest.mark.parametrize("fields", [{}, SAMPLED], ids=["full", "sampled"])
def test_fedopt_with_plain_server_sgd_is_fedavg(fields: dict[str, Any]) -> None:
    scenario = toy_scenario()
    fedavg = final(run(FedAvg(local_steps=3), scenario, **fields))
    fedopt = final(run(FedOpt(local_steps=3, server="sgd", server_lr=1.0, beta1=0.0), scenario, **fields))
    assert_close(fedavg, fedopt, 1e-6)
    assert_apart(fedavg, final(run(FedOpt(local_steps=3, server="sgd", server_lr=0.5, beta1=0.0), scenario, **fields)))


def plain_training(graph: Graph, model: ModelSpec, steps: int, lr: float, weight_decay: float) -> Params:
    """Train as one would without a federation: torch.optim on the whole graph."""
    module = build_model(toy_course(FedAvg(), model=model), graph.num_features, graph.num_classes)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, weight_decay=weight_decay)
    train = graph.mask("train")
    for _ in range(steps):
        optimizer.zero_grad()
        logits = module(GraphInput(graph.x, graph.edge_index), None)
        torch.autograd.backward(F.cross_entropy(logits[train], graph.y[train]))
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("source", ["toy", pytest.param("cora", marks=pytest.mark.slow)])
def test_fedavg_with_one_client_is_plain_training(source: str) -> None:
    graph = toy_graph() if source == "toy" else Cora().load(Path("unused"))
    algorithm = FedAvg(local_steps=4, optimizer=SGD(lr=0.3, weight_decay=1e-3))
    found = run(algorithm, Scenario(graph, {"only": graph}), model=STILL, num_clients=1)
    expected = plain_training(graph, STILL, steps=8, lr=0.3, weight_decay=1e-3)
    assert_close(final(found), expected, 1e-5)
    assert_apart(final(found), found.initial)


@pytest.mark.parametrize("fields", [{}, SAMPLED], ids=["full", "sampled"])
def test_fedavg_with_one_client_is_global_to_the_bit(fields: dict[str, Any]) -> None:
    graph = toy_graph()
    scenario = Scenario(graph, {"all": graph})  # the id names the random streams, so it is the same
    pooled = run(Pooled(local_steps=3), scenario, num_clients=1, **fields)
    fedavg = run(FedAvg(local_steps=3), scenario, num_clients=1, **fields)
    assert_equal(final(fedavg), running(pooled, "all"))
    assert_apart(final(fedavg), fedavg.initial)


def test_local_with_one_client_is_global_to_the_bit() -> None:
    graph = toy_graph()
    scenario = Scenario(graph, {"all": graph})
    local, pooled = run(Local(local_steps=2), scenario, num_clients=1), run(Pooled(local_steps=2), scenario)
    require_same(
        {**local.values(), **local.history()}, {**pooled.values(), **pooled.history()}, "Local with one client"
    )


def even_scenario() -> Scenario:
    """Clients whose shares of nodes and of training nodes are the same: of every four nodes two are for training."""
    graph = toy_graph(48)
    parts = torch.split(torch.arange(48), [8, 16, 24])
    scenario = Scenario(graph, {f"client-{i}": graph.subgraph(nodes) for i, nodes in enumerate(parts)})
    assert all(2 * int(p.mask("train").sum()) == p.num_nodes for p in scenario.parts.values())
    return scenario


def test_weighting_by_nodes_is_weighting_by_examples_when_the_shares_are_the_same() -> None:
    scenario = even_scenario()
    by_examples, by_nodes, alike = (final(run(FedAvg(weighting=w), scenario)) for w in ("examples", "nodes", "uniform"))
    assert_close(by_examples, by_nodes, 1e-7)
    assert_apart(by_examples, alike)


def test_weighting_does_not_matter_for_clients_of_one_size() -> None:
    graph = toy_graph(48)
    parts = torch.split(torch.arange(48), 16)
    scenario = Scenario(graph, {f"client-{i}": graph.subgraph(nodes) for i, nodes in enumerate(parts)})
    by_examples, alike = (final(run(FedAvg(weighting=w), scenario)) for w in ("examples", "uniform"))
    assert_close(by_examples, alike, 1e-7)


@pytest.mark.parametrize("weighting", ["examples", "nodes", "uniform"])
def test_fedavg_of_identical_copies_is_one_of_them_to_the_bit(weighting: str) -> None:
    graph = toy_graph(20)
    copies = Scenario(graph, {name: graph for name in ("a", "b", "c")})
    algorithm = FedAvg(weighting=weighting, local_steps=3)
    one = run(algorithm, Scenario(graph, {"a": graph}), model=STILL, num_clients=1)
    assert_equal(final(run(algorithm, copies, model=STILL)), final(one))


def test_fedavg_with_one_step_is_gradient_descent_on_the_union_of_the_clients_graphs() -> None:
    scenario = toy_scenario(3, num_common=0)
    algorithm = FedAvg(local_steps=1, optimizer=SGD(lr=0.3, weight_decay=1e-3))
    found = final(run(algorithm, scenario, model=STILL))
    assert_close(found, plain_training(union(scenario), STILL, 2, 0.3, 1e-3), 1e-5)
    # With edges between clients it is another graph, and with more local steps another method.
    assert_apart(found, plain_training(scenario.whole, STILL, 2, 0.3, 1e-3))
    assert_apart(found, final(run(replace(algorithm, local_steps=2), scenario, model=STILL)))


def union(scenario: Scenario) -> Graph:
    """The whole graph without the edges between clients."""
    owner = torch.empty(scenario.whole.num_nodes, dtype=torch.int64)
    for number, part in enumerate(scenario.parts.values()):
        owner[part.node_ids] = number
    source, target = scenario.whole.edge_index
    inside = owner[source] == owner[target]
    return replace(scenario.whole, edge_index=scenario.whole.edge_index[:, inside])


def test_a_course_of_local_clients_is_as_many_courses_of_one_client() -> None:
    scenario = toy_scenario(3)
    together = run(Local(local_steps=2), scenario)
    for client, part in scenario.parts.items():
        alone = run(Local(local_steps=2), Scenario(scenario.whole, {client: part}), num_clients=1)
        assert together.memories[2][client] == alone.memories[2][client]


# ---- FedGL

HALF = {"sampling": UniformSampling(fraction=0.5), "num_clients": 4}
DROPPING = ModelSpec(GCN(hidden=5, dropout=0.5))


@pytest.mark.meet(1)
@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.2, momentum=0.9), Adam(lr=0.01, weight_decay=5e-4)], ids=["sgd", "adam"]
)
@pytest.mark.parametrize(
    "fields",
    [
        {"alpha": 0.0, "beta": 0.0},
        {"beta": 0.0, "threshold": 0.9999999},  # nothing is as probable
        {"alpha": 0.0, "beta": 0.0, "fusion": "mean", "views": "latest", "embeddings": "hidden", "reduction": "sum"},
    ],
    ids=["neither", "no label reaches the threshold", "neither, other readings"],
)
@pytest.mark.parametrize(
    "course",
    [
        {"model": STILL},
        {"model": DROPPING},
        {"model": DROPPING, **HALF, "rounds": 3},
        {"model": ModelSpec(SAGE(hidden=5, batch_norm=True, dropout=0.3))},
        {"model": ModelSpec(GAT(hidden=4, heads=2, dropout=0.4))},
    ],
    ids=["no dropout", "all", "half", "batch norm", "attention"],
)
def test_fedgl_without_pseudo_labels_and_pseudo_graph_is_fedavg_by_nodes_to_the_bit(
    course: dict[str, Any], fields: dict[str, Any], optimizer: Any
) -> None:
    """With dropout too: who holds what is asked in the setup, so that training is the first exchange of a round."""
    scenario = toy_scenario(course.get("num_clients", 3))
    fedavg = run(FedAvg(local_steps=3, optimizer=optimizer, weighting="nodes"), scenario, **course)
    fedgl = run(FedGL(local_steps=3, optimizer=optimizer, **fields), scenario, **course)
    assert_equal(final(fedavg), final(fedgl))
    assert [r.evaluations for r in fedavg.rounds] == [r.evaluations for r in fedgl.rounds]
    assert fedavg.memories == fedgl.memories
    for round, standing in fedavg.standings.items():
        assert_equal(standing.state.params, fedgl.standings[round].state.params)  # type: ignore[attr-defined]
    trained = [m.position for m in fedavg.messages if isinstance(m.request, TrainModel)]
    assert [m.position for m in fedgl.messages if isinstance(m.request, TrainWithGuidance)] == trained
    assert {position.exchange for position in trained} == {0}
    by_examples = run(FedAvg(local_steps=3, optimizer=optimizer), scenario, **course)
    assert max(float((final(by_examples)[n] - t).abs().max()) for n, t in final(fedgl).items()) > 1e-5


def test_fedgl_with_either_is_another_method() -> None:
    scenario, optimizer = toy_scenario(), SGD(lr=0.2)
    plain = final(run(FedAvg(local_steps=3, optimizer=optimizer, weighting="nodes"), scenario, model=STILL))
    for fields in ({"beta": 0.0, "threshold": 0.1, "alpha": 1.0}, {"alpha": 0.0, "beta": 1.0}):
        found = final(run(FedGL(local_steps=3, optimizer=optimizer, **fields), scenario, model=STILL))
        assert_apart(plain, found)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("fields", [{"alpha": 0.0, "beta": 0.0}, {}], ids=["switched off", "nothing discovered"])
def test_a_client_of_fedgl_without_guidance_is_one_of_fedavg_to_the_bit_with_dropout_too(
    fields: dict[str, Any], dropout: float
) -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, dropout=dropout)))
    client.position = Position(seed=3, round=2, exchange=0)
    params, num_nodes = read_params(client.model), client.num_nodes
    empty = torch.empty(0, dtype=torch.int32)
    nothing = Guidance(empty.new_full((num_nodes,), -1), empty.new_zeros(num_nodes + 1), empty, torch.empty(0))
    fedgl = FedGL(local_steps=3, **fields).train(TrainWithGuidance(params, nothing), client)
    fedavg = FedAvg(local_steps=3, weighting="nodes", optimizer=FedGL().optimizer).train(TrainModel(params), client)
    assert_equal(fedgl.params, fedavg.params)
    assert fedgl.weight == fedavg.weight


def test_fedgl_of_one_client_without_guidance_is_plain_training() -> None:
    graph = toy_graph()
    algorithm = FedGL(alpha=0.0, beta=0.0, local_steps=4, optimizer=SGD(lr=0.3, weight_decay=1e-3))
    found = run(algorithm, Scenario(graph, {"only": graph}), model=STILL, num_clients=1)
    assert_close(final(found), plain_training(graph, STILL, steps=8, lr=0.3, weight_decay=1e-3), 1e-5)


@pytest.mark.parametrize("model", [STILL, DROPPING], ids=["no dropout", "dropout"])
def test_fedgl_in_its_first_round_is_fedavg_by_nodes(model: ModelSpec) -> None:
    scenario, optimizer = toy_scenario(), SGD(lr=0.2)
    fedgl = run(FedGL(alpha=1.0, threshold=0.0, local_steps=3, optimizer=optimizer), scenario, model=model, rounds=1)
    fedavg = run(FedAvg(local_steps=3, optimizer=optimizer, weighting="nodes"), scenario, model=model, rounds=1)
    assert_equal(final(fedgl), final(fedavg))


@pytest.mark.parametrize("fusion", ["sum", "mean"])
def test_fedgl_of_clients_that_hold_the_same_is_fedgl_of_one_of_them(fusion: str) -> None:
    """With N_k / M of equal views adding up to one, both fusions are the view itself."""
    graph = toy_graph(20)
    algorithm = FedGL(local_steps=3, fusion=fusion, threshold=0.4, num_neighbors=5, optimizer=SGD(lr=0.2))
    copies = Scenario(graph, {name: graph for name in ("a", "b")})
    one = run(algorithm, Scenario(graph, {"a": graph}), model=STILL, num_clients=1)
    assert_close(final(run(algorithm, copies, model=STILL, num_clients=2)), final(one), 1e-6)


# ---- FGSSL

SAME_VIEW = Augmentation(edges=0.0, features=0.0)


@pytest.mark.meet(1)
@pytest.mark.parametrize("optimizer", [FGSSL().optimizer, Adam(lr=0.01)], ids=["its own", "adam"])
@pytest.mark.parametrize(
    "fields",
    [{}, SAMPLED, HALF, {"model": ModelSpec(GAT(hidden=4, heads=2, dropout=0.5))}],
    ids=["full", "sampled", "half", "attention"],
)
def test_fgssl_without_both_terms_is_fedavg_to_the_bit(fields: dict[str, Any], optimizer: Any) -> None:
    scenario = toy_scenario(fields.get("num_clients", 3))
    fedavg = run(FedAvg(local_steps=3, optimizer=optimizer), scenario, **fields)
    views = {"strong": Augmentation(0.9, 0.9), "weak": Augmentation(0.5, 0.5)}  # nobody takes them
    fgssl = run(FGSSL(lambda_c=0.0, lambda_d=0.0, local_steps=3, optimizer=optimizer, **views), scenario, **fields)
    require_same({**fedavg.values(), **fedavg.history()}, {**fgssl.values(), **fgssl.history()}, "FGSSL without terms")
    if not fields:
        for term in ("lambda_c", "lambda_d"):
            other = FGSSL(**{"lambda_c": 0.0, "lambda_d": 0.0, term: 1.0}, local_steps=3, optimizer=optimizer)
            assert_apart(final(fedavg), final(run(other, scenario, **fields)))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_fgssl_without_both_terms_is_fedavg_where_clients_answer_together(sparse: bool) -> None:
    scenario, optimizer = toy_scenario(4, num_nodes=60, sparse=sparse), FGSSL().optimizer
    fields = {"runtime": "auto", "num_clients": 4}
    fedavg = final(run(FedAvg(optimizer=optimizer), scenario, **fields))
    assert_close(fedavg, final(run(FGSSL(lambda_c=0.0, lambda_d=0.0), scenario, **fields)), 1e-5)


@pytest.mark.parametrize("term", ["lambda_c", "lambda_d"])
def test_a_term_of_fgssl_that_hardly_counts_leaves_fedavg(term: str) -> None:
    scenario, optimizer = toy_scenario(), SGD(lr=0.1)
    fedavg = final(run(FedAvg(optimizer=optimizer), scenario, model=STILL))
    algorithm = FGSSL(**{"lambda_c": 0.0, "lambda_d": 0.0, term: 1e-9}, optimizer=optimizer)
    assert_close(fedavg, final(run(algorithm, scenario, model=STILL)), 1e-6)


def test_the_first_step_of_fgssl_on_one_view_is_that_of_fedavg_with_the_contrast_of_a_model_with_itself() -> None:
    """With the graph itself as both views and no dropout, both models are one and the divergence is 0 and flat."""
    scenario = toy_scenario()
    algorithm = FGSSL(
        lambda_c=0.0, lambda_d=5.0, strong=SAME_VIEW, weak=SAME_VIEW, local_steps=1, optimizer=SGD(lr=0.2)
    )
    fedavg = final(run(FedAvg(local_steps=1, optimizer=SGD(lr=0.2)), scenario, model=STILL))
    assert_close(fedavg, final(run(algorithm, scenario, model=STILL)), 1e-6)
    assert_apart(fedavg, final(run(replace(algorithm, local_steps=4), scenario, model=STILL)))
    assert_apart(fedavg, final(run(replace(algorithm, strong=Augmentation(0.5, 0.5)), scenario, model=STILL)))


def test_fgssl_of_clients_with_one_class_each_is_fgssl_without_the_contrast() -> None:
    graph = toy_graph(48)
    parts = {f"client-{c}": graph.subgraph((graph.y == c).nonzero().flatten()) for c in range(3)}
    scenario = Scenario(graph, parts)
    optimizer = SGD(lr=0.1)
    with_it = final(run(FGSSL(optimizer=optimizer), scenario, model=STILL))
    assert_close(with_it, final(run(FGSSL(optimizer=optimizer, lambda_c=0.0), scenario, model=STILL)), 1e-6)


def test_fgssl_of_clients_without_edges_is_fgssl_without_the_distillation() -> None:
    scenario = toy_scenario()
    bare = {n: replace(part, edge_index=torch.zeros(2, 0, dtype=torch.int64)) for n, part in scenario.parts.items()}
    scenario, optimizer = Scenario(scenario.whole, bare), SGD(lr=0.05)
    with_it = final(run(FGSSL(optimizer=optimizer), scenario, model=STILL))
    assert_close(with_it, final(run(FGSSL(optimizer=optimizer, lambda_d=0.0), scenario, model=STILL)), 1e-6)
    assert_apart(with_it, final(run(FGSSL(optimizer=optimizer, lambda_c=0.0), scenario, model=STILL)))


def test_fgssl_that_may_contrast_with_all_is_fgssl_that_is_not_limited_to_the_bit() -> None:
    scenario = toy_scenario()
    most = max(int(part.mask("train").sum()) for part in scenario.parts.values())
    free, tight = (final(run(FGSSL(max_contrast=number), scenario)) for number in (10**9, most))
    assert_equal(free, tight)
    assert_apart(free, final(run(FGSSL(max_contrast=2), scenario)))


# ---- FedGRL

HEADED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4), activate=True)
ALL_BUT_HEADS = ("*", "!decoder.*")
ANNEALED = AdamW(lr=0.03, weight_decay=1e-2, schedule=Cosine(rounds=6, warmup_rounds=2))
FIRST_STEPS = Finetune(steps=2)


@pytest.mark.meet(1)
@pytest.mark.parametrize("optimizer", [ANNEALED, SGD(lr=0.1, momentum=0.9)], ids=["adamw", "momentum"])
@pytest.mark.parametrize(
    "course",
    [
        {"model": HEADED},
        {"model": HEADED, **HALF},
        {"model": ModelSpec(GAT(hidden=4, heads=2, dropout=0.4), decoder=LinearDecoder())},
        {"model": HEADED, "shared": ("*", "!decoder.*", "!*norm*")},
    ],
    ids=["all", "half", "attention", "own norms"],
)
def test_fedgrl_without_self_supervision_is_fedavg_with_private_heads_to_the_bit(
    course: dict[str, Any], optimizer: Any
) -> None:
    scenario = toy_scenario(course.get("num_clients", 3), client_without_training=True)
    course = {"shared": ALL_BUT_HEADS, "rounds": 3, **course}
    fields: dict[str, Any] = {"local_steps": 3, "optimizer": optimizer, "weighting": "nodes"}
    fedavg = run(FedAvg(keep_moments=True, **fields), scenario, **course)
    fedgrl = run(FedGRL(protocol="lp2", strength=0.0, **fields), scenario, **course)
    for round, standing in fedavg.standings.items():
        assert_equal(standing.state.params, fedgrl.standings[round].state.params)  # type: ignore[attr-defined]
    assert [r.evaluations for r in fedavg.rounds] == [r.evaluations for r in fedgrl.rounds]
    idle = list(scenario.parts)[-1]
    for client in fedavg.clients:
        first, second = (decode(trace.memories[trace.last][client], State) for trace in (fedavg, fedgrl))
        if "personal" in first:
            assert_equal(first["personal"], second["personal"])
        if client != idle and "optimizer" in first:
            require_same({"the moments": first["optimizer"]}, {"the moments": second["optimizer"]}, client)
    positions = [m.position for m in fedavg.messages if isinstance(m.request, TrainModel)]
    assert [m.position for m in fedgrl.messages if isinstance(m.request, TrainEncoder)] == positions
    if course == {"shared": ALL_BUT_HEADS, "rounds": 3, "model": HEADED}:
        assert_apart(final(fedavg), final(run(FedAvg(**fields), scenario, **course)))
        assert_apart(final(fedavg), final(run(FedGRL(protocol="lp2", strength=1.0, **fields), scenario, **course)))


def test_fedgrl_whose_gate_is_shut_is_self_supervision_alone_to_the_bit() -> None:
    scenario = toy_scenario(client_without_edges=True)
    fields: dict[str, Any] = {"local_steps": 2, "optimizer": ANNEALED, "downstream": FIRST_STEPS}
    for objective in (BGRL(hidden=7, rounds=5), DGI(), GAE(max_edges=20)):
        lp1 = run(FedGRL(objective=objective, **fields), scenario, model=HEADED)
        gated = run(FedGRL(objective=objective, protocol="lp2", copy_gate=True, **fields), scenario, model=HEADED)
        assert_equal(final(lp1), final(gated))
        open_gate = run(FedGRL(objective=objective, protocol="lp2", **fields), scenario, model=HEADED)
        assert_apart(final(lp1), final(open_gate))


def test_fedgrl_whose_self_supervision_hardly_counts_is_supervision_alone() -> None:
    scenario, model = toy_scenario(), ModelSpec(GCN(hidden=5, dropout=0.5), decoder=MLPDecoder(hidden=4))
    fields: dict[str, Any] = {"protocol": "lp2", "local_steps": 2, "optimizer": SGD(lr=0.1)}
    tiny, none, much = (final(run(FedGRL(strength=s, **fields), scenario, model=model)) for s in (1e-9, 0.0, 3.0))
    assert_close(tiny, none, 1e-6)
    assert_apart(much, none)


@pytest.mark.parametrize("protocol", ["lp1", "lp2"])
def test_fedgrl_of_one_client_is_local_grl_to_the_bit(protocol: str) -> None:
    graph = toy_graph()
    scenario = Scenario(graph, {"only": graph})
    fields: dict[str, Any] = {"protocol": protocol, "local_steps": 2, "optimizer": ANNEALED, "downstream": FIRST_STEPS}
    shared, alone = (run(kind(**fields), scenario, model=HEADED, num_clients=1) for kind in (FedGRL, LocalGRL))
    first, second = (decode(trace.memories[trace.last]["only"], State) for trace in (shared, alone))
    assert_equal(final(shared), second["encoder"])
    for entry in ("objective", "optimizer", "personal"):
        require_same({entry: first[entry]}, {entry: second[entry]}, "one client")
    assert [r.evaluations for r in shared.rounds] == [r.evaluations for r in alone.rounds]
    assert_apart(final(shared), shared.initial)


@pytest.mark.parametrize("protocol", ["lp1", "lp2"])
def test_a_course_of_local_grl_is_as_many_courses_of_one_client(protocol: str) -> None:
    scenario = toy_scenario(3)
    algorithm = LocalGRL(protocol=protocol, optimizer=ANNEALED, downstream=FIRST_STEPS)
    together = run(algorithm, scenario, model=HEADED, rounds=2)
    for client, part in scenario.parts.items():
        alone = run(algorithm, Scenario(scenario.whole, {client: part}), model=HEADED, rounds=2, num_clients=1)
        first, second = (decode(trace.memories[2][client], State) for trace in (together, alone))
        for entry in ("encoder", "parts", "objective", "optimizer", "personal"):
            require_same({entry: first[entry]}, {entry: second[entry]}, client)


def test_local_grl_without_self_supervision_is_local_training_with_moments_that_go_on() -> None:
    graph = toy_graph()
    scenario = Scenario(graph, {"all": graph})
    fields: dict[str, Any] = {"local_steps": 2, "optimizer": ANNEALED}
    local = run(Local(**fields), scenario, model=HEADED, num_clients=1)
    alone = run(LocalGRL(protocol="lp2", strength=0.0, **fields), scenario, model=HEADED, num_clients=1)
    own = decode(alone.memories[alone.last]["all"], State)
    assert_equal(running(local, "all"), {**own["encoder"], **own["personal"]})


def test_fedgrl_of_identical_clients_is_one_of_them() -> None:
    """Where nothing is drawn: no views, no dropout."""
    graph = toy_graph(20)
    same = BGRL(hidden=7, first=SAME_VIEW, second=SAME_VIEW)
    algorithm = FedGRL(objective=same, optimizer=ANNEALED, downstream=FIRST_STEPS)
    model = ModelSpec(GCN(hidden=5, dropout=0.0), decoder=MLPDecoder(hidden=4))
    one = run(algorithm, Scenario(graph, {"a": graph}), model=model, num_clients=1)
    copies = run(algorithm, Scenario(graph, {name: graph for name in ("a", "b", "c")}), model=model)
    assert_equal(final(copies), final(one))
