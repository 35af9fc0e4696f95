"""From an encoder to a client's own model: scikit-learn's probe as a linear head, and fine-tuning."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from isthmus.algorithms.fedgrl.downstream import Finetune, Freeze
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Position
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.graph_client import Fit, GraphClient
from isthmus.learn.metrics.classification import cross_entropy
from isthmus.learn.optimizers import SGD, AdamW, read_params
from isthmus.learn.tasks import LinkPrediction, NodeClassification
from isthmus.models import GCN, LinearDecoder, MLPDecoder, ModelSpec
from isthmus.testing import toy_client, toy_graph

LINEAR = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=LinearDecoder())
STILL = ModelSpec(GCN(hidden=5, dropout=0.0), decoder=MLPDecoder(hidden=4, dropout=0.0))
HEAD = "decoder."
CLOSE = 5e-4  # how far from the optimum a solver may stop


def graph_of(num_classes: int = 3, num_nodes: int = 80) -> Graph:
    """A graph whose classes are not easily told apart, so that strengths of the penalty differ."""
    graph = toy_graph(num_nodes, num_classes=num_classes, unlabelled_fraction=0.1, homophily=0.3)
    noise = torch.randn(graph.x.shape, generator=torch.Generator().manual_seed(1))
    return replace(graph, x=graph.x + 4.0 * noise)


def with_train(graph: Graph, keep: Tensor) -> Graph:
    return graph.with_masks({**graph.masks, "train": graph.mask("train") & keep})


def ready(graph: Graph, model: ModelSpec) -> tuple[GraphClient, Params, Params]:
    """A client that keeps its head, the encoder, and the head."""
    client = toy_client(graph, model=model)
    client.position = Position(seed=3, round=4, exchange=1)
    whole = read_params(client.model)
    draw = torch.Generator().manual_seed(2)
    whole = {n: t + 0.1 * torch.randn(t.shape, generator=draw).abs() for n, t in whole.items()}
    client.own = {name: tensor for name, tensor in whole.items() if name.startswith(HEAD)}
    return client, {n: t for n, t in whole.items() if not n.startswith(HEAD)}, client.own


def embedded(client: GraphClient, params: Params) -> np.ndarray:
    """What the frozen encoder gives, without dropout and by the running statistics."""
    model = copy.deepcopy(client.model)
    model.load_state_dict({**client.own, **params})
    with torch.no_grad():
        return model.embed(client.prepared.graph, None).double().numpy()  # type: ignore[operator]


def best_probe(client: GraphClient, params: Params, exponents: range) -> tuple[Any, np.ndarray]:
    """The best of scikit-learn's probes by validation accuracy, the first among equals, and what it is applied to."""
    h = embedded(client, params)
    index, labels = ({k: t.numpy() for k, t in d.items()} for d in (client.prepared.index, client.prepared.labels))
    scaler = StandardScaler().fit(h[index["train"]])
    best: tuple[float, Any] | None = None
    for exponent in exponents:
        probe = LogisticRegression(C=2.0**exponent, max_iter=100_000, tol=1e-9)
        probe.fit(scaler.transform(h[index["train"]]), labels["train"])
        score = 0.0
        if len(index["val"]):
            score = float((probe.predict(scaler.transform(h[index["val"]])) == labels["val"]).mean())
        if best is None or score > best[0]:
            best = (score, probe)
    assert best is not None
    return best[1], scaler.transform(h)


# ---- a frozen encoder


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_the_head_says_what_scikit_learn_says(num_classes: int) -> None:
    client, encoder, _ = ready(graph_of(num_classes), LINEAR)
    found = Freeze().train(client, encoder)
    probe, rows = best_probe(client, encoder, range(-10, 11, 2))
    probabilities = client.predict(found).probabilities.numpy()
    np.testing.assert_allclose(probabilities, probe.predict_proba(rows), atol=CLOSE)
    assert (probabilities.argmax(axis=1) == probe.predict(rows)).all()
    assert probe.C != 1.0  # so that the search shows


def test_the_search_goes_where_the_fields_say() -> None:
    client, encoder, _ = ready(graph_of(), LINEAR)
    for algorithm, exponents in ((Freeze(max_exponent=3, step=3), range(-3, 4, 3)), (Freeze(max_exponent=0), range(1))):
        probe, rows = best_probe(client, encoder, exponents)
        probabilities = client.predict(algorithm.train(client, encoder)).probabilities.numpy()
        np.testing.assert_allclose(probabilities, probe.predict_proba(rows), atol=CLOSE)


def test_the_smallest_strength_counts_among_equals() -> None:
    """One validation node, which all strengths get right."""
    graph = graph_of(2)
    client, encoder, _ = ready(graph, LINEAR)
    h = embedded(client, encoder)
    easy = max(client.prepared.index["train"].tolist(), key=lambda node: (int(graph.y[node]), float(h[node].sum())))
    one = torch.arange(graph.num_nodes) == easy
    client, encoder, _ = ready(
        graph.with_masks({**graph.masks, "val": one, "train": graph.mask("train") & ~one}), LINEAR
    )
    probes = [best_probe(client, encoder, range(k, k + 1)) for k in range(-10, 11, 2)]
    right = [int(probe.predict(rows)[easy]) == int(graph.y[easy]) for probe, rows in probes]
    assert sum(right) > 1, right
    probe, rows = probes[right.index(True)]
    probabilities = client.predict(Freeze().train(client, encoder)).probabilities.numpy()
    np.testing.assert_allclose(probabilities, probe.predict_proba(rows), atol=CLOSE)


def test_without_validation_nodes_the_strength_is_one() -> None:
    graph = graph_of()
    client, encoder, _ = ready(graph.with_masks({**graph.masks, "val": torch.zeros(80, dtype=torch.bool)}), LINEAR)
    probe, rows = best_probe(client, encoder, range(1))
    probabilities = client.predict(Freeze().train(client, encoder)).probabilities.numpy()
    np.testing.assert_allclose(probabilities, probe.predict_proba(rows), atol=CLOSE)


@pytest.mark.parametrize("num_classes", [3, 5])
def test_a_class_never_seen_in_training_is_impossible_and_the_others_are_as_without_it(num_classes: int) -> None:
    graph = graph_of(num_classes)
    client, encoder, _ = ready(with_train(graph, graph.y != 1), LINEAR)
    assert 1 in client.prepared.labels["val"]
    found = Freeze().train(client, encoder)
    assert found["decoder.layers.0.weight"].shape == (5, num_classes)
    probe, rows = best_probe(client, encoder, range(-10, 11, 2))
    probabilities = client.predict(found).probabilities.numpy()
    seen = [c for c in range(num_classes) if c != 1]
    np.testing.assert_allclose(probabilities[:, seen], probe.predict_proba(rows), atol=CLOSE)
    assert (probabilities[:, 1] == 0.0).all()


def test_one_class_in_training_is_certain() -> None:
    graph = graph_of()
    client, encoder, _ = ready(with_train(graph, graph.y == 2), LINEAR)
    probabilities = client.predict(Freeze().train(client, encoder)).probabilities
    assert torch.equal(probabilities, torch.tensor([0.0, 0.0, 1.0]).expand(80, 3))


def test_a_column_that_does_not_vary_does_no_harm() -> None:
    client, encoder, _ = ready(graph_of(), LINEAR)
    encoder["gnn.layers.1.weight"] = encoder["gnn.layers.1.weight"].clone()
    encoder["gnn.layers.1.weight"][:, 2] = 0.0
    found = Freeze().train(client, encoder)
    probe, rows = best_probe(client, encoder, range(-10, 11, 2))
    np.testing.assert_allclose(client.predict(found).probabilities.numpy(), probe.predict_proba(rows), atol=CLOSE)


@pytest.mark.parametrize("way", [Freeze(), Finetune(steps=3)], ids=["freeze", "finetune"])
def test_without_training_examples_the_head_is_as_it_began(way: Any) -> None:
    graph = graph_of()
    model = LINEAR if isinstance(way, Freeze) else STILL
    client, encoder, head = ready(with_train(graph, torch.zeros(80, dtype=torch.bool)), model)
    found = way.train(client, encoder)
    assert found.keys() == {*encoder, *head}
    assert all(torch.equal(found[name], tensor) for name, tensor in {**encoder, **head}.items())


@pytest.mark.parametrize("way", [Freeze(), Finetune(steps=3)], ids=["freeze", "finetune"])
def test_neither_the_encoder_that_was_given_nor_the_memory_is_changed(way: Any) -> None:
    client, encoder, head = ready(graph_of(), LINEAR)
    client.state = {"personal": {name: tensor + 0.1 for name, tensor in head.items()}, "other": 1}
    before = {name: tensor.clone() for name, tensor in encoder.items()}
    state = dict(client.state)
    found = way.train(client, encoder)
    assert all(torch.equal(encoder[name], tensor) for name, tensor in before.items())
    assert client.state == state
    moved = [name for name in encoder if not torch.equal(found[name], encoder[name])]
    assert bool(moved) == isinstance(way, Finetune)
    assert all(tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in found.values())


# ---- fine-tuning


def trajectory(client: GraphClient, params: Params, steps: int) -> list[tuple[Params, float]]:
    """torch.optim on the training nodes: the model after each step, and its validation accuracy."""
    model = copy.deepcopy(client.model)
    model.load_state_dict({**client.own, **params})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-3)
    prepared = client.prepared
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        scores = model(prepared.graph, None)
        torch.autograd.backward(cross_entropy(scores[prepared.index["train"]], prepared.labels["train"]))
        optimizer.step()
        with torch.no_grad():
            said = model(prepared.graph, None)[prepared.index["val"]].argmax(dim=1)
        right = float((said == prepared.labels["val"]).double().mean()) if len(said) else float("nan")
        found.append(({n: t.detach().clone() for n, t in model.state_dict().items()}, right))
    return found


def assert_close(found: Params, expected: Params, atol: float = 1e-4) -> None:
    assert found.keys() == expected.keys()
    gaps = {name: float((found[name] - expected[name]).abs().max()) for name in found}
    assert max(gaps.values()) <= atol, gaps


@pytest.mark.parametrize("every", [1, 3, 4, 100])
def test_the_first_of_the_best_by_validation_is_kept(every: int) -> None:
    client, encoder, _ = ready(graph_of(), STILL)
    steps = 30
    path = trajectory(client, encoder, steps)
    looks = [*range(every, steps, every), steps]
    scores = [path[step - 1][1] for step in looks]
    best = looks[scores.index(max(scores))]
    if every < 4:
        assert best != steps and path[-1][1] < max(scores)  # so that keeping the last would show
    assert_close(Finetune(steps=steps, evaluate_every=every).train(client, encoder), path[best - 1][0])


def test_without_looks_or_without_validation_nodes_the_last_is_kept() -> None:
    graph = graph_of()
    blind = graph.with_masks({**graph.masks, "val": torch.zeros(80, dtype=torch.bool)})
    for data, every in ((graph, 0), (blind, 5), (blind, 0)):
        client, encoder, _ = ready(data, STILL)
        path = trajectory(client, encoder, 12)
        assert_close(Finetune(steps=12, evaluate_every=every).train(client, encoder), path[-1][0])


def test_steps_between_looks_are_steps_of_one_training_to_the_bit() -> None:
    """Moments and the stream of dropout go on."""
    graph = graph_of()
    client, encoder, head = ready(graph.with_masks({**graph.masks, "val": torch.zeros(80, dtype=torch.bool)}), LINEAR)
    found = Finetune(steps=11, evaluate_every=4).train(client, encoder)
    start, draw = {**encoder, **head}, client.generator("finetune")
    work = Fit(start, 11, AdamW(lr=0.01, weight_decay=1e-3))
    wanted = work.on(client.model, start, client.task, client.prepared, 0.01, client.batching, draw).params
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_the_optimiser_is_the_one_given_and_the_defaults_are_those_of_the_paper() -> None:
    way = Finetune()
    assert (way.steps, way.optimizer) == (100, AdamW(lr=0.01, weight_decay=1e-3))
    client, encoder, head = ready(graph_of(), STILL)
    found = Finetune(steps=1, evaluate_every=0, optimizer=SGD(lr=0.2)).train(client, encoder)
    whole = {n: t.clone().requires_grad_() for n, t in {**encoder, **head}.items()}
    scores = torch.func.functional_call(client.model, whole, (client.prepared.graph, None))
    loss = cross_entropy(scores[client.prepared.index["train"]], client.prepared.labels["train"])
    grads = dict(zip(whole, torch.autograd.grad(loss, list(whole.values())), strict=True))
    assert_close(found, {n: t.detach() - 0.2 * grads[n] for n, t in whole.items()}, 1e-6)


# ---- what they cannot do


def test_a_frozen_encoder_gets_a_linear_head_only() -> None:
    client, encoder, _ = ready(graph_of(), STILL)
    with pytest.raises(BadInput, match=r"a linear head; set model\.decoder\.name=linear"):
        Freeze().train(client, encoder)


@pytest.mark.parametrize("way", [Freeze(), Finetune()], ids=["freeze", "finetune"])
def test_other_tasks_metrics_and_models_are_refused(way: Any) -> None:
    client, encoder, _ = ready(graph_of(), LINEAR)
    for task in (LinkPrediction(), NodeClassification(metrics=("f1_macro",))):
        client.task = task
        with pytest.raises(BadInput, match=r"chosen by accuracy; the task is .*accuracy among its metrics"):
            way.train(client, encoder)
    plain = toy_client()
    with pytest.raises(BadInput, match=r"no head apart from its encoder; set model\.decoder\.name=linear"):
        way.train(plain, read_params(plain.model))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Freeze, {"max_exponent": -1}, "max_exponent is -1"),
        (Freeze, {"step": 0}, "step is 0"),
        (Freeze, {"max_iter": 0}, "max_iter is 0"),
        (Finetune, {"steps": 0}, "steps is 0"),
        (Finetune, {"evaluate_every": -1}, "evaluate_every is -1"),
    ],
    ids=str,
)
def test_fields_outside_their_range_are_refused(kind: Any, fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)
