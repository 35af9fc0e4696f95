from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.data.graph_set import GraphSet
from isthmus.learn.batching import FullBatch, MiniBatch, NeighborBatch
from isthmus.learn.graph_client import Fit, GraphClient
from isthmus.learn.metrics import classification as metrics
from isthmus.learn.optimizers import SGD, read_params
from isthmus.learn.tasks import GraphBinary, GraphClassification, GraphRegression, graph_batches
from isthmus.learn.tasks.graph_task import GraphTask
from isthmus.models import GAT, GCN, GIN, SAGE, GraphInput, MaxReadout, MeanReadout, MLPDecoder, ModelSpec, SumReadout
from isthmus.models.readouts import Set2SetReadout
from tests.learn.tasks.graph_toys import BONDS, PLAIN, toy_set, without_labels

TASKS = {"class": GraphClassification, "binary": GraphBinary, "value": GraphRegression}
READOUTS = (MeanReadout(), SumReadout(), MaxReadout(), Set2SetReadout())


def task_for(data: GraphSet) -> GraphTask:
    task = TASKS[data.target]
    return task(metrics=task.known_metrics)


def model_for(task: GraphTask, data: GraphSet, spec: ModelSpec = PLAIN) -> nn.Module:
    torch.manual_seed(0)
    model = spec.build(task.input_dim(data), task.output_dim(data))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model


def one_by_one(model: nn.Module, data: GraphSet, positions: Tensor) -> Tensor:
    """The model's scores, each graph alone."""
    rows = []
    for position in positions.tolist():
        (part,) = data.divide([torch.tensor([position])])
        alone = GraphInput(part.x.to_dense(), part.edge_index, num_graphs=1, edge_attr=part.edge_attr)
        rows.append(model(alone, None))
    return torch.cat(rows)


@pytest.mark.meet(1)
@pytest.mark.parametrize("target", TASKS)
@pytest.mark.parametrize("limit", [1, 20, 10_000])
def test_evaluation_in_blocks_equals_graph_by_graph(target: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_batches, "BLOCK_ROWS", limit)
    data = toy_set(target)
    task = task_for(data)
    model = model_for(task, data)
    found, counts = task.evaluate(model, task.prepare(data), ("train", "val", "test"))
    for split in ("train", "val", "test"):
        known = data.y >= 0 if target == "class" else ~data.y.isnan().all(dim=1)
        positions = (data.mask(split) & known).nonzero().flatten()
        with torch.no_grad():
            scores = one_by_one(model, data, positions)
        assert counts[split] == len(positions) == task.count(data, split)
        for name in task.metrics:
            expected = task.table[name](scores, data.y[positions])
            assert found[split].get(name, math.nan) == pytest.approx(expected, abs=1e-5, nan_ok=True)


@pytest.mark.meet(2)
@pytest.mark.parametrize("gnn", [GCN(hidden=8), GIN(hidden=8), GAT(hidden=8), SAGE(hidden=8)])
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_graph_scores_the_same_alone_and_in_any_batch(gnn: object, readout: object, sparse: bool) -> None:
    data = toy_set(sparse=sparse)
    task = task_for(data)
    model = model_for(task, data, ModelSpec(gnn, decoder=MLPDecoder(8), readout=readout))  # type: ignore[arg-type]
    everyone = torch.arange(data.num_items)
    with torch.no_grad():
        alone = one_by_one(model, data, everyone)
        for order in (everyone, everyone.flip(0), torch.tensor([5, 3, 1])):
            torch.testing.assert_close(model(task.prepare(data).pile.batch(order), None), alone[order])


@pytest.mark.parametrize("spec", [PLAIN, BONDS, *(replace(PLAIN, readout=readout) for readout in READOUTS)])
def test_the_order_of_a_graphs_nodes_does_not_matter(spec: ModelSpec) -> None:
    data = toy_set(categorical=spec is BONDS)
    task = task_for(data)
    model = model_for(task, data, spec)
    batch = task.prepare(data).pile.batch(torch.tensor([2, 0, 7]))
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(batch.num_nodes, generator=draw)
    edges = torch.randperm(batch.num_edges, generator=draw)
    place = torch.argsort(order)
    x = batch.x if isinstance(batch.x, Tensor) else batch.x.to_dense()
    shuffled = GraphInput(
        x[order],
        place[batch.edge_index][:, edges],
        batch=batch.batch[order],  # type: ignore[index]
        num_graphs=3,
        edge_attr=None if batch.edge_attr is None else batch.edge_attr[edges],
    )
    torch.testing.assert_close(model(shuffled, None), model(batch, None))


def test_mini_batches_show_every_training_graph_once_in_an_order_of_the_generator() -> None:
    data = toy_set()
    task = task_for(data)
    prepared = task.prepare(data)
    index = prepared.index["train"]
    assert task.batches_per_epoch(prepared, MiniBatch(2)) == 3

    def epochs(seed: int) -> list[list[int]]:
        batches = task.batches(prepared, MiniBatch(2), torch.Generator().manual_seed(seed))
        return [[b.graph.num_nodes * 100 + b.graph.num_edges for b in islice(batches, 3)] for _ in range(3)]

    assert epochs(0) == epochs(0) and epochs(0) != epochs(1)
    draw = torch.Generator().manual_seed(5)
    batches = task.batches(prepared, MiniBatch(2), draw)
    again = torch.Generator().manual_seed(5)
    for _ in range(3):
        order = index[torch.randperm(len(index), generator=again)]
        for positions in torch.split(order, 2):
            batch, wanted = next(batches), prepared.pile.batch(positions)
            assert torch.equal(batch.graph.edge_index, wanted.edge_index)
            assert torch.equal(batch.labels, data.y[positions])


def test_a_full_batch_is_cut_once() -> None:
    data = toy_set()
    task = task_for(data)
    prepared = task.prepare(data)
    first, second = islice(task.batches(prepared, FullBatch(), torch.Generator()), 2)
    assert first is second and first.graph.num_graphs == task.count(data, "train")
    assert next(task.batches(prepared, FullBatch(), torch.Generator())) is first
    assert task.batches_per_epoch(prepared, FullBatch()) == 1


def test_one_mini_batch_of_all_graphs_trains_as_a_full_batch_does() -> None:
    data = toy_set("binary")
    task = task_for(data)
    model = model_for(
        task, data, ModelSpec(GCN(hidden=8, dropout=0.0), decoder=MLPDecoder(8, dropout=0.0), readout=SumReadout())
    )
    start = read_params(model)

    def trained(batching: object) -> dict[str, Tensor]:
        work, draw = Fit(start, 3, SGD(lr=0.05)), torch.Generator().manual_seed(0)
        return work.on(model, start, task, task.prepare(data), 0.05, batching, draw).params  # type: ignore[arg-type]

    for name, value in trained(MiniBatch(100)).items():
        torch.testing.assert_close(value, trained(FullBatch())[name], atol=1e-5, rtol=1e-4)


@pytest.mark.meet(1)
@pytest.mark.parametrize("target", TASKS)
@pytest.mark.parametrize("categorical", [False, True])
def test_training_lowers_the_loss(target: str, categorical: bool) -> None:
    data = toy_set(target, categorical=categorical)
    task = task_for(data)
    spec = BONDS if categorical else PLAIN
    torch.manual_seed(0)
    model = spec.build(task.input_dim(data), task.output_dim(data))
    prepared = task.prepare(data)
    before = task.evaluate(model, prepared, ("train",))[0]["train"]["loss"]
    start, lr = read_params(model), 1e-4 if target == "value" else 0.01
    Fit(start, 60, SGD()).on(model, start, task, prepared, lr, MiniBatch(3), torch.Generator().manual_seed(0))
    assert task.evaluate(model, prepared, ("train",))[0]["train"]["loss"] < 0.9 * before


@pytest.mark.parametrize("target", TASKS)
def test_a_client_without_labelled_graphs_trains_nothing(target: str) -> None:
    data = without_labels(toy_set(target))
    task = task_for(data)
    model = model_for(task, data)
    client = GraphClient("one", data, task, model, MiniBatch(2))
    assert client.num_examples == 0
    prepared = task.prepare(data)
    assert list(task.batches(prepared, MiniBatch(2), torch.Generator())) == []
    assert list(task.batches(prepared, FullBatch(), torch.Generator())) == []
    assert task.batches_per_epoch(prepared, MiniBatch(2)) == task.batches_per_epoch(prepared, FullBatch()) == 0
    found, counts = task.evaluate(model, prepared, ("train", "val"))
    assert found == {"train": {}, "val": {}} and counts == {"train": 0, "val": 0}
    assert task.evaluate_groups(model, prepared, "train", [data.graph_ids]) == [{}]
    assert task.holds(data).endswith("0/0/0 train/val/test")
    assert len(task.predict(model, prepared).ids) == data.num_items


@pytest.mark.parametrize("target", TASKS)
def test_groups_are_measured_by_the_positions_of_their_graphs(target: str) -> None:
    data = toy_set(target, missing=0.0)
    task = task_for(data)
    model = model_for(task, data)
    parts = [torch.tensor([0, 4, 1, 8]), torch.tensor([4, 5, 9, 8, 3]), torch.tensor([2, 3])]
    holdings = data.divide(parts)
    found = task.evaluate_groups(model, task.prepare(data), "train", parts)
    for scores, part in zip(found, holdings, strict=True):
        expected = task.evaluate(model, task.prepare(part), ("train",))[0]["train"]
        assert scores == pytest.approx(expected, abs=1e-5)
    assert found[2] == {}  # graphs 2 and 3 are no training graphs


@pytest.mark.parametrize("target", ["class", "binary", "value"])
def test_a_diverged_model_has_no_metrics(target: str) -> None:
    data = toy_set(target)
    task = TASKS[target](metrics=TASKS[target].known_metrics)
    prepared, model = task.prepare(data), model_for(task, data)
    sound, counts = task.evaluate(model, prepared, ("train", "val"))
    assert all(sound.values())
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    assert task.evaluate(model, prepared, ("train", "val")) == ({"train": {}, "val": {}}, counts)
    assert task.evaluate_groups(model, prepared, "val", [torch.arange(data.num_items)]) == [{}]


def test_predictions_of_each_kind() -> None:
    for target in TASKS:
        data = toy_set(target)
        task = task_for(data)
        model = model_for(task, data)
        with torch.no_grad():
            scores = one_by_one(model, data, torch.arange(data.num_items))
        found = task.predict(model, task.prepare(data))
        assert torch.equal(found.ids, data.graph_ids)
        if target == "class":
            torch.testing.assert_close(found.probabilities, scores.softmax(dim=1))
            assert torch.equal(found.labels, scores.argmax(dim=1))
        elif target == "binary":
            torch.testing.assert_close(found.probabilities, scores.sigmoid())
            assert torch.equal(found.labels, (scores > 0).long())
        else:
            torch.testing.assert_close(found.labels, scores)


def test_dimensions_follow_from_the_data() -> None:
    plain, codes = toy_set("binary", num_outputs=5), toy_set("value", categorical=True, num_outputs=2)
    assert (GraphBinary().input_dim(plain), GraphBinary().output_dim(plain)) == (4, 5)
    assert (GraphRegression().input_dim(codes), GraphRegression().output_dim(codes)) == (7, 2)
    assert GraphClassification().holds(toy_set()) == "12 graphs of 4.2 nodes, 6/2/2 train/val/test"


def test_average_precision_of_classes_is_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score

    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(30, 3, generator=draw), torch.randint(3, (30,), generator=draw)
    expected = [average_precision_score(labels == c, logits.softmax(dim=1)[:, c]) for c in range(3)]
    assert metrics.average_precision(logits, labels) == pytest.approx(sum(expected) / 3)
    two = average_precision_score(labels > 0, logits[:, :2].softmax(dim=1)[:, 1])
    assert metrics.average_precision(logits[:, :2], (labels > 0).long()) == pytest.approx(two)
    assert math.isnan(metrics.average_precision(logits, torch.zeros(30, dtype=torch.int64)))


@pytest.mark.parametrize(("target", "wrong", "right"), [
    ("binary", GraphClassification, "graph_binary"),
    ("value", GraphBinary, "graph_regression"),
    ("class", GraphRegression, "graph_classification"),
])  # fmt: skip
def test_labels_of_another_kind_are_refused(target: str, wrong: type[GraphTask], right: str) -> None:
    data = toy_set(target)
    for ask in (wrong().prepare, wrong().input_dim, wrong().output_dim):
        with pytest.raises(BadInput, match=f"the labels of 'toy {target}' are .*; set task.name={right}"):
            ask(data)


def test_a_model_that_does_not_fit_is_refused_before_the_start() -> None:
    data, task = toy_set(), GraphClassification()
    task.require_model(model_for(task, data), data)
    with pytest.raises(BadInput, match=r"6 rows of scores for 2 graphs, one for each node; set model.readout"):
        task.require_model(model_for(task, data, ModelSpec(GCN(hidden=8))), data)
    with pytest.raises(BadInput, match="cannot read the graphs of 'toy class': edges have 0 columns"):
        task.require_model(model_for(task, data, replace(PLAIN, gnn=GIN(hidden=8, edge_dim=5))), data)


def test_neighbourhoods_and_unknown_metrics_are_refused() -> None:
    task = GraphClassification()
    with pytest.raises(BadInput, match="tasks on graphs take 'full' or 'mini'"):
        next(task.batches(task.prepare(toy_set()), NeighborBatch(), torch.Generator()))
    with pytest.raises(ValueError, match="choose from loss, rmse, mae"):
        GraphRegression(metrics=("accuracy",))
    with pytest.raises(ValueError, match="batch_size is 0"):
        MiniBatch(0)


@pytest.mark.parametrize("asked", TASKS)
@pytest.mark.parametrize("given", TASKS)
def test_graphs_can_be_predicted_whatever_their_labels_are_about(asked: str, given: str) -> None:
    trained, other = toy_set(target=asked), toy_set(target=given)
    task = task_for(trained)
    model = model_for(task, trained)
    found = task.predict(model, task.prepare(task.to_predict(other)))
    assert torch.equal(found.ids, other.graph_ids) and len(found.probabilities) == other.num_items
    if asked != given:
        with pytest.raises(BadInput, match=r"set task.name="):
            task.prepare(other)
