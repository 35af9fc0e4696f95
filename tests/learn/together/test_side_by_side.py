"""Clients whose steps see pairs of nodes or sampled neighbourhoods do together what each would do alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus.core.client import NotTogether
from isthmus.core.protocol import Position
from isthmus.core.random import seeded
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import Batching, FullBatch, LinkBatch, NeighborBatch
from isthmus.learn.graph_client import Evaluate, GraphClient
from isthmus.learn.optimizers import SGD, Adam
from isthmus.learn.tasks import LinkClassification, LinkPrediction, NodeClassification
from isthmus.learn.tasks.side_by_side import DrawnPairs, LinkStack
from isthmus.learn.together.batch_cohort import BatchCohort
from isthmus.models import (
    GAT,
    GCN,
    GIN,
    SAGE,
    BilinearDecoder,
    DistMultDecoder,
    DotDecoder,
    HadamardMLPDecoder,
    MLPDecoder,
    ModelSpec,
)
from isthmus.models.inputs import Level
from isthmus.testing.toys import toy_graph
from tests.learn.tasks.link_toys import toy_facts
from tests.learn.together.test_batch_cohort import close, require_same_fit, start_of, work_of

SIZES = ((14, 60), (9, 25), (20, 80), (12, 33))
DECODERS = {
    "dot": DotDecoder(),
    "distmult": DistMultDecoder(),
    "bilinear": BilinearDecoder(),
    "mlp": HadamardMLPDecoder(8, dropout=0.5),
    "three maps": HadamardMLPDecoder(8, layers=3, dropout=0.3, batch_norm=True),
}


def link_clients(task: Any, spec: ModelSpec, batching: Batching, sparse: bool = False) -> list[GraphClient]:
    parts = [toy_facts(nodes, links, seed=k) for k, (nodes, links) in enumerate(SIZES)]
    parts = [replace(part, x=0.5 * part.x) for part in parts]
    if sparse:
        parts = [replace(part, x=torch.where(part.x > 0, part.x, 0.0).to_sparse_csr()) for part in parts]
    return placed(parts, task, spec, batching, task.output_dim(parts[0]))


def node_clients(spec: ModelSpec, batching: Batching, sparse: bool = False) -> list[GraphClient]:
    parts = [toy_graph(size, num_features=20, sparse=sparse, seed=k) for k, size in enumerate((40, 16, 60, 28))]
    return placed([replace(part, x=0.3 * part.x) for part in parts], NodeClassification(), spec, batching, 3)


def placed(parts: Sequence[Any], task: Any, spec: ModelSpec, batching: Batching, outputs: int) -> list[GraphClient]:
    with seeded(0, "model"):
        model = spec.build(parts[0].num_features, outputs)
    found = [GraphClient(f"client-{k}", part, task, model, batching) for k, part in enumerate(parts)]
    for client in found:
        client.position = Position(seed=5, round=2, exchange=1)
    return found


BATCHINGS: dict[str, Batching] = {"links": LinkBatch(7), "full": FullBatch(), "neighbours": NeighborBatch(7, (2, 3))}


@pytest.mark.meet(2)
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("disjoint", [False, True])
def test_links_are_predicted_the_same(batching: str, decoder: str, disjoint: bool) -> None:
    task = LinkPrediction(disjoint=disjoint, by_relation=decoder in ("distmult", "bilinear", "mlp"), num_negatives=2)
    clients = link_clients(task, ModelSpec(GCN(hidden=8), decoder=DECODERS[decoder]), BATCHINGS[batching])
    require_same_fit(clients, [work_of(start_of(clients), steps=1)] * len(clients))


def with_sides(part: LinkGraph, num_sides: int) -> LinkGraph:
    return replace(part, node_attributes={"side": torch.arange(part.num_nodes) % num_sides})


@pytest.mark.parametrize("batching", [FullBatch(), LinkBatch(7)], ids=["full", "links"])
@pytest.mark.parametrize("by_relation", [False, True])
def test_negatives_of_all_clients_are_those_that_each_would_draw_alone(by_relation: bool, batching: Batching) -> None:
    task = LinkPrediction(by_relation=by_relation, num_negatives=3)
    parts = [toy_facts(nodes, links, seed=k) for k, (nodes, links) in enumerate(SIZES)]
    parts[1:3] = [with_sides(parts[1], 3), with_sides(parts[2], 2)]
    prepared = [task.prepare(part) for part in parts]
    stack = task.stack_batches(prepared, batching)
    assert type(stack) is DrawnPairs
    owners = [2, 0, 3, 1]
    streams = [[torch.Generator().manual_seed(k) for k in owners] for _ in range(2)]
    together = [stack.draws(k, stream) for k, stream in zip(owners, streams[0], strict=True)]
    alone = [task.batches(prepared[k], batching, stream) for k, stream in zip(owners, streams[1], strict=True)]
    for _ in range(3):
        batch = stack.batch(owners, [next(drawn) for drawn in together])
        pairs, relation, target, counted = batch.target
        for place, each in enumerate(map(next, alone)):
            mine = slice(place * counted.shape[1], place * counted.shape[1] + each.pairs.shape[1])
            assert torch.equal(pairs[:, mine] - place * batch.nodes.rows, each.pairs)
            assert torch.equal(relation[mine], each.relation) and torch.equal(target[mine], each.target)
            assert int(counted[place].sum()) == each.pairs.shape[1]


def test_a_client_with_a_link_that_has_no_negative_draws_as_it_would_alone() -> None:
    task = LinkPrediction()
    spec = ModelSpec(GCN(hidden=8), decoder=DotDecoder())
    parts = [toy_facts(nodes, links, seed=k) for k, (nodes, links) in enumerate(SIZES)]
    # The first two nodes are alone on their sides, so that nobody could take their places.
    side = torch.full((parts[1].num_nodes,), 2)
    side[:2] = torch.tensor([0, 1])
    first = parts[1].links.clone()
    first[:, 0] = torch.tensor([0, 1])
    parts[1] = replace(parts[1], links=first, node_attributes={"side": side})
    clients = placed(parts, task, spec, FullBatch(), 1)
    rooms = task.rooms(clients[1].prepared).of(clients[1].prepared.index["train"])
    assert not bool(rooms.possible.all())
    assert type(BatchCohort(clients).stack) is LinkStack
    require_same_fit(clients, [work_of(start_of(clients))] * len(clients))


@pytest.mark.meet(2)
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("decoder", ["distmult", "bilinear", "mlp"])
@pytest.mark.parametrize("sparse", [False, True])
def test_links_are_classified_the_same(batching: str, decoder: str, sparse: bool) -> None:
    spec = ModelSpec(SAGE(hidden=8, input_dropout=0.2), decoder=DECODERS[decoder])
    clients = link_clients(LinkClassification(), spec, BATCHINGS[batching], sparse)
    counts = {client.task.batches_per_epoch(client.prepared, client.batching) for client in clients}
    assert batching == "full" or len(counts) > 2
    require_same_fit(clients, [work_of(start_of(clients), steps=2)] * len(clients))


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("gnn", [GCN(hidden=8, input_dropout=0.2), SAGE(hidden=8, batch_norm=True), GAT(hidden=8)])
def test_neighbourhoods_are_learned_the_same(gnn: Any, sparse: bool) -> None:
    clients = node_clients(ModelSpec(gnn), NeighborBatch(5, (2, 2)), sparse)
    assert len({client.task.batches_per_epoch(client.prepared, client.batching) for client in clients}) > 2
    optimizer = Adam(lr=0.01, eps=1e-3)
    tolerance = 3e-5
    require_same_fit(clients, [work_of(start_of(clients), steps=1, optimizer=optimizer)] * len(clients), tolerance)


NETWORKS = {
    "gcn": GCN(hidden=8),
    "gcn, one layer": GCN(layers=1),
    "gcn, three layers": GCN(hidden=8, layers=3),
    "sage": SAGE(hidden=8),
    "sage, three layers": SAGE(hidden=8, layers=3, input_dropout=0.2),
    "gin": GIN(hidden=8),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_leave_out_what_no_later_one_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    operator = Level.operator

    def seeing(level: Level, kind: str) -> Any:
        found = operator(level, kind)
        seen.append(found.shape)
        return found

    monkeypatch.setattr(Level, "operator", seeing)
    clients = node_clients(ModelSpec(NETWORKS[name]), NeighborBatch(3, (2, 2)))
    data = clients[0].data
    clients[0].data = replace(data, edge_weight=torch.rand(data.num_edges, generator=torch.Generator().manual_seed(3)))
    require_same_fit(clients, [work_of(start_of(clients), optimizer=SGD(lr=0.01))] * len(clients))
    assert any(rows < columns for rows, columns in seen)


def test_networks_that_need_all_rows_have_them() -> None:
    parts = {"with a decoder": ModelSpec(GCN(hidden=8), decoder=MLPDecoder(8))}
    parts["with learnt eps"] = ModelSpec(GIN(hidden=8, train_eps=True))
    parts["with norms"] = ModelSpec(GIN(hidden=8, mlp_norm=True))
    for spec in parts.values():
        clients = node_clients(spec, NeighborBatch(5, (2, 2)))
        require_same_fit(clients, [work_of(start_of(clients), steps=1, optimizer=SGD(lr=0.01))] * len(clients))


def test_each_client_samples_with_its_own_draws_whoever_else_samples() -> None:
    clients = node_clients(ModelSpec(GCN(hidden=8)), NeighborBatch(5, (2, 3)))
    stack = BatchCohort(clients).stack
    owners = [2, 0, 3]
    draws = [stack.draws(k, torch.Generator().manual_seed(k)) for k in owners]
    batch = stack.batch(owners, [next(drawn) for drawn in draws])
    edges = batch.graph.edge_index
    for place, k in enumerate(owners):
        batches = clients[k].task.batches(clients[k].prepared, clients[k].batching, torch.Generator().manual_seed(k))
        alone = next(iter(batches))
        rows = slice(place * batch.nodes.rows, place * batch.nodes.rows + alone.graph.num_nodes)
        assert torch.equal(batch.graph.x[rows], alone.graph.x)
        mine = edges[:, (edges[1] >= rows.start) & (edges[1] < rows.stop)] - rows.start
        assert {tuple(pair) for pair in mine.t().tolist()} == {tuple(e) for e in alone.graph.edge_index.t().tolist()}
        assert mine.shape == alone.graph.edge_index.shape
        assert batch.target[place, : len(alone.labels)].tolist() == alone.labels.tolist()


@pytest.mark.meet(2)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("kind", ["link prediction", "link classification", "nodes"])
def test_evaluation_is_the_same(kind: str, alike: bool, sparse: bool) -> None:
    if kind == "nodes":
        clients = node_clients(ModelSpec(GCN(hidden=8)), NeighborBatch(5, (2, 2)), sparse)
    else:
        task: Any = LinkPrediction(metrics=("accuracy", "loss", "ap", "mrr"))
        if kind == "link classification":
            task = LinkClassification(metrics=("accuracy", "loss", "f1_macro", "hits@1"))
        clients = link_clients(task, ModelSpec(GCN(hidden=8), decoder=DECODERS["mlp"]), LinkBatch(7), sparse)
    same, splits = start_of(clients), ("train", "val", "test")
    models = [same if alike else start_of(clients, seed=k) for k in range(len(clients))]
    if kind != "nodes" and not alike:  # whoever asked does it one by one, and says so
        with pytest.raises(NotTogether, match="models of different clients score their pairs one by one"):
            BatchCohort(clients).evaluate(models, splits)
        return
    together = BatchCohort(clients).evaluate(models, splits)
    alone = [Evaluate(model, splits).alone(client) for model, client in zip(models, clients, strict=True)]
    for (mine, my_counts), (theirs, counts) in zip(together, alone, strict=True):
        assert my_counts == counts
        close(mine, theirs)
