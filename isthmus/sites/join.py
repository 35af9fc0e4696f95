"""The silo's process: it connects to the server and answers, until it is interrupted."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from isthmus.core.record import CPU
from isthmus.data.folders.own_kinds import kind_at
from isthmus.runtime.seldom import Seldom
from isthmus.sites.parties.admission import LIST_KIND, Entrance, wait_for_server
from isthmus.sites.parties.certificates import REVOKED, SERVER, require_engine
from isthmus.sites.parties.kit import Kit, Watch, hold
from isthmus.sites.silo.consent import Identity
from isthmus.sites.silo.identities import node_keys
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.service import SiloService


def check_own(data: Path, id_secret: bytes | None) -> None:
    """Refuse a folder with mistakes, or with ids that get the same key, before anything is connected."""
    # Whether edges are directed is for the course to say; the two directions of one may differ until then.
    folder = replace(kind_at(data).at(data), undirected=False).read()
    if id_secret is not None and folder.node_ids is not None:
        node_keys(folder.node_ids, id_secret)


def join(
    kit: Kit,
    data: Path,
    policy: Policy,
    *,
    id_secret: bytes | None = None,
    device: torch.device = CPU,
    say: Callable[[str], None] = print,
) -> None:
    """Serve courses on the graph in `data` until interrupted; refused in one course, it waits for the next."""
    require_engine("joining a federation")
    service = SiloService(kit.party, data, kit.path / "state", policy, say, id_secret, device=device)
    wait_for_server(kit, say, lambda: False)
    with hold(kit):
        _answer(kit, service, policy, say)


def _answer(kit: Kit, service: SiloService, policy: Policy, say: Callable[[str], None]) -> None:
    inbox: queue.Queue[tuple[str, str, bytes]] = queue.Queue()
    entrance, seldom = Entrance(kit, say), Seldom(say)
    service.expelled = entrance.expelled
    service.identity = Identity(kit.root, kit.certificate, kit.key, lambda: entrance.revocations.current.serials)

    def hear(peer: str, kind: str, ident: str, message: bytes) -> None:
        if kind == LIST_KIND:
            entrance.heard_list(message)  # at once, whatever else is under way
        else:
            inbox.put((kind, ident, message))

    def refuse(peer: str, ident: str, why: str) -> None:
        seldom("refused", f"refused a message of the server's: {why}")
        link.send(SERVER, "refused", ident, why.encode())

    up = partial(say, "connected to the server")
    link = entrance.link(hear, up, on_refused=refuse, max_bytes=policy.max_message_bytes)
    watch = Watch([kit.path / REVOKED], entrance.look_again)
    try:
        while True:
            entrance.check()
            try:
                kind, ident, message = inbox.get(timeout=0.2)
            except queue.Empty:
                continue
            answer = service.handle(kind, message)
            entrance.check()
            problem = link.send(SERVER, "answer", ident, answer)
            if problem:
                say(f"the answer could not be sent: {problem}")
    finally:
        watch.stop()
        link.stop()
