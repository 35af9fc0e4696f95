"""Connections: silent ones, many streams of one party, and the descriptors that the process needs for itself."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")

import grpc

from isthmus.runtime.flare import gate as gate_file
from isthmus.runtime.flare.gate import RESERVED_DESCRIPTORS, _parse_peer, max_connections
from isthmus.runtime.flare.link import Credentials, LinkHub
from isthmus.sites.parties.admission import connection_problem
from isthmus.sites.parties.kit import Kit, make_federation, open_kit
from isthmus.sites.up import free_port
from tests.sites.in_process import until
from tests.sites.raw_peer import RawPeer

pytestmark = pytest.mark.sites


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_federation(tmp_path_factory.mktemp("kits") / "f", f"localhost:{free_port()}", ["bank-a", "bank-b"])


@pytest.fixture(scope="module")
def hub(kits: dict[str, Path]) -> Iterator[LinkHub]:
    kit = open_kit(kits["server"], "server")
    made = LinkHub(
        f"localhost:{kit.port}", Credentials(kit.root, kit.certificate, kit.key), {"bank-a", "bank-b", "operator"}
    )
    yield made
    made.stop()


def site(kits: dict[str, Path], name: str) -> Kit:
    return open_kit(kits[name], "site")


def test_many_silent_streams_of_one_party_keep_nobody_else_out(kits: dict[str, Path], hub: LinkHub) -> None:
    greedy = [RawPeer(site(kits, "bank-a")) for _ in range(13)]
    for peer in greedy:
        for _ in range(10):
            peer.stream(hello=False)
    other = RawPeer(site(kits, "bank-b"))
    try:
        time.sleep(1.0)
        other.stream()
        until(lambda: hub.connected() == {"bank-b"}, 15)
        calls = [call for peer in greedy for call in peer.calls]
        until(lambda: sum(call.is_active() for call in calls) <= 1, 15)
        told = {call.details() for call in calls if not call.is_active() and call.code().name == "ALREADY_EXISTS"}
        assert told and all("bank-a is connected already" in words for words in told)
    finally:
        for peer in (*greedy, other):
            peer.close()
    until(lambda: hub.connected() == set())


def test_silent_connections_keep_nobody_out_and_are_closed(
    kits: dict[str, Path], hub: LinkHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_file, "PENDING_SECONDS", 3.0)
    kit = site(kits, "bank-b")
    silent = [socket.create_connection(("localhost", kit.port)) for _ in range(700)]
    try:
        until(lambda: connection_problem(kit, 1.0) == "", 10)
        peer = RawPeer(kit)
        try:
            peer.stream()
            until(lambda: hub.connected() == {"bank-b"}, 10)
            until(lambda: sum(_is_open(each) for each in silent) <= gate_file.MAX_PENDING, 10)
            until(lambda: not any(_is_open(each) for each in silent), 10)
            assert hub.connected() == {"bank-b"}  # who has a stream is no stranger, however long it stays
        finally:
            peer.close()
    finally:
        for each in silent:
            each.close()
    until(lambda: hub.connected() == set())


def test_the_oldest_connections_without_a_stream_make_room_and_none_may_wait_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself, since gRPC ends handshakes by a limit of its own, after which nobody could tell who hung up."""
    monkeypatch.setattr(gate_file, "MAX_PENDING", 3)
    gate = gate_file.Gate(lambda visitor: "")
    with socket.create_server(("localhost", 0)) as listening, contextlib.ExitStack() as stack:
        port = listening.getsockname()[1]
        taken = []
        for _ in range(5):
            stack.enter_context(socket.create_connection(("localhost", port)))
            taken.append(stack.enter_context(listening.accept()[0]))
            assert gate._overdue(port) == [each.fileno() for each in taken[:-3]]
        inside = gate_file.Visitor("bank-a", 1, datetime.now(UTC), "", taken[0].getpeername()[:2])
        gate._stays["bank-a"] = inside
        assert gate._overdue(port) == [taken[1].fileno()]  # who has a stream may stay
        monkeypatch.setattr(gate_file, "PENDING_SECONDS", -1.0)
        assert gate._overdue(port) == [each.fileno() for each in taken[1:]]
        assert gate_file.Gate(lambda visitor: "")._overdue(1) == []  # sockets of other ports are not its own


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_a_party_that_is_not_on_the_list_is_told_so(kits: dict[str, Path], hub: LinkHub) -> None:
    hub.set_parties({"bank-b"})
    peer = RawPeer(site(kits, "bank-a"))
    try:
        call = peer.stream()
        until(lambda: not call.is_active())
        assert (
            call.code() == grpc.StatusCode.PERMISSION_DENIED
            and "'bank-a' is not on the server's list" in call.details()
        )
    finally:
        peer.close()
        hub.set_parties({"bank-a", "bank-b", "operator"})


def test_a_party_that_leaves_the_list_is_cut_off(kits: dict[str, Path], hub: LinkHub) -> None:
    peer = RawPeer(site(kits, "bank-a"))
    try:
        call = peer.stream()
        until(lambda: hub.connected() == {"bank-a"})
        hub.set_parties({"bank-b"})
        until(lambda: not call.is_active(), 5)
    finally:
        peer.close()
        hub.set_parties({"bank-a", "bank-b", "operator"})
    until(lambda: hub.connected() == set())


def test_the_same_process_takes_the_place_of_its_own_lost_connection(kits: dict[str, Path], hub: LinkHub) -> None:
    kit = site(kits, "bank-a")
    first, again, other = (RawPeer(kit, ((gate_file.INSTANCE, name),)) for name in ("one", "one", "two"))
    try:
        old = first.stream()
        until(lambda: hub.connected() == {"bank-a"})
        new = again.stream()
        until(lambda: not old.is_active())
        until(lambda: hub.connected() == {"bank-a"})
        refused = other.stream()
        until(lambda: not refused.is_active())
        assert refused.code() == grpc.StatusCode.ALREADY_EXISTS and new.is_active()
    finally:
        for peer in (first, again, other):
            peer.close()
    until(lambda: hub.connected() == set())


FLOOD = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from pathlib import Path
from isthmus.sites.parties.kit import open_kit
from isthmus.runtime.flare.link import Credentials, LinkHub
kit = open_kit(Path(sys.argv[1]), "server")
hub = LinkHub(f"localhost:{sys.argv[2]}", Credentials(kit.root, kit.certificate, kit.key), {"bank-a"})
print("ready", flush=True)
worst = 0
for line in sys.stdin:
    held = []
    try:
        for _ in range(100):
            held.append(open("/dev/null"))
    finally:
        print(len(held), flush=True)
        for file in held:
            file.close()
hub.stop()
"""


def test_at_the_limit_of_descriptors_newcomers_are_refused_and_the_process_can_still_open_files(
    kits: dict[str, Path],
) -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(kits["server"]), str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    silent: list[socket.socket] = []
    try:
        assert process.stdout.readline() == "ready\n"
        for _ in range(10):
            for _ in range(40):
                silent.append(socket.create_connection(("localhost", port), 5))
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "100\n"
    finally:
        for each in silent:
            each.close()
        process.stdin.close()
        assert process.wait(30) == 0


def test_the_limit_of_connections_leaves_descriptors_for_the_process() -> None:
    import os
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < max_connections(10) <= limit - len(os.listdir("/dev/fd")) - RESERVED_DESCRIPTORS + 5


def test_an_address_is_the_same_however_it_is_spelt() -> None:
    assert _parse_peer("ipv4:127.0.0.1:80") == ("127.0.0.1", 80)
    assert _parse_peer("ipv6:%5B::1%5D:80") == ("::1", 80)
    assert _parse_peer("ipv6:%5B::ffff:10.0.0.1%5D:80") == ("10.0.0.1", 80)
    assert _parse_peer("unix:") == ("", 0)


def test_only_the_connection_that_was_too_old_is_hung_up_and_not_one_that_has_its_number_by_now() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as far:
        near, _ = server.accept()
        with near:
            host, port = far.getsockname()
            gate_file._hang_up(near.fileno(), (host, port + 1))
            far.settimeout(0.2)
            with pytest.raises(TimeoutError):
                far.recv(1)  # it is still there
            gate_file._hang_up(near.fileno(), (host, port))
            assert far.recv(1) == b""


def test_the_process_raises_its_own_limit_of_descriptors_as_far_as_it_may() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import resource; soft = min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0]);"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]));"
            "from isthmus.runtime.flare.gate import raise_descriptor_limit;"
            "print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    said, soft, hard = map(int, told.stdout.split())
    assert said == soft and soft == (min(hard, gate_file.MAX_DESCRIPTORS) if hard > 0 else gate_file.MAX_DESCRIPTORS)
