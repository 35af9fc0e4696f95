"""Says in one sentence why a party cannot connect, before the transport tries for ever."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.core.errors import BadInput
from isthmus.sites.parties.certificates import date_problem, expiry_notice, passport_of, read_passport
from isthmus.sites.parties.kit import SERVER, Kit
from isthmus.sites.parties.revocation import RevocationList, Revocations

NOBODY = "nothing listens"


@dataclass(frozen=True)
class Probe:
    """What a first look at the server brought: what is wrong, or the certificate that it showed."""

    problem: str
    certificate: bytes = b""


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


def clock_problem(kit: Kit) -> str:
    """Return why this machine's clock and the kit's certificate do not go together, or nothing."""
    return date_problem(passport_of(kit))


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
    problem = certificate_problem(kit, Revocations(kit).current)
    if problem:
        raise BadInput(problem)
    notice = expiry_notice(kit)
    if notice:
        say(notice)
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


def port_problem(port: int) -> str:
    """Return why the server cannot listen on a port, or nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            return f"port {port} cannot be used: {error.strerror or error}"
    return ""
