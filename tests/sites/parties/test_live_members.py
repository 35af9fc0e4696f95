"""Expelling, renewing and copied kits while connections are open, on the real engine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")

import grpc

from isthmus.core.training import RoundReport
from isthmus.sites.parties.admission import probe_server
from isthmus.sites.parties.certificates import REVOKED, RevocationList, Revocations
from isthmus.sites.parties.kit import expel, make_federation, open_kit, renew
from isthmus.sites.serve import Server
from isthmus.sites.up import Rehearsal, free_port
from tests.sites.in_process import until
from tests.sites.raw_peer import RawPeer, part
from tests.sites.test_engine import QUICK, Hook, nothing, small

pytestmark = pytest.mark.sites


class Standing:
    """A server, its kits, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.kits = make_federation(folder, f"localhost:{free_port()}", ["bank-a", "bank-b"])
        self.server = Server(open_kit(self.kits["server"], "server"), interface="localhost", say=self.said.append)

    def peer(self, name: str) -> RawPeer:
        return RawPeer(open_kit(self.kits[name], "site"))


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    made = Standing(tmp_path / "f")
    yield made
    made.server.stop()


def test_an_expelled_site_is_cut_off_at_once_and_not_let_in_again(standing: Standing) -> None:
    hub = standing.server.hub
    out, other = standing.peer("bank-b"), standing.peer("bank-a")
    try:
        live = out.stream()
        other.stream()
        until(lambda: hub.connected() == {"bank-a", "bank-b"})
        expel(standing.folder, ["bank-b"])
        assert until(lambda: not live.is_active(), 10) < 5
        until(lambda: hub.connected() == {"bank-a"}, 10)
        again = out.stream()
        until(lambda: not again.is_active(), 10)
        assert again.code() == grpc.StatusCode.PERMISSION_DENIED and "bank-b was expelled" in again.details()
        assert standing.server.kit.sites == ("bank-a",)
        make_federation(standing.folder, None, ["bank-b"])  # back, with another certificate
        old = out.stream()
        until(lambda: not old.is_active(), 10)
        assert "certificate was revoked" in old.details()
        until(lambda: standing.server.kit.sites == ("bank-a", "bank-b"), 10)
        back = standing.peer("bank-b")
        try:
            back.stream()
            until(lambda: hub.connected() == {"bank-a", "bank-b"}, 10)
        finally:
            back.close()
    finally:
        out.close()
        other.close()
    assert any("bank-b is not let in" in line for line in standing.said)


def test_the_server_names_a_newcomer_only_when_its_gate_lets_it_in(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, named = standing.server, list[tuple[str, ...]]()
    take = server.roll.take

    def noting(*words: Any) -> None:
        named.append(server.kit.sites)
        take(*words)

    monkeypatch.setattr(server.roll, "take", noting)
    make_federation(standing.folder, None, ["bank-c"])
    until(lambda: "bank-c" in server.kit.sites)
    assert named == [("bank-a", "bank-b")]


def test_a_newcomer_that_comes_in_while_the_kit_is_read_again_is_heard(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, peers = standing.server, list[RawPeer]()
    take = server.roll.take

    def take_and_wait(*words: Any) -> None:
        take(*words)
        if "bank-c" in server.roll.kit.sites and not peers:
            peers.append(RawPeer(open_kit(standing.folder / "bank-c", "site")))
            live = peers[0].stream()
            until(lambda: "bank-c" in server.hub.link._cell.agents, 10)
            assert live.is_active()

    monkeypatch.setattr(server.roll, "take", take_and_wait)
    make_federation(standing.folder, None, ["bank-c"])
    try:
        until(lambda: server.hub.connected() == {"bank-c"}, 10)
    finally:
        peers[0].close()


def test_messages_that_nobody_asked_for_and_one_that_comes_and_goes_do_not_fill_the_log(standing: Standing) -> None:
    server, said, peer = standing.server, standing.said, standing.peer("bank-a")
    try:
        peer.stream()
        until(lambda: server.hub.connected() == {"bank-a"})
        for number in range(400):
            peer.send(part("bank-a", "submit" if number % 2 else f"kind {number}", b"x" * number))
        until(lambda: server.hub.heard("bank-a") > 300)  # threads count, and may lose one
    finally:
        peer.close()
    until(lambda: server.hub.connected() == set())
    told = [line for line in said if "asked for" in line]
    assert told == ["bank-a said something that nobody asked for; ignored"]
    for _ in range(500):
        server._changed("bank-a", "is connected")
        server._changed("bank-a", "is gone")
    assert len(said) < 200


def test_a_running_server_shows_its_renewed_certificate_without_a_restart(standing: Standing) -> None:
    kit, nothing_revoked = open_kit(standing.kits["bank-a"], "site"), RevocationList()
    before = probe_server(kit, nothing_revoked).certificate
    renew(standing.folder, ["server"], revoke_old=True)
    after = probe_server(kit, Revocations(kit).current)
    assert (
        after.problem == "" and after.certificate == (standing.folder / "server" / "party.crt").read_bytes() != before
    )


@pytest.mark.slow
def test_a_silo_that_is_expelled_in_mid_course_ends_with_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    course = small(rounds=6)
    with Rehearsal(course, say=said.append) as rehearsal:

        def strike(report: RoundReport) -> None:
            if report.round == 3:
                expel(rehearsal.folder / "federation", ["client-1"])
                assert rehearsal.server is not None
                until(lambda: "client-1" not in rehearsal.server.hub.connected(), 10)

        result = rehearsal.run(tmp_path / "run", callbacks=[Hook(nothing, strike)], patience=QUICK)
        code, log = rehearsal.silos["client-1"].wait(20), (rehearsal.folder / "client-1.log").read_text()
        assert code == 2, log
        kept = Revocations(open_kit(rehearsal.kits["client-0"], "site"))
        assert (rehearsal.kits["client-0"] / "state" / REVOKED).is_file() and kept.current.expelled == {"client-1"}
    assert "it was expelled" in log and "Traceback" not in log
    assert result.num_rounds == 6 and set(result.client_scores) == {"client-0", "client-2"}


@pytest.mark.slow
def test_a_copied_kit_does_not_push_the_first_one_out(tmp_path: Path) -> None:
    said: list[str] = []
    with Rehearsal(small(), say=said.append) as rehearsal:
        assert rehearsal.server is not None
        hub = rehearsal.server.hub
        until(lambda: len(hub.connected()) == 3, 120)
        kit = shutil.copytree(rehearsal.kits["client-1"], tmp_path / "copy")
        words = ["join", str(kit), "--data", str(rehearsal.data["client-1"])]
        second = subprocess.run(
            [sys.executable, "-m", "isthmus", *words], capture_output=True, text=True, timeout=180
        )  # fmt: skip
        assert second.returncode == 2 and "is in use elsewhere" in second.stderr, second.stderr
        assert "client-1" in hub.connected() and hub.generation("client-1") == 1
    assert any("client-1 is not let in: client-1 is connected already" in line for line in said)
