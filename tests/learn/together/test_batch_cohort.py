"""Clients whose steps see batches of graphs do together what each would do alone: the obvious way is `Fit.alone`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.core.client import NotTogether
from isthmus.core.protocol import Position
from isthmus.core.random import seeded
from isthmus.core.record import Params, leaves
from isthmus.learn.batching import Batching, FullBatch, MiniBatch
from isthmus.learn.graph_client import Evaluate, Fit, GraphClient
from isthmus.learn.optimizers import SGD, Adam, AdamW, BothWays, Optimizer, Pull, only, read_params
from isthmus.learn.tasks import GraphBinary, GraphClassification, GraphRegression, stacked_batches
from isthmus.learn.tasks.graph_batches import GraphPile
from isthmus.learn.tasks.graph_stack import GraphStack
from isthmus.learn.tasks.joined_graphs import JoinedGraphs
from isthmus.learn.tasks.stacked_batches import Placed, StackedBatch
from isthmus.learn.together.batch_cohort import BatchCohort
from isthmus.models import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GPRGNN,
    MLP,
    SAGE,
    SGC,
    CategoricalEncoder,
    LinearDecoder,
    LinearEncoder,
    MaxReadout,
    MeanReadout,
    MLPDecoder,
    MLPEncoder,
    ModelSpec,
    Set2SetReadout,
    SumReadout,
)
from isthmus.models.gnn.gin import GINLayer
from isthmus.models.inputs import GraphInput, Reading
from isthmus.models.products import pooled
from isthmus.models.products.pooled import CommonRows
from isthmus.models.products.sparse import SparseMatrix
from tests.learn.tasks.graph_toys import NODES, SIZES, toy_set

TASKS = {"class": GraphClassification, "binary": GraphBinary, "value": GraphRegression}
# Training graphs of each client: with batches of 3, the clients take 1 to 4 steps in an epoch.
SHARES = (8, 22, 14, 4, 12)
# Without graphs of two nodes, which mean the same to a network: batch norm would make numbers of their rounding.
LARGER = (5, 9, 7, 11, 6, 8, 13, 8, 10, 5, 6, 12)


def clients_of(
    spec: ModelSpec,
    target: str = "class",
    batching: Batching | None = None,
    *,
    categorical: bool = False,
    sparse: bool = False,
    shares: Sequence[int] = SHARES,
    alike: bool = False,
) -> list[GraphClient]:
    """Return clients with ragged sets of graphs; a graph without nodes and one without edges are among them."""
    normed = any("running" in name for name in spec.build(2, 2).state_dict())
    whole = toy_set(
        target, sizes=(LARGER if normed else NODES) * 6, categorical=categorical, sparse=sparse, num_outputs=3
    )
    if not categorical:
        x = (whole.x > 0.5) * torch.tensor([1.0, 0.0, 0.0, 0.0]) if alike else whole.x
        whole = replace(whole, x=0.3 * x)  # small steps, which do not blow rounding up
    parts = torch.split(torch.randperm(sum(shares), generator=torch.Generator().manual_seed(1)), list(shares))
    with seeded(0, "model"):
        model = spec.build(sum(SIZES) if categorical else 4, 3)
    task = TASKS[target]()
    found = [
        GraphClient(f"client-{k}", part, task, model, batching or MiniBatch(3))
        for k, part in enumerate(whole.divide([part.sort().values for part in parts]))
    ]
    for client in found:
        client.position = Position(seed=5, round=3, exchange=1)
    return found


def start_of(clients: Sequence[GraphClient], seed: int = 0) -> Params:
    """Return parameters that all matter: biases that are not zero, running statistics that are not those of nothing."""
    draw = torch.Generator().manual_seed(seed)
    params = {}
    for name, tensor in read_params(clients[0].model).items():
        noise = torch.randn(tensor.shape, generator=draw)
        params[name] = tensor + (noise.abs() if "running_var" in name else 0.2 * noise)
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


def work_of(params: Params, **fields: Any) -> Fit:
    given: dict[str, Any] = {
        "steps": 2,
        "optimizer": SGD(lr=0.05, weight_decay=0.01),
        "step_unit": "epoch",
        "penalty": None,
        "optimizer_state": None,
        "loss": None,
        "prepared": None,
        "drift": None,
        "mean_gradients": False,
        "purpose": "fit",
    }
    return Fit(params, **{**given, **fields})


def require_same_fit(clients: Sequence[GraphClient], works: Sequence[Fit], tolerance: float = 3e-5) -> list[Any]:
    """Train together and alone; parameters, losses, steps, states and mean gradients must be the same."""
    together = BatchCohort(clients).fit_all(works)
    alone = [work.alone(client) for work, client in zip(works, clients, strict=True)]
    for mine, theirs in zip(together, alone, strict=True):
        assert mine.steps == theirs.steps
        assert mine.loss == pytest.approx(theirs.loss, rel=tolerance, abs=tolerance, nan_ok=True)
        close(dict(mine.params), theirs.params, tolerance)
        close(mine.optimizer_state, theirs.optimizer_state, tolerance)
        if theirs.gradients is not None:
            assert mine.gradients is not None
            close(dict(mine.gradients), theirs.gradients, tolerance)
    assert any(not torch.equal(alone[0].params[name], works[0].params[name]) for name in works[0].params)
    return alone


HEAD = MLPDecoder(8, dropout=0.5)
MODELS: dict[str, ModelSpec] = {
    "gin": ModelSpec(GIN(hidden=8), decoder=HEAD, readout=SumReadout()),
    "gin, learnt eps": ModelSpec(GIN(hidden=8, train_eps=True), decoder=HEAD, readout=MeanReadout()),
    "gin, batch norm": ModelSpec(GIN(hidden=8, batch_norm=True, mlp_norm=True), decoder=HEAD, readout=MeanReadout()),
    "gin, one layer": ModelSpec(GIN(hidden=8, layers=1), decoder=LinearDecoder(), readout=SumReadout()),
    "gcn": ModelSpec(GCN(hidden=8), decoder=HEAD, readout=MeanReadout()),
    "gcn, activated": ModelSpec(GCN(hidden=8, batch_norm=True), decoder=HEAD, readout=MaxReadout(), activate=True),
    "sage": ModelSpec(SAGE(hidden=8), decoder=LinearDecoder(), readout=MaxReadout()),
    "gat": ModelSpec(GAT(hidden=8), decoder=HEAD, readout=SumReadout()),
    "gprgnn": ModelSpec(GPRGNN(hidden=8), decoder=HEAD, readout=SumReadout()),
    "appnp": ModelSpec(APPNP(hidden=8), decoder=HEAD, readout=SumReadout()),
    "sgc": ModelSpec(SGC(hidden=8), decoder=HEAD, readout=MeanReadout()),
    "mlp": ModelSpec(MLP(hidden=8), decoder=HEAD, readout=SumReadout()),
    "set2set": ModelSpec(GCN(hidden=8), decoder=HEAD, readout=Set2SetReadout(steps=2)),
    "encoder": ModelSpec(GIN(hidden=8, input_dropout=0.2), MLPEncoder(8, dropout=0.3), HEAD, MeanReadout()),
}


@pytest.mark.meet(1)
@pytest.mark.parametrize("batching", [MiniBatch(3), MiniBatch(100), FullBatch()], ids=["mini", "one for all", "full"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_the_same_with_dropout_and_different_numbers_of_batches(
    name: str, batching: Batching
) -> None:
    clients = clients_of(MODELS[name], batching=batching)
    counts = {client.task.batches_per_epoch(client.prepared, batching) for client in clients}
    assert (len(counts) > 2) == (batching == MiniBatch(3))
    params = start_of(clients)
    require_same_fit(clients, [work_of(params)] * len(clients))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> list[Placed]:
    """Let tiles be as small as they can be; returns how the nodes of batches lay."""
    monkeypatch.setattr(stacked_batches, "LEAST_TILE", 8)
    monkeypatch.setattr(stacked_batches, "TILE_ROWS", 0)
    monkeypatch.setattr(stacked_batches, "LEAST_GAIN", 1.0)
    placed: list[Placed] = []
    losses = GraphStack.losses

    def seen(stack: GraphStack, model: Any, batch: StackedBatch, streams: Any) -> Tensor:
        placed.append(batch.nodes)
        return losses(stack, model, batch, streams)

    monkeypatch.setattr(GraphStack, "losses", seen)
    return placed


@pytest.mark.parametrize("batching", [MiniBatch(3), MiniBatch(100)], ids=["mini", "one for all"])
@pytest.mark.parametrize("name", MODELS)
def test_clients_of_several_tiles_train_the_same(name: str, batching: Batching, small_tiles: list[Placed]) -> None:
    clients = clients_of(MODELS[name], batching=batching)
    params = start_of(clients)
    require_same_fit(clients, [work_of(params)] * len(clients))
    assert any(len(set(placed.counts)) > 1 for placed in small_tiles)


@pytest.mark.parametrize("kind", ["sparse", "categorical"])
def test_so_they_do_with_other_features_and_terms(kind: str, small_tiles: list[Placed]) -> None:
    encoder = CategoricalEncoder(8) if kind == "categorical" else None
    spec = ModelSpec(GIN(hidden=8, input_dropout=0.2 if encoder is None else 0.0), encoder, HEAD, MeanReadout())
    clients = clients_of(spec, categorical=kind == "categorical", sparse=kind == "sparse")
    anchor = start_of(clients)
    terms = {"penalty": Pull(0.3, anchor), "mean_gradients": True, "optimizer": Adam(lr=0.01, eps=1e-3)}
    require_same_fit(clients, [work_of(start_of(clients, seed=k), **terms) for k in range(len(clients))])
    assert any(len(set(placed.counts)) > 1 for placed in small_tiles)


def test_tiles_take_fewer_rows_than_padding_to_the_largest_and_hold_every_row() -> None:
    sizes = [3904, 2318, 2311, 2765, 2587, 0, 2041]
    placed = Placed.in_tiles(sizes)
    assert placed.tiles is not None and placed.rows % 8 == 0
    assert all(
        0 <= tiles * placed.rows - size < placed.rows for tiles, size in zip(placed.tiles, sizes, strict=True) if size
    )
    assert placed.bounds[-1] < 1.1 * sum(sizes) and placed.tiles[5] == 1
    assert Placed.in_tiles([500] * 4).tiles is None and Placed.in_tiles([0, 0]).rows == 1
    graphs = placed.beside([70, 2, 40, 9, 61, 0, 33], spare=1)
    assert graphs.tiles == placed.tiles
    assert all(tiles * graphs.rows > size for tiles, size in zip(graphs.counts, graphs.sizes, strict=True))
    rows = torch.zeros(int(graphs.bounds[-1]), dtype=torch.int64)
    for first, size in zip(graphs.bounds.tolist(), graphs.sizes, strict=False):
        rows[first : first + size] = 1
    assert graphs.sums(rows).tolist() == list(graphs.sizes)


@pytest.mark.meet(1)
@pytest.mark.parametrize("target", TASKS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "categorical"])
def test_every_task_and_every_kind_of_features(target: str, kind: str) -> None:
    encoder = CategoricalEncoder(8) if kind == "categorical" else None
    spec = ModelSpec(GIN(hidden=8, input_dropout=0.2 if encoder is None else 0.0), encoder, HEAD, MeanReadout())
    clients = clients_of(spec, target, categorical=kind == "categorical", sparse=kind == "sparse")
    assert BatchCohort(clients).stack.is_sparse == (kind != "dense")
    params = start_of(clients)
    require_same_fit(clients, [work_of(params, optimizer=SGD(lr=0.01))] * len(clients))


OPTIMIZERS: dict[str, Optimizer] = {
    "momentum": SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": Adam(lr=0.01, eps=1e-3, weight_decay=0.01),
    "adamw": AdamW(lr=0.01, eps=1e-3, weight_decay=0.1),
}


@pytest.mark.meet(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sparse", [False, True])
def test_optimisers_go_on_from_states_with_different_numbers_of_steps(name: str, sparse: bool) -> None:
    clients = clients_of(MODELS["gin, learnt eps"], sparse=sparse)
    params, optimizer = start_of(clients), OPTIMIZERS[name]
    first = require_same_fit(clients, [work_of(params, optimizer=optimizer)] * len(clients))
    assert len({fitted.optimizer_state["step"] for fitted in first}) > 2
    works = [
        work_of(start_of(clients, seed=k), optimizer=optimizer, optimizer_state=fitted.optimizer_state)
        for k, fitted in enumerate(first)
    ]
    require_same_fit(clients, works)


def test_pulls_drifts_penalties_and_means_of_gradients() -> None:
    clients = clients_of(MODELS["gin"])
    anchor = start_of(clients)
    starts = [start_of(clients, seed=k) for k in range(len(clients))]
    drifts = [{name: 0.1 * tensor for name, tensor in start_of(clients, seed=9 + k).items()} for k in range(5)]
    pull = Pull(0.3, anchor)
    require_same_fit(clients, [work_of(start, penalty=pull) for start in starts])
    require_same_fit(clients, [work_of(anchor, penalty=pull)] * len(clients))
    works = [
        work_of(start, drift=((1.0, drift),), mean_gradients=True, optimizer=SGD(lr=0.05, weight_decay=0.1))
        for start, drift in zip(starts, drifts, strict=True)
    ]
    require_same_fit(clients, works)

    def penalty(k: int) -> Any:
        return lambda live: (1.0 + k) * 0.1 * live["gnn.layers.1.weight"].abs().sum()

    require_same_fit(clients, [work_of(start, penalty=penalty(k)) for k, start in enumerate(starts)])
    require_same_fit(clients, [work_of(start, penalty=pull, mean_gradients=True) for start in starts])
    require_same_fit(
        clients, [work_of(start, penalty=penalty(k), mean_gradients=True) for k, start in enumerate(starts)]
    )


@pytest.mark.parametrize("kind", ["a pull", "a function"])
def test_means_of_gradients_are_those_of_the_loss_without_a_penalty(kind: str) -> None:
    clients = clients_of(MODELS["gin"])
    start = start_of(clients)
    pull = Pull(0.3, start_of(clients, seed=1))
    penalty = pull if kind == "a pull" else lambda live: 3.0 * live["gnn.layers.1.weight"].sum()
    plain, penalised = (
        work_of(start, steps=1, step_unit="batch", penalty=each, mean_gradients=True).alone(clients[0])
        for each in (None, penalty)
    )
    close(penalised.gradients, plain.gradients)
    assert not torch.allclose(penalised.params["gnn.layers.1.weight"], plain.params["gnn.layers.1.weight"])


def test_parameters_that_stand_still_and_those_that_are_a_clients_own() -> None:
    clients = clients_of(MODELS["gin"])
    params = start_of(clients)
    named = [name for name, _ in clients[0].model.named_parameters()]
    optimizer = only(Adam(lr=0.01, eps=1e-3), [name.startswith("decoder") for name in named])
    require_same_fit(clients, [work_of(params, optimizer=optimizer)] * len(clients))
    shared = {name: tensor for name, tensor in params.items() if not name.startswith("decoder")}
    for k, client in enumerate(clients):
        own = start_of(clients, seed=20 + k)
        client.own = {name: own[name] for name in params if name not in shared}
    states = []
    for train in (lambda works: BatchCohort(clients).fit_all(works), None):
        for client in clients:
            client.state = {}
        works = [work_of(shared)] * len(clients)
        if train is None:
            for work, client in zip(works, clients, strict=True):
                work.alone(client)
        else:
            train(works)
        states.append([dict(client.state["personal"]) for client in clients])
    close(dict(enumerate(states[0])), dict(enumerate(states[1])))


def test_a_loss_of_ones_own_is_refused_with_the_reason() -> None:
    clients = clients_of(MODELS["gin"])
    loss = BothWays(lambda model, batch, generator: torch.zeros(()), many=lambda clients, about: None)
    with pytest.raises(NotTogether, match="full batches of nodes"):
        BatchCohort(clients).fit_all([work_of(start_of(clients), loss=replace(loss, many=lambda c, a: len))] * 5)


# ---- evaluation


@pytest.mark.meet(2)
@pytest.mark.parametrize("target", TASKS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "categorical"])
@pytest.mark.parametrize("alike", [True, False])
def test_evaluation_together_is_each_clients_own(
    target: str, kind: str, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.learn.tasks.graph_stack.BLOCK_ROWS", 60)  # so that there are several blocks
    encoder = CategoricalEncoder(8) if kind == "categorical" else LinearEncoder(8) if kind == "sparse" else None
    spec = ModelSpec(GIN(hidden=8, batch_norm=True), encoder, HEAD, MeanReadout())
    # The fourth client has no graph for testing.
    clients = clients_of(spec, target, categorical=kind == "categorical", sparse=kind == "sparse", shares=(9, 20, 1, 3))
    same = start_of(clients)
    models = [same if alike else start_of(clients, seed=k) for k in range(len(clients))]
    splits = ("train", "val", "test")
    cohort = BatchCohort(clients)
    together = cohort.evaluate(models, splits)
    alone = [Evaluate(model, splits).alone(client) for model, client in zip(models, clients, strict=True)]
    assert any(not scores["test"] for scores, _ in alone) and any(scores["test"] for scores, _ in alone)
    for (mine, my_counts), (theirs, counts) in zip(together, alone, strict=True):
        assert my_counts == counts
        close(mine, theirs)
    assert alike or len(cohort.stack._stacks["train"]) > 1  # type: ignore[attr-defined]


# ---- pieces of operators


@pytest.mark.parametrize("name", ["gcn", "mean", "sum"])
def test_the_operators_of_a_batch_are_pieces_of_those_of_all_graphs(name: str) -> None:
    clients = clients_of(MODELS["gcn"])
    joined = JoinedGraphs([client.prepared.pile for client in clients])
    chosen = [torch.tensor([3, 0, 1]), torch.tensor([5]), torch.zeros(0, dtype=torch.int64), torch.tensor([2, 3])]
    owners = [1, 0, 2, 3]
    wanted: dict[object, Tensor] = {}
    plain = joined.cut(owners, chosen, tiled=False).graph
    wanted[name] = plain.operator(name).to_dense()
    for mean in (False, True):
        wanted["pooling", mean] = plain.pooling(mean).to_dense()
    again = joined.cut(owners, chosen, tiled=False)
    assert set(again.graph.asked_for) == set(wanted)
    # What is padding is nobody's, and may be anything.
    assert again.items is not None
    graphs = torch.cat([torch.arange(again.items.rows) < count for count in again.items.sizes])
    nodes = torch.cat([torch.arange(again.nodes.rows) < count for count in again.nodes.sizes])
    for key, expected in wanted.items():
        pooled = isinstance(key, tuple)
        found = again.graph.pooling(bool(key[1])) if pooled else again.graph.operator(str(key))  # type: ignore[index]
        rows = graphs if pooled else nodes
        assert torch.equal(found.to_dense()[rows], expected[rows])
        assert torch.equal(found.t().to_dense(), found.to_dense().t())


@pytest.mark.parametrize("batching", [MiniBatch(3), MiniBatch(100)], ids=["mini", "one for all"])
@pytest.mark.parametrize("tiled", [False, True])
def test_nodes_whose_neighbourhoods_have_the_same_sums_are_computed_once(
    batching: Batching, tiled: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if tiled:
        request.getfixturevalue("small_tiles")
        monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.MOST_DISTINCT", 2.0)  # tiles of eight rows have no fewer
    clients = clients_of(MODELS["gin"], batching=batching, alike=True)
    found: list[Any] = []
    distinct = GraphInput.distinct

    def seen(graph: GraphInput, name: str, h: Any) -> Any:
        found.append((graph, distinct(graph, name, h)))
        return found[-1][1]

    monkeypatch.setattr(GraphInput, "distinct", seen)
    params = start_of(clients)
    require_same_fit(clients, [work_of(params)] * len(clients))
    told = [(graph, *alike) for graph, alike in found if alike is not None]
    assert told
    for graph, rows, back in told:
        assert tiled or len(rows) <= 0.7 * graph.num_nodes
        taken = back.row_sums() > 0
        expected = graph.operator("sum with self").matmul(graph.x)
        assert torch.equal(back.matmul(rows)[taken], expected[taken]) and not graph.x[~taken].any()


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("part_rows", [1, 60, 2_048])
@pytest.mark.parametrize("batching", [MiniBatch(3), MiniBatch(100)], ids=["mini", "one for all"])
def test_equal_rows_of_several_clients_stay_one_up_to_the_second_layer(
    batching: Batching, part_rows: int, tiled: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if tiled:
        request.getfixturevalue("small_tiles")
    monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.PART_ROWS", part_rows)
    monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.MOST_DISTINCT", 2.0)
    read: list[tuple[int, int]] = []  # by each part: how many tiles, how many rows
    reads = Reading._reads

    def seen(graph: Reading, rows: int) -> Any:
        found = reads(graph, rows)
        read.extend((part.tiles.stop - part.tiles.start, each.stop - each.start) for part, each, _ in found)
        return found

    monkeypatch.setattr(Reading, "_reads", seen)
    spec = ModelSpec(GIN(hidden=8, dropout=0.0), decoder=LinearDecoder(), readout=MeanReadout())
    clients = clients_of(spec, batching=batching, alike=True)
    require_same_fit(clients, [work_of(start_of(clients))] * len(clients))
    assert any(tiles > 1 for tiles, _ in read) == (part_rows > 1)
    assert len({rows for tiles, rows in read if tiles == 1}) > 1 or part_rows > 1


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("part_rows", [1, 60, 2_048])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("batching", [MiniBatch(3), MiniBatch(100)], ids=["mini", "one for all"])
def test_rows_with_random_zeros_are_made_part_by_part(
    batching: Batching,
    alike: bool,
    part_rows: int,
    tiled: bool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if tiled:
        request.getfixturevalue("small_tiles")
    monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.PART_ROWS", part_rows)
    monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.MOST_DISTINCT", 2.0 if alike else 0.0)
    seen: list[tuple[bool, bool]] = []  # whether rows are opened between the maps, and whether equal ones are one
    pooled = GINLayer.pooled

    def noted(layer: GINLayer, *given: Any, back: Any = None, activate: Any = None) -> Tensor:
        seen.append((activate is not None, back is not None))
        return pooled(layer, *given, back=back, activate=activate)

    monkeypatch.setattr(GINLayer, "pooled", noted)
    spec = ModelSpec(GIN(hidden=8, dropout=0.3), decoder=LinearDecoder(), readout=MeanReadout())
    clients = clients_of(spec, batching=batching, alike=True)
    require_same_fit(clients, [work_of(start_of(clients))] * len(clients))
    assert (True, alike) in seen and (True, not alike) not in seen


@pytest.mark.parametrize("readout", [SumReadout(), MeanReadout()])
def test_graphs_with_equal_rows_are_scored_the_same_by_models_of_their_own(
    readout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.MOST_DISTINCT", 2.0)
    clients = clients_of(ModelSpec(GIN(hidden=8), decoder=HEAD, readout=readout), alike=True)
    models = [start_of(clients, seed=k) for k in range(len(clients))]
    together = BatchCohort(clients).evaluate(models, ("train",))
    for (mine, _), model, client in zip(together, models, clients, strict=True):
        close(mine, Evaluate(model, ("train",)).alone(client)[0])


def test_other_features_than_those_that_were_told_of_have_no_distinct_rows() -> None:
    clients = clients_of(MODELS["gin"], alike=True)
    joined = JoinedGraphs([client.prepared.pile for client in clients])
    every = [torch.arange(client.data.num_items) for client in clients]
    graph = joined.cut(range(5), every, tiled=False).graph
    assert graph.distinct("sum with self", graph.x) is not None and graph.distinct("gcn", graph.x) is None
    other = graph.replace(x=2.0 * graph.x)  # type: ignore[operator]
    assert other.distinct("sum with self", other.x) is None
    fewer = graph.replace(kept=torch.zeros(graph.num_edges, dtype=torch.bool))
    assert fewer.x is graph.x and fewer.distinct("sum with self", fewer.x) is None
    assert clients[0].prepared.pile.batch(every[0]).distinct("sum with self", graph.x) is None


def test_a_batch_holds_each_clients_graphs_in_its_own_rows() -> None:
    clients = clients_of(MODELS["gcn"])
    joined = JoinedGraphs([client.prepared.pile for client in clients])
    chosen = [torch.tensor([3, 0, 1]), torch.tensor([5, 1])]
    found = joined.cut([1, 0], chosen, tiled=False)
    assert found.items is not None and found.items.sizes == (3, 2) and found.items.rows == 4
    for slot, (owner, mine) in enumerate(zip([1, 0], chosen, strict=True)):
        pile: GraphPile = clients[owner].prepared.pile
        alone = pile.batch(mine)
        rows = slice(slot * found.nodes.rows, slot * found.nodes.rows + alone.num_nodes)
        assert found.nodes.sizes[slot] == alone.num_nodes
        assert isinstance(found.graph.x, Tensor) and torch.equal(found.graph.x[rows], alone.x)  # type: ignore[arg-type]
        assert alone.batch is not None and found.graph.batch is not None
        assert torch.equal(found.graph.batch[rows], alone.batch + slot * found.items.rows)
        here = (found.graph.edge_index[0] >= rows.start) & (found.graph.edge_index[0] < rows.stop)
        assert torch.equal(found.graph.edge_index[:, here] - rows.start, alone.edge_index)
        padding = found.graph.x[rows.stop : (slot + 1) * found.nodes.rows]
        assert not padding.any()


def test_sparse_features_have_columns_of_each_client() -> None:
    clients = clients_of(MODELS["gcn"], sparse=True)
    joined = JoinedGraphs([client.prepared.pile for client in clients])
    chosen = [torch.tensor([2, 0]), torch.tensor([3])]
    found = joined.cut([2, 0], chosen, tiled=False)
    assert isinstance(found.graph.x, SparseMatrix)
    dense = found.graph.x.to_dense().view(2, found.nodes.rows, 2, 4)
    assert not dense[0, :, 1].any() and not dense[1, :, 0].any()
    for slot, owner in enumerate([2, 0]):
        alone = clients[owner].prepared.pile.batch(chosen[slot]).x
        assert torch.equal(dense[slot, : alone.shape[0], slot], alone.to_dense())
        assert found.entries[slot] == alone.pattern.nnz


def test_batches_of_all_training_graphs_are_cut_once() -> None:
    clients = clients_of(MODELS["gin"], batching=MiniBatch(100))
    stack = BatchCohort(clients).stack
    draws = [stack.draws(k, torch.Generator().manual_seed(k)) for k in range(5)]
    first, second = (stack.batch(range(5), [next(drawn) for drawn in draws]) for _ in range(2))
    assert first.graph is second.graph and first.nodes.order is not None and second.nodes.order is not None
    assert not torch.equal(first.nodes.order(), second.nodes.order())
    assert math.prod(first.nodes.order().sort().values == torch.arange(5 * first.nodes.rows)) == 1


# ---- before the first step, and without autograd

GIN_OF_TWO = ModelSpec(GIN(hidden=8, dropout=0.0), decoder=HEAD, readout=SumReadout())


@pytest.mark.parametrize("batching", [MiniBatch(3), MiniBatch(100)], ids=["mini", "one for all"])
def test_clients_that_begin_alike_compute_what_they_have_in_common_once(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.MOST_DISTINCT", 2.0)
    seen: list[CommonRows] = []
    made = pooled._made_common

    def noted(common: CommonRows, maps: Sequence[Tensor]) -> list[Tensor]:
        seen.append(common)
        return made(common, maps)

    monkeypatch.setattr(pooled, "_made_common", noted)
    clients = clients_of(GIN_OF_TWO, batching=batching, alike=True)
    require_same_fit(clients, [work_of(start_of(clients))] * len(clients))
    assert len(seen) == 1 and len(seen[0].rows) < len(seen[0].place)  # in the first step alone
    seen.clear()
    require_same_fit(clients, [work_of(start_of(clients, seed=k)) for k in range(len(clients))])
    assert not seen


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_pooled_losses_are_a_chain_and_gradients_those_of_autograd(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.learn.tasks.joined_graphs.MOST_DISTINCT", 2.0)
    spec = replace(GIN_OF_TWO, gnn=GIN(hidden=8, dropout=dropout), decoder=MLPDecoder(8, dropout=dropout))
    taken: list[bool] = []
    is_chain = GraphStack.is_chain

    def noted(stack: GraphStack, *given: Any) -> bool:
        taken.append(is_chain(stack, *given))
        return taken[-1]

    monkeypatch.setattr(GraphStack, "is_chain", noted)
    clients = clients_of(spec, alike=True)
    work = work_of(start_of(clients), mean_gradients=True)
    together = require_same_fit(clients, [work] * len(clients))
    assert taken and all(taken)
    monkeypatch.setattr(GraphStack, "is_chain", lambda *given: False)
    for mine, theirs in zip(together, Fit.together(BatchCohort(clients), [work] * len(clients)), strict=True):
        close(dict(mine.params), dict(theirs.params))
