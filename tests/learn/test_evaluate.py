from __future__ import annotations

import pytest
import torch

from isthmus.core.record import Params
from isthmus.learn.graph_client import score_model, score_on_global_graph, score_on_local_graphs, weighted
from isthmus.learn.optimizers import load_params, read_params
from isthmus.learn.tasks import NodeClassification
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_client, toy_graph, toy_scenario

TASK = NodeClassification()
SCENARIO = toy_scenario(3)
CLIENTS = {name: toy_client(part, id=name) for name, part in SCENARIO.parts.items()}
MODELS = {name: read_params(toy_client(seed=number).model) for number, name in enumerate(SCENARIO.parts)}


def accuracy(graph: object, params: Params, split: str = "test") -> float:
    """Worked out anew: run the model on the graph, count the right nodes of the split."""
    client = toy_client(graph)  # type: ignore[arg-type]
    load_params(client.model, params)
    right = client.model(client.prepared.graph, None).argmax(dim=1) == client.data.y
    return float(right[client.data.mask(split)].double().mean())


def counts() -> dict[str, int]:
    return {name: int(part.mask("test").sum()) for name, part in SCENARIO.parts.items()}


def test_global_model_on_the_global_graph() -> None:
    whole = toy_client(SCENARIO.whole)
    shared = MODELS["client-0"]
    found = score_on_global_graph(TASK, whole.model, whole.prepared, {"global": shared}, "test")
    assert found["accuracy"] == pytest.approx(accuracy(SCENARIO.whole, shared))
    assert set(found) == {"accuracy", "loss"}


def test_local_models_on_the_global_graph_count_the_same() -> None:
    whole = toy_client(SCENARIO.whole)
    found = score_on_global_graph(TASK, whole.model, whole.prepared, MODELS, "test")
    each = [accuracy(SCENARIO.whole, params) for params in MODELS.values()]
    assert len(set(each)) > 1
    assert found["accuracy"] == pytest.approx(sum(each) / 3)


def test_a_metric_that_one_model_does_not_have_is_the_mean_of_the_others() -> None:
    whole = toy_client(SCENARIO.whole)
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in MODELS["client-0"].items()}
    good = {name: MODELS[name] for name in ("client-1", "client-2")}
    for models in ({"client-0": broken, **good}, {**good, "client-0": broken}):
        found = score_on_global_graph(TASK, whole.model, whole.prepared, models, "test")
        expected = score_on_global_graph(TASK, whole.model, whole.prepared, good, "test")
        assert found["loss"] == pytest.approx(expected["loss"]), "the loss of a model that diverged is undefined"
        assert set(found) == {"accuracy", "loss"}


@pytest.mark.parametrize("kind", ["global", "local"])
def test_models_on_local_graphs_are_weighted_by_examples(kind: str) -> None:
    models = MODELS if kind == "local" else dict.fromkeys(CLIENTS, MODELS["client-1"])
    mean, each = score_on_local_graphs(TASK, CLIENTS, models, "test")
    expected = {name: accuracy(part, models[name]) for name, part in SCENARIO.parts.items()}
    assert {name: scores["accuracy"] for name, scores in each.items()} == pytest.approx(expected)
    total = sum(counts().values())
    assert len(set(counts().values())) > 1
    assert mean["accuracy"] == pytest.approx(sum(counts()[n] * expected[n] for n in expected) / total)


def test_a_client_without_examples_has_no_score_and_no_weight() -> None:
    graph = toy_graph(12)
    empty = graph.with_masks({"train": graph.mask("train")})
    clients = {**CLIENTS, "empty": toy_client(empty, id="empty")}
    models = {**MODELS, "empty": MODELS["client-0"]}
    mean, each = score_on_local_graphs(TASK, clients, models, "test")
    assert each["empty"] == {}
    assert mean == score_on_local_graphs(TASK, CLIENTS, MODELS, "test")[0]


def test_score_model_gives_metrics_and_number_of_examples() -> None:
    client = CLIENTS["client-2"]
    scores, number = score_model(TASK, client.model, MODELS["client-2"], client.prepared, "val")
    assert number == int(client.data.mask("val").sum())
    assert scores["accuracy"] == pytest.approx(accuracy(client.data, MODELS["client-2"], "val"))


def test_weighted_takes_each_metric_over_the_clients_that_have_it() -> None:
    each = {"a": {"accuracy": 0.5, "roc_auc": 0.9}, "b": {"accuracy": 1.0}, "c": {}}
    found = weighted(each, {"a": 1, "b": 3, "c": 7})
    assert found == {"accuracy": pytest.approx(0.875), "roc_auc": pytest.approx(0.9)}
    assert weighted({}, {}) == {}
    assert weighted({"a": {"accuracy": 0.5}}, {"a": 0}) == {}


def test_no_models_have_no_scores() -> None:
    whole = toy_client(SCENARIO.whole)
    assert score_on_global_graph(TASK, whole.model, whole.prepared, {}, "test") == {}


def test_the_four_modes_of_a_course_are_these() -> None:
    import isthmus
    from isthmus.algorithms import FedAvg, Local
    from isthmus.testing import toy_course

    shared = isthmus.run(toy_course(FedAvg()), scenario=SCENARIO)
    assert set(shared.metrics) == {"global_model/global_graph", "global_model/local_graph"}
    assert shared.metrics["global_model/global_graph"]["accuracy"] == pytest.approx(
        narrow(SCENARIO, shared.params), abs=1e-9
    )
    own = isthmus.run(toy_course(Local()), scenario=SCENARIO)
    assert set(own.metrics) == {"local_model/global_graph", "local_model/local_graph"}
    each = [narrow(SCENARIO, params) for params in own.client_params.values()]
    assert own.metrics["local_model/global_graph"]["accuracy"] == pytest.approx(sum(each) / 3)


def narrow(scenario: Scenario, params: Params) -> float:
    assert all(isinstance(tensor, torch.Tensor) for tensor in params.values())
    return accuracy(scenario.whole, params)
