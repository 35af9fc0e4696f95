"""Who comes in, as a party and as the server see it.

A first look at the server says in one sentence why a party cannot connect, before the transport tries for ever.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from isthmus.core.errors import BadInput
from isthmus.core.outside import foreign
from isthmus.runtime.seldom import Seldom
from isthmus.sites.parties.certificates import (
    SERVER,
    Passport,
    RevocationList,
    Revocations,
    date_problem,
    expiry_notice,
    passport_of,
    read_passport,
    soon,
)
from isthmus.sites.parties.kit import Kit

if TYPE_CHECKING:
    from isthmus.runtime.flare.gate import Gate, Visitor
    from isthmus.runtime.flare.link import Credentials, Door, Link, LinkHub, OnMessage

LIST_KIND = "revoked"  # the message in which the server hands on the list of revoked certificates
TWICE_SECONDS = 30.0  # above the time after which the server takes a silent connection as lost
NOBODY = "nothing listens"


@dataclass(frozen=True)
class Probe:
    """What a first look at the server brought: what is wrong, or the certificate that it showed."""

    problem: str
    certificate: bytes = b""


def credentials_of(kit: Kit) -> Credentials:
    """Return where a kit has what its party shows to others."""
    from isthmus.runtime.flare.link import Credentials

    return Credentials(kit.root, kit.certificate, kit.key)


def certificate_problem(kit: Kit, revoked: RevocationList) -> str:
    """Return why a kit's own certificate cannot be used: another's, out of date, or revoked; or nothing."""
    try:
        found = passport_of(kit)
    except BadInput as error:
        return str(error)
    if found.serial in revoked.serials:
        how = "it was expelled" if kit.party in revoked.expelled else "another took its place"
        return f"the certificate of {kit.party} was revoked: {how}; who keeps the federation's authority can say why"
    return date_problem(found)


def require_usable(kit: Kit, revoked: RevocationList, say: Callable[[str], None]) -> None:
    """Raise where a kit's own certificate cannot be used; say so when it ends soon."""
    problem = certificate_problem(kit, revoked)
    if problem:
        raise BadInput(problem)
    notice = expiry_notice(kit)
    if notice:
        say(notice)


def connection_problem(kit: Kit, timeout_seconds: float = 5.0) -> str:
    """Try a mutual TLS handshake with the server; return what is wrong, or nothing."""
    return probe_server(kit, Revocations(kit).current, timeout_seconds).problem


def probe_server(kit: Kit, revoked: RevocationList, timeout_seconds: float = 5.0) -> Probe:
    """Look at the server by a mutual TLS handshake; one whose certificate was revoked is as good as a stranger."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(kit.root))
        context.load_cert_chain(kit.certificate, kit.key)
    except ssl.SSLError as error:
        return Probe(f"{kit.path} is damaged: its certificate, key or root cannot be used together ({error.reason})")
    context.set_alpn_protocols(["h2"])
    place = f"{kit.host}:{kit.port}"
    try:
        with (
            socket.create_connection((kit.host, kit.port), timeout_seconds) as raw,
            context.wrap_socket(raw, server_hostname=kit.host) as secure,
        ):
            return _probe_peer(secure, place, revoked)
    except ssl.SSLCertVerificationError as error:
        return Probe(f"the server at {place} is not of this federation: {error.verify_message}")
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
        return Probe(f"the server at {place} does not accept this kit's certificate")
    except TimeoutError:
        return Probe(f"{NOBODY} at {place}: no answer")
    except OSError as error:
        return Probe(f"{NOBODY} at {place}: {error.strerror or error}")


def _probe_peer(secure: ssl.SSLSocket, place: str, revoked: RevocationList) -> Probe:
    shown = ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode()
    found = read_passport(shown)
    if found.name != SERVER:
        return Probe(f"{place} is not the server of this federation: its certificate is for {found.name!r}")
    if found.serial in revoked.serials:
        return Probe(f"the server at {place} uses a certificate that was revoked; it needs its renewed kit")
    # TLS 1.3 refuses a client's certificate only after the handshake; a gRPC server greets at once.
    if secure.recv(1):
        return Probe("", shown)
    return Probe(f"the server at {place} does not accept this kit's certificate")


def wait_for_server(kit: Kit, say: Callable[[str], None], stopped: Callable[[], bool]) -> bool:
    """Wait until the server is there; return False if told to stop; a refusal is an error at once."""
    require_usable(kit, Revocations(kit).current, say)
    told = False
    while not stopped():
        problem = connection_problem(kit)
        if not problem:
            return True
        if not problem.startswith(NOBODY):
            raise BadInput(problem)
        if not told:
            say(f"waiting for the server: {problem}")
            told = True
        time.sleep(0.3)
    return False


def require_port(port: int) -> None:
    """Raise where the server cannot listen on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            raise BadInput(f"port {port} cannot be used: {error.strerror or error}") from None


class Entrance:
    """A party's way in: it trusts no server whose certificate was revoked, and knows why it must end, if it must."""

    def __init__(self, kit: Kit, say: Callable[[str], None]) -> None:
        self.kit, self.say = kit, say
        self.revocations = Revocations(kit)
        self.problem = ""
        self._seldom = Seldom(say)
        self._server: int | None = None
        self._twice_since: float | None = None

    def door(self) -> Door:
        """Return the way that a link goes."""
        from isthmus.runtime.flare.link import Door

        return Door(self._trusted, self._unwelcome)

    def link(self, on_message: OnMessage, on_up: Callable[[], None], **more: Any) -> Link:
        """Connect to the server, which alone may speak here; while it is away, it is waited for."""
        from isthmus.runtime.flare.link import Link

        def up(peer: str) -> None:
            self.came_in()
            on_up()

        return Link(
            self.kit.party,
            f"{self.kit.host}:{self.kit.port}",
            credentials_of(self.kit),
            {SERVER},
            on_message,
            on_up=up,
            on_down=lambda peer: self.say("lost the server; waiting for it"),
            door=self.door(),
            **more,
        )

    def check(self) -> None:
        """Raise if it is over."""
        if self.problem:
            raise BadInput(self.problem)

    def expelled(self) -> frozenset[str]:
        """Return whose names count no more."""
        return self.revocations.current.expelled

    def came_in(self) -> None:
        """Forget that the server had said no."""
        self._twice_since = None

    def heard_list(self, content: bytes) -> None:
        """Take a list of revoked certificates that the server handed on, if it is the root's and newer."""
        try:
            newer = self.revocations.offer(content)
        except BadInput as error:
            self._seldom("list", f"the server's list of revoked certificates is not taken: {error}")
            return
        if newer:
            self.take_list()

    def look_again(self) -> None:
        """Take a list that was put into the kit by hand."""
        try:
            if self.revocations.reread():
                self.take_list()
        except BadInput as error:
            self.say(f"{error}; the one from before still counts")

    def take_list(self) -> None:
        """Do what the list says: somebody's name counts no more, the server's certificate, or one's own."""
        revoked = self.revocations.current
        self.say(str(revoked))
        self.problem = self.problem or certificate_problem(self.kit, revoked)
        if self._server in revoked.serials and not self.problem:
            self.problem = "the server's certificate was revoked; it needs its renewed kit"

    def _trusted(self) -> bytes | None:
        """Look at the server before every connection; nothing but the very certificate that it shows is trusted."""
        found = probe_server(self.kit, self.revocations.current)
        if found.problem:
            if not found.problem.startswith(NOBODY):
                self._seldom(found.problem, found.problem)
            return None
        self._server = read_passport(found.certificate).serial
        return found.certificate

    def _unwelcome(self, for_good: bool, why: str) -> None:
        why = foreign(why, 300)
        if for_good:
            self.problem = f"the server does not let {self.kit.party} in: {why}"
            return
        now = time.monotonic()
        if self._twice_since is None:
            self._twice_since = now
            self.say(f"{why}; trying for {TWICE_SECONDS:.0f} s, in case that one is already gone")
        elif now - self._twice_since > TWICE_SECONDS:
            self.problem = f"{why}: the kit {self.kit.path} is in use elsewhere; a kit is for one process at a time"


class Roll:
    """The server's list of who may come in, and what it says of them."""

    def __init__(self, kit: Kit, say: Callable[[str], None]) -> None:
        self.kit, self.say = kit, say
        self.revocations = Revocations(kit)
        require_usable(kit, self.revocations.current, say)
        self.seldom = Seldom(say)

    def gate(self) -> Gate:
        """Return the gate that lets in who is on the roll."""
        from isthmus.runtime.flare.gate import Gate

        return Gate(self.refusal, on_refused=self._refused, on_welcome=self._welcome)

    def refusal(self, visitor: Visitor) -> str:
        """Return why somebody with a certificate of this federation may not come in, or nothing."""
        name, revoked = visitor.name, self.revocations.current
        if visitor.serial in revoked.serials:
            how = f"{name} was expelled" if name in revoked.expelled else f"{name} has got another since"
            return f"its certificate was revoked: {how}"
        if name not in (*self.kit.sites, *self.kit.operators):
            return f"{name!r} is not on the server's list; the server needs the kit.json that names it"
        if visitor.valid_until < datetime.now(UTC):
            return f"the certificate of {name} ended on {visitor.valid_until:%Y-%m-%d}"
        return ""

    def greet(self, peer: str, hub: LinkHub) -> None:
        """Hand the list of revoked certificates to a party that has come in."""
        if self.revocations.current.number and peer in self.kit.sites:
            hub.tell(peer, LIST_KIND, self.revocations.current.content)

    def take(self, kit: Kit, hub: LinkHub) -> None:
        """Take a kit that was changed, and hand on a newer list of revoked certificates."""
        present = hub.connected() - {*self.kit.operators}  # those who are to be cut off are told as well
        try:
            newer = self.revocations.reread()
        except BadInput as error:
            newer = False
            self.say(f"{error}; the server goes on with the list that it read before")
        if newer:
            revoked = self.revocations.current
            for peer in sorted(present):
                hub.tell(peer, LIST_KIND, revoked.content)
            self.say(str(revoked))
        self.kit = kit
        problem = certificate_problem(kit, self.revocations.current)
        if problem:
            self.say(f"{problem}; silos do not trust this server any more")

    def _refused(self, name: str, why: str) -> None:
        self.seldom(f"refused {name}", f"{name} is not let in: {why}")

    def _welcome(self, visitor: Visitor) -> None:
        notice = soon(Passport(visitor.name, visitor.serial, visitor.valid_until, visitor.valid_until))
        if notice:
            self.seldom(f"expiry {visitor.name} {visitor.serial}", notice)
