"""Guards between sites: the simulation's bits, no request but those there are, and secrets that courses hang on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms import FedAvg
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode, pack
from isthmus.core.errors import BadInput
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.outside import replace_file
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Record
from isthmus.runs.folder import ID_FILE
from isthmus.runs.simulated import run
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.courses.transfer import RUN_FILES
from isthmus.sites.silo.state import SECRET_FILE, simulate
from isthmus.testing import besiege, toy_world, trace_course, trace_sites
from isthmus.testing.hostile.lying import check_lies_between_sites
from isthmus.testing.hostile.siege import known_here
from isthmus.testing.hostile.sites import SitesHere, kinds_of
from tests.core.guards.toys import Adding, Affine, Boxed, Counting, Doubting, GiveUp, mapped
from tests.sites.in_process import FakeHub, fake_hub, scenario, site_course

HASTE = Patience(start_seconds=1.0, pause_seconds=1.0, retry_seconds=0.0)


@dataclass(frozen=True)
class ServerNoise(Guard):
    """Adds to the fold what only the server can draw."""

    scale: float = 0.25

    def folded(self, reply: Any, requests: Any, num_replies: int, at: AtServer) -> Any:
        if not reply.__dataclass_fields__.keys() >= {"params"}:
            return reply
        stream = at.protecting("noise")
        return mapped(reply, lambda x: x + self.scale * stream.normal(x.shape).to(x.dtype))


@dataclass(frozen=True)
class SiloNoise(Guard):
    """Adds to what leaves what only its client can draw."""

    def release(self, reply: Record, request: Request[Any], at: Any) -> Record:
        return mapped(reply, lambda x: x + 0.125 * at.protecting("noise", x).normal(x.shape).to(x.dtype))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Unheard(Request[Record]):
    """What no course asks."""


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with known_here(Adding, Affine, Boxed, Counting, Doubting, ServerNoise, SiloNoise):
        yield


LINES: dict[str, tuple[Guard, ...]] = {
    "coded": (Affine(times=4.0, requests=True), Boxed(), Counting()),
    "summed": (Affine(times=4.0), Counting(), Adding()),
    "noisy": (SiloNoise(), Boxed()),
    "doubting": (Doubting("client-1"),),
}


@pytest.mark.parametrize("line", list(LINES))
def test_a_guarded_course_between_sites_is_the_simulation_to_the_bit(line: str, tmp_path: Path) -> None:
    world = toy_world()
    course = world.course(FedAvg(local_steps=2), guards=LINES[line], runtime="loop")
    found = trace_sites(course, world.silos(tmp_path), tmp_path / "run")
    loop = trace_course(course, world.scenario)
    assert found.ended_by is None
    assert loop.ended_by is None
    assert found.params.keys() == loop.state.params.keys()  # type: ignore[union-attr]
    last = run(course, scenario=world.scenario).params  # the best round's, as the sites have it
    assert all(torch.equal(found.params[name], last[name]) for name in last)
    sent = [(r.position, r.request, r.num_clients, [f.client for f in r.failures]) for r in loop.exchanges]
    assert [(r.position, r.request, r.num_clients, [f.client for f in r.failures]) for r in found.exchanges][
        : len(sent)
    ] == sent


# ---- what can be asked


def answered(hub: FakeHub, request: Request[Any], memory: str = BLANK, site: str = "client-0") -> Answer:
    silo = hub.silos[site]
    assert silo._last is not None
    at, course_id = Position(seed=0, round=1, exchange=0), silo._last.proposal.course_id
    envelope = Envelope(course_id, at, type(request).__name__, pack(encode(request)), memory, (memory,))
    answer: Answer = decode(silo.handle("exchange", encode(envelope)), Answer)
    return answer


def agreed(folder: Path, *guards: Guard) -> FakeHub:
    """Silos that have run a course with guards, and are still asked."""
    hub = fake_hub(folder, simulated=0)
    course = site_course(FedAvg(local_steps=1), guards=guards, rounds=1)
    SiteCourse(course, hub, tuple(hub.silos), folder / "run", patience=HASTE, say=lambda text: None).run()
    return hub


def test_a_guards_own_request_is_answered_where_the_course_has_the_guard_and_nowhere_else(tmp_path: Path) -> None:
    without = answered(agreed(tmp_path / "without", Boxed(), Counting()), GiveUp())
    assert without.failure is not None
    assert without.failure.kind == "malformed"
    early = answered(agreed(tmp_path / "with", Adding()), GiveUp())
    assert early.failure is not None
    assert early.failure.kind == "error"  # it is asked, and there is nothing that it held back


def test_a_silo_answers_no_other_kind_of_request_than_its_course_has(tmp_path: Path) -> None:
    hub = agreed(tmp_path, Affine(), Adding())
    course = site_course(FedAvg(local_steps=1), guards=(Affine(), Adding()))
    wanted = {kind.__name__ for kind in kinds_of(course)}
    assert wanted == {"TrainModel", "EvaluateModel", "KeepBest", "GiveUp"} & wanted
    every: set[type[Any]] = set()
    left: list[type[Any]] = [Request]
    while left:
        for kind in left.pop().__subclasses__():
            left.append(kind)
            every.add(kind)
    others = [kind for kind in every if kind.__name__ not in wanted]
    assert len(others) > 20
    for kind in others:
        envelope = Envelope(_course_id(hub), Position(0, 1, 0), kind.__name__, pack(b""), BLANK, ())
        answer: Answer = decode(hub.silos["client-0"].handle("exchange", encode(envelope)), Answer)
        assert answer.failure is not None, kind
        assert answer.failure.kind == "malformed"


def _course_id(hub: FakeHub) -> str:
    assert hub.silos["client-0"]._last is not None
    return hub.silos["client-0"]._last.proposal.course_id


def test_what_a_guard_holds_back_leaves_by_no_other_request(tmp_path: Path) -> None:
    """The memory that holds a reply is a memory as any other; what is asked from it passes the guards too."""
    world = toy_world()
    course = world.course(FedAvg(local_steps=1), guards=(Adding(),), rounds=1)
    silos = world.silos(tmp_path)
    seen: list[tuple[str, Any]] = []
    hub = SitesHere(silos)

    def listen(site: str, kind: str, answer: bytes) -> list[bytes]:
        if kind == "exchange":
            seen.append((site, decode(answer, Answer)))
        return [answer]

    hub.deliver = listen
    SiteCourse(course, hub, tuple(silos), tmp_path / "run", patience=HASTE, say=lambda text: None).run()
    held: list[Tensor] = [leaf for _, answer in seen[:3] for leaf in [answer.payload]]
    assert all(answer.failure is None for _, answer in seen)
    assert all(len(payload) < 1000 for payload in held)  # an empty update: the model has more bytes than that


@pytest.mark.parametrize("line", ["coded", pytest.param("summed", marks=pytest.mark.slow)])
def test_no_siege_gets_through_to_a_guarded_silo(line: str, tmp_path: Path) -> None:
    world = toy_world()
    siege = besiege(
        FedAvg(local_steps=2), tmp_path, type(world)(world.scenario, {"guards": LINES[line]}), skip=("proposals",)
    )
    assert {type(each.request) for each in siege.honest} <= set(kinds_of(siege.course))


@pytest.mark.parametrize("line", ["coded", pytest.param("summed", marks=pytest.mark.slow)])
def test_lies_of_a_guarded_silo_harm_nobody_else(line: str, tmp_path: Path) -> None:
    world = toy_world()
    guarded = type(world)(world.scenario, {"guards": LINES[line], "min_replies": 1})
    assert check_lies_between_sites(FedAvg(local_steps=1), tmp_path / "lies", guarded) > 5


# ---- the server's secret


def noisy(folder: Path, hub: FakeHub, rounds: int = 2, seed: int | None = None) -> SiteCourse:
    """A course whose server adds noise, in a folder that has its identity and, with a seed, a simulation's secret."""
    course = site_course(FedAvg(local_steps=1), guards=(ServerNoise(),), rounds=rounds, runtime="loop")
    made = SiteCourse(course, hub, tuple(hub.silos), folder, patience=HASTE, say=lambda text: None)
    if seed is not None:
        folder.mkdir()
        replace_file(folder / ID_FILE, b"ab" * 16)
        replace_file(folder / "course.yaml", course_to_yaml(made.course).encode())
        simulate(folder, seed, "server")
    return made


def test_the_servers_noise_is_the_simulations_with_its_secret_and_another_with_its_own(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "a", simulated=0)
    same = noisy(tmp_path / "same", hub, seed=0).resume()
    other = noisy(tmp_path / "other", fake_hub(tmp_path / "b", simulated=0)).run()
    again = noisy(tmp_path / "again", fake_hub(tmp_path / "c", simulated=0)).run()
    loop = run(
        site_course(FedAvg(local_steps=1), guards=(ServerNoise(),), rounds=2, runtime="loop"), scenario=scenario()
    )
    assert all(torch.equal(same.params[name], loop.params[name]) for name in loop.params)
    for found in (other, again):
        assert not any(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
    assert not any(torch.equal(other.params[name], again.params[name]) for name in loop.params)
    assert (tmp_path / "other" / SECRET_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["lost", "cut", "flipped", "empty", "binary"])
@pytest.mark.parametrize("when", ["after a round", "before any checkpoint"])
def test_a_server_that_lost_its_secret_does_not_go_on_with_the_course(how: str, when: str, tmp_path: Path) -> None:
    hub = fake_hub(tmp_path, simulated=0)
    folder = tmp_path / "run"
    stopped = 4 if when == "after a round" else 1

    def stop(site: str, kind: str, data: bytes) -> None:
        if kind == "exchange" and hub.log.count((site, "exchange")) == stopped:
            raise KeyboardInterrupt

    hub.hook = stop
    with pytest.raises(KeyboardInterrupt):
        noisy(folder, hub).run()
    if when == "before any checkpoint":  # as after a kill in the exchanges of a method's setup
        (folder / "checkpoint.isth").unlink()
    hub.hook = lambda site, kind, data: None
    path = folder / SECRET_FILE
    old = path.read_bytes()
    digit = b"0" if old[40:41] != b"0" else b"1"
    damaged = {"cut": old[:50], "flipped": old[:40] + digit + old[41:], "empty": b"", "binary": bytes(range(256))}
    path.unlink() if how == "lost" else path.write_bytes(damaged[how])
    asked = len(hub.log)
    with pytest.raises(BadInput, match=f"{SECRET_FILE} is {'lost' if how == 'lost' else 'damaged'}: .* put it back"):
        noisy(folder, hub).resume()
    assert len(hub.log) == asked  # before anybody is asked anything
    assert path.is_file() == (how != "lost")  # and no other one takes its place
    path.write_bytes(old)
    assert noisy(folder, hub).resume().num_rounds == 2


def test_a_course_without_guards_has_no_secret_at_the_server(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)
    SiteCourse(site_course(), hub, tuple(hub.silos), tmp_path / "run", patience=HASTE, say=lambda text: None).run()
    assert not (tmp_path / "run" / SECRET_FILE).exists()
    assert SECRET_FILE not in RUN_FILES  # and where there is one, it does not travel to operators


def test_a_resumed_server_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    whole = noisy(tmp_path / "whole", fake_hub(tmp_path / "a", simulated=0), seed=3).resume()
    hub = fake_hub(tmp_path / "b", simulated=0)

    def stop(site: str, kind: str, data: bytes) -> None:
        if kind == "exchange" and hub.log.count((site, "exchange")) == 4:
            raise KeyboardInterrupt

    hub.hook = stop
    with pytest.raises(KeyboardInterrupt):
        noisy(tmp_path / "cut", hub, seed=3).resume()
    hub.hook = lambda site, kind, data: None
    cut = noisy(tmp_path / "cut", hub).resume()
    assert all(torch.equal(whole.params[name], cut.params[name]) for name in whole.params)
