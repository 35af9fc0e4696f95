"""Whole courses on sets of graphs, with every general algorithm and in every runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import ALGORITHMS
from isthmus.config.course import Course
from isthmus.core.errors import BadInput
from isthmus.core.training import EarlyStopping
from isthmus.data.graph_set import GraphSet
from isthmus.learn.batching import FullBatch, MiniBatch
from isthmus.learn.optimizers import SGD, load_params
from isthmus.learn.tasks import GraphBinary, GraphClassification, GraphRegression
from isthmus.models import GCN, ModelSpec
from isthmus.runs.simulation import Scenario
from tests.learn.tasks.graph_toys import BONDS, NODES, PLAIN, toy_set, without_labels

GENERAL = ("fedavg", "fedprox", "fedopt", "local", "global")
TASKS = {"class": GraphClassification, "binary": GraphBinary, "value": GraphRegression}


def scenario_of(target: str, categorical: bool = False) -> Scenario:
    """Three clients: two with labels, and one whose graphs have none."""
    whole = toy_set(target, sizes=NODES * 3, categorical=categorical)
    parts: list[GraphSet] = whole.divide([torch.arange(k, whole.num_items, 3) for k in range(3)])
    return Scenario(whole, {"a": parts[0], "b": parts[1], "c": without_labels(parts[2])})  # type: ignore[dict-item,arg-type]


def course_of(name: str, target: str = "class", **changes: Any) -> Course:
    task = TASKS[target]()
    course = Course(
        task=task,
        model=PLAIN,
        batching=MiniBatch(4),
        algorithm=ALGORITHMS[name](local_steps=2, optimizer=SGD(lr=1e-3 if target == "value" else 0.02)),  # type: ignore[call-arg]
        rounds=3,
        num_clients=3,
        stopping=EarlyStopping(metric=task.metrics[0]),
        runtime="loop",
    )
    return replace(course, **changes)


@pytest.mark.meet(1)
@pytest.mark.parametrize("name", GENERAL)
@pytest.mark.parametrize("target", TASKS)
def test_every_general_algorithm_runs_alike_in_every_runtime(name: str, target: str) -> None:
    scenario = scenario_of(target)
    results = {
        runtime: isthmus.run(course_of(name, target, runtime=runtime), scenario=scenario)
        for runtime in ("loop", "strict", "auto")
    }
    loop = results["loop"]
    metric = TASKS[target]().metrics[0]
    assert any(metric in scores for scores in loop.metrics.values())
    strict, auto = results["strict"], results["auto"]
    assert strict.metrics == loop.metrics and strict.client_scores == loop.client_scores
    assert strict.params.keys() == auto.params.keys() == loop.params.keys()
    assert all(torch.equal(strict.params[key], loop.params[key]) for key in loop.params)
    # Together, the same within rounding.
    for mine, theirs in zip((auto.metrics, auto.client_scores), (loop.metrics, loop.client_scores), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[key] == pytest.approx(theirs[key], rel=1e-5) for key in theirs)
    for key, tensor in loop.params.items():
        torch.testing.assert_close(auto.params[key], tensor, rtol=1e-5, atol=1e-5)


def test_bonds_and_full_batches_in_a_course() -> None:
    scenario = scenario_of("binary", categorical=True)
    results = [
        isthmus.run(course_of("fedavg", "binary", model=BONDS, batching=FullBatch(), runtime=r), scenario=scenario)
        for r in ("loop", "strict")
    ]
    assert results[0].metrics == results[1].metrics
    assert results[0].input_dim == 7


def test_the_centralised_model_is_scored_on_each_clients_graphs() -> None:
    scenario, course = scenario_of("value"), course_of("global", "value")
    result = isthmus.run(course, scenario=scenario)
    model = PLAIN.build(4, 3)
    load_params(model, result.client_params["all"])
    for name in ("a", "b"):
        part: Any = scenario.parts[name]
        expected = course.task.evaluate(model, course.task.prepare(part), ("test",))[0]["test"]
        assert result.client_scores[name] == pytest.approx(expected, rel=1e-5)


def test_a_client_without_labels_is_named_in_a_note() -> None:
    result = isthmus.run(course_of("fedavg"), scenario=scenario_of("class"))
    assert any("c has no training examples" in note for note in result.notes)
    assert result.client_scores["c"] == {}


@pytest.mark.parametrize("target", TASKS)
def test_a_course_whose_models_diverge_ends_without_metrics(target: str) -> None:
    algorithm = ALGORITHMS["local"](optimizer=SGD(lr=1e30))  # type: ignore[call-arg]
    result = isthmus.run(course_of("local", target, algorithm=algorithm), scenario=scenario_of(target))
    assert result.num_rounds == 3 and result.client_params
    assert result.client_scores == {"a": {}, "b": {}, "c": {}} and result.metrics["local_model/local_graph"] == {}


def test_a_model_without_a_readout_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadInput, match=r"set model.readout to mean, sum, max or set2set"):
        isthmus.run(course_of("fedavg", model=ModelSpec(GCN(hidden=8))), scenario=scenario_of("class"))


def test_labels_of_another_kind_are_refused_with_the_remedy() -> None:
    with pytest.raises(BadInput, match=r"set task.name=graph_binary"):
        isthmus.run(course_of("fedavg"), scenario=scenario_of("binary"))


@pytest.mark.parametrize("target", TASKS)
def test_predictions_become_columns_of_a_table(target: str) -> None:
    task = TASKS[target]()
    scores = torch.tensor([[2.0, -1.0], [-3.0, 0.5]])
    found = {
        name: list(map(float, column)) if isinstance(column, torch.Tensor) else column
        for name, column in task.predictions(torch.arange(2), scores).columns(("a", "b")).items()
    }
    p = (scores.softmax(dim=1) if target == "class" else scores.sigmoid()).tolist()
    shares = {"p_a": [p[0][0], p[1][0]], "p_b": [p[0][1], p[1][1]]}
    expected = {
        "class": {"label": ["a", "b"], **shares},
        "binary": {"a": [1.0, 0.0], "b": [0.0, 1.0], **shares},
        "value": {"a": [2.0, -3.0], "b": [-1.0, 0.5]},
    }[target]
    assert list(found) == list(expected)
    for name, column in expected.items():
        assert found[name] == (column if name == "label" else pytest.approx(column))
