from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
import torch.nn.functional as F

from isthmus.algorithms import FedAvg
from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.learn.batching import Batching, FullBatch, LinkBatch, MiniBatch, NeighborBatch
from isthmus.learn.metrics import classification as metrics
from isthmus.learn.optimizers import load_params, read_params
from isthmus.learn.tasks import NodeClassification
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models import GAT, GCN, GIN, SAGE, DotDecoder, MLPDecoder, ModelSpec
from isthmus.models.products.sparse import dense
from isthmus.models.readouts import MeanReadout
from isthmus.runs.simulation import Simulation
from isthmus.testing import toy_client, toy_course, toy_graph, toy_scenario

TASK = NodeClassification()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def untrained(graph: Graph) -> Graph:
    return graph.with_masks({split: torch.zeros(graph.num_nodes, dtype=torch.bool) for split in ("train", "val")})


def test_unlabelled_nodes_are_in_no_split() -> None:
    graph = toy_graph(40)
    y = graph.y.clone()
    y[:10] = -1  # still in the masks
    graph = replace(graph, y=y)
    prepared = TASK.prepare(graph)
    for split in ("train", "val", "test"):
        expected = [i for i in range(40) if bool(graph.mask(split)[i]) and i >= 10]
        assert prepared.index[split].tolist() == expected
        assert prepared.labels[split].tolist() == graph.y[expected].tolist()
        assert TASK.count(graph, split) == len(expected)


def test_dimensions_are_those_of_the_data() -> None:
    graph = toy_graph(num_features=7, num_classes=4)
    assert (TASK.input_dim(graph), TASK.output_dim(graph)) == (7, 4)


@pytest.mark.parametrize("batch_size", [1, 5, 24, 100])
def test_an_epoch_shows_every_training_node_once(batch_size: int) -> None:
    prepared = TASK.prepare(toy_graph())
    batching = NeighborBatch(batch_size, (2,))
    number = TASK.batches_per_epoch(prepared, batching)
    assert number == -(-24 // batch_size)
    batches = TASK.batches(prepared, batching, generator())
    orders = []
    for _ in range(2):
        rows = [(dense(b.graph.x)[b.index], b.labels) for b in islice(batches, number)]
        assert all(len(labels) <= batch_size for _, labels in rows)
        seen = torch.cat([x for x, _ in rows])
        labels = torch.cat([y for _, y in rows])
        # Toy features are all different, so that they name their node.
        nodes = [int((prepared.data.x == row).all(dim=1).nonzero()) for row in seen]
        assert sorted(nodes) == prepared.index["train"].tolist()
        assert torch.equal(labels, prepared.data.y[nodes])
        orders.append(nodes)
    assert batch_size >= 24 or orders[0] != orders[1]


def test_full_batches_show_the_whole_graph_again_and_again() -> None:
    prepared = TASK.prepare(toy_graph())
    assert TASK.batches_per_epoch(prepared, FullBatch()) == 1
    first, second = islice(TASK.batches(prepared, FullBatch(), generator()), 2)
    assert first.graph is second.graph is prepared.graph
    assert torch.equal(first.index, prepared.index["train"])


@pytest.mark.parametrize("batching", [FullBatch(), NeighborBatch(4, (2,))])
def test_without_training_nodes_there_are_no_batches(batching: Batching) -> None:
    prepared = TASK.prepare(untrained(toy_graph()))
    assert list(TASK.batches(prepared, batching, generator())) == []
    assert TASK.batches_per_epoch(prepared, batching) == 0


@pytest.mark.parametrize("batching", [Batching(), MiniBatch(), LinkBatch()])
def test_an_unknown_batching_is_refused(batching: Batching) -> None:
    with pytest.raises(BadInput, match=r"batching.name is .*; tasks on nodes take 'full' or 'neighbor'"):
        next(TASK.batches(TASK.prepare(toy_graph()), batching, generator()))
    with pytest.raises(BadInput, match=r"tasks on nodes take 'full' or 'neighbor'"):
        Simulation(toy_course(FedAvg(), batching=batching), toy_scenario())


def test_a_model_that_does_not_fit_is_refused_before_the_start() -> None:
    graph = toy_graph()
    for spec, words in (
        (ModelSpec(GCN(), readout=MeanReadout(), decoder=MLPDecoder()), "the examples are nodes; set model.readout=nu"),
        (ModelSpec(GIN(edge_dim=3)), "edge_dim is 3, .* not nodes; set model.gnn.edge_dim=0"),
        (ModelSpec(GCN(), decoder=DotDecoder()), "the model's decoder Dot scores pairs of nodes"),
    ):
        with pytest.raises(BadInput, match=words):
            TASK.require_model(spec.build(graph.num_features, 1), graph)
    TASK.require_model(ModelSpec(GIN(), decoder=MLPDecoder()).build(graph.num_features, 3), graph)


@pytest.mark.parametrize("weighted", [False, True])
def test_sage_on_whole_neighborhoods_has_the_loss_and_gradient_of_the_full_batch(weighted: bool) -> None:
    graph = toy_graph(weighted=weighted)
    client = toy_client(graph, model=ModelSpec(SAGE(hidden=5, dropout=0.0)))
    prepared, model = client.prepared, client.model
    params = list(model.parameters())
    for batch in islice(TASK.batches(prepared, NeighborBatch(7, (-1, -1)), generator()), 4):
        nodes = torch.tensor([int((graph.x == row).all(dim=1).nonzero()) for row in dense(batch.graph.x)[batch.index]])
        sampled = TASK.loss(model, batch, generator())
        full = F.cross_entropy(model(prepared.graph, generator())[nodes], graph.y[nodes])
        assert float(sampled.detach()) == pytest.approx(float(full.detach()), abs=1e-6)
        pairs = zip(torch.autograd.grad(sampled, params), torch.autograd.grad(full, params), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_a_sample_of_the_neighborhood_is_another_loss() -> None:
    client = toy_client(model=ModelSpec(SAGE(hidden=5, dropout=0.0)))
    (batch,) = islice(TASK.batches(client.prepared, NeighborBatch(24, (1, 1)), generator()), 1)
    (full,) = islice(TASK.batches(client.prepared, FullBatch(), generator()), 1)
    losses = [float(TASK.loss(client.model, b, generator()).detach()) for b in (batch, full)]
    assert abs(losses[0] - losses[1]) > 1e-4


def test_evaluate_measures_every_split_and_leaves_empty_ones_empty() -> None:
    graph = toy_graph()
    graph = graph.with_masks({"train": graph.mask("train"), "test": graph.mask("test")})
    client = toy_client(graph)
    task = NodeClassification(metrics=("accuracy", "loss", "f1_macro"))
    found, counts = task.evaluate(client.model, client.prepared, ("train", "val", "test"))
    assert counts == {"train": 24, "val": 0, "test": 12}
    assert found["val"] == {}
    logits = client.model(client.prepared.graph, None).detach()
    for split in ("train", "test"):
        nodes = graph.mask(split)
        assert list(found[split]) == ["accuracy", "loss", "f1_macro"]
        right = (logits[nodes].argmax(dim=1) == graph.y[nodes]).double().mean()
        assert found[split]["accuracy"] == pytest.approx(float(right))
        assert found[split]["loss"] == pytest.approx(float(F.cross_entropy(logits[nodes], graph.y[nodes])), abs=1e-6)


def test_evaluate_of_nothing_does_not_run_the_model() -> None:
    client = toy_client(untrained(toy_graph()))
    found = TASK.evaluate(lambda *_: pytest.fail("the model was run"), client.prepared, ("train", "val"))  # type: ignore[arg-type]
    assert found == ({"train": {}, "val": {}}, {"train": 0, "val": 0})


def test_an_undefined_metric_is_left_out() -> None:
    graph = toy_graph()
    graph = replace(graph, y=torch.zeros_like(graph.y))  # the area under the curve needs two classes
    client = toy_client(graph)
    found, _ = NodeClassification(metrics=("accuracy", "roc_auc")).evaluate(client.model, client.prepared, ("val",))
    assert list(found["val"]) == ["accuracy"]


def test_a_diverged_model_has_no_metrics_and_leaves_those_of_others_alone() -> None:
    task = NodeClassification(metrics=tuple(metrics.CLASSIFICATION))
    client = toy_client()
    sound = read_params(client.model)
    diverged = {name: torch.full_like(tensor, math.inf) for name, tensor in sound.items()}
    load_params(client.model, diverged)
    found, counts = task.evaluate(client.model, client.prepared, ("train", "val"))
    assert found == {"train": {}, "val": {}} and counts["val"] > 0
    members = [toy_client(id="a"), toy_client(id="b")]
    for member in members:
        member.task = task
    cohort = GraphCohort(members)
    alone, together = (cohort.evaluate(models, ("val",)) for models in ([sound, sound], [sound, diverged]))
    assert together == [alone[0], ({"val": {}}, {"val": counts["val"]})]


def test_predict_gives_chances_of_every_node_labelled_or_not() -> None:
    graph = toy_graph(20, unlabelled_fraction=0.5).subgraph(torch.arange(5, 20))
    client = toy_client(graph)
    found = TASK.predict(client.model, client.prepared)
    assert found.ids.tolist() == list(range(5, 20))
    expected = client.model(client.prepared.graph, None).detach().softmax(dim=1)
    assert torch.allclose(found.probabilities, expected)
    assert torch.equal(found.labels, expected.argmax(dim=1))


def test_predictions_can_serve_in_a_loss() -> None:
    client = toy_client()
    chances = TASK.predict(client.model, client.prepared).probabilities
    weight = torch.ones(3, requires_grad=True)
    torch.autograd.backward((chances * weight).sum())
    assert weight.grad is not None


@pytest.mark.parametrize("spec", [GCN(hidden=4), SAGE(hidden=4), GAT(hidden=4, heads=2)], ids=["gcn", "sage", "gat"])
def test_what_evaluation_caches_on_the_graph_serves_training(spec: object) -> None:
    client = toy_client(model=ModelSpec(spec))  # type: ignore[arg-type]
    TASK.evaluate(client.model, client.prepared, ("val",))
    (batch,) = islice(TASK.batches(client.prepared, FullBatch(), generator()), 1)
    grads = torch.autograd.grad(TASK.loss(client.model, batch, generator()), list(client.model.parameters()))
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(ValueError, match="choose from loss, accuracy"):
        NodeClassification(metrics=("accuracy", "beauty"))
    with pytest.raises(ValueError, match="metrics is"):
        NodeClassification(metrics=())


def test_bad_batchings_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        NeighborBatch(batch_size=0)
    for fanouts in ((), (0,), (3, -2)):
        with pytest.raises(ValueError, match="fanouts is"):
            NeighborBatch(fanouts=fanouts)
