"""What holds for every algorithm whose clients have models of their own, whatever the formula."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus.runs.simulated as runs
from isthmus import resume, run
from isthmus.core.random import UniformSampling
from isthmus.models import GCN, MLPDecoder, ModelSpec
from isthmus.testing import toy_course, toy_scenario
from isthmus.testing.traces import require_same, trace_course
from tests.learn.test_graph_courses import course_of, scenario_of
from tests.models.test_sharing import with_own_classes
from tests.quick import by_kind, quick

PERSONAL = ["fedrep", "ditto", "pfedme", "apfl", "fedavg_ft"]
# A head that stays, and a model beside the shared one.
SOME = ["fedrep", *by_kind(PERSONAL[1:])]
MODEL = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4))
HEAD = "decoder.layers.1.weight"


def course(name: str, **changes: Any) -> Any:
    return toy_course(quick(name), **{"model": MODEL, "shared": ("gnn.*",), "rounds": 3, **changes})


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "auto"])
@pytest.mark.parametrize("name", PERSONAL)
def test_clients_may_have_classes_of_their_own(name: str, runtime: str) -> None:
    result = run(course(name, num_clients=5, runtime=runtime), scenario=with_own_classes(toy_scenario(5)))
    assert result.client_params["client-4"][HEAD].shape == (4, 2)
    assert result.client_params["client-0"][HEAD].shape == (4, 3)
    assert set(result.metrics) == {"local_model/local_graph"} and len(result.client_models) == 5
    assert not [event for event in result.events if event["event"] == "exchange" and event.get("failures")]


@pytest.mark.parametrize("name", PERSONAL)
def test_a_client_has_settings_of_its_own(name: str) -> None:
    """In the first round they change its own model, and nobody else's."""
    own = {"tune_steps": 1} if name == "fedavg_ft" else {"optimizer.lr": 0.01}
    plain, other = (
        run(course(name, rounds=1, client_settings=settings), scenario=toy_scenario())
        for settings in ({}, {"client-1": own})
    )
    same = {c: torch.equal(plain.client_params[c][HEAD], other.client_params[c][HEAD]) for c in plain.client_params}
    assert same == {"client-0": True, "client-1": False, "client-2": True}


@pytest.mark.parametrize("name", SOME)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    scenario, changes = toy_scenario(4), {"sampling": UniformSampling(0.5), "num_clients": 4}
    whole = run(course(name, rounds=5, **changes), scenario=scenario)
    run(course(name, rounds=2, **changes), scenario=scenario, run_dir=tmp_path / "run")
    monkeypatch.setattr(runs, "load_scenario", lambda course, root: scenario)
    second = resume(tmp_path / "run", overrides=["rounds=5"])
    assert second.client_scores == whole.client_scores
    for client, params in whole.client_params.items():
        require_same({"it": params}, {"it": second.client_params[client]}, client)


@pytest.mark.meet(1)
@pytest.mark.parametrize("target", ["class", "value"])
@pytest.mark.parametrize("name", SOME)
def test_sets_of_graphs_run_alike_in_loop_and_strict(name: str, target: str) -> None:
    traces = [
        trace_course(course_of(name, target, runtime=runtime), scenario_of(target)) for runtime in ("loop", "strict")
    ]
    assert not any(report.failures for trace in traces for report in trace.exchanges)
    require_same(traces[0].values(), traces[1].values(), "loop and strict")


@pytest.mark.parametrize("name", SOME)
def test_the_personal_models_of_the_best_round_are_the_result_not_the_last(name: str) -> None:
    """A course whose best round is not its last reports what clients had then."""
    longer = course(name, rounds=6, evaluate_every=1)
    result = run(longer, scenario=toy_scenario())
    if result.best_round == longer.rounds:
        pytest.skip("the last round is the best with this method")
    shorter = run(replace(longer, rounds=result.best_round), scenario=toy_scenario())
    for client, params in result.client_params.items():
        require_same({"it": params}, {"it": shorter.client_params[client]}, client)
