"""The silo's process: it connects to the server and answers, until it is told to stop."""

from __future__ import annotations

import fcntl
import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.core.errors import BadInput, MissingExtra
from isthmus.federation.kit import SERVER, Kit
from isthmus.federation.policy import Policy
from isthmus.federation.preflight import wait_for_server
from isthmus.federation.service import SiloService


def join(
    kit: Kit,
    data: Path,
    policy: Policy,
    *,
    say: Callable[[str], None] = print,
    stop: threading.Event | None = None,
) -> None:
    """Serve courses on the graph in `data` until `stop` is set; refused by the federation, it ends with an error."""
    if importlib.util.find_spec("nvflare") is None:
        raise MissingExtra("nvflare", "sites", "joining a federation")
    stop = stop or threading.Event()
    service = SiloService(kit.party, data, kit.path / "state", policy, say)
    if not wait_for_server(kit, say, stop.is_set):
        return
    with _alone(kit):
        _answer(kit, service, policy, say, stop)


@contextmanager
def _alone(kit: Kit) -> Iterator[None]:
    """Hold the kit's lock: a second process with the same name would push the first one out."""
    kit.path.joinpath("state").mkdir(exist_ok=True)
    with (kit.path / "state" / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{kit.path} is in use by another process; a site joins once") from None
        yield


def _answer(kit: Kit, service: SiloService, policy: Policy, say: Callable[[str], None], stop: threading.Event) -> None:
    from isthmus.runtime.flare.link import Credentials, Link

    inbox: queue.Queue[tuple[str, str, bytes]] = queue.Queue()
    link = Link(
        kit.party,
        f"{kit.host}:{kit.port}",
        Credentials(kit.root, kit.certificate, kit.key),
        {SERVER},
        lambda peer, kind, ident, message: inbox.put((kind, ident, message)),
        on_up=lambda peer: say("connected to the server"),
        on_down=lambda peer: say("lost the server; waiting for it"),
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
            if service.refused:
                raise BadInput(f"the federation refused this silo: {service.refused}")
    finally:
        link.stop()
