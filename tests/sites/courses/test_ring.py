"""Private matching in whole courses: silos without a common secret come to the simulation's bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import FedGL
from isthmus.config.load import course_to_yaml, load_course
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.protocol import Failure
from isthmus.data.zoo import Folder
from isthmus.runs.simulated import run
from isthmus.sites.courses.messages import NO_POINTS, Passed, PassOn
from isthmus.sites.courses.ring import RingBroken, go_round
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.matching import KEYS_FILE
from isthmus.sites.silo.policy import Policy
from isthmus.sites.up import Rehearsal
from tests.processes import copy_silos
from tests.sites.in_process import CLASSES, SECRET, FakeHub, fake_hub, scenario, site_course
from tests.sites.silo.test_consent import identity
from tests.sites.silo.test_foreign_neighbors import course as appnp
from tests.sites.silo.test_foreign_neighbors import hosts

PRIVATE = Folder(class_names=CLASSES, match_ids="private")
HASTE = Patience(start_seconds=1.0, pause_seconds=1.0, num_retries=1, retry_seconds=0.0)


def fedgl(**changes: Any) -> ist.Course:
    return site_course(FedGL(local_steps=2), **{"dataset": PRIVATE, "runtime": "loop", "rounds": 2, **changes})


def certified(folder: Path, **more: Any) -> FakeHub:
    hub = fake_hub(folder, id_secret=None, **more)
    for name, silo in hub.silos.items():
        silo.identity = identity(folder / "keys", name)
    return hub


def on_sites(made: Any, hub: FakeHub, folder: Path) -> ist.Result:
    return SiteCourse(made, hub, tuple(hub.silos), folder, patience=HASTE, say=hub.said.append).run()


def test_fedgl_without_a_common_secret_is_the_loop_to_the_bit(tmp_path: Path) -> None:
    hub = certified(tmp_path)
    found, loop = on_sites(fedgl(), hub, tmp_path / "run"), run(fedgl(), scenario=scenario())
    assert all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
    numbers = [int(part.num_nodes) for part in scenario().parts.values()]
    note = next(note for note in found.notes if "went round all silos, blinded" in note)
    assert all(f"client-{place} {number}" in note for place, number in enumerate(numbers))
    assert [kind for _, kind in hub.log].count("match") == 3 * 4


def test_it_matches_what_a_secret_matches_and_nothing_without_either(tmp_path: Path) -> None:
    silos = fake_hub(tmp_path / "b", id_secret=SECRET)
    by_secret = on_sites(fedgl(dataset=replace(PRIVATE, match_ids="secret")), silos, tmp_path / "by secret")
    private = on_sites(fedgl(), certified(tmp_path / "a"), tmp_path / "private")
    assert all(torch.equal(private.params[name], by_secret.params[name]) for name in private.params)
    assert not any("blinded" in note for note in by_secret.notes)
    with pytest.raises(ist.IsthmusError):
        without = fedgl(dataset=replace(PRIVATE, match_ids="secret"))
        on_sites(without, fake_hub(tmp_path / "c", id_secret=None), tmp_path / "without")


def test_neighbours_at_other_silos_are_found_without_a_common_secret(tmp_path: Path) -> None:
    made = hosts(12)
    private = replace(appnp(), dataset=PRIVATE)
    found = on_sites(private, certified(tmp_path, made=made), tmp_path / "run")
    simulated = run(private, scenario=made)
    for name, tensor in simulated.params.items():
        torch.testing.assert_close(found.params[name], tensor, rtol=1e-4, atol=1e-5)


def test_no_id_crosses_and_no_key_that_the_server_could_make(tmp_path: Path) -> None:
    hub, sent = certified(tmp_path), []
    ask = hub.ask

    def listening(kind: str, messages: Any, timeout_seconds: float) -> Any:
        for site, back in ask(kind, messages, timeout_seconds):
            sent.append((kind, messages[site], back))
            yield site, back

    hub.ask = listening  # type: ignore[method-assign]
    on_sites(fedgl(rounds=1), hub, tmp_path / "run")
    rows: list[bytes] = []
    for kind, _, back in sent:
        if kind == "match":
            points = decode(back, Passed).handed.points
            rows += [bytes(row.tolist()) for row in points]
    assert len(rows) == len(set(rows)) > 3 * 3


# ---- who is lost


def test_a_silo_that_is_lost_in_the_ring_begins_it_anew(tmp_path: Path) -> None:
    hub, struck = certified(tmp_path), []

    def lose(site: str, kind: str, data: bytes) -> Failure | None:
        if kind == "match" and not struck and decode(data, PassOn).step == 2:
            struck.append(site)
            hub.restart(site)
            hub.silos[site].identity = identity(tmp_path / "keys", site)
            return Failure(site, "lost", "the connection was lost")
        return None

    hub.hook = lose
    found, loop = on_sites(fedgl(), hub, tmp_path / "run"), run(fedgl(), scenario=scenario())
    assert struck and all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
    assert any("the ring is begun anew" in text for text in hub.said)


def test_a_silo_that_is_started_again_finds_its_keys(tmp_path: Path) -> None:
    hub, struck = certified(tmp_path), []

    def restart(site: str, kind: str, data: bytes) -> None:
        if kind == "exchange" and hub.log.count((site, kind)) == 4 and not struck:
            struck.append(site)
            hub.restart(site)

    hub.hook = restart
    on_sites(fedgl(rounds=3, min_replies=2), hub, tmp_path / "run")
    files = list((tmp_path / struck[0] / "state" / "memories").glob(f"*/{KEYS_FILE}"))
    assert len(files) == 1
    assert hub.silos[struck[0]]._last is not None and hub.silos[struck[0]]._last.silo.client.node_keys is not None


def test_a_server_that_is_started_again_asks_for_no_other_keys(tmp_path: Path) -> None:
    hub = certified(tmp_path)

    def stop(site: str, kind: str, data: bytes) -> None:
        if kind == "exchange" and hub.log.count((site, kind)) == 6:
            raise KeyboardInterrupt

    hub.hook = stop
    with pytest.raises(KeyboardInterrupt):
        on_sites(fedgl(rounds=3), hub, tmp_path / "run")
    hub.hook = lambda site, kind, data: None
    rounds = [kind for _, kind in hub.log].count("match")
    made = SiteCourse(fedgl(rounds=3), hub, tuple(hub.silos), tmp_path / "run", patience=HASTE, say=hub.said.append)
    found, loop = made.resume(), run(fedgl(rounds=3), scenario=scenario())
    assert all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
    assert [kind for _, kind in hub.log].count("match") == rounds


# ---- what is refused


def test_a_silo_may_stay_away_from_private_matching(tmp_path: Path) -> None:
    hub = certified(tmp_path, policies=dict.fromkeys(scenario().parts, Policy(private_matching=False)))
    with pytest.raises(CourseFailed, match="private_matching: false"):
        on_sites(fedgl(), hub, tmp_path / "run")
    by_secret = fedgl(dataset=replace(PRIVATE, match_ids="secret"))
    assert Policy(private_matching=False).refusal(by_secret, ("a", "b")) == ""


def test_one_silo_alone_matches_with_nobody(tmp_path: Path) -> None:
    hub = certified(tmp_path)
    hub.away |= {"client-1", "client-2"}
    with pytest.raises(CourseFailed, match="between two silos at least, 1 takes part"):
        on_sites(fedgl(), hub, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ring": ("client-0",)}, "1 silos are in the ring"),
        ({"ring": ("client-1", "client-2")}, "not of this silo and others"),
        ({"ring": ("client-0", "client-0")}, "not of this silo and others"),
        ({"ring": ("client-0", "stranger")}, "not of this silo and others"),
        ({"course_id": "ef" * 16}, "takes part in no such ring"),
        ({"step": 7}, "not the next step"),
        ({"step": -1}, "not the next step"),
    ],
)
def test_rings_that_cannot_be_are_refused(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    hub = certified(tmp_path)
    on_sites(fedgl(rounds=1), hub, tmp_path / "run")
    silo = hub.silos["client-0"]
    assert silo._last is not None
    plain = PassOn(silo._last.proposal.course_id, "new", ("client-0", "client-1"), 0, NO_POINTS)
    answer: Passed = decode(silo.handle("match", encode(replace(plain, **changes))), Passed)
    assert why in answer.problem and len(answer.handed.points) == 0
    assert decode(silo.handle("match", encode(plain)), Passed).problem == ""


def test_a_course_that_matches_by_a_secret_or_not_at_all_has_no_ring(tmp_path: Path) -> None:
    hub = certified(tmp_path)
    on_sites(site_course(rounds=1), hub, tmp_path / "run")
    silo = hub.silos["client-0"]
    assert silo._last is not None
    request = PassOn(silo._last.proposal.course_id, "new", ("client-0", "client-1"), 0, NO_POINTS)
    assert "no such ring" in decode(silo.handle("match", encode(request)), Passed).problem


def test_nonsense_ends_the_ring_with_the_name_of_its_silo(tmp_path: Path) -> None:
    hub = certified(tmp_path)
    hub.hook = lambda site, kind, data: b"nonsense" if site == "client-1" else encode(Passed("", NO_POINTS))
    with pytest.raises(RingBroken, match="client-1 answered nonsense"):
        go_round(hub, "ab" * 16, tuple(hub.silos), 1.0)


# ---- in words


def test_a_course_says_how_ids_are_matched() -> None:
    made = load_course({}, ["dataset.name=folder", "dataset.match_ids=private"])
    assert made.dataset == Folder(match_ids="private")
    assert "match_ids: private" in course_to_yaml(made)
    with pytest.raises(BadInput, match="match_ids is 'open'; choose from secret, private"):
        load_course({}, ["dataset.name=folder", "dataset.match_ids=open"])


# ---- between processes


class WithoutSecret(Rehearsal):
    """A rehearsal whose silos have no secret in common."""

    def command(self, site: str) -> list[str]:
        words = super().command(site)
        at = words.index("--id-secret-file")
        return [*words[:at], *words[at + 2 :]]


@pytest.mark.sites
@pytest.mark.slow
def test_processes_without_a_common_secret_come_to_the_parameters_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_silos(monkeypatch)
    model = ist.ModelSpec(type(ist.ModelSpec().gnn)(hidden=8))
    course = ist.Course(rounds=3, num_clients=3, model=model, runtime="loop", algorithm=FedGL(local_steps=2))
    with WithoutSecret(course, say=lambda text: None) as rehearsal:
        rehearsal.course = replace(rehearsal.course, dataset=replace(rehearsal.course.dataset, match_ids="private"))
        found = rehearsal.run(tmp_path / "run", patience=Patience(start_seconds=120, pause_seconds=60))
        with pytest.raises(ist.IsthmusError, match="match_ids=private"):
            plain = replace(rehearsal.course, dataset=replace(rehearsal.course.dataset, match_ids="secret"))
            assert rehearsal.server is not None
            rehearsal.server.run(plain, tmp_path / "plain", patience=Patience(start_seconds=120, num_retries=0))
    loop = ist.run(course)
    assert all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
    assert any("went round all silos, blinded" in note for note in found.notes)
