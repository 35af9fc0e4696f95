"""What a silo lets the server know when it refuses or fails: the kind, and nothing of its data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import Ditto, FedGL, FedProx, Scaffold
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode, pack
from isthmus.core.protocol import EvaluateModel, Position
from isthmus.data.zoo import Folder
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.sites.courses.messages import Finish, Proposal, Receipt, Terms
from isthmus.sites.silo.policy import Policy, load_policy
from isthmus.sites.silo.service import SiloService
from tests.sites.courses.test_site_course import on_sites
from tests.sites.in_process import CLASSES, fake_hub, site_course

ID = "0123456789abcdef"


def proposed(service: SiloService, course: ist.Course, course_id: str = ID) -> Terms:
    offered = Proposal(course_id, course_to_yaml(course), ist.__version__, ("client-0", "client-1", "client-2"))
    return decode(service.handle("propose", encode(offered)), Terms)


def asked(service: SiloService, request: Any, memory: str = BLANK, kind: str = "", course_id: str = ID) -> Answer:
    name = kind or type(request).__name__
    message = Envelope(course_id, Position(0, 1, 0), name, pack(encode(request)), memory, (memory,))
    return decode(service.handle("exchange", encode(message)), Answer)


@pytest.fixture
def screen(tmp_path: Path) -> tuple[SiloService, list[str]]:
    hub = fake_hub(tmp_path, {"client-0": Policy(algorithms=("fedavg", "fedprox", "local"))}, tell_reasons=False)
    return hub.silos["client-0"], hub.said


def test_proposals_that_leave_out_a_class_each_tell_neither_rows_nor_numbers(
    screen: tuple[SiloService, list[str]],
) -> None:
    service, said = screen
    answers = set()
    for left_out in CLASSES:
        names = tuple(name for name in CLASSES if name != left_out)
        answers.add(proposed(service, site_course(dataset=Folder(class_names=names))).refusal)
    assert answers == {"data: its data cannot be read as the course asks; its own screen says more: ask them"}
    assert any(str(service.data) in line and "row" in line for line in said), said  # at home it is told in full


@pytest.mark.parametrize("break_it", ["policy", "version", "data", "error", "course"])
def test_a_refusal_is_its_kind_and_holds_no_path_number_or_value(
    break_it: str, screen: tuple[SiloService, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, said = screen
    course = site_course()
    version = ist.__version__
    if break_it == "policy":
        course = site_course(FedGL())
    elif break_it == "version":
        version = "9.9"
    elif break_it == "data":
        (service.data / "edges.parquet").unlink()
    elif break_it == "course":
        course = site_course(dataset=ist.Course().dataset)
    else:
        monkeypatch.setattr(service, "_read", lambda course: {}["customer 4711"])
    offered = Proposal(ID, course_to_yaml(course), version, ("client-0", "client-1", "client-2"))
    found = decode(service.handle("propose", encode(offered)), Terms)
    assert found.refusal.startswith(f"{break_it}: ") and found.refusal.endswith("ask them")
    assert not any(word in found.refusal for word in (str(service.data), "9.9", "4711", "fedgl", "cora"))
    assert said and said[-1] not in found.refusal


def test_what_a_handler_raises_stays_at_the_silo(
    screen: tuple[SiloService, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, said = screen
    assert not proposed(service, site_course()).refusal
    client = service._last.silo.client

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("row 17 of customer 4711")

    monkeypatch.setattr(client, "evaluate", broken)
    failure = asked(service, EvaluateModel({}, ("val",), "accuracy", False)).failure
    assert failure is not None and failure.kind == "error"
    assert failure.reason == "error: it failed while it worked on this; its own screen says more: ask them"
    assert "row 17 of customer 4711 (in broken, line" in said[-1] and "EvaluateModel" in said[-1]
    garbage: Answer = decode(service.handle("exchange", b"garbage"), Answer)
    assert garbage.failure is not None and garbage.failure.reason.startswith("message: it could not read a message")
    receipt: Receipt = decode(service.handle("finish", encode(Finish("ab" * 8, {}, BLANK))), Receipt)
    assert receipt.problem.startswith("message: ") and "ab" * 8 not in receipt.problem


def test_a_policy_may_let_reasons_cross(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("tell_reasons: true\nalgorithms: [fedprox]\n")
    service = fake_hub(tmp_path, {"client-0": load_policy(path)}).silos["client-0"]
    refusal = proposed(service, site_course()).refusal
    assert refusal == "policy: its policy allows the algorithms fedprox, not fedavg"


def test_a_course_id_proposed_again_with_another_algorithm_does_not_find_the_local_model(
    screen: tuple[SiloService, list[str]],
) -> None:
    """`local` keeps its model at the silo; FedProx with kept moments, or GFL-APPNP, would answer from its entries."""
    service, _ = screen
    from isthmus.algorithms.local import StartFrom, TrainAlone

    assert not proposed(service, site_course(ist.Local())).refusal
    started = asked(service, StartFrom(_initial()))
    assert started.failure is None and started.memory != BLANK
    trained = asked(service, TrainAlone(), started.memory)
    assert trained.failure is None
    for other in (ist.FedAvg(keep_moments=True), FedProx(), ist.Local(local_steps=7)):
        assert not proposed(service, site_course(other)).refusal
        request = EvaluateModel(_initial(), ("val",), "accuracy", False)
        for memory in (started.memory, trained.memory):
            answer = asked(service, request, memory)
            assert answer.failure is not None and answer.failure.kind == "memory", type(other)
    # The course itself, proposed again as after a restart, goes on where it was.
    assert not proposed(service, site_course(ist.Local())).refusal
    again = asked(service, TrainAlone(), trained.memory)
    assert again.failure is None


def test_a_memory_put_where_another_course_looks_is_still_not_its_own(
    screen: tuple[SiloService, list[str]],
) -> None:
    service, _ = screen
    from isthmus.algorithms.local import StartFrom

    assert not proposed(service, site_course(ist.Local())).refusal
    started = asked(service, StartFrom(_initial()))
    store = service._last.silo.store
    assert not proposed(service, site_course(ist.FedAvg(keep_moments=True))).refusal
    other = service._last.silo.store
    other.folder.mkdir(parents=True)
    (other.folder / started.memory).write_bytes((store.folder / started.memory).read_bytes())
    answer = asked(service, EvaluateModel(_initial(), ("val",), "accuracy", False), started.memory)
    assert answer.failure is not None and answer.failure.kind == "memory"


def _initial() -> dict[str, torch.Tensor]:
    from isthmus.runs.simulation import build_model

    return {name: tensor.clone() for name, tensor in build_model(site_course(), 6, 3).state_dict().items()}


@pytest.mark.parametrize(("algorithm", "ends"), [(Ditto(), "starts anew"), (Scaffold(), "it leaves")])
def test_a_silo_that_loses_its_memories_is_told_of_once_and_the_course_goes_on(
    algorithm: Any, ends: str, tmp_path: Path
) -> None:
    hub = fake_hub(tmp_path, tell_reasons=False)
    trained = 0

    def lose(site: str, kind: str, data: bytes) -> None:
        nonlocal trained
        if site == "client-1" and kind == "exchange" and decode(data, Envelope).kind.startswith("Train"):
            trained += 1
            if trained == 3:
                shutil.rmtree(hub.silos[site].state / "memories")

    hub.hook = lose
    result = on_sites(site_course(algorithm, rounds=5), hub, tmp_path / "run").run()
    assert [note for note in result.notes if "lost its memory" in note and ends in note]
    failures = [f for e in result.events if e["event"] == "exchange" for f in e["failures"]]
    assert [f["kind"] for f in failures] == ([] if algorithm.starts_anew else ["memory"])
    assert result.num_rounds == 5 and ("client-1" in result.client_scores) == algorithm.starts_anew
    assert any("is lost: there is no such file" in line for line in hub.said)
