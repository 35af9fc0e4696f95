"""Says in one sentence why a party cannot connect, before the transport tries for ever."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable

from isthmus.core.errors import BadInput
from isthmus.federation.kit import Kit

NOBODY = "nothing listens"


def clock_problem(kit: Kit) -> str:
    """Return why this machine's clock and the kit's certificate do not go together, or nothing."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(kit.certificate.read_bytes())
    except ValueError as error:
        return f"{kit.certificate} is no certificate: {error}"
    first, last = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    now = time.time()
    if first <= now <= last:
        return ""
    shown = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment)) for moment in (first, last, now)]
    return f"the kit's certificate is valid from {shown[0]} to {shown[1]} UTC, this machine's clock says {shown[2]}"


def connection_problem(kit: Kit, timeout_seconds: float = 5.0) -> str:
    """Try a mutual TLS handshake with the server; return what is wrong, or nothing."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(kit.root))
        context.load_cert_chain(kit.certificate, kit.key)
    except ssl.SSLError as error:
        return f"{kit.path} is damaged: its certificate, key or root cannot be used together ({error.reason})"
    context.set_alpn_protocols(["h2"])
    place = f"{kit.host}:{kit.port}"
    try:
        with (
            socket.create_connection((kit.host, kit.port), timeout_seconds) as raw,
            context.wrap_socket(raw, server_hostname=kit.host) as secure,
        ):
            # TLS 1.3 refuses a client's certificate only after the handshake; a gRPC server greets at once.
            return "" if secure.recv(1) else f"the server at {place} does not accept this kit's certificate"
    except ssl.SSLCertVerificationError as error:
        return f"the server at {place} is not of this federation: {error.verify_message}"
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
        return f"the server at {place} does not accept this kit's certificate"
    except TimeoutError:
        return f"{NOBODY} at {place}: no answer"
    except OSError as error:
        return f"{NOBODY} at {place}: {error.strerror or error}"


def wait_for_server(kit: Kit, say: Callable[[str], None], stopped: Callable[[], bool]) -> bool:
    """Wait until the server is there; return False if told to stop; a refusal is an error at once."""
    problem = clock_problem(kit)
    if problem:
        raise BadInput(problem)
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
