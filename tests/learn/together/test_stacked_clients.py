"""What clients do together is what each would do alone: training, optimiser states, losses, evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isthmus.algorithms import FedAvg, FedProx, Local
from isthmus.core.client import NotTogether
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Position
from isthmus.core.random import seeded
from isthmus.core.record import Params, leaves
from isthmus.data.graph import Graph
from isthmus.learn.batching import FullBatch
from isthmus.learn.graph_client import Fitted, GraphClient, score_on_local_graphs
from isthmus.learn.metrics.classification import CLASSIFICATION
from isthmus.learn.optimizers import SGD, Adam, AdamW, Optimizer, StepDecay, load_params, read_params
from isthmus.learn.tasks import NodeClassification
from isthmus.learn.tasks.node_classification import PreparedNodes
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.blocks import Blocks
from isthmus.learn.together.layouts import CompactRows, FullRows, Plain, Span, replaced
from isthmus.learn.together.stacked_clients import GraphCohort, Together
from isthmus.models import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GPRGNN,
    MLP,
    SAGE,
    SGC,
    BiasFreeGAT,
    BiasFreeSAGE,
    LinearDecoder,
    LinearEncoder,
    MLPDecoder,
    MLPEncoder,
    ModelSpec,
)
from isthmus.models.dropout import Streams
from isthmus.models.parts import BatchNorm
from isthmus.models.products.sparse import SparseMatrix
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course
from isthmus.testing.toys import toy_graph, toy_scenario
from isthmus.testing.traces import require_close, trace_course

FEATURES, CLASSES = 20, 3
NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)


# ---- clients


def graphs(is_sparse: bool, weighted: bool) -> list[Graph]:
    """Return ragged graphs: one with a single training node, one of one node, one without edges, an ordinary pair."""
    options = {"num_features": FEATURES, "num_classes": CLASSES, "sparse": is_sparse}
    found = [toy_graph(size, seed=seed, weighted=weighted, **options) for seed, size in enumerate((14, 9, 6, 1, 11))]
    # Small features, so that steps are small too and do not blow rounding up.
    found = [replace(graph, x=0.3 * graph.x) for graph in found]
    train = found[1].mask("train").clone()
    train[train.nonzero().flatten()[1:]] = False
    found[1] = found[1].with_masks({**found[1].masks, "train": train})
    found[2] = replace(found[2], edge_index=NO_EDGES, edge_weight=torch.zeros(0) if weighted else None)
    if weighted:
        found[4] = replace(found[4], edge_weight=None)  # one without weights among those with
    assert [int(graph.mask("train").sum()) > 0 for graph in found] == [True] * 5
    return found


def clients_of(
    spec: Any, is_sparse: bool = False, weighted: bool = False, task: NodeClassification | None = None, round: int = 3
) -> list[GraphClient]:
    with seeded(0, "model"):
        model = spec.build(FEATURES, CLASSES)
    task = task or NodeClassification()
    clients = [
        GraphClient(f"client-{k}", graph, task, model, FullBatch())
        for k, graph in enumerate(graphs(is_sparse, weighted))
    ]
    for client in clients:
        client.position = Position(seed=5, round=round, exchange=1)
    return clients


def start_of(clients: Sequence[GraphClient], seed: int) -> Params:
    """Return parameters that all matter: biases that are not zero, running statistics that are not those of nothing."""
    draw = torch.Generator().manual_seed(seed)
    params = {}
    for name, tensor in read_params(clients[0].model).items():
        noise = torch.randn(tensor.shape, generator=draw)
        params[name] = tensor + (noise.abs() if "running_var" in name else 0.3 * noise)
    return params


def close(found: Any, expected: Any, tolerance: float = 3e-5) -> None:
    left, right = leaves(found), leaves(expected)
    assert left.keys() == right.keys()
    for path, value in right.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(
                left[path], value, rtol=tolerance, atol=tolerance, msg=lambda m, path=path: f"{path}: {m}"
            )
        elif isinstance(value, float):
            assert left[path] == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), path
        else:
            assert left[path] == value, path


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(lr=0.2, weight_decay=0.01),
    "momentum": SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": Adam(lr=0.02, eps=1e-3, weight_decay=0.01),
    "adamw": AdamW(lr=0.02, eps=1e-3),
}
STEPS = 3


def fit_alone(
    clients: Sequence[GraphClient],
    starts: Sequence[Params],
    optimizer: Optimizer,
    states: Sequence[Any],
    mu: float = 0.0,
) -> list[Fitted]:
    found = []
    for client, start, state in zip(clients, starts, states, strict=True):

        def pull(live: Mapping[str, Tensor], start: Params = start) -> Tensor:
            return sum(0.5 * mu * (tensor - start[name]).square().sum() for name, tensor in live.items())  # type: ignore[return-value]

        found.append(
            client.fit(start, steps=STEPS, optimizer=optimizer, penalty=pull if mu else None, optimizer_state=state)
        )
    return found


def check_fit(clients: list[GraphClient], optimizer: Optimizer, starts: str, mu: float = 0.0) -> None:
    """Compare training together with training alone, from one start, from own ones, or going on twice."""
    cohort = GraphCohort(clients)
    # A bias before a batch norm has no gradient but rounding, which Adam blows up.
    normed = isinstance(optimizer, Adam) and any(isinstance(part, BatchNorm) for part in clients[0].model.modules())
    tolerance = 2e-4 if normed else 3e-5
    if starts == "shared":
        start = start_of(clients, 1)
        before = {name: tensor.clone() for name, tensor in start.items()}
        alone = fit_alone(clients, [start] * len(clients), optimizer, [None] * len(clients), mu)
        together = cohort.fit(start, steps=STEPS, optimizer=optimizer, proximal=mu, pulled=start)
        assert all(torch.equal(tensor, before[name]) for name, tensor in start.items())
        compare(together, alone, tolerance)
        close(together.optimizer_states, tuple(fitted.optimizer_state for fitted in alone), tolerance)
        return
    own = [start_of(clients, k) for k in range(len(clients))]
    states: list[Any] = [None] * len(clients)
    for _ in range(2 if starts == "carried" else 1):
        alone = fit_alone(clients, own, optimizer, states, mu)
        kept = states if starts == "carried" else None
        together = cohort.fit(own, steps=STEPS, optimizer=optimizer, proximal=mu, pulled=own[0], optimizer_states=kept)
        compare(together, alone, tolerance)
        if starts == "carried":
            close(together.optimizer_states, tuple(fitted.optimizer_state for fitted in alone), tolerance)
            # Each goes on from what it had alone, so that differences cannot add up.
            own, states = [fitted.params for fitted in alone], [fitted.optimizer_state for fitted in alone]


def compare(together: Any, alone: Sequence[Fitted], tolerance: float = 3e-5) -> None:
    assert together.steps == STEPS
    close(tuple(together.losses.tolist()), tuple(fitted.loss for fitted in alone), tolerance)
    for k, fitted in enumerate(alone):
        close(together.member(k), fitted.params, tolerance)
        assert fitted.steps == STEPS


# ---- training

ZOO: dict[str, ModelSpec] = {
    "mlp": ModelSpec(MLP(hidden=6)),
    "gcn": ModelSpec(GCN(hidden=6)),
    "sage": ModelSpec(SAGE(hidden=6, dropout=0.3)),
    "gat": ModelSpec(GAT(hidden=6, heads=2, last_heads=2)),
    "gin": ModelSpec(GIN(hidden=6, train_eps=True)),
    "gprgnn": ModelSpec(GPRGNN(hidden=6, hops=4)),
    "gprgnn with every dropout": ModelSpec(GPRGNN(hidden=6, hops=4, input_dropout=0.5, propagation_dropout=0.5)),
    "bias_free_gat": ModelSpec(BiasFreeGAT(hidden=6, heads=2)),
    "bias_free_sage": ModelSpec(BiasFreeSAGE(hidden=6)),
    "appnp": ModelSpec(APPNP(hidden=6, hops=4)),
    "sgc": ModelSpec(SGC()),
}
VARIANTS: dict[str, ModelSpec] = {
    "batch norm": ModelSpec(GCN(hidden=6, layers=3, batch_norm=True)),
    "gat with batch norm": ModelSpec(GAT(hidden=6, heads=3, batch_norm=True)),
    "input dropout": ModelSpec(GCN(hidden=6, input_dropout=0.3)),
    "sgc with input dropout": ModelSpec(SGC(input_dropout=0.5)),
    "one layer": ModelSpec(SAGE(layers=1)),
    "a layer that widens": ModelSpec(GCN(hidden=30, layers=3, dropout=1 / 1024)),
    "gin with eps fixed": ModelSpec(GIN(hidden=6)),
    "gin with norms in its perceptrons": ModelSpec(GIN(hidden=6, mlp_norm=True)),
    "encoder": ModelSpec(GCN(hidden=6, input_dropout=0.25), encoder=LinearEncoder(dim=5)),
    "encoder and decoder": ModelSpec(
        GIN(hidden=6, batch_norm=True),
        encoder=MLPEncoder(dim=5, dropout=0.5),
        decoder=MLPDecoder(hidden=4, dropout=0.3),
    ),
    "sgc with decoder": ModelSpec(SGC(hidden=5), decoder=LinearDecoder()),
}


@pytest.mark.meet(2)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("starts", ["shared", "own", "carried"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ZOO)
def test_training_together_is_training_alone(name: str, optimizer: str, starts: str, is_sparse: bool) -> None:
    check_fit(clients_of(ZOO[name], is_sparse), OPTIMIZERS[optimizer], starts)


@pytest.mark.meet(2)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("starts", ["shared", "carried"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", VARIANTS)
def test_other_models_train_together_as_they_do_alone(name: str, optimizer: str, starts: str, is_sparse: bool) -> None:
    check_fit(clients_of(VARIANTS[name], is_sparse), OPTIMIZERS[optimizer], starts)


@pytest.mark.meet(1)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat", "appnp"])
def test_weights_of_edges_count_at_their_client(name: str, is_sparse: bool) -> None:
    check_fit(clients_of(ZOO[name], is_sparse, weighted=True), OPTIMIZERS["sgd"], "shared")


@pytest.mark.meet(2)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("starts", ["shared", "own"])
def test_a_pull_to_the_start_is_the_proximal_penalty(starts: str, optimizer: str, is_sparse: bool) -> None:
    clients = clients_of(VARIANTS["batch norm"] if optimizer == "sgd" else ZOO["sage"], is_sparse)
    check_fit(clients, OPTIMIZERS[optimizer], starts, mu=0.7)


@pytest.mark.meet(2)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_drift_is_a_constant_part_of_each_clients_gradient(shared: bool, optimizer: str, is_sparse: bool) -> None:
    clients = clients_of(ZOO["sage"], is_sparse)
    own = [start_of(clients, 1 if shared else k) for k in range(5)]
    trained = [name for name, _ in clients[0].model.named_parameters()]
    drifts = [{name: 0.1 * tensor for name, tensor in start_of(clients, 50 + k).items()} for k in range(5)]
    alone = []
    for client, start, drift in zip(clients, own, drifts, strict=True):
        pull = lambda live, drift=drift: sum((live[name] * drift[name]).sum() for name in trained)  # noqa: E731
        alone.append(client.fit(start, steps=STEPS, optimizer=OPTIMIZERS[optimizer], penalty=pull))
    params = own[0] if shared else own
    each = {name: [drift[name] for drift in drifts] for name in drifts[0]}
    together = GraphCohort(clients).fit(params, steps=STEPS, optimizer=OPTIMIZERS[optimizer], drifts=each)
    compare(together, alone)


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_a_loss_of_ones_own_takes_the_place_of_the_tasks(is_sparse: bool) -> None:
    smoothing = 0.4

    def one(model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        logits = model(batch.graph, generator)[batch.index]
        return nn.functional.cross_entropy(logits, batch.labels, label_smoothing=smoothing)

    def many(model: nn.Module, data: Any, streams: Any, frozen: Any) -> Tensor:
        each = nn.functional.cross_entropy(
            model(data.graph, streams), data.target, reduction="none", label_smoothing=smoothing
        )
        return each.view(5, -1).sum(dim=1) / torch.tensor(data.splits["train"][2])

    clients = clients_of(ZOO["gcn"], is_sparse)
    start, sgd = start_of(clients, 1), OPTIMIZERS["sgd"]
    alone = [client.fit(start, steps=STEPS, optimizer=sgd, loss=one) for client in clients]
    compare(GraphCohort(clients).fit(start, steps=STEPS, optimizer=sgd, loss=many), alone)
    plain = clients[0].fit(start, steps=STEPS, optimizer=sgd)
    assert plain.loss != pytest.approx(alone[0].loss, rel=1e-3)


def test_the_learning_rate_follows_the_schedule_of_the_round() -> None:
    schedule = StepDecay(every=2, gamma=0.1)
    clients = clients_of(ZOO["gcn"], round=4)
    check_fit(clients, SGD(lr=0.3, schedule=schedule), "shared")
    slow = GraphCohort(clients).fit(start_of(clients, 1), steps=1, optimizer=SGD(lr=0.3, schedule=schedule))
    fast = GraphCohort(clients).fit(start_of(clients, 1), steps=1, optimizer=SGD(lr=0.3))
    moved = [fit.member(0)["gnn.layers.0.bias"] - start_of(clients, 1)["gnn.layers.0.bias"] for fit in (slow, fast)]
    torch.testing.assert_close(moved[0], 0.1 * moved[1], rtol=1e-4, atol=1e-7)


def test_the_random_streams_are_those_of_each_client_at_its_place() -> None:
    clients = clients_of(ZOO["gcn"])
    start = start_of(clients, 1)
    first = GraphCohort(clients).fit(start, steps=2, optimizer=SGD(lr=0.1))
    again = GraphCohort(clients).fit(start, steps=2, optimizer=SGD(lr=0.1))
    for client in clients:
        client.position = Position(seed=6, round=3, exchange=1)
    other = GraphCohort(clients).fit(start, steps=2, optimizer=SGD(lr=0.1))
    for k in range(4):
        assert all(torch.equal(t, again.member(k)[n]) for n, t in first.member(k).items())
    assert not torch.equal(first.member(0)["gnn.layers.0.weight"], other.member(0)["gnn.layers.0.weight"])


def test_the_company_does_not_matter_to_a_client() -> None:
    clients = clients_of(VARIANTS["encoder and decoder"], is_sparse=True)
    start = start_of(clients, 1)
    all_of_them = GraphCohort(clients).fit(start, steps=3, optimizer=SGD(lr=0.2))
    some = GraphCohort([clients[4], clients[1]]).fit(start, steps=3, optimizer=SGD(lr=0.2))
    close(some.member(0), all_of_them.member(4))
    close(some.member(1), all_of_them.member(1))


def test_the_model_itself_is_left_as_it_was_also_after_an_error() -> None:
    clients = clients_of(VARIANTS["batch norm"])
    cohort = GraphCohort(clients)
    before = read_params(clients[0].model)
    cohort.fit(start_of(clients, 1), steps=1, optimizer=SGD(lr=0.1))
    bad = {**start_of(clients, 1), "gnn.layers.1.weight": torch.zeros(6, 4)}
    with pytest.raises(BadInput, match="another shape"):
        cohort.fit(bad, steps=1, optimizer=SGD(lr=0.1))
    with pytest.raises(BadInput, match="do not belong"):
        cohort.fit({"w": torch.zeros(1)}, steps=1, optimizer=SGD(lr=0.1))
    with pytest.raises(BadInput, match="another shape"):
        cohort.fit([start_of(clients, 1)] * 4 + [bad], steps=1, optimizer=SGD(lr=0.1))
    after = read_params(clients[0].model)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any("weight" in module.__dict__ for module in clients[0].model.modules())


def test_what_a_handler_draws_twice_is_drawn_once_and_another_round_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = clients_of(ModelSpec(GCN(hidden=8, dropout=0.5)))
    cohort, start = GraphCohort(clients), start_of(clients, 1)
    drawn: list[int] = []
    fill = Streams._fill

    def watched(streams: Streams, parts: Sequence[Tensor]) -> None:
        drawn.append(client.position.round)
        fill(streams, parts)

    monkeypatch.setattr(Streams, "_fill", watched)
    for number in (3, 3, 4):
        for client in clients:
            client.position = Position(seed=5, round=number, exchange=1)
        found = cohort.fit(start, steps=3, optimizer=SGD(lr=0.2))
        for k, client in enumerate(clients):
            close(found.member(k), client.fit(start, steps=3, optimizer=SGD(lr=0.2)).params)
    assert drawn == [3, 4]


# ---- which layout


def test_weights_of_sparse_features_are_held_in_the_cheapest_way_that_is_exact() -> None:
    spec = ZOO["sage"]
    cohort = GraphCohort(clients_of(spec, is_sparse=True))
    cohort._features.span_pays = True  # type: ignore[union-attr]
    states: list[Any] = [{"step": 1}] * 5

    def kind(
        optimizer: Optimizer, shared: bool, kept: bool, alters_features: bool = False, drifts: Any = (), **more: Any
    ) -> type:
        asked = Together(steps=1, optimizer=optimizer, drifts=dict(drifts), alters_features=alters_features, **more)
        slots = cohort.model.state_dict()
        starts = {name: slot if shared else [slot] * 5 for name, slot in slots.items()}
        layouts, x = cohort._layouts(cohort.data, starts, states if kept else None, asked)
        kinds = {name: type(layout) for name, layout in layouts.items()}
        (found,) = {kinds.pop(f"gnn.layers.0.{name}") for name in ("neighbor_weight", "own_weight")}
        assert set(kinds.values()) == {Plain}
        assert x is layouts["gnn.layers.0.own_weight"].x  # type: ignore[attr-defined]
        return found

    sgd, momentum, adam = OPTIMIZERS["sgd"], OPTIMIZERS["momentum"], OPTIMIZERS["adam"]
    assert [kind(sgd, shared, kept) for shared in (True, False) for kept in (True, False)] == [Span] * 4
    assert [kind(momentum, shared, False) for shared in (True, False)] == [Span, Span]
    assert [kind(momentum, shared, True) for shared in (True, False)] == [FullRows, FullRows]
    # The span of the features as they are does not hold what other features teach.
    assert [kind(sgd, shared, False, True) for shared in (True, False)] == [CompactRows, FullRows]
    assert [kind(momentum, shared, False, True) for shared in (True, False)] == [CompactRows, FullRows]
    # A drift is one more origin of the span; any other function of the weights may look at each of them.
    drift = {"gnn.layers.0.own_weight": torch.zeros(FEATURES, 6)}
    own = {"gnn.layers.0.own_weight": [torch.zeros(FEATURES, 6)] * 5}
    assert [kind(sgd, True, False, drifts=each) for each in (drift, own)] == [Span, Span]
    # Rows that no data touches move alike unless a drift is each client's own.
    assert [kind(adam, True, False, drifts=each) for each in (drift, own)] == [CompactRows, FullRows]
    assert kind(sgd, True, False, penalties=[lambda live: torch.zeros(())] * 5) is FullRows
    assert [kind(adam, True, False), kind(adam, True, True), kind(adam, False, False)] == [
        CompactRows,
        FullRows,
        FullRows,
    ]
    cohort._features.span_pays = False  # type: ignore[union-attr]
    assert [kind(sgd, True, False), kind(sgd, False, False), kind(sgd, True, True)] == [
        CompactRows,
        FullRows,
        CompactRows,
    ]
    plain = GraphCohort(clients_of(spec))
    dense, x = plain._layouts(plain.data, plain.model.state_dict(), None, Together(steps=1, optimizer=sgd))
    assert {type(layout) for layout in dense.values()} == {Plain} and isinstance(x, Tensor)


@pytest.mark.meet(2)
@pytest.mark.parametrize("pays", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("starts", ["shared", "own"])
def test_both_ways_to_hold_the_weights_agree_with_training_alone(starts: str, optimizer: str, pays: bool) -> None:
    clients = clients_of(ZOO["sage"], is_sparse=True)
    cohort = GraphCohort(clients)
    cohort._features.span_pays = pays  # type: ignore[union-attr]
    own = [start_of(clients, 1 if starts == "shared" else k) for k in range(5)]
    alone = fit_alone(clients, own, OPTIMIZERS[optimizer], [None] * 5, mu=0.4)
    params = own[0] if starts == "shared" else own
    together = cohort.fit(params, steps=STEPS, optimizer=OPTIMIZERS[optimizer], proximal=0.4, pulled=own[0])
    compare(together, alone)
    weights = torch.tensor([3.0, 1.0, 0.0, 2.0, 5.0], dtype=torch.float64)
    for name, stacked in together.params.items():
        expected = sum(float(w) * fitted.params[name].double() for w, fitted in zip(weights, alone, strict=True))
        torch.testing.assert_close(stacked.weighted_sum(weights), expected, rtol=1e-4, atol=1e-4)
        assert stacked.finite().tolist() == [True] * 5


# ---- a loss that looks back at the start, or at other features


def far(now: Tensor, then: Tensor) -> Tensor:
    """How far two sets of scores lie apart, within bounds, row by row."""
    return (now.tanh() - 1.5 * then.tanh()).square().mean(dim=-1)


@pytest.mark.meet(2)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("starts", ["shared", "own"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("name", ["gcn", "gat", "batch norm", "encoder and decoder"])
def test_the_frozen_start_is_what_each_client_began_with_at_every_step(
    name: str, optimizer: str, starts: str, is_sparse: bool
) -> None:
    """Each client is pulled to the scores, without dropout, of the model that it got, on features half as large."""
    clients = clients_of({**ZOO, **VARIANTS}[name], is_sparse)
    cohort = GraphCohort(clients)
    own = [start_of(clients, 1 if starts == "shared" else k) for k in range(5)]
    before = [{name: tensor.clone() for name, tensor in start.items()} for start in own]
    sizes = torch.tensor([client.num_nodes for client in clients])
    seen: list[Any] = []

    def one(start: Params, model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        halved = batch.graph.replace(x=_halved(batch.graph.x))
        now = model(halved, generator)
        with torch.no_grad():
            then = torch.func.functional_call(model, start, (halved, None))
        return far(now, then).mean()

    def many(model: nn.Module, data: StackedData, streams: Any, frozen: Any) -> Tensor:
        halved = data.graph.replace(x=_halved(data.graph.x))
        now = model(halved, streams)
        seen.append(frozen())
        with torch.no_grad(), replaced(model, frozen()):
            then = model(halved, None)
        each = far(now, then).view(5, data.rows)
        real = torch.arange(data.rows) < sizes.unsqueeze(1)
        return (each * real).sum(dim=1) / sizes

    alone = [
        client.fit(start, steps=STEPS, optimizer=OPTIMIZERS[optimizer], loss=partial(one, start))
        for client, start in zip(clients, own, strict=True)
    ]
    params = own[0] if starts == "shared" else own
    together = cohort.fit(params, steps=STEPS, optimizer=OPTIMIZERS[optimizer], loss=many, alters_features=True)
    compare(together, alone, 2e-4 if name != "gcn" and optimizer == "adam" else 3e-5)
    assert len(seen) == STEPS and all(each is seen[0] for each in seen)  # made once
    assert not any(isinstance(value, Tensor) and value.requires_grad for value in seen[0].values())
    close(tuple(own), tuple(before), 0.0)


def _halved(x: Any) -> Any:
    return x.with_values(0.5 * x.values) if isinstance(x, SparseMatrix) else 0.5 * x


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_features_that_only_the_loss_sees_are_learnt_from_where_it_is_said(optimizer: str) -> None:
    """Every second entry of the features is another one, so that rows leave the span of the features as they are."""
    clients = clients_of(ZOO["gcn"], is_sparse=True)
    cohort = GraphCohort(clients)
    cohort._features.span_pays = True  # type: ignore[union-attr]
    start = start_of(clients, 1)

    def altered(x: Any) -> Any:
        first = x.pattern.crow[:-1].long().repeat_interleave(x.pattern.crow.diff())
        turn = (torch.arange(x.pattern.nnz) - first) % 2  # counted within a row, whoever's it is
        return x.with_values(torch.where(turn == 0, 2.0 * x.values, 0.0))

    def one(model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        return NodeClassification().loss(
            model, replace(batch, graph=batch.graph.replace(x=altered(batch.graph.x))), generator
        )

    def many(model: nn.Module, data: StackedData, streams: Any, frozen: Any) -> Tensor:
        return NodeClassification().stacked_loss(model, data.with_features(altered(data.graph.x)), streams)

    alone = [client.fit(start, steps=STEPS, optimizer=OPTIMIZERS[optimizer], loss=one) for client in clients]
    together = cohort.fit(start, steps=STEPS, optimizer=OPTIMIZERS[optimizer], loss=many, alters_features=True)
    compare(together, alone)


# ---- optimisers and their states


@dataclass(frozen=True)
class Clipped(SGD):
    """Looks at the whole gradient, so that clients' gradients may not be stacked."""

    def step(self, params: list[Tensor], grads: list[Tensor], state: Any, lr: float) -> None:
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
        super().step(params, [grad / max(norm, 1.0) for grad in grads], state, lr)


def test_an_optimiser_that_is_not_known_to_treat_each_number_by_itself_is_refused() -> None:
    clients = clients_of(ZOO["gcn"])
    with pytest.raises(NotTogether, match=r"Clipped.* is not known to treat every number by itself"):
        GraphCohort(clients).fit(start_of(clients, 0), steps=1, optimizer=Clipped(lr=0.1))


def test_courses_with_such_an_optimiser_are_simulated_one_by_one() -> None:
    scenario = toy_scenario()
    for algorithm in (FedAvg(optimizer=Clipped(lr=0.5)), Local(optimizer=Clipped(lr=0.5))):
        loop, auto = (trace_course(toy_course(algorithm, runtime=runtime), scenario) for runtime in ("loop", "auto"))
        require_close(loop.values(), auto.values(), "clipped steps")
        assert "Clipped" in auto.notes["Fit"] and set(auto.together) == {"EvaluateModel"}


def test_clients_that_begin_and_clients_that_go_on_are_refused() -> None:
    clients = clients_of(ZOO["gcn"])
    start = start_of(clients, 0)
    states = [{"step": 2}, None, {"step": 2}, None, None]
    with pytest.raises(NotTogether, match="some clients begin"):
        GraphCohort(clients).fit([start] * 5, steps=1, optimizer=SGD(lr=0.1), optimizer_states=states)


def test_clients_that_have_taken_different_numbers_of_steps_may_go_on_where_steps_do_not_count() -> None:
    clients = clients_of(ZOO["gcn"], is_sparse=True)
    own = [start_of(clients, k) for k in range(5)]
    for optimizer in (OPTIMIZERS["sgd"], OPTIMIZERS["momentum"], OPTIMIZERS["adam"]):
        states = []
        for k, (client, params) in enumerate(zip(clients, own, strict=True)):
            states.append(client.fit(params, steps=k + 1, optimizer=optimizer).optimizer_state)
        call = lambda: GraphCohort(clients).fit(own, steps=STEPS, optimizer=optimizer, optimizer_states=states)  # noqa: B023, E731
        if isinstance(optimizer, Adam):
            with pytest.raises(NotTogether, match="different numbers of steps"):
                call()
            continue
        alone = fit_alone(clients, own, optimizer, states)
        together = call()
        compare(together, alone)
        close(together.optimizer_states, tuple(fitted.optimizer_state for fitted in alone))
        assert [state["step"] for state in together.optimizer_states] == [k + 1 + STEPS for k in range(5)]


def test_states_that_were_given_are_not_changed() -> None:
    clients = clients_of(ZOO["gcn"])
    own = [start_of(clients, k) for k in range(5)]
    optimizer = OPTIMIZERS["adam"]
    states = [c.fit(p, steps=1, optimizer=optimizer).optimizer_state for c, p in zip(clients, own, strict=True)]
    before = [
        {path: leaf.clone() if isinstance(leaf, Tensor) else leaf for path, leaf in leaves(s).items()} for s in states
    ]
    GraphCohort(clients).fit(own, steps=2, optimizer=optimizer, optimizer_states=states)
    for state, old in zip(states, before, strict=True):
        for path, leaf in leaves(state).items():
            assert torch.equal(leaf, old[path]) if isinstance(leaf, Tensor) else leaf == old[path]


# ---- clients without training examples


def idle_clients(spec: ModelSpec, is_sparse: bool = False) -> list[GraphClient]:
    clients = clients_of(spec, is_sparse)
    for client in clients:
        client.data = client.data.with_masks(
            {**client.data.masks, "train": torch.zeros(client.num_nodes, dtype=torch.bool)}
        )
    return clients


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("shared", [False, True])
def test_clients_without_training_examples_give_their_parameters_back(shared: bool, is_sparse: bool) -> None:
    clients = idle_clients(VARIANTS["batch norm"], is_sparse)
    own = [start_of(clients, 0 if shared else k) for k in range(5)]
    for optimizer in OPTIMIZERS.values():
        together = GraphCohort(clients).fit(own[0] if shared else own, steps=3, optimizer=optimizer)
        alone = [client.fit(params, steps=3, optimizer=optimizer) for client, params in zip(clients, own, strict=True)]
        assert together.steps == 0 and torch.isnan(together.losses).all() and together.losses.shape == (5,)
        for k, fitted in enumerate(alone):
            assert all(torch.equal(tensor, fitted.params[name]) for name, tensor in together.member(k).items())
            assert together.member(k).keys() == fitted.params.keys()
    carried = [{"step": k} for k in range(5)]
    kept = GraphCohort(clients).fit(own, steps=3, optimizer=SGD(lr=0.1), optimizer_states=carried)
    assert list(kept.optimizer_states) == carried


@pytest.mark.parametrize(
    "optimizer",
    [
        "sgd",
        *(name for name in ("momentum", "adam", "adamw")),
    ],
)
def test_clients_without_training_examples_begin_with_the_state_that_they_have_alone(optimizer: str) -> None:
    clients = idle_clients(ZOO["gcn"])
    own = [start_of(clients, k) for k in range(5)]
    alone = fit_idle(clients, own, OPTIMIZERS[optimizer])
    together = GraphCohort(clients).fit(own, steps=3, optimizer=OPTIMIZERS[optimizer], optimizer_states=[None] * 5)
    close(together.optimizer_states, alone)


def fit_idle(clients: Sequence[GraphClient], own: Sequence[Params], optimizer: Optimizer) -> tuple[Any, ...]:
    fits = (client.fit(params, steps=3, optimizer=optimizer) for client, params in zip(clients, own, strict=True))
    return tuple(fitted.optimizer_state for fitted in fits)


def test_clients_none_of_whose_features_is_set_train_together_too() -> None:
    clients = clients_of(ZOO["gcn"], is_sparse=True)
    for client in clients:
        client.data = replace(client.data, x=torch.zeros(client.num_nodes, FEATURES).to_sparse_csr())
    check_fit(clients, OPTIMIZERS["sgd"], "shared")


# ---- parameters that are not free


class Frozen:
    """A model of one's own whose first layer is not trained."""

    def build(self, in_dim: int, out_dim: int) -> nn.Module:
        model = ModelSpec(GCN(hidden=6, dropout=0.0)).build(in_dim, out_dim)
        model.get_submodule("gnn.layers.0").weight.requires_grad_(False)
        return model


class Tied:
    """A model of one's own two layers of which are one."""

    def build(self, in_dim: int, out_dim: int) -> nn.Module:
        model = ModelSpec(MLP(hidden=6, layers=4, dropout=0.0)).build(in_dim, out_dim)
        model.gnn.layers[2].weight = model.gnn.layers[1].weight
        return model


@pytest.mark.parametrize("factory", [Frozen(), Tied()], ids=["frozen", "tied"])
def test_frozen_and_tied_parameters_stay_so_when_clients_train_together(factory: Any) -> None:
    scenario = toy_scenario()
    loop, auto = (
        trace_course(toy_course(FedAvg(optimizer=SGD(lr=0.1)), model=factory, runtime=runtime), scenario)
        for runtime in ("loop", "auto")
    )
    require_close(loop.values(), auto.values(), "parameters that are not free")


# ---- memory


def test_a_model_that_a_client_keeps_does_not_keep_the_others_alive() -> None:
    clients = clients_of(ZOO["gcn"])
    own = [start_of(clients, k) for k in range(5)]
    fitted = GraphCohort(clients).fit(own, steps=1, optimizer=SGD(lr=0.1), optimizer_states=[None] * 5)
    for tensor in fitted.member(0).values():
        assert tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()


# ---- evaluation

SPLITS = ("train", "val", "test")


def evaluated_alone(clients: Sequence[GraphClient], models: Sequence[Params]) -> list[Any]:
    return [client.evaluate(model, SPLITS) for client, model in zip(clients, models, strict=True)]


def check_evaluation(clients: list[GraphClient]) -> list[Any]:
    """Compare evaluating together with evaluating alone, with one model, with own ones, and with equal ones."""
    cohort = GraphCohort(clients)
    own = [start_of(clients, k) for k in range(5)]
    shared = evaluated_alone(clients, own[:1] * 5)
    close(tuple(cohort.evaluate(own[:1] * 5, SPLITS)), tuple(shared))
    close(tuple(cohort.evaluate(own, SPLITS)), tuple(evaluated_alone(clients, own)))
    close(tuple(cohort.evaluate([dict(own[0]) for _ in clients], SPLITS)), tuple(shared))
    return shared


@pytest.mark.meet(1)
@pytest.mark.parametrize(("is_sparse", "weighted"), [(False, True), (True, False)], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", [*ZOO, *VARIANTS])
def test_evaluating_together_is_evaluating_alone(name: str, is_sparse: bool, weighted: bool) -> None:
    check_evaluation(clients_of((ZOO | VARIANTS)[name], is_sparse, weighted))


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_every_metric_is_the_one_that_a_client_has_alone(is_sparse: bool) -> None:
    task = NodeClassification(metrics=tuple(CLASSIFICATION))
    shared = check_evaluation(clients_of(ZOO["gcn"], is_sparse, is_sparse, task))
    assert shared[0][0]["train"].keys() == CLASSIFICATION.keys()
    # The client of one node has nothing to validate on, and some have one class only: metrics are left out there.
    assert shared[3][0]["val"] == {} and shared[3][1]["val"] == 0
    assert "roc_auc" not in shared[1][0]["train"]


def test_evaluation_of_clients_without_any_examples_has_no_metrics() -> None:
    clients = idle_clients(ZOO["gcn"])
    for client in clients:
        client.data = client.data.with_masks({})
    own = [start_of(clients, k) for k in range(5)]
    for models in (own[:1] * 5, own):
        assert GraphCohort(clients).evaluate(models, SPLITS) == evaluated_alone(clients, models)


def test_only_the_splits_that_are_asked_for_are_reported() -> None:
    clients = clients_of(ZOO["gcn"])
    start = start_of(clients, 0)
    for metrics, counts in GraphCohort(clients).evaluate([start] * 5, ("test", "val")):
        assert list(metrics) == list(counts) == ["test", "val"]


def test_evaluation_between_two_trainings_changes_nothing() -> None:
    clients = clients_of(VARIANTS["batch norm"], is_sparse=True)
    cohort, start = GraphCohort(clients), start_of(clients, 1)
    own = [start_of(clients, k) for k in range(5)]
    first = cohort.fit(start, steps=2, optimizer=SGD(lr=0.1))
    cohort.evaluate([start] * 5, SPLITS)
    scores = cohort.evaluate(own, SPLITS)
    again = cohort.fit(start, steps=2, optimizer=SGD(lr=0.1))
    assert all(torch.equal(t, again.member(2)[name]) for name, t in first.member(2).items())
    assert cohort.evaluate(own, SPLITS) == scores


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_scores_on_local_graphs_are_the_same_together(is_sparse: bool) -> None:
    clients = {client.id: client for client in clients_of(ZOO["gcn"], is_sparse)}
    own = {name: start_of([*clients.values()], k) for k, name in enumerate(reversed(clients))}
    task = clients["client-0"].task
    for models in (own, dict.fromkeys(clients, own["client-2"])):
        for split in SPLITS:
            alone = score_on_local_graphs(task, clients, models, split)
            together = score_on_local_graphs(task, clients, models, split, Blocks(2**30))
            close(together, alone)
            assert list(together[1]) == list(alone[1]) == list(models)


def test_models_of_another_shape_are_refused_in_evaluation() -> None:
    clients = clients_of(ZOO["gcn"])
    good = start_of(clients, 0)
    bad = {**good, "gnn.layers.1.bias": torch.zeros(4)}
    with pytest.raises(BadInput, match="another shape"):
        GraphCohort(clients).evaluate([good, good, bad, good, good], SPLITS)
    with pytest.raises(BadInput):
        GraphCohort(clients).evaluate([bad] * 5, SPLITS)


# ---- a task that learns something else


@dataclass(frozen=True)
class Smoothed(NodeClassification):
    """Has another loss, and says nothing of many clients at once."""

    def loss(self, model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        logits: Tensor = model(batch.graph, generator)
        return nn.functional.cross_entropy(logits[batch.index], batch.labels, label_smoothing=0.5)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(mu=0.1), Local()], ids=lambda a: type(a).__name__)
def test_a_task_with_another_loss_is_not_stacked(algorithm: Any) -> None:
    scenario: Scenario = toy_scenario()
    traces = {}
    for task in (NodeClassification(), Smoothed()):
        for runtime in ("loop", "auto"):
            traces[type(task), runtime] = trace_course(toy_course(algorithm, task=task, runtime=runtime), scenario)
    auto = traces[Smoothed, "auto"]
    require_close(traces[Smoothed, "loop"].values(), auto.values(), "smoothed labels")
    assert not auto.together and traces[NodeClassification, "auto"].together
    with pytest.raises(AssertionError):
        require_close(traces[NodeClassification, "loop"].values(), auto.values(), "the other loss")


# ---- other data, and a look at the trained models


def with_other_targets(cohort: GraphCohort) -> StackedData:
    """The clients' data with the labels of training nodes turned to the next class, and a structure in the graph."""
    data = cohort.data
    size = data.graph.num_nodes
    ends = torch.arange(data.sizes[0])  # within the first client only
    structure = SparseMatrix.from_edges(torch.stack([ends, ends.flip(0)]), None, (size, size))
    learned = replace(data.learned, labels=(data.learned.labels + 1) % CLASSES)
    return replace(data, graph=data.graph.replace(complement=structure), learned=learned)


def with_other_labels(client: GraphClient, structure: bool) -> PreparedNodes:
    """The same for one client."""
    prepared: PreparedNodes = client.prepared
    labels = {**prepared.labels, "train": (prepared.labels["train"] + 1) % CLASSES}
    ends = torch.arange(client.num_nodes)
    added = SparseMatrix.from_edges(torch.stack([ends, ends.flip(0)]), None, (client.num_nodes, client.num_nodes))
    graph = prepared.graph.replace(complement=added) if structure else prepared.graph
    return replace(prepared, labels=labels, graph=graph)


@pytest.mark.meet(2)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ZOO)
def test_training_together_on_other_data_is_training_alone_on_it_and_what_is_seen_after_is_the_trained_model(
    name: str, optimizer: str, is_sparse: bool
) -> None:
    clients = clients_of(ZOO[name], is_sparse)
    cohort, start = GraphCohort(clients), start_of(clients, 1)
    seen: list[tuple[nn.Module, StackedData]] = []

    def observe(model: nn.Module, data: StackedData) -> Tensor:
        assert not torch.is_grad_enabled()
        seen.append((model, data))
        found: Tensor = model(data.graph, None)
        return found

    together = cohort.fit(
        start, steps=STEPS, optimizer=OPTIMIZERS[optimizer], data=with_other_targets(cohort), observe=observe
    )
    alone = [
        client.fit(start, steps=STEPS, optimizer=OPTIMIZERS[optimizer], prepared=with_other_labels(client, k == 0))
        for k, client in enumerate(clients)
    ]
    compare(together, alone)
    assert len(seen) == 1
    rows = together.observed.view(len(clients), cohort.data.rows, CLASSES)
    for k, (client, fitted) in enumerate(zip(clients, alone, strict=True)):
        load_params(client.model, fitted.params)
        with torch.no_grad():
            expected = client.model(with_other_labels(client, k == 0).graph, None)
        torch.testing.assert_close(rows[k, : client.num_nodes], expected, rtol=1e-3, atol=1e-4)


def test_other_data_serves_one_training_only_and_nothing_is_seen_unless_it_is_asked_for() -> None:
    clients = clients_of(ZOO["gcn"])
    cohort, start = GraphCohort(clients), start_of(clients, 1)
    before = cohort.fit(start, steps=2, optimizer=SGD(lr=0.1))
    other = cohort.fit(start, steps=2, optimizer=SGD(lr=0.1), data=with_other_targets(cohort))
    again = cohort.fit(start, steps=2, optimizer=SGD(lr=0.1), observe=lambda model, data: "seen")
    assert before.observed is other.observed is None and again.observed == "seen"
    assert all(torch.equal(tensor, again.member(2)[name]) for name, tensor in before.member(2).items())
    assert not torch.equal(before.member(2)["gnn.layers.1.bias"], other.member(2)["gnn.layers.1.bias"])


def test_of_clients_without_training_examples_nothing_is_seen() -> None:
    clients = idle_clients(ZOO["gcn"])
    fitted = GraphCohort(clients).fit(
        start_of(clients, 0), steps=2, optimizer=SGD(lr=0.1), observe=lambda model, data: 1 / 0
    )
    assert fitted.observed is None


def test_other_data_that_is_given_to_one_client_takes_the_place_of_its_own_and_leaves_it() -> None:
    client = clients_of(ZOO["gcn"])[0]
    start = start_of([client], 0)
    own = client.fit(start, steps=2, optimizer=SGD(lr=0.1))
    other = client.fit(start, steps=2, optimizer=SGD(lr=0.1), prepared=with_other_labels(client, True))
    assert not torch.equal(own.params["gnn.layers.1.bias"], other.params["gnn.layers.1.bias"])
    again = client.fit(start, steps=2, optimizer=SGD(lr=0.1))
    assert all(torch.equal(tensor, again.params[name]) for name, tensor in own.params.items())
    nothing = replace(client.prepared, index={**client.prepared.index, "train": torch.empty(0, dtype=torch.int64)})
    assert client.fit(start, steps=2, step_unit="epoch", optimizer=SGD(lr=0.1), prepared=nothing).steps == 0
