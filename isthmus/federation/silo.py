"""The silo's process: it connects to the server and answers, until it is told to stop."""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from isthmus.core.errors import MissingExtra
from isthmus.federation.kit import SERVER, Kit, hold
from isthmus.federation.policy import Policy
from isthmus.federation.preflight import wait_for_server
from isthmus.federation.service import SiloService


def join(
    kit: Kit,
    data: Path,
    policy: Policy,
    *,
    id_secret: bytes | None = None,
    say: Callable[[str], None] = print,
    stop: threading.Event | None = None,
) -> None:
    """Serve courses on the graph in `data` until `stop` is set; refused in one course, it waits for the next.

    With a secret that the silos share, algorithms can match nodes that they have in common.
    """
    if importlib.util.find_spec("nvflare") is None:
        raise MissingExtra("nvflare", "sites", "joining a federation")
    stop = stop or threading.Event()
    service = SiloService(kit.party, data, kit.path / "state", policy, say, id_secret)
    if not wait_for_server(kit, say, stop.is_set):
        return
    with hold(kit):
        _answer(kit, service, policy, say, stop)


def _answer(kit: Kit, service: SiloService, policy: Policy, say: Callable[[str], None], stop: threading.Event) -> None:
    from isthmus.runtime.flare.link import Credentials, Link

    inbox: queue.Queue[tuple[str, str, bytes]] = queue.Queue()

    def refuse(ident: str, why: str) -> None:
        say(f"refused a message of the server's: {why}")
        link.send(SERVER, "refused", ident, why.encode())

    link = Link(
        kit.party,
        f"{kit.host}:{kit.port}",
        Credentials(kit.root, kit.certificate, kit.key),
        {SERVER},
        lambda peer, kind, ident, message: inbox.put((kind, ident, message)),
        on_up=lambda peer: say("connected to the server"),
        on_down=lambda peer: say("lost the server; waiting for it"),
        on_refused=lambda peer, ident, why: refuse(ident, why),
        max_bytes=policy.max_message_bytes,
    )
    try:
        while not stop.is_set():
            try:
                kind, ident, message = inbox.get(timeout=0.2)
            except queue.Empty:
                continue
            problem = link.send(SERVER, "answer", ident, service.handle(kind, message))
            if problem:
                say(f"the answer could not be sent: {problem}")
    finally:
        link.stop()
