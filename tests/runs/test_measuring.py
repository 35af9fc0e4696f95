"""Monitors in whole courses: one matrix from every runtime, the same bits as without, and a journal that is true."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.errors import BadInput
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params
from isthmus.core.training import Callback, EarlyStopping
from isthmus.models import GCN
from isthmus.monitors import MONITORS, Measured, Monitor, View
from isthmus.monitors.tapped_runtime import TappedRuntime
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course, toy_scenario

BOTH = ("cka", "walk_distance")
CLIENTS = ["client-0", "client-1", "client-2"]

NOTHING_LEFT = (
    "nothing was left to train: 3 rounds were done and rounds is 3; the results are those of the run as it was"
)


def measured(result: ist.Result, name: str = "cka") -> list[dict[str, Any]]:
    return [e for e in result.events if e["event"] == "monitor" and e["name"] == name]


def run(algorithm: Any, scenario: Scenario | None = None, run_dir: Path | None = None, **changes: Any) -> ist.Result:
    course = toy_course(algorithm, **{"monitors": ("cka",), **changes})
    return ist.run(course, scenario=scenario or toy_scenario(), run_dir=run_dir)


def equal(one: Params, two: Params) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("algorithm", [ist.FedAvg(), ist.FedProx(mu=0.1), ist.FedOpt(), ist.Local()], ids=repr)
def test_every_runtime_gives_the_same_matrix(algorithm: Any) -> None:
    found = {name: run(algorithm, runtime=name, monitor_every=1) for name in ("loop", "auto", "strict")}
    for events in zip(*(measured(result) for result in found.values()), strict=True):
        matrices = [np.array(event["matrix"]) for event in events]
        assert all(np.abs(matrix - matrices[0]).max() <= 1e-5 for matrix in matrices)
        assert [event["clients"] for event in events] == [CLIENTS] * 3
    assert [event["round"] for event in measured(found["auto"])] == [1, 2, 3]


def test_the_clients_of_fedavg_have_models_of_their_own_though_they_end_with_one() -> None:
    result = run(ist.FedAvg())
    (event,) = measured(result)
    assert event["models"] == "replies" and event["round"] == 3 and event["absent"] == []
    assert 0.0 < event["least"] <= event["mean"] <= event["largest"] < 0.9999
    assert event["mean"] == pytest.approx(
        np.mean([event["matrix"][i][j] for i, j in ((0, 1), (0, 2), (1, 2))]), abs=1e-6
    )
    assert np.diag(event["matrix"]).tolist() == [1.0] * 3


def test_the_models_of_local_come_from_the_clients_memories() -> None:
    result = run(ist.Local())
    (event,) = measured(result)
    assert event["models"] == "memory" and event["clients"] == CLIENTS
    whole = toy_scenario().whole
    prepared = result.course.task.prepare(whole)
    outputs = [model(prepared.graph, None)[whole.mask("test")] for model in result.client_models.values()]
    from isthmus.monitors.similarity import pairwise_cka

    assert np.array(event["matrix"]) == pytest.approx(pairwise_cka(outputs).numpy(), abs=1e-6)


def test_one_client_that_holds_everything_has_no_pair() -> None:
    (event,) = measured(run(ist.Pooled()))
    assert (event["clients"], event["matrix"], event["mean"]) == (["all"], [[1.0]], None)
    result = run(ist.Pooled(), monitors=BOTH)
    assert list(result.monitors["walk_distance"]) == CLIENTS  # the graphs are the clients', whoever trains


def test_clients_outside_the_cohort_are_absent_and_named() -> None:
    result = run(ist.FedAvg(), sampling=UniformSampling(0.6), monitor_every=1, rounds=4, runtime="auto")
    cohorts = {e["round"]: e["cohort"] for e in result.events if e["event"] == "round"}
    assert len({tuple(cohort) for cohort in cohorts.values()}) > 1
    for event in measured(result):
        assert event["clients"] == sorted(cohorts[event["round"]]) and len(event["clients"]) == 2
        assert event["absent"] == [client for client in CLIENTS if client not in event["clients"]]
        assert len(event["matrix"]) == 2


@dataclass(frozen=True)
class Stumbling(ist.FedAvg):
    """One client cannot train, another answers with NaN."""

    @ist.on(TrainModel)
    def train(self, request: TrainModel, client: ist.GraphClient) -> ModelUpdate:
        if client.id == "client-1":
            raise RuntimeError("no disk")
        update = super().train(request, client)
        if client.id == "client-2":
            return replace(update, params={name: p * float("nan") for name, p in update.params.items()})
        return update


@pytest.mark.parametrize("runtime", ["loop", "auto", "strict"])
def test_clients_that_failed_are_absent_and_no_nan_is_written(runtime: str, tmp_path: Path) -> None:
    result = run(Stumbling(), toy_scenario(4), tmp_path / "run", num_clients=4, runtime=runtime)
    (event,) = measured(result)
    assert event["clients"] == ["client-0", "client-3"] and event["absent"] == ["client-1", "client-2"]
    (line,) = [x for x in (tmp_path / "run" / "journal.jsonl").read_text().splitlines() if '"monitor"' in x]
    assert "NaN" not in line and json.loads(line) == event


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "auto", "strict"])
@pytest.mark.parametrize("algorithm", [ist.FedAvg(), ist.Local()], ids=["fedavg", "local"])
def test_a_course_has_the_same_bits_with_and_without(algorithm: Any, runtime: str) -> None:
    changes = {"runtime": runtime, "sampling": UniformSampling(0.67), "rounds": 4}
    odd = toy_scenario(4, client_without_training=True, client_without_edges=True)
    before = torch.random.get_rng_state()
    plain = run(algorithm, odd, num_clients=4, monitors=(), **changes)
    watched = run(algorithm, odd, num_clients=4, monitors=BOTH, monitor_every=1, **changes)
    assert torch.equal(before, torch.random.get_rng_state())
    assert equal(plain.params, watched.params)
    assert all(equal(plain.client_params[name], watched.client_params[name]) for name in plain.client_params)
    assert (plain.metrics, plain.client_scores) == (watched.metrics, watched.client_scores)

    def told(result: ist.Result) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in event.items() if key != "time" and not key.endswith("seconds")}
            for event in result.events
            if event["event"] not in ("monitor", "course")
        ]

    assert told(plain) == told(watched)


def test_a_course_without_monitors_has_no_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: TappedRuntime, *args: Any) -> None:
        raise AssertionError("a tap was made")

    monkeypatch.setattr(TappedRuntime, "__init__", refuse)
    result = run(ist.FedAvg(), monitors=())
    assert not result.monitors and not measured(result)


def test_monitors_of_the_data_alone_leave_the_runtime_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TappedRuntime, "exchange", None)
    result = run(ist.FedAvg(), monitors=("walk_distance",), monitor_every=1)
    (event,) = measured(result, "walk_distance")
    assert event["round"] == 0 and "models" not in event and result.num_rounds == 3


def test_rounds_are_measured_as_often_as_asked_and_at_the_end() -> None:
    assert [e["round"] for e in measured(run(ist.FedAvg(), rounds=5, monitor_every=2))] == [2, 4, 5]
    assert [e["round"] for e in measured(run(ist.FedAvg(), rounds=4, monitor_every=2))] == [2, 4]
    assert [e["round"] for e in measured(run(ist.FedAvg(), rounds=2, monitor_every=9))] == [2]


def test_an_early_stop_is_an_end() -> None:
    course = {"rounds": 60, "stopping": EarlyStopping(patience=3), "evaluate_every": 2}
    result = run(ist.FedAvg(optimizer=ist.SGD(lr=0.01)), **course)
    (event,) = measured(result)
    assert event["round"] == result.num_rounds < 60 and event["models"] == "replies"


def test_a_rounds_that_is_not_evaluated_is_measured_too() -> None:
    result = run(ist.FedAvg(), rounds=4, evaluate_every=4, monitor_every=1)
    assert [e["models"] for e in measured(result)] == ["replies"] * 4


def test_the_result_has_the_last_matrix_as_a_table_and_the_folder_a_figure(tmp_path: Path) -> None:
    result = run(ist.FedAvg(), run_dir=tmp_path / "run", monitors=BOTH, monitor_every=1)
    frame = result.monitors["cka"]
    assert list(frame.index) == list(frame.columns) == CLIENTS
    assert frame.to_numpy().tolist() == measured(result)[-1]["matrix"]
    assert result.monitors["walk_distance"].loc["client-0", "client-0"] == 0.0
    for name in BOTH:
        root = ElementTree.parse(tmp_path / "run" / f"monitor-{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert ist.run(toy_course(ist.FedAvg()), scenario=toy_scenario()).monitors == {}


def test_what_measuring_took_is_not_the_course_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    class Slow(Monitor):
        def measure(self, view: View) -> Measured:
            time.sleep(0.2)
            return Measured((), np.zeros((0, 0)))

    monkeypatch.setitem(MONITORS, "slow", Slow)
    began = time.perf_counter()
    result = run(ist.FedAvg(), monitors=("slow",), monitor_every=1)
    whole = time.perf_counter() - began
    taken = sum(e["seconds"] for e in measured(result, "slow"))
    assert taken >= 0.6 and result.seconds < whole - taken
    assert sum(e["wall_seconds"] for e in result.events if e["event"] == "round") < whole - taken


# ---- resuming


def journal_of(path: Path) -> list[dict[str, Any]]:
    lines = (path / "journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "monitor"]


def short(**changes: Any) -> ist.Course:
    fields = {"rounds": 3, "num_clients": 3, "runtime": "auto", "monitors": BOTH, "monitor_every": 2}
    return ist.Course(model=ist.ModelSpec(GCN(hidden=4)), **{**fields, **changes})


def without_times(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key not in ("time", "seconds")} for event in events]


def test_a_resumed_run_tells_each_measurement_once_and_the_same(tmp_path: Path) -> None:
    whole = ist.run(short(rounds=6), run_dir=tmp_path / "whole")
    ist.run(short(), run_dir=tmp_path / "cut")
    assert [(e["name"], e["round"]) for e in journal_of(tmp_path / "cut")] == [
        ("walk_distance", 0),
        ("cka", 2),
        ("cka", 3),
    ]
    resumed = ist.resume(tmp_path / "cut", overrides=["rounds=6"])
    events = journal_of(tmp_path / "cut")
    assert [(e["name"], e["round"]) for e in events][3:] == [("cka", 4), ("cka", 6)]
    assert without_times([e for e in events if e["round"] != 3]) == without_times(journal_of(tmp_path / "whole"))
    assert resumed.monitors["cka"].equals(whole.monitors["cka"])


def test_a_finished_run_that_is_resumed_keeps_its_measurements(tmp_path: Path) -> None:
    first = ist.run(short(), run_dir=tmp_path / "run")
    before = journal_of(tmp_path / "run")
    again = ist.resume(tmp_path / "run")
    assert journal_of(tmp_path / "run") == before and again.notes == [NOTHING_LEFT]
    assert again.monitors["cka"].equals(first.monitors["cka"])


def test_a_run_may_be_resumed_with_other_monitors(tmp_path: Path) -> None:
    ist.run(short(monitors=(), monitor_every=0), run_dir=tmp_path / "run")
    words = ["monitors=[cka,walk_distance]"]
    late = ist.resume(tmp_path / "run", overrides=words)
    assert set(late.monitors) == {"walk_distance"}
    assert late.notes == [
        NOTHING_LEFT,
        "cka: the clients' models of round 3 are not known, since no round was run after the resume; run one more, or "
        "the course anew",
    ]
    assert sorted(ist.resume(tmp_path / "run", overrides=words).notes) == sorted(late.notes)
    more = ist.resume(tmp_path / "run", overrides=[*words, "rounds=4"])
    assert set(more.monitors) == set(BOTH) and [e["round"] for e in measured(more)] == [4]
    assert set(ist.resume(tmp_path / "run", overrides=["monitors=[]", "rounds=4"]).monitors) == set()


def test_models_in_memory_can_be_measured_after_a_resume(tmp_path: Path) -> None:
    local = ist.Local()
    ist.run(short(algorithm=local, monitors=()), run_dir=tmp_path / "run")
    late = ist.resume(tmp_path / "run", overrides=["monitors=[cka]"])
    whole = ist.run(short(algorithm=local))
    assert late.monitors["cka"].equals(whole.monitors["cka"]) and late.notes == [NOTHING_LEFT]


def test_rounds_after_the_checkpoint_are_measured_again_not_twice(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    class Cutter(Callback):
        def exchanged(self, report: Any) -> None: ...

        def round_done(self, report: Any) -> None:
            if report.round == 6:
                raise Cut  # as a crash would: no checkpoint but the last one, of round 4

    course = short(rounds=7, checkpoint_every=4, monitor_every=1)
    with pytest.raises(Cut):
        ist.run(course, run_dir=tmp_path / "run", callbacks=[Cutter()])
    assert [e["round"] for e in journal_of(tmp_path / "run")] == [0, 1, 2, 3, 4, 5]
    ist.resume(tmp_path / "run")
    whole = ist.run(course)
    kept = journal_of(tmp_path / "run")
    assert [e["round"] for e in kept] == [0, 1, 2, 3, 4, 5, 6, 7]
    fresh = [e for e in whole.events if e["event"] == "monitor"]
    assert without_times(kept) == without_times(json.loads(json.dumps(fresh)))


# ---- refusals, and monitors of one's own


def test_what_cannot_be_measured_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    made = toy_scenario()
    blind = made.whole.with_masks({**made.whole.masks, "test": torch.zeros(48, dtype=torch.bool)})
    with pytest.raises(BadInput, match="monitors has 'cka': the global graph has no test nodes"):
        run(ist.FedAvg(), Scenario(blind, made.parts), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"monitors has 'walks'; known: cka, .*walk_distance. Did you mean 'walk_distance'"
    ):
        ist.Course(monitors=("cka", "walks"))


class Connectivity(Monitor):
    """Edges for each node of each client's graph."""

    changes: ClassVar[bool] = False

    def measure(self, view: View) -> Measured:
        each = [part.num_edges / part.num_nodes for part in view.parts.values()]
        return Measured(tuple(view.parts), np.array(each))


def test_another_monitor_is_one_class_and_may_have_a_number_for_each_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(MONITORS, "connectivity", Connectivity)
    result = run(ist.FedAvg(), run_dir=tmp_path / "run", monitors=("connectivity",))
    (event,) = measured(result, "connectivity")
    parts = toy_scenario().parts
    assert event["values"] == pytest.approx([p.num_edges / p.num_nodes for p in parts.values()], abs=1e-6)
    assert list(result.monitors["connectivity"].columns) == ["connectivity"]
    assert not (tmp_path / "run" / "monitor-connectivity.svg").exists()


def test_a_monitor_that_breaks_is_a_note_and_the_course_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Monitor):
        def measure(self, view: View) -> Measured:
            raise ArithmeticError("too odd")

    monkeypatch.setitem(MONITORS, "broken", Broken)
    result = run(ist.FedAvg(), monitors=("broken", "cka"), monitor_every=2)
    said = [f"broken could not be measured in round {round}: ArithmeticError: too odd" for round in (2, 3)]
    assert result.notes == said and [e["round"] for e in measured(result)] == [2, 3]


def test_the_simulation_s_own_runtime_is_not_replaced() -> None:
    course = toy_course(ist.FedAvg(), monitors=("cka",))
    assert not isinstance(Simulation(course, toy_scenario()).runtime, TappedRuntime)
