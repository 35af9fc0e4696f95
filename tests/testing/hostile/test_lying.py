"""A silo that lies, or whose answers are out of place, over bytes and over the server's code for sites."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isthmus.algorithms import ALGORITHMS, FedAvg
from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.core.federation import Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import Known, ModelState, Request, on, unlike
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import GraphClient
from isthmus.runtime.remote import RemoteRuntime
from isthmus.sites.courses.site_course import SiteCourse
from isthmus.testing import (
    Lie,
    check_lies_between_sites,
    check_lies_in_bytes,
    check_stale_messages,
    check_stale_replies,
    lies_about,
    toy_world,
)
from isthmus.testing.hostile.malicious_server import known_here
from isthmus.testing.hostile.sites import HASTE, SiteTrace, trace_sites
from isthmus.testing.traces import require_same
from tests.quick import quick
from tests.testing.hostile.worlds import world_of

NAMES = [name for name, kind in ALGORITHMS.items() if not kind.pooled]


def some(*names: str) -> list[Any]:
    """All algorithms, of which these are in the default set."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", some("fedavg", "fedgl"))
def test_lies_in_bytes_are_found_out_or_harm_nobody(name: str) -> None:
    assert check_lies_in_bytes(quick(name), world_of(name)) >= 5


@pytest.mark.parametrize("name", some("fedavg"))
def test_lies_between_sites_are_found_out_or_harm_nobody_and_cost_little(name: str, tmp_path: Path) -> None:
    assert check_lies_between_sites(quick(name), tmp_path, world_of(name)) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_lie_in_bytes_is_found_out_or_harms_nobody(name: str) -> None:
    assert check_lies_in_bytes(quick(name), world_of(name), lies=lies_about) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_lie_between_sites_is_found_out_or_harms_nobody(name: str, tmp_path: Path) -> None:
    assert check_lies_between_sites(quick(name), tmp_path, world_of(name), lies=lies_about) >= 60


@pytest.mark.parametrize("name", some("scaffold"))
def test_replies_of_before_harm_nobody(name: str) -> None:
    assert check_stale_replies(quick(name), world_of(name)) >= 20


@pytest.mark.parametrize("name", some("fedavg"))
def test_messages_of_before_are_named_and_the_course_is_as_if_that_silo_had_failed(name: str, tmp_path: Path) -> None:
    assert check_stale_messages(quick(name), tmp_path, world_of(name)) >= 30


# ---- the links themselves: who answers what, and how often


class Mixing:
    """A party's end of a link that answers twice, under other names, to nothing that was asked, and out of order."""

    def __init__(self, silos: Any, answer: Callable[[str, str, str, bytes], None]) -> None:
        self.silos, self.answer = silos, answer
        self.lock = threading.Lock()
        self.earlier: list[tuple[str, str, bytes]] = []

    def peers(self) -> set[str]:
        return set(self.silos)

    def send(self, peer: str, kind: str, ident: str, data: bytes) -> str:
        with self.lock:  # silos have one thread for torch
            answer = self.silos[peer].handle(kind, data)
        for _, old, before in [each for each in self.earlier if each[0] == peer][-3:]:
            self.answer(peer, "answer", old, before)  # to a question that was answered long ago
            self.answer(peer, "news", ident, before)  # of a kind that nobody asked for
        self.answer(peer, "answer", "0" * 32, answer)  # to a question that nobody asked
        for _ in range(2):
            self.answer(peer, "answer", ident, answer)
        self.answer("nobody", "answer", ident, answer)
        self.earlier.append((peer, ident, answer))
        return ""


def test_answers_that_come_twice_late_or_unasked_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = pytest.importorskip("isthmus.runtime.flare.link", reason="needs nvflare")
    world = toy_world()
    course = world.course(FedAvg())
    honest = trace_sites(course, world.silos(tmp_path / "honest"), tmp_path / "honest" / "run")
    silos = world.silos(tmp_path / "mixed")
    monkeypatch.setattr(link, "Link", lambda name, address, credentials, parties, answer, **_: Mixing(silos, answer))
    monkeypatch.setattr(link.LinkHub, "_wait_until_listening", lambda self, port: None)
    unasked: list[str] = []
    hub = link.LinkHub("nowhere:1", None, set(silos), on_unasked=lambda peer, kind, ident, data: unasked.append(kind))
    trace = SiteTrace()
    made = SiteCourse(
        course, hub, tuple(silos), tmp_path / "run", patience=HASTE, callbacks=[trace], say=lambda text: None
    )
    trace.params = made.run().params
    assert not trace.failures and set(unasked) == {"news"}
    require_same({"it": honest.params}, {"it": trace.params}, "a course over links that repeat themselves is another")
    assert honest.scores == trace.scores


# ---- the harness sees what it should


def test_a_server_that_takes_any_message_for_an_answer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = RemoteRuntime._opened

    def gullible(self: RemoteRuntime, client: str, message: bytes, expected: Any, question: str) -> Any:
        from isthmus.core.codec import decode
        from isthmus.runtime.envelope import Answer

        answer: Answer = decode(message, Answer)
        return opened(self, client, message, expected, answer.question)

    monkeypatch.setattr(RemoteRuntime, "_opened", gullible)
    with pytest.raises(AssertionError, match=r"messages of an earlier round; the one to TrainModel .* was accepted"):
        check_stale_messages(FedAvg(), tmp_path)


def test_a_server_that_counts_an_answer_twice_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = RemoteRuntime._sent

    def doubled(self: RemoteRuntime, *arguments: Any) -> Any:
        for outcome in sent(self, *arguments):
            yield outcome
            yield outcome

    monkeypatch.setattr(RemoteRuntime, "_sent", doubled)
    with pytest.raises(AssertionError, match="the server raised KeyError"):
        trace_sites(toy_world().course(FedAvg()), toy_world().silos(tmp_path), tmp_path / "run")


def test_a_server_that_judges_nothing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.core.federation.judging.judged", lambda client, reply, *rest: reply)
    with pytest.raises(AssertionError):
        check_lies_between_sites(FedAvg(), tmp_path)
    with pytest.raises(AssertionError):
        check_lies_in_bytes(FedAvg())


@dataclass(frozen=True)
class TrainLoosely(Request[ModelUpdate]):
    """Says nothing of what its reply must be."""

    params: Params

    def misfit(self, reply: ModelUpdate, known: Known) -> str:
        return ""


@dataclass(frozen=True)
class Loose(FedAvg):
    """FedAvg whose server quietly leaves out what does not fit."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        replies = fed.ask(TrainLoosely(state.params)).values()
        mean = weighted_mean([reply for reply in replies if not unlike("params", reply.params, state.params)])
        assert isinstance(mean, ModelUpdate)
        return ModelState(mean.params)

    @on(TrainLoosely)
    def train_loosely(self, request: TrainLoosely, client: GraphClient) -> ModelUpdate:
        return self.train(request, client)  # type: ignore[arg-type]


def one_more(reply: Record) -> list[Lie]:
    return [lie for lie in lies_about(reply) if lie.how == "one more"]


@pytest.mark.slow
def test_an_algorithm_that_says_nothing_of_its_replies_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="and nobody noticed"):
        check_lies_in_bytes(Loose(), lies=one_more)
    with known_here(Loose), pytest.raises(AssertionError, match="and nobody noticed"):
        check_lies_between_sites(Loose(), tmp_path, lies=one_more)
