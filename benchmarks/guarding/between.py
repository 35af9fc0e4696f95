"""Silos as processes on loopback with mutual TLS, for exchanges of a benchmark: no course, no agreement, no graphs."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from guarding.cost import Bystander, Exchanges
from isthmus.core.codec import decode
from isthmus.core.guards.guard import Guard
from isthmus.core.guards.line import GuardLine
from isthmus.core.guards.settled import SettledFile
from isthmus.core.protocol import Failure, Holdings
from isthmus.core.random import Secret
from isthmus.runtime.answering import MemoryStore, Silo
from isthmus.runtime.envelope import Envelope
from isthmus.runtime.flare.link import Credentials, Link, LinkHub
from isthmus.runtime.remote import Answered, RemoteRuntime
from isthmus.sites.parties.kit import SERVER, Kit, make_federation, open_kit
from isthmus.sites.silo.consent import Identity
from isthmus.sites.silo.hand import Hand
from isthmus.sites.up import free_port

TIMEOUT_SECONDS = 900.0


@dataclass
class Line:
    """Messages of a runtime over a hub."""

    hub: LinkHub

    @property
    def holdings(self) -> Mapping[str, Holdings]:
        """Nobody said how much it holds."""
        return {}

    def send(self, messages: Mapping[str, bytes], timeout_seconds: float | None) -> Iterator[Answered]:
        """Deliver messages."""
        for site, answer in self.hub.ask("exchange", messages, TIMEOUT_SECONDS):
            assert not isinstance(answer, Failure), answer
            yield site, answer


def credentials(kit: Kit) -> Credentials:
    return Credentials(kit.root, kit.certificate, kit.key)


def answer(path: Path, guards: Mapping[str, tuple[Guard, ...]]) -> None:
    """Be a silo of as many courses as there are ways; the name of a course begins with that of its way."""
    torch.set_num_threads(1)
    kit = open_kit(path, "site")
    inbox: queue.Queue[tuple[str, bytes]] = queue.Queue()
    silos: dict[str, Silo] = {}
    hand = Hand(Identity(kit.root, kit.certificate, kit.key))
    book = SettledFile(path / "settled")

    def silo(course: str) -> Silo:
        def made() -> Bystander:
            client = Bystander(kit.party)
            client.guards, client.secret = GuardLine(guards[course.split()[0]]), Secret(secrets.token_bytes(32))
            client.course, client.book, client.signer = course, book, hand
            return client

        return Silo(course, Exchanges(), made, MemoryStore(path / "memories" / course.replace(" ", "-")))

    link = Link(
        kit.party,
        f"{kit.host}:{kit.port}",
        credentials(kit),
        {SERVER},
        lambda peer, kind, ident, data: inbox.put((ident, data)),
    )
    while True:
        ident, data = inbox.get()
        course = decode(data, Envelope, share=True).course
        if course not in silos:
            silos.clear()
            silos.update({course: silo(course)})
        link.send(SERVER, "answer", ident, silos[course].answer(data))


@contextmanager
def between_processes(
    names: Sequence[str], guards: Mapping[str, tuple[Guard, ...]]
) -> Iterator[dict[str, Callable[[], RemoteRuntime]]]:
    """Start silos; give for each way what makes a runtime with a course of its own."""
    with tempfile.TemporaryDirectory(prefix="isthmus-") as scratch:
        kits = make_federation(Path(scratch) / "federation", f"localhost:{free_port()}", list(names))
        # Copies of this process, made before it has threads: as many starts of torch would not fit into memory.
        processes = [_copy(kits[name], Path(scratch) / "ready", guards) for name in names]
        kit = open_kit(kits[SERVER], "server")
        hub = LinkHub(f"0:{kit.port}", credentials(kit), set(names))
        (Path(scratch) / "ready").touch()
        try:
            while len(hub.connected()) < len(names):
                time.sleep(0.05)

            def runtime(way: str) -> RemoteRuntime:
                return RemoteRuntime(f"{way} {secrets.token_hex(8)}", names, Line(hub))

            yield {way: (lambda way=way: runtime(way)) for way in guards}  # type: ignore[misc]
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            hub.stop()


def _copy(path: Path, ready: Path, guards: Mapping[str, tuple[Guard, ...]]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        while not ready.exists():
            time.sleep(0.05)
        answer(path, guards)
    finally:
        os._exit(1)
    return 0
