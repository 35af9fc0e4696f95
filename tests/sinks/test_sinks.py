"""Sinks: the numbers that arrive are the journal's, by the names that people look for; one that fails ends nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.core.errors import BadInput
from isthmus.core.training import Callback, RoundReport
from isthmus.runs.simulated import resume
from isthmus.sinks import SINKS, About, Sink, Sinks
from isthmus.sinks.sink import flat
from isthmus.testing import toy_course, toy_scenario


def course(*sinks: str, **changes: Any) -> isthmus.Course:
    return toy_course(isthmus.FedAvg(local_steps=2), rounds=3, sinks=sinks, **changes)


def ran(folder: Path, *sinks: str) -> isthmus.Result:
    return isthmus.run(course(*sinks), scenario=toy_scenario(), run_dir=folder)


def wanted(result: isthmus.Result) -> list[dict[str, float]]:
    """Return what each round has to tell, read off the journal."""
    rounds = [event for event in result.events if event["event"] == "round"]
    exchanges = [event for event in result.events if event["event"] == "exchange"]
    found = []
    for event in rounds:
        mine = [each for each in exchanges if each["round"] == event["round"]]
        (train,) = [each for each in mine if each["request"] == "TrainModel"]
        told = {"bytes/up/ModelUpdate": train["bytes_up"], "bytes/down/TrainModel": train["bytes_down"]}
        found.append({**event["metrics"], **told, "spread/val/loss/90%": event["spread"]["val/loss"][5]})
    return found


def test_json_lines_have_every_number_of_every_round_and_the_last_scores(tmp_path: Path) -> None:
    result = ran(tmp_path / "a", "json_lines")
    *rows, last = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    for row, told in zip(rows, wanted(result), strict=True):
        assert {name: row[name] for name in told} == pytest.approx(told, abs=1e-6)
        assert 0.0 <= row["client/client-0/val/accuracy"] <= 1.0
        middle = sorted(row[f"client/client-{number}/val/accuracy"] for number in range(3))[1]
        assert row["spread/val/accuracy/median"] == middle
    assert last["test/global_model/local_graph/accuracy"] == result.metrics["global_model/local_graph"]["accuracy"]


def test_tensorboard_has_the_same(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="install it with: pip install 'isthmus[sinks]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = ran(tmp_path / "a", "tensorboard")
    found = EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    for name in ("val/accuracy", "bytes/up/ModelUpdate"):
        assert [(p.step, p.value) for p in found.Scalars(name)] == [
            (at, pytest.approx(told[name], rel=1e-6)) for at, told in enumerate(wanted(result), 1)
        ]
    assert "client/client-2/val/loss" in found.Tags()["scalars"]


def test_mlflow_has_the_same_in_a_store_beside_the_runs_and_goes_on_with_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="install it with: pip install 'isthmus[sinks]'")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = ran(tmp_path / "a", "mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = (tmp_path / "a" / "mlflow_run").read_text().strip()
    history = [(each.step, each.value) for each in client.get_metric_history(run, "val/accuracy")]
    assert history == [(at, told["val/accuracy"]) for at, told in enumerate(wanted(result), 1)]
    kept = client.get_run(run)
    assert kept.info.status == "FINISHED" and kept.info.run_name == "a"
    assert kept.data.params["algorithm.local_steps"] == "2"
    resume(tmp_path / "a", course=course("mlflow"), overrides=(), scenario=toy_scenario())
    assert (tmp_path / "a" / "mlflow_run").read_text().strip() == run


class Interrupting(Callback):
    def round_done(self, report: RoundReport) -> None:
        if report.round == 2:
            raise KeyboardInterrupt


def test_a_run_that_is_cut_short_leaves_none_running_and_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="install it with: pip install 'isthmus[sinks]'")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(KeyboardInterrupt):
        isthmus.run(course("mlflow"), scenario=toy_scenario(), run_dir=tmp_path / "a", callbacks=[Interrupting()])
    client, run = (
        MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}"),
        (tmp_path / "a" / "mlflow_run").read_text().strip(),
    )
    assert client.get_run(run).info.status == "KILLED"
    resume(tmp_path / "a", course=course("mlflow"), scenario=toy_scenario())
    assert client.get_run(run).info.status == "FINISHED"
    assert [each.step for each in client.get_metric_history(run, "val/accuracy")][-1] == 3


def test_wandb_keeps_everything_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="install it with: pip install 'isthmus[sinks]'")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    ran(tmp_path / "a", "wandb")
    (file,) = (tmp_path / "a" / "wandb").glob("offline-run-*/*.wandb")
    wanted = (b"val/accuracy", b"bytes/up/ModelUpdate", b"client/client-0/val/accuracy", b"local_steps")
    deadline = time.monotonic() + 30.0  # a process of its own writes it
    while not all(name in file.read_bytes() for name in wanted) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(name in file.read_bytes() for name in wanted)


class Failing(Sink):
    def __init__(self, about: About) -> None:
        super().__init__(about)
        self.asked = 0

    def log(self, values: Mapping[str, float], round: int) -> None:
        self.asked += 1
        raise ConnectionError("the server is gone")

    def close(self, values: Mapping[str, float]) -> None:
        raise AssertionError("it was asked again")

    def leave(self) -> None:
        raise AssertionError("it was asked again")


class NeverThere(Failing):
    def __init__(self, about: About) -> None:
        raise TimeoutError("nobody answers")


@pytest.mark.parametrize("kind", [Failing, NeverThere])
def test_a_sink_that_fails_is_told_of_once_and_changes_no_bit(
    kind: type[Sink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = isthmus.run(course(), scenario=toy_scenario())
    monkeypatch.setitem(SINKS, "tensorboard", kind)
    result = ran(tmp_path / "a", "tensorboard", "json_lines")
    assert len([note for note in result.notes if "the sink 'tensorboard' failed" in note]) == 1
    assert len((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()) == 4
    assert all(bool((plain.params[name] == result.params[name]).all()) for name in plain.params)


def test_a_sink_needs_a_run_folder_and_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="sinks has 'json_lines', which needs a run folder"):
        isthmus.run(course("json_lines"), scenario=toy_scenario())
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(BadInput, match=r"pip install 'isthmus\[sinks\]'"):
        ran(tmp_path / "a", "wandb")


def test_of_many_clients_only_how_far_they_are_apart_goes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.sinks.sink.MOST_CLIENTS", 2)
    ran(tmp_path / "a", "json_lines")
    row = json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[0])
    assert not [name for name in row if name.startswith("client/")] and "spread/val/loss/median" in row


def test_settings_are_flat(tmp_path: Path) -> None:
    assert flat({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": 1, "a.c": "[1, 2]", "d": None}
    assert Sinks({}, About("x", tmp_path, {}, {}), print) is not None
