"""Guards that code, between sites: the simulation's bits, the bytes that cross, and what was lacked after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import FedAvg
from isthmus.core.guards.guard import Guard
from isthmus.core.training import EarlyStopping
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.top_k import TopK
from isthmus.runs.simulated import run
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.up import Rehearsal
from isthmus.testing import besiege, toy_world, trace_course, trace_sites
from tests.privacy.compression.toys import ALL, LOSSY, NEUTRAL
from tests.processes import copy_silos
from tests.sites.in_process import FakeHub, fake_hub, site_course

LINES: dict[str, tuple[Guard, ...]] = {**LOSSY, "delta, entropy": NEUTRAL["delta, entropy"]}
# Every other one is in the default set.
SOME = [name if place % 2 == 0 else pytest.param(name, marks=pytest.mark.slow) for place, name in enumerate(LINES)]
HASTE = Patience(start_seconds=1.0, pause_seconds=1.0, retry_seconds=0.0)
# What a message has around its record between sites: names, place, memory.
ENVELOPE = 500


def equal(one: ist.Params, two: ist.Params) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("line", SOME)
def test_a_coded_course_between_sites_is_the_simulation_to_the_bit(line: str, tmp_path: Path) -> None:
    world = toy_world()
    course = world.course(FedAvg(local_steps=2), guards=LINES[line], runtime="strict")
    found = trace_sites(course, world.silos(tmp_path), tmp_path / "run")
    loop = trace_course(course, world.scenario)
    assert found.ended_by is None and not found.failures
    assert equal(found.params, run(course, scenario=world.scenario).params)
    for there, here in zip(found.exchanges, loop.exchanges, strict=False):
        assert (there.position, there.request, there.failures) == (here.position, here.request, ())
        for way in ("bytes_down", "bytes_up"):
            around = getattr(there, way) - getattr(here, way)
            assert 0 < around < ENVELOPE * there.num_clients, (there.request, way)


def test_the_bytes_that_are_reported_are_those_that_cross(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path, simulated=0)
    crossed = {"down": 0, "up": 0}

    def count(site: str, kind: str, data: bytes) -> bytes | None:
        if kind != "exchange":
            return None
        answer: bytes = hub.silos[site].handle(kind, data)
        crossed["down"] += len(data)
        crossed["up"] += len(answer)
        return answer

    hub.hook = count
    course = site_course(FedAvg(local_steps=2), guards=LINES["top_k down, quantise up, entropy"])
    result = SiteCourse(course, hub, tuple(hub.silos), tmp_path / "run", patience=HASTE, say=lambda text: None).run()
    assert (result.bytes_down, result.bytes_up) == (crossed["down"], crossed["up"])


def stopped_and_resumed(line: str, stop_at: int, folder: Path, restart: bool) -> ist.Params:
    """Run a course whose server is stopped at a message, let silos start anew, and go on."""
    hub = fake_hub(folder, simulated=0)
    keep = EarlyStopping(keep="last")  # the last model, in which all that was lacked before has come
    course = site_course(FedAvg(local_steps=2), guards=LINES[line], rounds=4, stopping=keep, runtime="loop")

    def made() -> SiteCourse:
        return SiteCourse(course, hub, tuple(hub.silos), folder / "run", patience=HASTE, say=lambda text: None)

    def stop(site: str, kind: str, data: bytes) -> None:
        if kind == "exchange" and len([k for _, k in hub.log if k == "exchange"]) == stop_at:
            raise KeyboardInterrupt

    if not stop_at:
        return made().run().params
    hub.hook = stop
    with pytest.raises(KeyboardInterrupt):
        made().run()
    hub.hook = lambda site, kind, data: None
    for site in list(hub.silos) if restart else []:
        hub.restart(site)
    return made().resume().params


# Six messages a round: in the first round nobody knows anything, from the second on all is coded.
@pytest.mark.parametrize("stop_at", [8, 11, *(pytest.param(at, marks=pytest.mark.slow) for at in (14, 16))])
@pytest.mark.parametrize(
    "line",
    ["top_k", "low_rank", *(pytest.param(n, marks=pytest.mark.slow) for n in ("quantise with feedback", "random_k"))],
)
def test_a_server_that_was_stopped_goes_on_with_the_same_bits(line: str, stop_at: int, tmp_path: Path) -> None:
    whole = stopped_and_resumed(line, 0, tmp_path / "whole", restart=False)
    cut = stopped_and_resumed(line, stop_at, tmp_path / "cut", restart=stop_at % 2 == 0)
    assert equal(whole, cut)


def test_a_silo_that_lost_what_it_had_is_sent_all_of_it(tmp_path: Path) -> None:
    """One that was away in a round, and comes back as a new process, has its memory of before or is sent the whole."""
    hub: FakeHub = fake_hub(tmp_path, simulated=0)

    def away(site: str, kind: str, data: bytes) -> None:
        number = hub.log.count(("client-1", "exchange"))
        if site == "client-1" and kind == "exchange" and number == 5:
            hub.away.add("client-1")
        if site == "client-0" and kind == "exchange" and number >= 5 and "client-1" in hub.away:
            hub.restart("client-1")

    hub.hook = away
    course = site_course(FedAvg(local_steps=2), guards=LINES["top_k"], rounds=6, min_replies=1)
    result = SiteCourse(course, hub, tuple(hub.silos), tmp_path / "run", patience=HASTE, say=lambda text: None).run()
    failed = [f for e in result.events if e["event"] == "exchange" for f in e["failures"]]
    assert result.num_rounds == 6
    assert {(f["client"], f["kind"]) for f in failed} == {("client-1", "lost")}


@pytest.mark.slow
@pytest.mark.parametrize("line", ["top_k", "delta, entropy"])
def test_no_siege_gets_through_to_a_silo_that_codes(line: str, tmp_path: Path) -> None:
    world = toy_world()
    besiege(FedAvg(local_steps=2), tmp_path, replace(world, fields={"guards": LINES[line]}), skip=("proposals",))


@pytest.mark.sites
@pytest.mark.slow
def test_coded_sites_on_the_engine_end_with_the_bits_of_the_loop_and_a_fraction_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_silos(monkeypatch)
    guards = (TopK(fraction=0.05, **ALL), Entropy())
    model = ist.ModelSpec(type(ist.ModelSpec().gnn)(hidden=8))
    course = ist.Course(rounds=4, num_clients=3, model=model, runtime="loop", guards=guards)
    said: list[str] = []
    with Rehearsal(course, say=said.append) as rehearsal:
        coded = rehearsal.run(tmp_path / "coded", patience=Patience(start_seconds=120, pause_seconds=60))
        assert rehearsal.server is not None
        plain: Any = rehearsal.server.run(replace(rehearsal.course, guards=()), tmp_path / "plain")
    strict = ist.run(replace(course, runtime="strict"))
    assert equal(coded.params, strict.params) and coded.client_scores == strict.client_scores
    there, here = ([e for e in result.events if e["event"] == "exchange"] for result in (coded, strict))
    assert len(there) >= len(here) == 8
    for one, other in zip(there, here, strict=False):
        for way in ("bytes_down", "bytes_up"):
            assert 0 < one[way] - other[way] < ENVELOPE * one["num_clients"], (one["request"], way)
    assert coded.bytes_up < 0.1 * plain.bytes_up
