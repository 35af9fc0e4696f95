import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.algorithms.local import StartFrom
from isthmus.core.protocol import Kept
from isthmus.learn.tasks import NodeClassification
from isthmus.runs.folder import load_model_file
from isthmus.runs.simulation import load_scenario

SHORT = ist.Course(rounds=4, model=ist.ModelSpec())


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> ist.Result:
    return ist.run(SHORT, run_dir=tmp_path_factory.mktemp("run") / "fedavg")


def test_the_history_has_a_row_per_round_with_bytes_and_metrics(fedavg: ist.Result) -> None:
    history = fedavg.history
    assert list(history["round"]) == [1, 2, 3, 4]
    assert {"train/loss", "val/accuracy", "bytes_up", "bytes_down", "seconds"} <= set(history.columns)
    assert history["train/loss"].is_monotonic_decreasing


def test_the_model_is_a_module_that_scores_what_the_result_says(fedavg: ist.Result, tmp_path: Path) -> None:
    whole = load_scenario(SHORT, tmp_path).whole
    logits = fedavg.model(SHORT.task.prepare(whole).graph, None)
    right = (logits.argmax(dim=1) == whole.y)[whole.mask("test")].double().mean()
    assert fedavg.score() == pytest.approx(float(right), abs=1e-12)
    assert fedavg.metrics["global_model/global_graph"]["accuracy"] == fedavg.score()


def test_the_score_on_local_graphs_is_the_mean_over_clients_by_test_nodes(fedavg: ist.Result, tmp_path: Path) -> None:
    parts = load_scenario(SHORT, tmp_path).parts
    counts = {name: int(part.mask("test").sum()) for name, part in parts.items()}
    mean = sum(counts[n] * s["accuracy"] for n, s in fedavg.client_scores.items()) / sum(counts.values())
    assert fedavg.score("local_graph") == pytest.approx(mean)


def test_every_client_has_a_model_and_without_personal_parts_it_is_the_global_one(fedavg: ist.Result) -> None:
    models = fedavg.client_models
    assert len(models) == 5 and not fedavg.client_params
    assert all(
        torch.equal(a, b) for a, b in zip(models["client-3"].parameters(), fedavg.model.parameters(), strict=True)
    )


def test_local_models_are_each_client_s_own_and_are_saved(tmp_path: Path) -> None:
    result = ist.run(replace(SHORT, algorithm=ist.Local()), run_dir=tmp_path / "local")
    with pytest.raises(ValueError, match="no global model"):
        _ = result.model
    one, two = result.client_models["client-0"], result.client_models["client-1"]
    assert not torch.equal(next(one.parameters()), next(two.parameters()))
    saved, facts = load_model_file(tmp_path / "local" / "clients" / "client-0.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in one.state_dict().items())
    assert facts["client"] == "client-0" and facts["output_dim"] == "7"
    assert set(result.metrics) == {"local_model/global_graph", "local_model/local_graph"}
    assert not (tmp_path / "local" / "model.safetensors").exists()


def test_local_models_are_scored_on_the_whole_graph_by_their_plain_mean(tmp_path: Path) -> None:
    result = ist.run(replace(SHORT, algorithm=ist.Local()))
    whole = load_scenario(SHORT, tmp_path).whole
    prepared = SHORT.task.prepare(whole)
    each = []
    for model in result.client_models.values():
        predicted = model(prepared.graph, None).argmax(dim=1)
        each.append(float((predicted == whole.y)[whole.mask("test")].double().mean()))
    assert result.metrics["local_model/global_graph"]["accuracy"] == pytest.approx(sum(each) / 5)


def test_the_centralised_model_is_scored_client_by_client_within_the_whole_graph(tmp_path: Path) -> None:
    result = ist.run(replace(SHORT, algorithm=ist.Pooled()))
    parts = load_scenario(SHORT, tmp_path).parts
    assert set(result.client_scores) == set(parts) and set(result.client_params) == {"all"}
    counts = {name: int(part.mask("test").sum()) for name, part in parts.items()}
    mean = sum(counts[n] * s["accuracy"] for n, s in result.client_scores.items()) / sum(counts.values())
    assert result.score() == pytest.approx(mean)


def test_every_metric_that_the_task_names_is_reported() -> None:
    names = ("accuracy", "loss", "f1_micro", "f1_macro", "roc_auc")
    result = ist.run(replace(SHORT, rounds=1, task=NodeClassification(metrics=names)))
    assert set(result.metrics["global_model/global_graph"]) == set(names)


def test_the_best_round_is_kept_not_the_last() -> None:
    # A learning rate that blows up: later rounds are worse than the first ones.
    course = replace(SHORT, rounds=12, algorithm=ist.FedAvg(local_steps=1, optimizer=ist.SGD(lr=8.0)))
    result = ist.run(course)
    history = result.history.set_index("round")
    assert result.best_round == history["val/accuracy"].idxmax() < 12


def test_an_unfinished_run_can_be_resumed_from_python(tmp_path: Path) -> None:
    whole = ist.run(replace(SHORT, rounds=6))
    ist.run(SHORT, run_dir=tmp_path / "run")
    resumed = ist.resume(tmp_path / "run", overrides=["rounds=6"])
    assert all(torch.equal(whole.params[name], resumed.params[name]) for name in whole.params)


def test_a_run_whose_clients_hold_something_else_by_now_is_not_resumed(tmp_path: Path) -> None:
    ist.run(SHORT, run_dir=tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    held = next(e["text"] for e in map(json.loads, journal.read_text().splitlines()) if e["event"] == "client")
    journal.write_text(journal.read_text().replace(held, "7 nodes, 9 edges"))
    before = {file: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    expected = rf"client 'client-0' held '7 nodes, 9 edges' when .* now holds '{held}'.*igraph_louvain"
    with pytest.raises(ist.BadInput, match=expected):
        ist.resume(tmp_path / "run", overrides=["rounds=6"])
    assert {file: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before


@dataclass(frozen=True)
class LocalWithAStumble(ist.Local):
    """One client cannot start."""

    def client_params(self, params: ist.Params, state: Mapping[str, Any]) -> ist.Params:
        return super().client_params(params, state)

    @ist.on(StartFrom)
    def start(self, request: StartFrom, client: ist.GraphClient) -> Kept:
        if client.id == "client-2":
            raise RuntimeError("no disk")
        return super().start(request, client)


def test_a_client_that_failed_in_the_setup_is_left_out_and_the_others_are_scored() -> None:
    result = ist.run(replace(SHORT, algorithm=LocalWithAStumble()))
    assert set(result.client_scores) == {"client-0", "client-1", "client-3", "client-4"}
    failures = [f for e in result.events if e["event"] == "exchange" for f in e["failures"]]
    assert {f["client"] for f in failures} == {"client-2"}
    assert failures[0]["reason"].startswith("RuntimeError: no disk")
    assert "it failed in the setup" in failures[1]["reason"]


@dataclass(frozen=True)
class Talking(ist.FedAvg):
    """Says something in its second round."""

    def round(self, state: Any, fed: Any) -> Any:
        if fed.round == 2:
            fed.note("the second round is a special one")
        return super().round(state, fed)


def test_what_an_algorithm_notes_is_in_the_journal_with_its_round_and_in_the_result_once(tmp_path: Path) -> None:
    course = replace(SHORT, rounds=3, algorithm=Talking())
    result = ist.run(course, run_dir=tmp_path / "run")
    assert result.notes == ["the second round is a special one"]
    (event,) = [event for event in result.events if event["event"] == "note"]
    assert event["round"] == 2
    resumed = ist.resume(tmp_path / "run", course=replace(course, rounds=4))
    assert resumed.num_rounds == 4 and resumed.notes == result.notes
