from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isthmus
from isthmus.algorithms import FedAvg, FedSagePlus
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedsage import (
    GeneratorGradients,
    GeneratorView,
    GradeGenerators,
    MendedGraph,
    MendGraph,
    PretrainGenerator,
    ShareGenerator,
    UpdateGenerator,
    foreign_gradients,
    neighbor_generation,
)
from isthmus.algorithms.fedsage.neighbor_generation import (
    FeatureGenerator,
    Impaired,
    KeptNoise,
    NeighborGenerator,
    generate,
)
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.core.exposure import exposure
from isthmus.core.protocol import EvaluateModel, Failure, Kept, Known, Position, Request
from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params, Record, State, leaves
from isthmus.data.graph import Graph
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, load_params, read_params
from isthmus.learn.tasks import TASKS
from isthmus.models import GCN, SAGE, MLPDecoder, ModelSpec
from isthmus.runs.folder import RunFolder, load_model_file
from isthmus.runs.simulation import Scenario
from isthmus.testing import CHECKS, ScriptedClients, check_algorithm, toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import Trace, require_close, require_same, trace_course
from tests.algorithms.reference import gcn_logits

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")

SHORT: dict[str, Any] = {"latent": 4, "hidden": 5, "pretrain_steps": 2, "cross_rounds": 1, "num_generated": 3}
PLAIN = SGD(lr=0.1)


def at(client: GraphClient, exchange: int) -> GraphClient:
    client.position = Position(0, 0, exchange)
    return client


def clients_of(scenario: Scenario, **fields: Any) -> dict[str, GraphClient]:
    return {name: toy_client(data, id=name, **fields) for name, data in scenario.parts.items()}


def eager(client: GraphClient) -> None:
    """Have a client's generator give each node neighbours."""
    memory = client.state["neighgen"]
    client.state["neighgen"] = {**memory, "params": {**memory["params"], "number.bias": torch.tensor([1.6])}}


def run(algorithm: Any, scenario: Scenario, **fields: Any) -> Trace:
    trace = trace_course(toy_course(algorithm, **{"rounds": 2, **fields}), scenario)
    assert trace.ended_by is None
    assert not any(report.failures for report in trace.exchanges)
    return trace


# ---- the rules


@pytest.mark.slow
def test_it_keeps_to_the_rules_with_less_of_everything() -> None:
    check_algorithm(FedSagePlus(**SHORT))


def test_the_server_sees_means_but_for_generators_and_embeddings() -> None:
    seen = {exchange.request: exchange.server_sees for exchange in exposure(FedSagePlus)}
    assert {request for request, sees in seen.items() if sees == "each client's"} == {"ShareGenerator", "EvaluateModel"}
    assert seen["GradeGenerators"] == seen["MendGraph"] == seen["TrainModel"] == "only the fold"


# ---- the loss, in one place


def as_module(params: Params) -> NeighborGenerator:
    num_slots, hidden, columns = params["features.slot_weight"].shape
    with torch.random.fork_rng(devices=[]):
        model = NeighborGenerator(columns, params["number.weight"].shape[0], hidden, num_slots)
    load_params(model, params)
    return model


def nearest(row: Tensor, others: Tensor) -> Tensor:
    return min((((row - other) ** 2).sum() for other in others), key=Tensor.item)


def joint_loss(
    model: NeighborGenerator, client: GraphClient, peers: list[Graph], algorithm: FedSagePlus
) -> tuple[Tensor, Tensor]:
    """The client's own term and the peers' term, with everybody's features at hand; the latter's z has no gradient."""
    memory = client.state["neighgen"]
    impaired = Impaired.of(client.data, memory["hidden"])
    noise = ProtectingStream.kept(memory["noise"])
    z = model.encoder(impaired.input, None)
    scores = model.number(impaired.input, z, None)[:, 0]
    inputs = z + noise.normal(z.shape)
    hidden_x = client.data.x.to_dense()[memory["hidden"]]
    own = torch.zeros(())
    far = torch.zeros(())
    for v, score in enumerate(scores):
        hidden = [int(u) for w, u in zip(impaired.owner, impaired.neighbor, strict=True) if int(w) == v]
        gap = (score - len(hidden)).abs()
        own = own + algorithm.count_weight * (0.5 * gap**2 if gap.item() < 1 else gap - 0.5)
        for p in range(min(max(round(score.item()), 0), algorithm.num_generated)):
            row = generated(model.features, inputs[v], p)
            if hidden:
                own = own + algorithm.feature_weight * nearest(row, hidden_x[hidden])
            again = generated(model.features, inputs[v].detach(), p)
            far = far + algorithm.feature_weight * algorithm.peer_weight * sum(
                nearest(again, peer.x.to_dense()) for peer in peers
            )
    return own / len(scores), far / len(scores)


def generated(features: FeatureGenerator, given: Tensor, slot: int) -> Tensor:
    h = (given @ features.hidden_weight + features.hidden_bias).relu()
    return h @ features.slot_weight[slot] + features.slot_bias[slot]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_with_the_peers_gradients_goes_down_the_joint_loss(sparse: bool) -> None:
    algorithm = FedSagePlus(
        **{**SHORT, "pretrain_steps": 0},
        class_weight=0.0,
        count_weight=0.7,
        feature_weight=0.3,
        peer_weight=0.4,
        generator_optimizer=PLAIN,
    )
    scenario = toy_scenario(3, num_nodes=40, sparse=sparse)
    clients = clients_of(scenario)
    views = {}
    for name, client in clients.items():
        algorithm.pretrain(PretrainGenerator(read_params(client.model)), at(client, 0))
        eager(client)
        views[name] = algorithm.share_generator(ShareGenerator(4, 5, 3), at(client, 1))
        assert ShareGenerator(4, 5, 3).problem(views[name]) == "" and len(views[name].inputs) > 1
    graded = {name: algorithm.grade(GradeGenerators(views), at(client, 2)) for name, client in clients.items()}
    for name, client in clients.items():
        assert GradeGenerators(views).problem(graded[name]) == ""
        assert not any(tensor.any() for tensor in graded[name].gradients[name].values())  # none for itself
        summed = {
            key: torch.stack([each.gradients[name][key] for each in graded.values()]).sum(dim=0)
            for key in views[name].params
        }
        before = client.state["neighgen"]["params"]
        model = as_module(before)
        slots = dict(model.named_parameters())
        peers = [data for other, data in scenario.parts.items() if other != name]
        own, far = joint_loss(model, client, peers, algorithm)
        wanted = torch.autograd.grad(own + far, list(slots.values()))
        algorithm.update(UpdateGenerator(summed), at(client, 3))
        after = client.state["neighgen"]["params"]
        for key, gradient in zip(slots, wanted, strict=True):
            moved = (before[key] - after[key]) / 0.1
            torch.testing.assert_close(
                moved, gradient, rtol=1e-4, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
            )
        # The peers' own part of it, by itself.
        alone = torch.autograd.grad(joint_loss(model, client, peers, algorithm)[1], list(model.features.parameters()))
        scale = 0.3 * 0.4 / Impaired.of(client.data, client.state["neighgen"]["hidden"]).graph.num_nodes
        for key, gradient in zip(dict(model.features.named_parameters()), alone, strict=True):
            torch.testing.assert_close(scale * summed[key], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "moving"),
    [
        ({"count_weight": 1.0}, {"encoder", "number"}),
        ({"feature_weight": 1.0}, {"encoder", "features"}),
        ({"class_weight": 1.0}, {"encoder", "features", "classifier"}),
    ],
    ids=["counts", "features", "classes"],
)
def test_each_term_alone_moves_its_own_parts(weights: dict[str, float], moving: set[str]) -> None:
    none = {"count_weight": 0.0, "feature_weight": 0.0, "class_weight": 0.0}
    algorithm = FedSagePlus(**{**SHORT, "pretrain_steps": 0, **none, **weights}, generator_optimizer=PLAIN)
    client = toy_client()
    algorithm.pretrain(PretrainGenerator(read_params(client.model)), at(client, 0))
    eager(client)
    algorithm.share_generator(ShareGenerator(4, 5, 3), at(client, 1))
    before = client.state["neighgen"]
    algorithm.update(UpdateGenerator({}), at(client, 2))
    after = client.state["neighgen"]
    moved = {
        name.split(".")[0]
        for name in before["params"]
        if not torch.equal(before["params"][name], after["params"][name])
    }
    if any(not torch.equal(before["classifier"][name], after["classifier"][name]) for name in before["classifier"]):
        moved.add("classifier")
    assert moved == moving


def test_the_peers_gradients_move_the_feature_generator_alone() -> None:
    algorithm = FedSagePlus(**SHORT, count_weight=0.0, class_weight=0.0, generator_optimizer=PLAIN)
    client = toy_client()
    algorithm.pretrain(PretrainGenerator(read_params(client.model)), at(client, 0))
    eager(client)
    view = algorithm.share_generator(ShareGenerator(4, 5, 3), at(client, 1))
    ones = {name: torch.ones_like(tensor) for name, tensor in view.params.items()}
    memory = client.state["neighgen"]
    found = []
    for gradients in ({}, ones):
        client.state["neighgen"] = memory
        algorithm.update(UpdateGenerator(gradients), at(client, 2))
        found.append(client.state["neighgen"]["params"])
    num_visible = int((~memory["hidden"]).sum())
    for name, without in found[0].items():
        gap = without - found[1][name]
        expected = torch.full_like(gap, 0.1 / num_visible if name.startswith("features.") else 0.0)
        torch.testing.assert_close(gap, expected, rtol=1e-3, atol=1e-7)


def test_the_classifiers_term_is_its_cross_entropy_on_the_mended_visible_graph() -> None:
    algorithm = FedSagePlus(**SHORT, count_weight=0.0, feature_weight=0.0, class_weight=0.5, generator_optimizer=PLAIN)
    client = toy_client()  # a GCN without dropout
    algorithm.pretrain(PretrainGenerator(read_params(client.model)), at(client, 0))
    eager(client)
    algorithm.share_generator(ShareGenerator(4, 5, 3), at(client, 1))
    before = client.state["neighgen"]
    model = as_module(before["params"])
    impaired = Impaired.of(client.data, before["hidden"])
    found = generate(model, impaired.input, ProtectingStream.kept(before["noise"]))
    assert len(found.rows) > 5
    size, added = impaired.graph.num_nodes, len(found.rows)
    ties = torch.stack([found.owner, torch.arange(size, size + added)])
    graph = replace(
        impaired.graph,
        x=torch.cat([impaired.graph.x, found.rows]),
        edge_index=torch.cat([impaired.graph.edge_index, ties, ties.flip(0)], dim=1),
        y=torch.cat([impaired.graph.y, torch.full((added,), -1)]),
    )
    train = impaired.graph.mask("train").nonzero().flatten()
    classifier = {name: tensor.clone().requires_grad_() for name, tensor in before["classifier"].items()}
    loss = 0.5 * F.cross_entropy(gcn_logits(graph, classifier)[train], impaired.graph.y[train])
    slots = {**dict(model.features.named_parameters(prefix="features")), **classifier}
    wanted = torch.autograd.grad(loss, list(slots.values()))
    algorithm.update(UpdateGenerator({}), at(client, 2))
    after = client.state["neighgen"]
    for name, gradient in zip(slots, wanted, strict=True):
        kind = "params" if name.startswith("features.") else "classifier"
        moved = (before[kind][name] - after[kind][name]) / 0.1
        torch.testing.assert_close(moved, gradient, rtol=1e-4, atol=1e-5)


def test_more_steps_bring_the_generator_nearer_to_the_hidden_neighbours() -> None:
    client = toy_client(toy_graph(40))
    scores = []
    for steps in (0, 60):
        algorithm = FedSagePlus(**{**SHORT, "pretrain_steps": steps}, class_weight=0.0)
        algorithm.pretrain(PretrainGenerator(read_params(client.model)), at(client, 0))
        memory = client.state["neighgen"]
        impaired = Impaired.of(client.data, memory["hidden"])
        found = generate(as_module(memory["params"]), impaired.input, KeptNoise(1))
        scores.append(float(neighbor_generation.count_loss(found.scores, impaired.counts).detach()))
    assert scores[1] < 0.5 * scores[0]


# ---- what crosses


def rows_of(record: Record, width: int) -> Iterator[tuple[str, Tensor]]:
    """All that has the length of a row of features, along any axis of any tensor of a record."""
    for path, leaf in leaves(record).items():
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            for axis, size in enumerate(leaf.shape):
                if size == width:
                    yield path, leaf.movedim(axis, -1).reshape(-1, width)


def leak(records: list[Record], parts: dict[str, Graph]) -> str:
    x = torch.cat([part.x for part in parts.values()])
    for record in records:
        for path, rows in rows_of(record, x.shape[1]):
            if float(torch.cdist(rows.double(), x.double()).min()) < 1e-4:
                return f"{type(record).__name__}{path}"
    return ""


def test_no_message_holds_the_features_of_a_node() -> None:
    scenario = toy_scenario(3, num_nodes=60)
    trace = run(FedSagePlus(**{**SHORT, "cross_rounds": 3, "pretrain_steps": 20}), scenario)
    records: list[Record] = []
    for message in trace.messages:
        assert isinstance(message.outcome.reply, Record)
        records += [message.request, message.outcome.reply]
    kinds = {type(record) for record in records}
    assert {GeneratorView, GradeGenerators, GeneratorGradients, UpdateGenerator, MendedGraph, ModelUpdate} <= kinds
    assert sum(len(list(rows_of(record, 6))) for record in records) > 20
    assert any(isinstance(r, GeneratorView) and len(r.inputs) for r in records)
    assert leak(records, scenario.parts) == ""
    # The search does find them where they are.
    told = GeneratorView({"slot_weight": torch.randn(2, 6, 9)}, scenario.parts["client-1"].x[3:5], torch.empty(0))
    assert leak([told], scenario.parts) == "GeneratorView.inputs"
    turned = UpdateGenerator({"w": torch.stack([torch.zeros(6), scenario.parts["client-0"].x[0]], dim=1)})
    assert leak([turned], scenario.parts) == "UpdateGenerator.gradients['w']"


def test_a_view_is_of_visible_nodes_that_lack_neighbours_only() -> None:
    algorithm = FedSagePlus(**SHORT)
    client = toy_client()
    algorithm.pretrain(PretrainGenerator(read_params(client.model)), at(client, 0))
    view = algorithm.share_generator(ShareGenerator(4, 5, 3), at(client, 1))
    memory = client.state["neighgen"]
    found = generate(
        as_module(memory["params"]),
        Impaired.of(client.data, memory["hidden"]).input,
        ProtectingStream.kept(memory["noise"]),
    )
    lacking = found.counts > 0
    assert torch.equal(view.counts, found.counts[lacking]) and torch.equal(view.inputs, found.inputs[lacking])
    assert view.params.keys() == {"hidden_weight", "hidden_bias", "slot_weight", "slot_bias"}


def test_a_lone_generated_node_lets_its_client_solve_for_the_nearest_features_as_the_docstring_warns() -> None:
    view = replace(view_of(0.3), inputs=torch.ones(1, 4), counts=torch.tensor([1]))
    peer = toy_client()
    found = foreign_gradients(view, peer)["slot_bias"][0]  # 2 (x - x_u), and x is the client's own
    row = FeatureGenerator(4, 5, 3, 6)
    load_params(row, view.params)
    solved = row(view.inputs, view.counts)[0][0] - found / 2
    assert float((peer.data.x - solved.detach()).square().sum(dim=1).min()) < 1e-8
    assert "the one peer's features" in " ".join((FedSagePlus.__doc__ or "").split())


# ---- the server half


def view_of(value: float, columns: int = 6) -> GeneratorView:
    params = {
        "hidden_weight": torch.full((4, 5), value),
        "hidden_bias": torch.zeros(5),
        "slot_weight": torch.zeros(3, 5, columns),
        "slot_bias": torch.zeros(3, columns),
    }
    return GeneratorView(params, torch.ones(2, 4), torch.tensor([1, 3]))


def scripted(widths: dict[str, int], failing: dict[str, type[Request[Any]]] | None = None) -> ScriptedClients:
    numbers = {name: float(k + 1) for k, name in enumerate(widths)}

    def answer(client: str, request: Request[Any]) -> Record:
        if failing and failing.get(client) is type(request):
            return Failure(client, "error", "gone")
        if isinstance(request, ShareGenerator):
            return view_of(numbers[client], widths[client])
        if isinstance(request, GradeGenerators):
            return GeneratorGradients(
                {
                    other: {name: torch.full_like(t, numbers[client]) for name, t in view.params.items()}
                    for other, view in request.views.items()
                },
                1.0,
            )
        return MendedGraph(4.0, 10.0, 1.0) if isinstance(request, MendGraph) else Kept()

    return ScriptedClients(answer, tuple(widths))


def test_generators_are_pretrained_graded_and_updated_and_then_graphs_are_mended() -> None:
    clients = scripted({"a": 6, "b": 6, "c": 6})
    notes: list[str] = []
    fed = clients.federation({"w": torch.ones(2)}, round=0)
    fed._note = notes.append
    state = FedSagePlus(**{**SHORT, "cross_rounds": 2}).setup(fed)
    assert torch.equal(state.params["w"], torch.ones(2))
    order = [type(request).__name__ for client, request in clients.sent if client == "a"]
    across = ["ShareGenerator", "GradeGenerators", "UpdateGenerator"]
    assert order == ["PretrainGenerator", *across, *across, "MendGraph"]
    assert clients.sent[0][1] == PretrainGenerator(fed.initial_params)
    (graded, *_) = (request for _, request in clients.sent if isinstance(request, GradeGenerators))
    assert {name: float(view.params["hidden_weight"][0, 0]) for name, view in graded.views.items()} == {
        "a": 1.0,
        "b": 2.0,
        "c": 3.0,
    }
    for _, request in clients.sent:
        if isinstance(request, UpdateGenerator):  # the sum, not the mean
            torch.testing.assert_close(request.gradients["slot_bias"], torch.full((3, 6), 6.0))
    assert notes == ["3 clients mended their graphs: on average 4.0 generated neighbours for 10.0 nodes"]


def test_two_clients_are_told_that_nothing_mixes_their_gradients() -> None:
    clients = scripted({"a": 6, "b": 6})
    notes: list[str] = []
    fed = clients.federation({"w": torch.ones(2)}, round=0)
    fed._note = notes.append
    FedSagePlus(**SHORT).setup(fed)
    assert "two clients" in notes[0] and len(notes) == 2


def test_a_client_that_failed_to_pretrain_is_not_asked_again() -> None:
    clients = scripted({"a": 6, "b": 6, "c": 6}, {"b": PretrainGenerator})
    FedSagePlus(**SHORT).setup(clients.federation({}, round=0))
    assert [type(request) for client, request in clients.sent if client == "b"] == [PretrainGenerator]


def test_a_client_that_showed_no_generator_is_out_of_that_exchange_and_mends_all_the_same() -> None:
    clients = scripted({"a": 6, "b": 6, "c": 6}, {"b": ShareGenerator})
    FedSagePlus(**SHORT).setup(clients.federation({}, round=0))
    asked = [type(request) for client, request in clients.sent if client == "b"]
    assert asked == [PretrainGenerator, ShareGenerator, MendGraph]
    (views,) = {tuple(request.views) for _, request in clients.sent if isinstance(request, GradeGenerators)}
    assert views == ("a", "c")


def test_a_client_with_another_number_of_features_than_most_is_out_of_that_exchange_and_named() -> None:
    clients = scripted({"a": 7, "b": 6, "c": 6})
    FedSagePlus(**SHORT).setup(clients.federation({}, round=0))
    (failure,) = [failure for report in clients.reports for failure in report.failures]
    assert (failure.client, failure.kind) == ("a", "malformed")
    assert failure.reason == "its reply has 7, those of 2 of 3 clients have 6"
    (views,) = {tuple(request.views) for _, request in clients.sent if isinstance(request, GradeGenerators)}
    assert views == ("b", "c")


def test_malformed_views_and_gradients_are_named() -> None:
    request, view = ShareGenerator(4, 5, 3), view_of(1.0)
    assert request.problem(view) == ""
    assert "expected ['hidden_bias'" in request.problem(replace(view, params={}))
    wrong = {**view.params, "slot_bias": torch.zeros(2, 6)}
    assert "params['slot_bias'] has shape (2, 6)" in request.problem(replace(view, params=wrong))
    wrong = {**view.params, "slot_weight": torch.zeros(3, 5)}
    assert "params['slot_weight']" in request.problem(replace(view, params=wrong))
    assert "inputs has shape (2, 5)" in request.problem(replace(view, inputs=torch.ones(2, 5)))
    assert "counts has shape (3,)" in request.problem(replace(view, counts=torch.tensor([1, 2, 3])))
    assert "counts is from 0 to 1" in request.problem(replace(view, counts=torch.tensor([0, 1])))
    assert "counts is from 1 to 4" in request.problem(replace(view, counts=torch.tensor([1, 4])))
    grade = GradeGenerators({"a": view})
    assert grade.misfit(GeneratorGradients({"a": view.params}, 1.0), Known()) == ""
    assert "gradients are for ['b']" in grade.misfit(GeneratorGradients({"b": view.params}, 1.0), Known())
    assert "the gradients for a" in grade.misfit(GeneratorGradients({"a": {"w": torch.ones(1)}}, 1.0), Known())
    assert "weight is 9" in grade.misfit(GeneratorGradients({"a": view.params}, 9.0), Known())


# ---- special cases and the rounds


@pytest.mark.parametrize("sparse", [False, True])
def test_without_generated_neighbours_it_is_fedavg(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = toy_scenario(sparse=sparse)
    plain = run(FedAvg(), scenario)
    none = run(FedSagePlus(num_generated=0), scenario)
    require_same(plain.values(), none.values(), "num_generated=0 is not FedAvg")
    assert none.history().keys() == plain.history().keys()
    monkeypatch.setattr(
        neighbor_generation, "whole_counts", lambda scores, num_slots: torch.zeros(len(scores), dtype=torch.int64)
    )
    useless = run(FedSagePlus(**SHORT), scenario)
    first, second = (t.standings[t.last] for t in (plain, useless))
    require_same({"state": first.state}, {"state": second.state}, "generators that find nothing change FedAvg")
    assert [r.evaluations for r in plain.rounds] == [r.evaluations for r in useless.rounds]


def set_up(client: GraphClient, algorithm: FedSagePlus) -> Graph:
    """Have a client mend its graph, and return what it should be, put together by hand."""
    algorithm.pretrain(PretrainGenerator(read_params(client.model)), at(client, 0))
    eager(client)
    reply = algorithm.mend(MendGraph(), at(client, 1))
    assert client.state.keys() == {"mended"}
    memory = client.state["mended"]
    noise = KeptNoise(memory["noise"])
    with torch.no_grad():
        found = generate(as_module(memory["params"]), client.prepared.graph, noise)
    size, added = client.num_nodes, len(found.rows)
    assert reply == MendedGraph(float(added), float(size), 1.0) and added > 5
    ties = torch.stack([found.owner, torch.arange(size, size + added)])
    edges = torch.cat([client.data.edge_index, ties, ties.flip(0)], dim=1)
    data = client.data
    return replace(
        data,
        x=torch.cat([data.x.to_dense(), found.rows]),
        edge_index=edges[:, torch.argsort(edges[0] * (size + added) + edges[1])],
        y=torch.cat([data.y, torch.full((added,), -1)]),
        node_ids=torch.arange(size + added),
        masks={split: torch.cat([mask, torch.zeros(added, dtype=torch.bool)]) for split, mask in data.masks.items()},
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_rounds_train_and_evaluate_on_the_mended_graph(sparse: bool) -> None:
    algorithm = FedSagePlus(**SHORT)
    client = toy_client(toy_graph(24, sparse=sparse))
    params = read_params(client.model)
    plain = toy_client(set_up(client, algorithm))
    other = toy_client(client.data)
    for each in (client, plain, other):
        each.position = Position(0, 1, 0)
    trained = algorithm.train(TrainModel(params), client)
    wanted = FedAvg().train(TrainModel(params), plain)
    assert trained.weight == wanted.weight == client.num_examples
    compare = require_close if sparse else require_same  # few neighbours of sparse nodes are kept among sparse ones
    compare({"it": trained.params}, {"it": wanted.params}, "training is not on the mended graph")
    assert not torch.equal(
        trained.params["gnn.layers.0.weight"], FedAvg().train(TrainModel(params), other).params["gnn.layers.0.weight"]
    )
    request = EvaluateModel(params, ("train", "val", "test"), "accuracy", False)
    found = algorithm.evaluate(request, client)
    compare({"it": found.metrics}, {"it": FedAvg().evaluate(request, plain).metrics}, "evaluation is not on it")
    assert found.counts == {split: client.task.count(client.data, split) for split in ("train", "val", "test")}
    own = FedAvg().evaluate(request, other)
    assert found.metrics != own.metrics
    assert algorithm.evaluate(replace(request, best=True), client) == found


def test_a_mended_graph_is_built_once_and_again_from_memory_alone() -> None:
    algorithm = FedSagePlus(**SHORT)
    client = toy_client()
    set_up(client, algorithm)
    first = algorithm.data_of(client)
    assert algorithm.data_of(client) is first and first.graph.num_nodes > client.num_nodes
    revived = toy_client()
    memory: State = decode(encode(client.state), State)
    revived.state = memory
    revived.position = Position(0, 2, 5)
    again = algorithm.data_of(revived)
    assert torch.equal(again.data.x, first.data.x) and torch.equal(again.data.edge_index, first.data.edge_index)
    client.state = {**client.state, "mended": {**client.state["mended"], "noise": 1}}  # another memory, another graph
    assert not torch.equal(algorithm.data_of(client).data.x, first.data.x)
    client.state = {}
    assert algorithm.data_of(client) is client.prepared


def test_the_result_has_the_generators_and_with_them_predicts_what_clients_were_scored_on(tmp_path: Path) -> None:
    course = toy_course(FedSagePlus(**{**SHORT, "pretrain_steps": 30}), rounds=2)
    scenario = toy_scenario()
    result = isthmus.run(course, scenario=scenario, run_dir=tmp_path / "run")
    assert result.client_parts.keys() == scenario.parts.keys() and not result.client_params
    folder, changed = RunFolder.open(tmp_path / "run"), 0
    for name, data in scenario.parts.items():
        parts, _ = load_model_file(folder.client_parts(name))
        assert parts.keys() == result.client_parts[name].keys()
        found = course.algorithm.predict_with(parts, course.task, result.model, data)
        assert torch.equal(found.ids, data.node_ids) and len(found.probabilities) == data.num_nodes
        test = data.mask("test") & (data.y >= 0)
        accuracy = float((found.labels == data.y)[test].double().mean())
        assert accuracy == pytest.approx(result.client_scores[name]["accuracy"])
        loss = F.nll_loss(found.probabilities[test].log(), data.y[test])
        assert float(loss) == pytest.approx(result.client_scores[name]["loss"], rel=1e-5)
        plain = course.algorithm.predict_with({}, course.task, result.model, data)
        assert torch.equal(
            plain.probabilities, course.task.predict(result.model, course.task.prepare(data)).probabilities
        )
        changed += not torch.equal(plain.probabilities, found.probabilities)
    assert changed


def test_a_client_that_missed_the_setup_has_no_generator_in_the_result(tmp_path: Path) -> None:
    result = isthmus.run(toy_course(FedSagePlus(num_generated=0)), scenario=toy_scenario(), run_dir=tmp_path / "run")
    assert result.client_parts == {} and not (tmp_path / "run" / "parts").exists()


def test_moments_go_on_where_they_are_kept() -> None:
    algorithm = FedSagePlus(**SHORT, keep_moments=True, optimizer=SGD(lr=0.1, momentum=0.9))
    CHECKS["loop_equals_strict"](algorithm, toy_course(algorithm, rounds=2))
    trace = run(algorithm, toy_scenario())
    memory = decode(trace.memories[2]["client-0"], State)
    assert memory.keys() == {"mended", "optimizer"}
    assert memory["optimizer"]["step"] == 2 * algorithm.local_steps


@pytest.mark.slow
def test_with_moments_that_are_kept_it_passes_the_checks_of_all_algorithms() -> None:
    check_algorithm(FedSagePlus(**SHORT, keep_moments=True, optimizer=SGD(lr=0.1, momentum=0.9)))


# ---- odd clients


def without_edges(graph: Graph) -> Graph:
    return replace(graph, edge_index=graph.edge_index[:, :0])


def test_odd_clients_take_part() -> None:
    whole = toy_graph(60)
    lonely = without_edges(whole.subgraph(torch.arange(20)))
    blank = {"train": torch.zeros(10, dtype=torch.bool), "val": torch.zeros(10, dtype=torch.bool)}
    parts = {
        "no-edges": lonely,
        "no-labels": whole.subgraph(torch.arange(20, 30)).with_masks(blank),
        "one-node": whole.subgraph(torch.tensor([31])),
        "two-nodes": whole.subgraph(torch.tensor([32, 33])),
        "usual": whole.subgraph(torch.arange(34, 60)),
    }
    for runtime in ("loop", "strict"):
        trace = run(FedSagePlus(**SHORT), Scenario(whole, parts), num_clients=5, runtime=runtime)
        assert trace.last == 2 and len(trace.said) == 1


def test_isolated_nodes_can_be_given_neighbours() -> None:
    algorithm = FedSagePlus(**SHORT)
    client = toy_client(without_edges(toy_graph(12)))
    set_up(client, algorithm)
    assert algorithm.data_of(client).data.num_edges > 0


def test_one_client_trains_its_generator_alone() -> None:
    trace = run(FedSagePlus(**SHORT), toy_scenario(1), num_clients=1)
    updates = [m.request for m in trace.messages if isinstance(m.request, UpdateGenerator)]
    assert len(updates) == 1 and not any(tensor.any() for tensor in updates[0].gradients.values())


def test_personal_heads_stay_with_the_clients() -> None:
    model = ModelSpec(SAGE(hidden=5), decoder=MLPDecoder(hidden=4))
    trace = run(FedSagePlus(**SHORT), toy_scenario(), model=model, shared=("gnn.*",))
    for message in trace.messages:
        for record in (message.request, message.outcome.reply):
            assert isinstance(record, Record)
            assert not any("decoder" in path for path in leaves(record))


@pytest.mark.parametrize("gnn", [SAGE(hidden=5), GCN(hidden=5, batch_norm=True)], ids=["sage", "gcn"])
def test_any_node_model_serves_as_classifier(gnn: Any) -> None:
    run(FedSagePlus(**SHORT), toy_scenario(sparse=True), model=ModelSpec(gnn))


def test_few_nodes_at_a_time_bound_what_is_generated() -> None:
    trace = run(FedSagePlus(**{**SHORT, "pretrain_steps": 30}, max_nodes=2), toy_scenario())
    views = [m.outcome.reply for m in trace.messages if isinstance(m.outcome.reply, GeneratorView)]
    assert views and all(len(view.inputs) <= 2 for view in views)


# ---- bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_generated": -1}, "num_generated is -1; it must be at least 0"),
        ({"latent": 0}, "latent is 0; it must be at least 1"),
        ({"hidden": 0}, "hidden is 0"),
        ({"pretrain_steps": -1}, "pretrain_steps is -1"),
        ({"cross_rounds": -1}, "cross_rounds is -1"),
        ({"max_nodes": -1}, "max_nodes is -1"),
        ({"hide_fraction": 0.0}, "hide_fraction is 0.0; it must be between 0 and 1"),
        ({"hide_fraction": 1.0}, "hide_fraction is 1.0"),
        ({"count_weight": -0.5}, "count_weight is -0.5"),
        ({"feature_weight": float("nan")}, "feature_weight is nan"),
        ({"class_weight": -1.0}, "class_weight is -1.0"),
        ({"peer_weight": 0.0}, "peer_weight is 0.0; it must be above 0 .cross_rounds=0"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedSagePlus(**fields)


def test_tasks_without_node_classes_are_refused() -> None:
    client = toy_client()
    client.task = TASKS["link_prediction"]()
    with pytest.raises(BadInput, match=r"FedSage\+ generates neighbours of nodes.*LinkPrediction"):
        FedSagePlus().pretrain(PretrainGenerator({}), client)


def test_a_client_without_a_generator_says_so() -> None:
    with pytest.raises(BadInput, match="client-0 has no generator in training"):
        FedSagePlus().mend(MendGraph(), toy_client())


def test_features_that_cannot_be_compared_are_refused_by_the_peer() -> None:
    with pytest.raises(BadInput, match="nodes of 9 features, client-0's have 6"):
        foreign_gradients(view_of(1.0, 9), toy_client())
