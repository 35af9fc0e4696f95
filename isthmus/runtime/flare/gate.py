"""The server's gate: who may hold a stream, how many connections wait at the door, and for how long.

gRPC knows a handshake's time limit and a largest number of connections, and closes what comes above it. That alone
would let a stranger's silent connections keep everybody else out, and one party's many streams take every worker. The
gate adds what it lacks: one stream for each certified name, told at once why another is refused; and a patrol that
closes the oldest of those connections that have no stream yet.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import stat
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.fuel.f3.communicator import driver_mgr, load_comm_drivers
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.grpc.qq import QQ
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub, add_StreamerServicer_to_server
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Server, Servicer, StreamConnection
from nvflare.fuel.f3.drivers.net_utils import get_address

MAX_PENDING = 64  # connections without a stream; the oldest make room
PENDING_SECONDS = 10.0  # for how long a connection may have none
MAX_CONNECTIONS = 512  # beside one for each party; above that newcomers are closed at once
MAX_STREAMS = 8  # on one connection, refused ones included
PATROL_SECONDS = 0.2
RESERVED_DESCRIPTORS = 128  # for checkpoints, journals and everything else that the process opens
MAX_DESCRIPTORS = 65_536
# Why a server ends a stream at once: for good, or because the same name is connected from elsewhere.
UNWELCOME = grpc.StatusCode.PERMISSION_DENIED
TWICE = grpc.StatusCode.ALREADY_EXISTS
INSTANCE = "isthmus-instance"  # the header in which a process says which one it is

Address = tuple[str, int]


@dataclass(frozen=True)
class Visitor:
    """Who is at the door: what the certificate says, and where the connection comes from."""

    name: str
    serial: int
    valid_until: datetime
    instance: str
    address: Address
    context: Any = None  # gRPC's, of the stream


class Gate:
    """Lets one stream of each party in. `refusal` says why a visitor is not welcome; asked again while it stays."""

    def __init__(
        self,
        refusal: Callable[[Visitor], str],
        *,
        on_refused: Callable[[str, str], None] = lambda name, why: None,
        on_welcome: Callable[[Visitor], None] = lambda visitor: None,
    ) -> None:
        self._refusal, self._on_refused, self._on_welcome = refusal, on_refused, on_welcome
        self._lock = threading.Lock()
        self._stays: dict[str, Visitor] = {}
        self._stopped = threading.Event()
        self._first_seen: dict[int, tuple[float, Address | None]] = {}

    # ---- streams

    def enter(self, context: Any) -> Visitor:
        """Let a stream in, or end it with the reason."""
        visitor = visitor_of(context)
        code, why, present = UNWELCOME, self._refusal(visitor), None
        if not why:
            with self._lock:
                present = self._stays.get(visitor.name)
                if present is None or (visitor.instance and visitor.instance == present.instance):
                    self._stays[visitor.name] = visitor
                else:
                    code, why = TWICE, f"{visitor.name} is connected already, from {present.address[0]}"
        if why:
            self._on_refused(visitor.name, why)
            context.abort(code, why)
        if present is not None:
            present.context.cancel()  # the same process came back before its old connection was seen to end
        self._on_welcome(visitor)
        return visitor

    def leave(self, visitor: Visitor) -> None:
        """Forget a stream that has ended."""
        with self._lock:
            if self._stays.get(visitor.name) is visitor:
                del self._stays[visitor.name]

    def check_again(self) -> None:
        """Cut the streams of those who are not welcome any more."""
        with self._lock:
            stays = list(self._stays.values())
        for visitor in stays:
            why = self._refusal(visitor)
            if why:
                self._on_refused(visitor.name, why)
                visitor.context.cancel()

    # ---- connections

    def patrol(self, port: int) -> None:
        """Look after connections and streams until `stop`; in a thread of its own."""
        threading.Thread(target=self._patrol, args=(port,), name="isthmus-gate", daemon=True).start()

    def stop(self) -> None:
        """End the patrol."""
        self._stopped.set()

    def _patrol(self, port: int) -> None:
        while not self._stopped.wait(PATROL_SECONDS):
            self.check_again()
            for number in self._overdue(port):
                _hang_up(number, self._first_seen[_inode(number)][1])

    def _overdue(self, port: int) -> list[int]:
        """Return the descriptors of connections without a stream that are too old, or one too many; oldest first."""
        now = time.monotonic()
        found = {inode: number for number in _descriptors() if (inode := _inode(number))}
        self._see(found, port, now)
        with self._lock:
            inside = {visitor.address for visitor in self._stays.values()}
        seen = self._first_seen.items()
        pending = sorted((since, inode) for inode, (since, peer) in seen if peer is not None and peer not in inside)
        num_late = sum(now - since > PENDING_SECONDS for since, _ in pending)
        return [found[inode] for _, inode in pending[: max(num_late, len(pending) - MAX_PENDING)]]

    def _see(self, found: dict[int, int], port: int, now: float) -> None:
        """Keep since when and by whom the connections are held that are there now."""
        known = self._first_seen
        self._first_seen = {
            inode: known[inode] if inode in known else (now, _peer(number, port)) for inode, number in found.items()
        }


def visitor_of(context: Any) -> Visitor:
    """Read who holds a stream off the certificate that was verified in the handshake."""
    (pem,) = context.auth_context()["x509_pem_cert"]
    certificate = x509.load_pem_x509_certificate(pem)
    (name,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    instance = next((str(value) for key, value in context.invocation_metadata() if key == INSTANCE), "")
    return Visitor(
        name=str(name.value),
        serial=certificate.serial_number,
        valid_until=certificate.not_valid_after_utc,
        instance=instance[:64],
        address=_parse_peer(context.peer()),
        context=context,
    )


def _parse_peer(text: str) -> Address:
    """Return host and port of ipv4:127.0.0.1:80 or ipv6:%5B::1%5D:80."""
    host, _, port = urllib.parse.unquote(text).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdigit() else 0


def _plain(host: str) -> str:
    """Return an address as IPv4 where it is one, as connections to a socket for both kinds have two spellings."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/dev/fd") if name.isdigit()]
    except OSError:
        return []


def _inode(number: int) -> int:
    """Return what tells a socket from another that later gets the same number; 0 for anything but a socket."""
    try:
        found = os.fstat(number)
    except OSError:
        return 0
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else 0


def _peer(number: int, port: int) -> Address | None:
    """Return the far end of a connection that our port took; nothing for any other socket."""
    try:
        with socket.socket(fileno=os.dup(number)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.getsockname()[1] != port:
                return None
            host, far = copy.getpeername()[:2]
            return _plain(host), far
    except OSError:
        return None


def _hang_up(number: int, peer: Address | None) -> None:
    """End a connection that gRPC holds; it sees the end of the stream and closes its descriptor."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        host, far = copy.getpeername()[:2]
        if (_plain(host), far) == peer:  # the number may be another connection's by now
            copy.shutdown(socket.SHUT_RDWR)


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open descriptors as far as it may go; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def max_connections(num_parties: int) -> int:
    """Return how many connections may be open at once, so that the process keeps descriptors for itself."""
    free = raise_descriptor_limit() - len(_descriptors()) - RESERVED_DESCRIPTORS
    return max(min(MAX_CONNECTIONS + num_parties, free), 1)


def limits(num_parties: int) -> list[tuple[str, int]]:
    """Return gRPC's own settings for a server of so many parties."""
    return [
        ("grpc.server_handshake_timeout_ms", int(PENDING_SECONDS * 1000)),
        ("grpc.max_allowed_incoming_connections", max_connections(num_parties)),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
    ]


@dataclass(frozen=True)
class Credentials:
    """Where a party's certificate, its key and the root certificate lie."""

    root: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Door:
    """How a party gets to the server: `trusted` gives the certificate to trust, or nothing if it should not try now."""

    trusted: Callable[[], bytes | None]
    on_unwelcome: Callable[[bool, str], None] = lambda for_good, why: None
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)


# ---- FLARE's gRPC driver with the gate at the server's end, and reasons at the other


class _Ending:
    """A stream's context whose end comes at once: gRPC's `abort` does nothing from any thread but the stream's own.

    FLARE calls it from another, so that one that poses as another would stay for as long as it says nothing more.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def abort(self, code: Any, details: str) -> None:
        self._context.cancel()


class GatedServicer(Servicer):  # type: ignore[misc]
    """Holds a stream only for who was let in."""

    def __init__(self, server: GatedServer, gate: Gate) -> None:
        super().__init__(server)
        self.gate = gate

    def Stream(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        """Carry frames both ways until one side ends."""
        visitor = self.gate.enter(context)
        try:
            yield from super().Stream(request_iterator, _Ending(context))
        finally:
            self.gate.leave(visitor)


class GatedServer(Server):  # type: ignore[misc]
    """FLARE's server for its driver, with limits; unlike that one, it can be stopped while it starts."""

    def __init__(self, driver: GatedDriver, connector: Any, gate: Gate, credentials: Credentials, num_parties: int):
        self.driver, self.connector = driver, connector
        workers = ThreadPoolExecutor(MAX_CONNECTIONS + num_parties, "isthmus-stream")  # each stream holds one
        self.grpc_server = grpc.server(workers, options=[*map(tuple, driver.options), *limits(num_parties)])
        add_StreamerServicer_to_server(GatedServicer(self, gate), self.grpc_server)
        self.grpc_server.add_secure_port(get_address(connector.params), _server_credentials(credentials))

    def shutdown(self) -> None:
        """End every stream and stop listening."""
        self.grpc_server.stop(grace=0.5)


class GatedDriver(GrpcDriver):  # type: ignore[misc]
    """FLARE's driver; subclasses made by `use` say through which gate or door."""

    gate: Gate
    door: Door
    credentials: Credentials
    num_parties = 0

    def listen(self, connector: Any) -> None:
        """Serve at the connector's address."""
        self.connector = connector
        self.server = GatedServer(self, connector, self.gate, self.credentials, self.num_parties)
        self.gate.patrol(int(connector.params[DriverParams.PORT.value]))
        self.server.start()

    def shutdown(self) -> None:
        """Close every connection."""
        if hasattr(self, "gate"):
            self.gate.stop()
        super().shutdown()

    def connect(self, connector: Any) -> None:
        """Hold one stream to the server until it ends; tell why, if the server said so."""
        trusted = self.door.trusted()
        if trusted is None:
            return  # FLARE calls again, after a while
        address, mine = get_address(connector.params), self.credentials
        credentials = grpc.ssl_channel_credentials(trusted, mine.key.read_bytes(), mine.certificate.read_bytes())
        channel = grpc.secure_channel(address, credentials, [tuple(option) for option in self.options])
        peer = {DriverParams.PEER_ADDR.value: address}
        connection = StreamConnection(QQ(), connector, peer, "CLIENT", channel=channel)
        self.add_connection(connection)
        try:
            metadata = ((INSTANCE, self.door.instance),)
            received = StreamerStub(channel).Stream(connection.generate_output(), metadata=metadata)
            connection.read_loop(received)
        finally:
            connection.close()
            self.close_connection(connection)
        if received.code() in (UNWELCOME, TWICE):
            self.door.on_unwelcome(received.code() == UNWELCOME, str(received.details()))


def use(credentials: Credentials, **passage: Any) -> None:
    """Let the next cell of this process listen through a `gate` for `num_parties`, or connect through a `door`."""
    load_comm_drivers()
    # FLARE makes drivers by their class alone, so that each cell needs a class of its own.
    driver_mgr.drivers["grpc"] = type("GatedDriver", (GatedDriver,), {"credentials": credentials, **passage})


def _server_credentials(credentials: Credentials) -> Any:
    """Return credentials that are read again when the files were replaced: a renewed kit needs no restart."""

    def read() -> tuple[bytes, bytes, bytes]:
        return credentials.key.read_bytes(), credentials.certificate.read_bytes(), credentials.root.read_bytes()

    def configuration(files: tuple[bytes, bytes, bytes]) -> Any:
        key, certificate, root = files
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root)

    in_use = [read()]

    def fetch() -> Any:
        try:
            now = read()
        except OSError:
            return None
        if now == in_use[0] or not _belong_together(now[0], now[1]):
            return None  # nothing new, or half of a change
        in_use[0] = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(configuration(in_use[0]), fetch, require_client_authentication=True)


def _belong_together(key: bytes, certificate: bytes) -> bool:
    try:
        private, stated = load_pem_private_key(key, None), x509.load_pem_x509_certificate(certificate).public_key()
    except ValueError:
        return False
    return private.public_key() == stated
