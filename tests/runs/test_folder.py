from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.config.course import Course
from isthmus.config.load import load_course
from isthmus.core.errors import BadInput
from isthmus.core.training import Callback
from isthmus.runs.folder import RunFolder, load_model_file, new_run_path
from isthmus.runs.journal import read_journal
from isthmus.runs.simulated import resume, run
from isthmus.runs.simulation import Scenario
from isthmus.testing.toys import toy_graph
from isthmus.testing.traces import NO_CLOCK

# ---- the folder


def test_a_new_folder_holds_the_course_and_names_its_files(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "deep" / "run", "rounds: 3\nname: Zürich\n")
    assert folder.course.read_text(encoding="utf-8") == "rounds: 3\nname: Zürich\n"
    assert [p.name for p in folder.path.iterdir()] == ["course.yaml"]
    assert folder.journal.name == "journal.jsonl" and folder.checkpoint.name == "checkpoint.isth"
    assert folder.client_model("client-1") == folder.path / "clients" / "client-1.safetensors"
    assert RunFolder.open(folder.path).course == folder.course


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path, "x: 1").course.is_file()


@pytest.mark.parametrize("kind", ["run folder", "folder with a file", "file"])
def test_what_exists_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run"
    if kind == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / ("course.yaml" if kind == "run folder" else "thesis.tex")).write_text("mine")
    with pytest.raises(BadInput, match="exists already; choose another folder, or go on with it: isthmus run --resume"):
        RunFolder.create(path, "rounds: 1")
    kept = [path] if kind == "file" else list(path.iterdir())
    assert [file.read_text() for file in kept] == ["mine"]


def test_a_folder_without_a_course_is_no_run_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadInput, match=r"is not a run folder: it has no course\.yaml"):
            RunFolder.open(path)


def test_new_paths_do_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20260131-235959")
    found = []
    for _ in range(3):
        found.append(new_run_path(tmp_path, "fedavg-cora"))
        found[-1].mkdir()
    assert [path.name for path in found] == [
        "20260131-235959-fedavg-cora",
        "20260131-235959-fedavg-cora-2",
        "20260131-235959-fedavg-cora-3",
    ]


# ---- models


def test_models_and_facts_come_back(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "x: 1")
    params = {"w": torch.arange(6.0).reshape(2, 3).t(), "n": torch.tensor(3)}
    folder.save_models(params, {"client-0": {"w": torch.ones(1)}}, lambda client: {"isthmus": "0", "classes": '["é"]'})
    found, facts = load_model_file(folder.model)
    assert torch.equal(found["w"], params["w"]) and found["n"].item() == 3
    assert facts == {"isthmus": "0", "classes": '["é"]'}
    own, facts = load_model_file(folder.client_model("client-0"))
    assert own["w"].tolist() == [1.0] and facts["client"] == "client-0"


def test_a_method_without_a_global_model_writes_none(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "x: 1")
    folder.save_models({}, {}, lambda client: {})
    assert [p.name for p in folder.path.iterdir()] == ["course.yaml"]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 64, b'\x08\0\0\0\0\0\0\0{"a":1}}'])
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"model\.safetensors is not a model file"):
        load_model_file(path)


def test_a_missing_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"model\.safetensors does not exist"):
        load_model_file(tmp_path / "model.safetensors")


# ---- a whole run


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    graph = toy_graph(num_nodes=24)
    return Scenario(graph, {"client-0": graph, "client-1": graph})


COURSE = load_course({}, ["rounds=3", "num_clients=2", "model.gnn.hidden=4"])


def without_times(events: Any) -> list[dict[str, Any]]:
    gone = ("time", "seconds", "wall_seconds", "load_seconds", "build_seconds", *NO_CLOCK)
    return [{key: value for key, value in event.items() if key not in gone} for event in events]


def test_a_run_folder_begins_with_the_course_and_holds_all_that_a_run_leaves(
    tmp_path: Path, scenario: Scenario
) -> None:
    result = run(COURSE, run_dir=tmp_path / "run", scenario=scenario)
    folder = RunFolder.open(tmp_path / "run")
    events = list(read_journal(folder.journal))
    assert events[0]["event"] == "course"
    assert load_course(events[0]["course"]) == load_course(folder.course) == COURSE
    assert [event["event"] for event in events].count("round") == 3
    assert [event["event"] for event in events][-2:] == ["scored", "end"]
    assert sorted(p.name for p in folder.path.iterdir()) == [
        "checkpoint.isth",
        "course.yaml",
        "journal.jsonl",
        "model.safetensors",
        "report.html",
        "report.md",
    ]
    params, facts = load_model_file(folder.model)
    assert all(torch.equal(params[name], result.params[name]) for name in result.params)
    assert facts["output_dim"] == "3"


class Stop(Callback):
    """A callback that interrupts after a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def exchanged(self, report: Any) -> None:
        if report.position.round == self.round + 1:
            raise KeyboardInterrupt

    def round_done(self, report: Any) -> None: ...


@pytest.mark.parametrize("algorithm", ["fedavg", "fedopt", "local"])
def test_an_interrupted_run_goes_on_to_the_same_bits_and_tells_each_round_once(
    tmp_path: Path, scenario: Scenario, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr("isthmus.runs.simulated.load_scenario", lambda *_: scenario)
    course = replace(COURSE, algorithm=load_course({"algorithm": algorithm}).algorithm)
    whole = run(course, run_dir=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(course, run_dir=tmp_path / "run", callbacks=[Stop(1)])
    resumed = resume(tmp_path / "run")
    assert resumed.metrics == whole.metrics and resumed.client_scores == whole.client_scores
    assert all(torch.equal(resumed.params[name], whole.params[name]) for name in whole.params)
    kept = ("course", "exchange", "round", "end")
    told = [
        [event for event in without_times(read_journal(tmp_path / name / "journal.jsonl")) if event["event"] in kept]
        for name in ("run", "whole")
    ]
    assert told[0] == told[1]


def test_a_run_folder_in_use_is_refused_before_anything_is_written(tmp_path: Path, scenario: Scenario) -> None:
    run(replace(COURSE, rounds=1), run_dir=tmp_path / "run", scenario=scenario)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(BadInput, match=re.escape(f"isthmus run --resume {tmp_path / 'run'}")):
        run(COURSE, run_dir=tmp_path / "run", scenario=scenario)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_run_without_a_folder_writes_nothing(
    tmp_path: Path, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(replace(COURSE, rounds=1), scenario=scenario)
    assert result.run_dir is None and list(tmp_path.iterdir()) == []
    assert result.events[0]["event"] == "course" and isinstance(result.course, Course)
