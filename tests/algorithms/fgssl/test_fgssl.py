from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isthmus.algorithms import FGSSL, FedAvg
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fgssl import structure_divergence
from isthmus.core.errors import BadInput
from isthmus.core.federation import Outcome
from isthmus.core.protocol import Failure, ModelState, Position
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.augment import Augmentation
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.contrast import node_contrast
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, Adam, load_params, read_params
from isthmus.learn.tasks import NodeClassification
from isthmus.learn.tasks.node_classification import NodeBatch
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GPRGNN,
    MLP,
    SAGE,
    SGC,
    LinearDecoder,
    LinearEncoder,
    MLPDecoder,
    MLPEncoder,
    Model,
    ModelSpec,
)
from isthmus.models.inputs import GraphInput
from isthmus.runtime.loop import StackedRuntime
from isthmus.testing import CHECKS, ScriptedClients, check_algorithm, toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import require_close, trace_course
from tests.algorithms.fgssl import fgssl_reference as reference
from tests.algorithms.reference import assert_close, assert_equal
from tests.side_by_side import side_by_side, watched

NO_VIEW = Augmentation(0.0, 0.0)


def odd_graph(weighted: bool = False, seed: int = 0) -> Graph:
    """Fourteen nodes: 2 and 3 without edges, 5 with one, some without a label, one of those marked for training."""
    graph = toy_graph(14, unlabelled_fraction=0.2, weighted=weighted, seed=seed)
    alone = torch.zeros(14, dtype=torch.bool)
    alone[[2, 3, 5]] = True
    kept = ~(alone[graph.edge_index[0]] | alone[graph.edge_index[1]])
    edges = torch.cat([graph.edge_index[:, kept], torch.tensor([[5, 8], [8, 5]])], dim=1)
    weight = None
    if graph.edge_weight is not None:
        weight = torch.cat([graph.edge_weight[kept], torch.tensor([0.7, 0.7])])
    train = graph.mask("train").clone()
    train[(graph.y < 0).nonzero().flatten()[0]] = True
    graph = graph.with_masks({**graph.masks, "train": train})
    # In an order of its own: which edge a number is drawn for does not depend on it.
    order = torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(seed))
    return replace(graph, edge_index=edges[:, order], edge_weight=None if weight is None else weight[order])


def wise_client(data: Graph | None = None, **options: Any) -> tuple[GraphClient, Params]:
    """A client, and parameters whose biases matter too."""
    client = toy_client(odd_graph() if data is None else data, **options)
    client.position = Position(seed=4, round=2, exchange=1)
    return client, _with_noise(read_params(client.model))


def _with_noise(params: Params) -> Params:
    draw = torch.Generator().manual_seed(7)
    found = {}
    for name, tensor in params.items():
        noise = 0.2 * torch.randn(tensor.shape, generator=draw)
        found[name] = tensor + (noise.abs() if "running_var" in name else noise)
    return found


def loss_of(algorithm: FGSSL, client: GraphClient, params: Params, frozen: Params) -> Tensor:
    """The loss of the first step of a round in which `frozen` was received, at `params`."""
    load_params(client.model, params)
    loss = algorithm.loss(frozen, client)
    assert loss is not None
    prepared = client.prepared
    batch = NodeBatch(prepared.graph, prepared.index["train"], prepared.labels["train"])
    return loss(client.model, batch, client.generator("fit"))


def trained(algorithm: FGSSL, client: GraphClient, params: Params) -> Params:
    return algorithm.train(TrainModel(params), client).params


def gap(first: Params, second: Params) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def other_than(params: Params, seed: int = 1) -> Params:
    draw = torch.Generator().manual_seed(seed)
    return {name: tensor + 0.3 * torch.randn(tensor.shape, generator=draw) for name, tensor in params.items()}


def test_the_defaults_are_those_that_the_paper_states() -> None:
    """Section 4.1: SGD with momentum 0.9 and weight decay 5e-4, 4 local epochs; section 4.2: tau 0.1, omega 5."""
    algorithm = FGSSL()
    assert isinstance(algorithm.optimizer, SGD)
    assert (algorithm.optimizer.momentum, algorithm.optimizer.weight_decay) == (0.9, 5e-4)
    assert (algorithm.local_steps, algorithm.tau, algorithm.omega) == (4, 0.1, 5.0)
    assert algorithm.lambda_c > 0 and algorithm.lambda_d > 0
    assert algorithm.strong.edges > algorithm.weak.edges > 0 and algorithm.strong.features > algorithm.weak.features > 0


# ---- equation 12, against a dense GCN and loops over nodes

FIELDS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "contrast only": {"lambda_d": 0.0},
    "distillation only": {"lambda_c": 0.0, "lambda_d": 2.0},
    "weak on the own model": {"strong": Augmentation(0.1, 0.2), "weak": Augmentation(0.7, 0.6)},
    "no views": {"strong": NO_VIEW, "weak": NO_VIEW},
    "edges only": {"strong": Augmentation(0.5, 0.0), "weak": Augmentation(0.2, 0.0)},
    "columns only": {"strong": Augmentation(0.0, 0.5), "weak": Augmentation(0.0, 0.2)},
    "other temperatures": {"tau": 0.7, "omega": 0.6, "lambda_c": 0.4, "lambda_d": 3.0},
    "contrast with few": {"max_contrast": 3, "tau": 0.5},
    "contrast with one": {"max_contrast": 1, "tau": 0.5, "lambda_d": 0.0},
}


@pytest.mark.meet(1)
@pytest.mark.parametrize("rate", [0.0, 0.5], ids=["still", "dropout"])
@pytest.mark.parametrize("name", FIELDS)
def test_the_loss_is_that_of_the_paper(name: str, rate: float) -> None:
    """Also where the model has moved away from the one that was received."""
    client, params = wise_client(model=ModelSpec(GCN(hidden=5, dropout=rate)))
    algorithm = FGSSL(**FIELDS[name])
    for live in (params, other_than(params)):
        doubled = {n: t.double() for n, t in live.items()}
        wanted = reference.loss_of(client.data, doubled, params, algorithm, client.generator("fit"), rate)
        found = loss_of(algorithm, client, live, params)
        torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.meet(2)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("rate", [0.0, 0.5], ids=["still", "dropout"])
@pytest.mark.parametrize("name", FIELDS)
def test_training_descends_the_loss_of_the_paper(name: str, rate: float, weighted: bool) -> None:
    """The frozen model is the received one in the third step too, and every step has views of its own."""
    client, params = wise_client(odd_graph(weighted), model=ModelSpec(GCN(hidden=5, dropout=rate)))
    for steps in (1, 3):
        algorithm = FGSSL(local_steps=steps, optimizer=SGD(lr=0.05), **FIELDS[name])
        wanted, _ = reference.descended(
            client.data, params, algorithm, client.generator("fit"), steps=steps, lr=0.05, rate=rate
        )
        assert_close(trained(algorithm, client, params), wanted, 2e-5)


def test_sparse_features_give_the_same() -> None:
    data = odd_graph()
    x = torch.where(data.x.abs() > 0.7, data.x, 0.0)
    found = []
    for form in (x, x.to_sparse_csr()):
        client, params = wise_client(replace(data, x=form), model=ModelSpec(GCN(hidden=5, dropout=0.5)))
        found.append(trained(FGSSL(local_steps=3, optimizer=SGD(lr=0.05)), client, params))
    assert_close(found[0], found[1], 1e-5)
    wanted, _ = reference.descended(
        replace(data, x=x), params, FGSSL(), client.generator("fit"), steps=3, lr=0.05, rate=0.5
    )
    assert_close(found[0], wanted, 2e-5)


def test_the_reply_is_the_trained_model_weighted_by_examples() -> None:
    client, params = wise_client()
    reply = FGSSL(local_steps=1).train(TrainModel(params), client)
    assert isinstance(reply, ModelUpdate) and reply.weight == client.num_examples == len(client.prepared.index["train"])
    by_nodes = FGSSL(local_steps=1, weighting="nodes").train(TrainModel(params), client)
    assert by_nodes.weight == 14.0


def test_the_server_sends_its_model_and_takes_the_mean_by_size() -> None:
    """Equation 3."""
    sizes = {"a": 1.0, "b": 3.0}
    clients = ScriptedClients(
        lambda client, request: ModelUpdate({"w": torch.full((2,), sizes[client])}, sizes[client]), list(sizes)
    )
    state = FGSSL().round(ModelState({"w": torch.zeros(2)}), clients.federation())
    assert [type(request) for _, request in clients.sent] == [TrainModel, TrainModel]
    torch.testing.assert_close(state.params["w"], torch.full((2,), (1.0 * 1 + 3.0 * 3) / 4))


# ---- each term


@pytest.mark.parametrize("name", ["lambda_c", "lambda_d"])
def test_each_term_alone_moves_the_parameters(name: str) -> None:
    """Not those of the last layer for the contrast, which is made of what goes into it."""
    client, params = wise_client()
    base = FGSSL(lambda_c=0.0, lambda_d=0.0, local_steps=1, optimizer=SGD(lr=0.1))
    plain = trained(base, client, params)
    weak, strong = (trained(replace(base, **{name: size}), client, params) for size in (1.0, 2.0))
    for parameter, tensor in plain.items():
        moved = float((weak[parameter] - tensor).abs().max())
        # The divergence does not see a bias that all scores share; here it does, as products change with it.
        assert (moved == 0.0) if name == "lambda_c" and "layers.1" in parameter else moved > 1e-5, parameter
        torch.testing.assert_close(strong[parameter] - tensor, 2 * (weak[parameter] - tensor), rtol=1e-3, atol=1e-5)


def test_the_terms_add_up() -> None:
    client, params = wise_client()
    live = other_than(params)

    def value(lambda_c: float, lambda_d: float) -> float:
        return float(loss_of(FGSSL(lambda_c=lambda_c, lambda_d=lambda_d), client, live, params).detach())

    tiny = 1e-12  # so small that it counts nothing, but the views are drawn
    plain = value(tiny, tiny)
    both = value(0.7, 1.3)
    assert both - plain == pytest.approx((value(0.7, tiny) - plain) + (value(tiny, 1.3) - plain), abs=1e-4)
    assert value(0.7, tiny) > plain + 0.01 and value(tiny, 1.3) > plain + 0.01


def test_only_labels_of_training_nodes_count() -> None:
    client, params = wise_client()
    algorithm = FGSSL(local_steps=2, optimizer=SGD(lr=0.1))
    expected = trained(algorithm, client, params)
    train = client.data.mask("train") & (client.data.y >= 0)
    y = torch.where(train, client.data.y, (client.data.y + 1) % 3)
    other, _ = wise_client(replace(client.data, y=torch.where(client.data.y < 0, client.data.y, y)))
    assert_equal(trained(algorithm, other, params), expected)


def test_the_contrast_is_of_training_nodes_only_and_the_distillation_of_all() -> None:
    """The features of an isolated node that is for validation: it has no neighbour and so no part in anything.

    A node for test that has neighbours has a part in the distillation, at the far end of the graph too.
    """
    data = replace(odd_graph(), edge_index=torch.tensor([[0, 1, 6, 7, 6, 10], [1, 0, 7, 6, 10, 6]]))
    for node in (6, 7, 10):
        masks = {name: mask & (torch.arange(14) != node) for name, mask in data.masks.items()}
        data = data.with_masks({**masks, "test": masks["test"] | (torch.arange(14) == node)})
    moved = replace(data, x=data.x.clone())
    moved.x[[6, 7, 10]] += torch.tensor([[1.0], [-1.0], [0.5]])
    changed = {}
    for name in ("lambda_c", "lambda_d"):
        algorithm = replace(FGSSL(lambda_c=0.0, lambda_d=0.0), **{name: 2.0})
        live = other_than(wise_client(data)[1])
        values = [
            float(loss_of(algorithm, wise_client(each)[0], live, wise_client(data)[1]).detach())
            for each in (data, moved)
        ]
        changed[name] = abs(values[0] - values[1])
    assert changed["lambda_c"] == 0.0 and changed["lambda_d"] > 1e-3


def test_neighbours_are_those_of_the_graph_and_not_of_a_view() -> None:
    """A strong view without edges leaves scores, and so the distillation, of all neighbours."""
    client, params = wise_client()
    almost_none = Augmentation(0.999999, 0.0)
    algorithm = FGSSL(lambda_c=0.0, lambda_d=5.0, strong=almost_none, weak=almost_none)
    plain = FGSSL(lambda_c=1e-12, lambda_d=0.0, strong=almost_none, weak=almost_none)
    live = other_than(params)
    found, without = (float(loss_of(each, client, live, params).detach()) for each in (algorithm, plain))
    assert found > without + 0.01


# ---- which model sees what


class Watch:
    """Notes what a model is called with and whether its own parameters were in place."""

    def __init__(self, client: GraphClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, GraphInput, bool, bool]] = []
        for name in ("embed", "classify", "forward"):
            monkeypatch.setattr(client.model, name, self._watched(client.model, name, getattr(client.model, name)))

    def _watched(self, model: nn.Module, name: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def watched(graph: GraphInput, *others: Any) -> Tensor:
            frozen = "weight" in model.get_submodule("gnn.layers.0").__dict__
            self.calls.append((name, graph, others[-1] is not None, frozen))
            assert torch.is_grad_enabled() != frozen
            return call(graph, *others)

        return watched


def test_the_own_model_gets_the_strong_view_with_dropout_and_the_frozen_one_the_weak_view_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, params = wise_client(toy_graph(200), model=ModelSpec(GCN(hidden=5, dropout=0.5)))
    watch = Watch(client, monkeypatch)
    rates = Augmentation(0.9, 0.0), Augmentation(0.2, 0.0)
    trained(FGSSL(local_steps=2, strong=rates[0], weak=rates[1]), client, params)
    assert len(watch.calls) % 2 == 0
    steps = watch.calls[: len(watch.calls) // 2], watch.calls[len(watch.calls) // 2 :]
    for step in steps:
        calls = [(name, random, frozen) for name, _, random, frozen in step]
        assert calls[0] == ("forward", True, False)
        assert calls[1:] == [
            ("embed", True, False),
            ("embed", False, True),
            ("classify", False, True),
            ("classify", True, False),
        ]
        kept = [1.0 if graph.kept is None else float(graph.kept.float().mean()) for _, graph, _, _ in step]
        assert kept == pytest.approx([1.0, 0.1, 0.8, 0.8, 0.1], abs=0.06)
        assert step[1][1] is step[4][1] and step[2][1] is step[3][1]  # z is of the view that h is of
    assert not torch.equal(steps[0][1][1].kept, steps[1][1][1].kept)  # type: ignore[arg-type]
    assert not torch.equal(steps[0][2][1].kept, steps[1][2][1].kept)  # type: ignore[arg-type]


def test_no_gradient_flows_into_the_received_model_and_it_stays_as_it_is() -> None:
    client, params = wise_client(model=ModelSpec(GCN(hidden=5, batch_norm=True)))
    before = {name: tensor.clone() for name, tensor in params.items()}
    trained(FGSSL(local_steps=3), client, params)
    assert_equal(params, before)
    watched = {n: t.clone().requires_grad_("running" not in n) for n, t in params.items()}
    total = loss_of(FGSSL(), client, params, watched)
    leaves = [tensor for tensor in watched.values() if tensor.requires_grad]
    assert torch.autograd.grad(total, leaves, allow_unused=True) == (None,) * len(leaves)


def test_the_model_of_a_client_is_not_left_with_the_frozen_parameters_in_front() -> None:
    client, params = wise_client()
    reply = trained(FGSSL(local_steps=2), client, params)
    assert not any("weight" in module.__dict__ for module in client.model.modules())
    assert_equal(read_params(client.model), reply)


ZOO: dict[str, ModelSpec] = {
    "gcn": ModelSpec(GCN(hidden=6)),
    "gcn of three layers": ModelSpec(GCN(hidden=6, layers=3, batch_norm=True, input_dropout=0.2)),
    "gcn of one layer": ModelSpec(GCN(hidden=6, layers=1)),
    "gat": ModelSpec(GAT(hidden=6, heads=2, last_heads=2)),
    "gat with batch norm": ModelSpec(GAT(hidden=6, heads=3, batch_norm=True)),
    "sage": ModelSpec(SAGE(hidden=6)),
    "gin": ModelSpec(GIN(hidden=6, train_eps=True)),
    "gprgnn": ModelSpec(GPRGNN(hidden=6, hops=3)),
    "appnp": ModelSpec(APPNP(hidden=6, hops=3)),
    "sgc": ModelSpec(SGC()),
    "mlp": ModelSpec(MLP(hidden=6)),
    "encoder": ModelSpec(GCN(hidden=6), encoder=LinearEncoder(dim=5)),
    "encoder and decoder": ModelSpec(
        SAGE(hidden=6, batch_norm=True), encoder=MLPEncoder(dim=5, dropout=0.5), decoder=MLPDecoder(dropout=0.3)
    ),
    "decoder": ModelSpec(GAT(hidden=6, heads=2), decoder=LinearDecoder()),
}


@pytest.mark.meet(1)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ZOO)
def test_every_model_trains_as_with_a_second_module_for_the_frozen_one(name: str, is_sparse: bool) -> None:
    """Buffers of the frozen one too are those that were received; its layers draw nothing."""
    data = toy_graph(20, num_features=30, sparse=True)
    data = data if is_sparse else replace(data, x=data.x.to_dense())
    client, params = wise_client(data, model=ZOO[name])
    algorithm = FGSSL(local_steps=3, optimizer=SGD(lr=0.02), max_contrast=7)
    second = copy.deepcopy(client.model)
    load_params(second, params)
    prepared = client.prepared
    train, labels = prepared.index["train"], prepared.labels["train"]
    edges = prepared.graph.operator("sum")

    def loss(model: Any, batch: NodeBatch, generator: torch.Generator) -> Tensor:
        total = client.task.loss(model, batch, generator)
        strong = algorithm.strong.view(batch.graph, generator)
        h = model.embed(strong, generator)
        weak = algorithm.weak.view(batch.graph, generator)
        g = second.embed(weak, None).detach()
        drawn = torch.randperm(len(train), generator=generator)[:7]
        total = total + 3.0 * node_contrast(h[train], g[train], labels, 0.1, sample=drawn)
        z = model.classify(strong, h, generator)
        return total + structure_divergence(z, second.classify(weak, g, None), edges, 5.0).mean()

    wanted = client.fit(params, steps=3, optimizer=algorithm.optimizer, loss=loss).params
    found = trained(algorithm, client, params)
    assert_close(found, wanted, 1e-6)
    assert gap(found, params) > 1e-4
    assert_equal(read_params(second), params)


# ---- how many nodes are contrasted with


def test_a_client_with_no_more_training_nodes_contrasts_with_all_and_draws_nothing() -> None:
    client, params = wise_client()
    number = client.num_examples
    base = FGSSL(local_steps=2, optimizer=SGD(lr=0.05))
    whole = trained(base, client, params)
    for max_contrast in (number, number + 1):
        assert_equal(trained(replace(base, max_contrast=max_contrast), client, params), whole)
    assert gap(trained(replace(base, max_contrast=number - 1), client, params), whole) > 1e-6


def test_every_step_contrasts_with_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def watched(h: Tensor, g: Tensor, labels: Tensor, tau: float, *, sample: Tensor) -> Tensor:
        seen.append(sample.tolist())
        assert len(h) == len(g) == len(labels) == 24 and tau == 0.25
        return node_contrast(h, g, labels, tau, sample=sample)

    monkeypatch.setattr("isthmus.algorithms.fgssl.node_contrast", watched)
    client, params = wise_client(toy_graph())
    trained(FGSSL(local_steps=4, max_contrast=6, tau=0.25), client, params)
    assert [len(set(drawn)) for drawn in seen] == [6] * 4
    assert len({tuple(sorted(drawn)) for drawn in seen}) == 4
    assert all(0 <= node < 24 for drawn in seen for node in drawn)


# ---- odd clients


def with_training(data: Graph, nodes: list[int]) -> Graph:
    train = torch.zeros(data.num_nodes, dtype=torch.bool)
    train[nodes] = True
    return data.with_masks({**{name: mask & ~train for name, mask in data.masks.items()}, "train": train})


def test_a_client_with_one_class_learns_without_the_contrast() -> None:
    data = odd_graph()
    data = replace(data, y=torch.where(data.y >= 0, 1, -1))
    client, params = wise_client(data)
    with_it, without = (
        trained(FGSSL(lambda_c=size, local_steps=3, optimizer=SGD(lr=0.1)), client, params) for size in (3.0, 1e-12)
    )
    assert_close(with_it, without, 1e-6)
    assert gap(with_it, params) > 1e-3


def test_a_client_with_one_training_node_learns_without_the_contrast() -> None:
    client, params = wise_client(with_training(odd_graph(), [0]))
    assert client.num_examples == 1
    algorithm = FGSSL(local_steps=3, optimizer=SGD(lr=0.1))
    found = trained(algorithm, client, params)
    assert_close(found, trained(replace(algorithm, lambda_c=1e-12), client, params), 1e-6)
    wanted, _ = reference.descended(client.data, params, algorithm, client.generator("fit"), steps=3, lr=0.1)
    assert_close(found, wanted, 2e-5)


@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_a_client_without_edges_learns_without_the_distillation(model: str) -> None:
    data = replace(odd_graph(), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    client, params = wise_client(data, model=ZOO[model])
    algorithm = FGSSL(local_steps=3, optimizer=SGD(lr=0.02))
    found = trained(algorithm, client, params)
    assert_close(found, trained(replace(algorithm, lambda_d=1e-12), client, params), 1e-6)
    assert gap(found, params) > 1e-4


def test_a_client_without_training_nodes_gives_back_what_it_got_with_no_weight() -> None:
    client, params = wise_client(with_training(odd_graph(), []))
    reply = FGSSL().train(TrainModel(params), client)
    assert reply.weight == 0.0
    assert_equal(reply.params, params)


@pytest.mark.parametrize("tau", [0.01, 100.0])
@pytest.mark.parametrize("omega", [0.01, 100.0])
def test_extreme_temperatures_train_to_finite_numbers(tau: float, omega: float) -> None:
    client, params = wise_client()
    found = trained(FGSSL(tau=tau, omega=omega, local_steps=4, optimizer=SGD(lr=0.01)), client, params)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.values())


def test_a_client_of_one_node_trains() -> None:
    data = toy_graph(1)
    client, params = wise_client(data)
    assert gap(trained(FGSSL(local_steps=2), client, params), params) > 1e-4


def test_a_node_without_features_and_edges_does_not_throw_a_fresh_model_with_a_decoder_off() -> None:
    """Its representation is the bias of the last graph layer, which a fresh model has at 0."""
    data = toy_graph(16)
    x = data.x.clone()
    x[0] = 0.0
    edges = data.edge_index[:, (data.edge_index != 0).all(dim=0)]
    spec = ModelSpec(GCN(hidden=5, dropout=0.0), decoder=LinearDecoder())
    client = toy_client(replace(data, x=x, edge_index=edges), model=spec)
    params = read_params(client.model)
    assert bool(client.data.mask("train")[0]) and not params["gnn.layers.1.bias"].any()
    assert gap(trained(FGSSL(local_steps=1, optimizer=SGD(lr=0.1)), client, params), params) < 10.0


def test_a_short_course_of_a_model_with_a_decoder_stays_in_bounds() -> None:
    scenario = toy_scenario(5, num_nodes=60, client_without_training=True, client_without_edges=True)
    course = toy_course(FGSSL(optimizer=SGD(lr=0.01)), model=ZOO["encoder and decoder"], num_clients=5)
    trace = trace_course(course, scenario)
    params = trace.standings[trace.last].state.params  # type: ignore[attr-defined]
    assert max(float(tensor.abs().max()) for tensor in params.values()) < 100.0


# ---- what it cannot do


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lambda_c": -0.1}, r"lambda_c is -0.1; it must be at least 0"),
        ({"lambda_d": -1.0}, r"lambda_d is -1.0; it must be at least 0"),
        ({"lambda_c": float("inf")}, r"lambda_c is inf"),
        ({"lambda_d": float("nan")}, r"lambda_d is nan"),
        ({"tau": 0.0}, r"tau is 0.0; a temperature is above 0"),
        ({"tau": -1.0}, r"tau is -1.0; a temperature is above 0"),
        ({"omega": 0.0}, r"omega is 0.0; a temperature is above 0"),
        ({"omega": float("inf")}, r"omega is inf; a temperature is above 0"),
        ({"tau": float("nan")}, r"tau is nan; a temperature is above 0"),
        ({"max_contrast": 0}, r"max_contrast is 0; it must be at least 1"),
        ({"local_steps": 0}, r"local_steps is 0"),
        ({"weighting": "size"}, r"weighting is 'size'"),
        ({"step_unit": "day"}, r"step_unit is 'day'"),
    ],
    ids=str,
)
def test_fields_outside_their_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FGSSL(**fields)


class Smoothed(NodeClassification):
    pass


class OwnModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 3))

    def forward(self, graph: GraphInput, generator: Any) -> Tensor:
        return graph.features_times(self.weight)


@pytest.mark.parametrize("fields", [{}, {"lambda_c": 0.0}, {"lambda_d": 0.0}], ids=str)
def test_other_tasks_batches_and_models_are_refused(fields: dict[str, float]) -> None:
    request = TrainModel(read_params(toy_client().model))
    sampled = toy_client(batching=NeighborBatch(8, (2, 2)))
    with pytest.raises(BadInput, match=r"batching is NeighborBatch\(.*use full batches \(batching.name=full\)"):
        FGSSL(**fields).train(request, sampled)
    other = toy_client()
    other.task = Smoothed()
    with pytest.raises(BadInput, match="FGSSL contrasts classes of nodes; the task is Smoothed"):
        FGSSL(**fields).train(request, other)
    own = toy_client()
    own.model = OwnModule()
    with pytest.raises(BadInput, match=r"needs a model in two pieces.*OwnModule is none"):
        FGSSL(**fields).train(TrainModel(read_params(own.model)), own)
    assert isinstance(toy_client().model, Model)


def test_a_client_among_others_is_refused_too_and_the_others_train_together() -> None:
    sampled = toy_client(id="sampled", batching=NeighborBatch(8, (2, 2)))
    clients = [toy_client(id="a"), sampled, toy_client(id="b")]
    runtime = StackedRuntime(FGSSL(), clients, lambda chosen: ([GraphCohort(chosen)], []))  # type: ignore[arg-type]
    request = TrainModel(read_params(clients[0].model))
    outcomes = runtime.exchange(Position(0, 1, 0), {client.id: request for client in clients}, None)
    replies = {outcome.client: outcome.reply for outcome in outcomes if isinstance(outcome, Outcome)}
    refused = replies["sampled"]
    assert isinstance(refused, Failure) and "batching is NeighborBatch" in refused.reason
    assert isinstance(replies["a"], ModelUpdate) and isinstance(replies["b"], ModelUpdate)
    assert runtime.pausing.together == {"Fit": 2} and not runtime.notes


def test_without_both_terms_nothing_is_refused() -> None:
    client = toy_client(batching=NeighborBatch(8, (2, 2)))
    FGSSL(lambda_c=0.0, lambda_d=0.0).train(TrainModel(read_params(client.model)), client)


# ---- many clients

SLOW = SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)  # at larger rates a relu that flips by rounding shows


def clients_of(spec: ModelSpec, is_sparse: bool, **odd: bool) -> list[GraphClient]:
    """Ragged clients that share a module, those with training nodes."""
    scenario = toy_scenario(5, num_nodes=60, sparse=is_sparse, **odd)
    clients = [toy_client(part, id=name, model=spec) for name, part in scenario.parts.items()]
    for client in clients:
        client.model = clients[0].model
        client.position = Position(seed=4, round=2, exchange=1)
    return [client for client in clients if client.num_examples]


@pytest.mark.meet(1)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ZOO)
def test_clients_that_answer_together_give_what_they_would_give_alone(name: str, is_sparse: bool) -> None:
    odd = {"client_without_training": True, "client_with_one_training_node": True, "client_without_edges": True}
    clients = clients_of(ZOO[name], is_sparse, **odd)
    assert len(clients) == 4
    request = TrainModel(_with_noise(read_params(clients[0].model)))
    algorithm = FGSSL(optimizer=SLOW, local_steps=3, max_contrast=4, lambda_d=4.0)
    together = side_by_side(algorithm.train, [request] * 4, GraphCohort(clients))
    for found, client in zip(together, clients, strict=True):
        alone = algorithm.train(request, client)
        assert isinstance(found, ModelUpdate) and found.weight == alone.weight
        assert_close(found.params, alone.params, 1e-4)


STACKED_FIELDS = {name: fields for name, fields in FIELDS.items() if name != "defaults"}


@pytest.mark.meet(1)
@pytest.mark.parametrize("optimizer", [SLOW, SGD(lr=0.02), Adam(lr=0.003)], ids=["momentum", "sgd", "adam"])
@pytest.mark.parametrize("name", STACKED_FIELDS)
def test_every_field_counts_together_as_it_does_alone(name: str, optimizer: Any) -> None:
    algorithm = FGSSL(optimizer=optimizer, local_steps=3, **FIELDS[name])
    scenario = toy_scenario(4, num_nodes=50, sparse=name in ("contrast with few", "columns only", "edges only"))
    course = toy_course(algorithm, rounds=1, num_clients=4)
    loop, auto = (trace_course(replace(course, runtime=runtime), scenario) for runtime in ("loop", "auto"))
    assert "TrainModel" in auto.together and not auto.notes
    require_close(loop.values(), auto.values(), name)


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_clients_that_received_models_of_their_own_are_each_held_to_theirs(is_sparse: bool) -> None:
    clients = clients_of(ModelSpec(GCN(hidden=5)), is_sparse)
    start = read_params(clients[0].model)
    requests = [TrainModel(other_than(start, seed)) for seed in range(5)]
    algorithm = FGSSL(optimizer=SLOW, max_contrast=5)
    alone = [algorithm.train(request, client) for request, client in zip(requests, clients, strict=True)]
    together = side_by_side(algorithm.train, requests, GraphCohort(clients))
    shared = side_by_side(algorithm.train, [requests[0]] * 5, GraphCohort(clients))
    for found, expected in zip([*together, shared[0]], [*alone, alone[0]], strict=True):
        assert isinstance(found, ModelUpdate) and found.weight == expected.weight
        assert_close(found.params, expected.params, 1e-4)
    assert isinstance(shared[1], ModelUpdate) and gap(shared[1].params, alone[1].params) > 1e-2


class Half(FGSSL):
    """Goes half of the way."""

    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        update = super().train(request, client)
        return replace(update, params=client.combined((0.5, update.params), (0.5, request.params)))


class Louder(FGSSL):
    """Has a loss that is known for one client alone."""

    def loss(self, frozen: Params, client: GraphClient) -> Any:
        parents = super().loss(frozen, client)
        assert parents is not None
        return lambda model, batch, generator: 2 * parents(model, batch, generator)


@pytest.mark.parametrize("kind", [Half, Louder])
def test_a_subclass_with_another_handler_or_loss_is_not_trained_as_its_parent(kind: type[FGSSL]) -> None:
    clients = clients_of(ModelSpec(GCN(hidden=5)), False)
    request = TrainModel(read_params(clients[0].model))
    algorithm, parent = kind(optimizer=SLOW), FGSSL(optimizer=SLOW)
    replies, pausing = watched(algorithm.train, [request] * 5, GraphCohort(clients))
    for found, client in zip(replies, clients, strict=True):
        assert_close(found.params, algorithm.train(request, client).params, 1e-4)
        assert gap(found.params, parent.train(request, client).params) > 1e-3
    if kind is Half:
        assert pausing.together == {"Fit": 5, "Combine": 5} and not pausing.reasons
    else:
        assert not pausing.together and "its loss is a function for one client" in pausing.reasons["Fit"]


# ---- the rules of all algorithms


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        FGSSL(optimizer=SLOW, lambda_d=0.0, max_contrast=3, weighting="nodes", local_steps=2),
        FGSSL(optimizer=SLOW, lambda_c=0.0, strong=NO_VIEW, local_steps=2),
    ],
    ids=["contrast", "distillation"],
)
def test_configurations_pass_the_checks_of_all_algorithms(algorithm: FGSSL) -> None:
    check_algorithm(algorithm)


@pytest.mark.meet(1)
@pytest.mark.parametrize("check", ["stacked_equals_loop", "another_seed", "idle_client"])
@pytest.mark.parametrize(
    "algorithm",
    [
        FGSSL(optimizer=SGD(lr=0.02), strong=NO_VIEW, weak=NO_VIEW, tau=1.0, omega=0.5, local_steps=1),
        FGSSL(lambda_c=0.0, lambda_d=0.0, local_steps=2),
    ],
    ids=["no views", "neither"],
)
def test_simpler_configurations_pass_what_could_fail_them(algorithm: FGSSL, check: str) -> None:
    CHECKS[check](algorithm, toy_course(algorithm, rounds=2))


def test_without_both_terms_it_is_fedavg_alone_and_together() -> None:
    client, params = wise_client(model=ModelSpec(GCN(hidden=5, dropout=0.5)))
    algorithm = FGSSL(lambda_c=0.0, lambda_d=0.0)
    plain = FedAvg(optimizer=algorithm.optimizer).train(TrainModel(params), client)
    assert_equal(algorithm.train(TrainModel(params), client).params, plain.params)
    assert algorithm.loss(params, client) is None
    clients = clients_of(ModelSpec(GCN(hidden=5, dropout=0.5)), False)
    requests = [TrainModel(read_params(clients[0].model))] * 5
    plain_ones = side_by_side(FedAvg(optimizer=algorithm.optimizer).train, requests, GraphCohort(clients))
    for found, other in zip(side_by_side(algorithm.train, requests, GraphCohort(clients)), plain_ones, strict=True):
        assert_equal(found.params, other.params)
