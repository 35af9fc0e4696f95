"""What a person is told of courses that cannot work, before their start, and of clients that got lost, at their end."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import isthmus as ist
from isthmus.algorithms import GFLAPPNP, FedSagePlus
from isthmus.algorithms.fedgrl.selfsup import GRACE
from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.runs.predicting import predictions
from isthmus.testing import toy_graph
from tests.cli.command import call

SMALL = ("dataset.name=csbm", "num_clients=3", "rounds=2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("algorithm.name=fgssl", "batching.name=neighbor"), "use full batches (batching.name=full)"),
        (("algorithm.name=fgssl", "task.name=node_samples"), "task.name=node_classification"),
        (("algorithm.name=fedsage_plus", "task.name=node_samples"), "task.name=node_classification"),
        (("algorithm.name=fedgl", "batching.name=neighbor"), "use full batches (batching.name=full)"),
        (("algorithm.name=fedrep", "model.decoder=mlp", 'shared=["*"]'), "leave shared out"),
        (("client_settings={client-0: {model.gnn.hidden: 8}}",), "nothing that is shared fits both"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_run_folder(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    code, text = call("run", *SMALL, *words, "--out", str(tmp_path / "run"))
    assert code == 2 and message in text and "--resume" not in text
    assert not (tmp_path / "run").exists()


def test_a_model_of_one_client_that_does_not_fit_its_task_is_told_with_the_client(tmp_path: Path) -> None:
    words = ["dataset.name=link_folder", "dataset.path=examples/own_data/reviews", "task.name=link_classification"]
    words += [
        "model.decoder.name=hadamard_mlp",
        'shared=["gnn.*"]',
        "splitter.name=random",
        "num_clients=2",
        "rounds=1",
    ]
    own = "client_settings={client-0: {model.decoder: {name: mlp}}}"
    code, text = call("run", *words, own, "--out", str(tmp_path / "run"))
    assert code == 2 and "client_settings.client-0: " in text


@pytest.mark.parametrize("task", ["link_prediction", "link_classification"])
def test_links_of_a_graph_without_edges_are_refused(task: str, tmp_path: Path) -> None:
    write_graph_folder(toy_graph(10), tmp_path / "graph")
    pd.DataFrame({"source": [], "target": []}, dtype=str).to_csv(tmp_path / "graph" / "edges.csv", index=False)
    (tmp_path / "graph" / "edges.parquet").unlink(missing_ok=True)
    words = ["dataset.name=links_of", "dataset.dataset.name=folder", f"dataset.dataset.path={tmp_path / 'graph'}"]
    words += [f"task.name={task}", "splitter.name=random", "num_clients=2", "model.decoder=dot", "rounds=1"]
    code, text = call("run", *words, "--out", str(tmp_path / "run"))
    assert code == 2 and "has no links, so there is nothing to learn from" in text and "Traceback" not in text


def test_fields_that_contradict_each_other_or_are_no_temperature_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to put noise on"):
        GFLAPPNP(noise_std=1.0, gradients="none")
    with pytest.raises(ValueError, match="tau is inf"):
        GRACE(tau=float("inf"))


def test_a_client_that_fails_in_every_round_is_in_the_table_s_notes_also_when_quiet(tmp_path: Path) -> None:
    words = [*SMALL, "algorithm.name=fedgrl", "model.decoder.name=mlp", "evaluate_every=2"]
    own = "client_settings={client-0: {objective: {name: dgi}}}"
    code, text = call("run", "-q", *words, own, "--out", str(tmp_path / "run"))
    assert code == 0 and "note: client-0 failed in 2 of 2 rounds: TrainEncoder" in text
    code, text = call("run", "--resume", str(tmp_path / "run"), "rounds=3", "--json")
    (note,) = [note for note in json.loads(text)["notes"] if "failed in" in note]
    assert code == 0 and "client-0 failed in 3 of 3 rounds" in note


def test_own_models_that_diverged_are_named(tmp_path: Path) -> None:
    own = "client_settings={client-0: {tune_optimizer: {name: sgd, lr: 1.0e+35}}}"
    code, text = call("run", "-q", *SMALL, "algorithm.name=fedavg_ft", own, "--out", str(tmp_path / "run"))
    assert code == 0 and "the own models of client-0 diverged" in text


def test_a_client_may_have_a_generator_of_its_own_size_or_none(tmp_path: Path) -> None:
    algorithm = FedSagePlus(pretrain_steps=1, cross_rounds=0, latent=8, hidden=8)
    settings = {"client-0": {"latent": 5}, "client-1": {"num_generated": 0}}
    course = ist.Course(num_clients=3, rounds=1, algorithm=algorithm, client_settings=settings)
    result = ist.run(course, run_dir=tmp_path / "run")
    assert set(result.client_scores) == {"client-0", "client-1", "client-2"}
    assert any("client-1 generates no neighbours (num_generated is 0)" in note for note in result.notes)
    assert len(predictions(tmp_path / "run", "cora", client="client-0")) == 2708


def test_of_many_models_the_first_five_and_the_number_of_the_others_are_named(tmp_path: Path) -> None:
    words = ["dataset.name=csbm", "num_clients=7", "rounds=1", "algorithm.name=ditto"]
    assert call("run", *words, "--out", str(tmp_path / "run"))[0] == 0
    with pytest.raises(BadInput, match=r"client-4 \(and 2 more\)"):
        predictions(tmp_path / "run", "csbm", client="nobody")
