"""What a link refuses before it keeps anything; the link itself is tested with real processes in tests/sites."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")

from isthmus.core.protocol import Failure
from isthmus.runtime.flare.link import MAX_QUEUED_FRAMES, Link, LinkHub, _head_problem
from isthmus.runtime.flare.message_parts import PART_BYTES

HEAD = {"kind": "exchange", "ident": "i", "message": "m", "number": 0, "size": 10}


def problem(num_bytes: int = 10, max_bytes: int = 1000, **changes: Any) -> str:
    return _head_problem({**HEAD, **changes}, num_bytes, max_bytes)


def test_a_message_that_fits_is_fine_whole_or_in_parts() -> None:
    assert problem() == ""
    assert problem(0, size=0) == ""
    big = 2 * PART_BYTES + 5
    for number, num_bytes in enumerate((PART_BYTES, PART_BYTES, 5)):
        assert problem(num_bytes, max_bytes=big, size=big, number=number) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"size": 10**13}, "announces 10000000000000 bytes, the limit is 1000"),  # a bomb
        ({"size": 1001}, "the limit is 1000"),
        ({"size": -5}, "misnumbered"),
        ({"size": "10"}, "misnumbered"),
        ({"size": True}, "misnumbered"),
        ({"number": 1}, "misnumbered"),
        ({"number": -1}, "misnumbered"),
        ({"size": 11}, "does not fit the 11 announced"),
        ({"kind": None}, "malformed"),
        ({"ident": "x" * 65}, "malformed"),
        ({"message": 7}, "malformed"),
    ],
)
def test_a_head_that_lies_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert reason in problem(**changes)


@pytest.mark.parametrize("who", ["the server", "the silo"])
def test_a_message_that_announces_too_much_is_not_kept_and_its_sender_is_told(who: str) -> None:
    """Refused by the server it is the silo's failure, and by the silo the server's request is."""
    link, hub = Link.__new__(Link), LinkHub.__new__(LinkHub)
    link.max_bytes, link._lock, link._assemblies, link._seldom = 1000, threading.Lock(), {}, lambda kind, text: None
    hub._lock, hub._waiting, hub._heard, hub.check = threading.Lock(), {}, {}, lambda: None

    def answer(site: str, kind: str, ident: str, data: bytes) -> str:
        head = {**HEAD, "kind": "answer", "ident": ident, "size": 10**12}
        endpoint = SimpleNamespace(name=site)
        part = SimpleNamespace(get_prop=lambda key: endpoint, get_header=head.get, payload=bytes(10))
        if who == "the server":
            link._on_refused = hub._oversized
        else:
            link._on_refused = lambda peer, ident, why: hub._answer(site, "refused", ident, why.encode())
        link._part(part)  # type: ignore[arg-type]
        return ""

    hub.link = SimpleNamespace(send=answer)  # type: ignore[assignment]
    found = list(hub.ask("exchange", {"bank-a": b"x"}, 5.0))
    why = "it announces 1000000000000 bytes, the limit is 1000"
    assert found == [("bank-a", Failure("bank-a", "oversized", why))] and not link._assemblies


class Engine:
    """FLARE's cell as far as sending goes: a queue for one peer, of which nothing is read unless told to."""

    def __init__(self, reads: bool) -> None:
        self.queued: queue.Queue[Any] = queue.Queue()
        self.reads = reads
        connection = SimpleNamespace(conn=SimpleNamespace(oq=SimpleNamespace(q=self.queued)))
        endpoints = {"operator": SimpleNamespace(connections=[connection])}
        self.communicator = SimpleNamespace(conn_manager=SimpleNamespace(sfm_endpoints=endpoints))

    def fire_and_forget(self, channel: str, topic: str, peer: str, part: Any, optional: bool) -> dict[str, str]:
        self.queued.put(part)
        if self.reads and self.queued.qsize() > 3:
            self.queued.get()
        return {peer: ""}


@pytest.mark.parametrize("reads", [False, True])
def test_what_is_queued_for_a_peer_that_does_not_read_is_bounded(reads: bool) -> None:
    link = Link.__new__(Link)
    link._stopping = False
    link._cell = Engine(reads)
    problems = {link.send("operator", "answer", "i", bytes(PART_BYTES), 0.0) for _ in range(3 * MAX_QUEUED_FRAMES)}
    assert link._cell.queued.qsize() <= MAX_QUEUED_FRAMES
    assert problems == {""} if reads else {"", "it does not read what was sent to it before"}
    assert link.send("nobody", "answer", "i", b"") == ""


def test_who_stops_by_itself_is_not_told_that_it_lost_the_others() -> None:
    lost: list[str] = []
    link = Link.__new__(Link)
    link._stopping = False
    link.name, link._lock, link._stopping, link._live, link._assemblies = "bank-a", threading.Lock(), False, {"b"}, {}
    link._on_down = lost.append
    connections = SimpleNamespace(conn_manager=SimpleNamespace(connectors={}))
    link._cell = SimpleNamespace(communicator=connections, stop=lambda: link._gone("server"))
    link._gone("b")
    assert lost == ["b"]
    link._live.add("server")
    link.stop()
    assert lost == ["b"] and link.peers() == set()
    link._cell.communicator.conn_manager.sfm_endpoints = {}
    assert link.send("server", "question", "1", b"") == "the connection was closed on this side"
