"""FLARE's gRPC driver with a gate at the server's end, and reasons at the other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from nvflare.fuel.f3.communicator import driver_mgr, load_comm_drivers
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.grpc.qq import QQ
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub, add_StreamerServicer_to_server
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Servicer, StreamConnection
from nvflare.fuel.f3.drivers.net_utils import get_address

from isthmus.runtime.flare.gate import INSTANCE, MAX_CONNECTIONS, Gate, limits

# Why a server ends a stream at once: for good, or because the same name is connected from elsewhere.
UNWELCOME = grpc.StatusCode.PERMISSION_DENIED
TWICE = grpc.StatusCode.ALREADY_EXISTS


@dataclass(frozen=True)
class Credentials:
    """Where a party's certificate, its key and the root certificate lie."""

    root: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Door:
    """How a party gets to the server: `trusted` gives the certificate to trust, or nothing if it should not try now."""

    credentials: Credentials
    trusted: Callable[[], bytes | None]
    on_unwelcome: Callable[[bool, str], None] = lambda for_good, why: None
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)


class _Ending:
    """A stream's context whose end comes at once: gRPC's `abort` does nothing from any thread but the stream's own.

    FLARE ends a connection from the thread that found a fault in it, and the stream's own then waits for the other side
    to hang up; one that poses as another would stay for as long as it says nothing more.
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
            self.gate.leave(context, visitor)


class GatedServer:
    """A gRPC server with limits; what FLARE's own `Server` is to its driver."""

    def __init__(self, driver: GatedDriver, connector: Any, gate: Gate, credentials: Credentials, num_parties: int):
        self.driver, self.connector = driver, connector
        workers = ThreadPoolExecutor(MAX_CONNECTIONS + num_parties, "isthmus-stream")  # each stream holds one
        self.grpc_server = grpc.server(workers, options=[*map(tuple, driver.options), *limits(num_parties)])
        add_StreamerServicer_to_server(GatedServicer(self, gate), self.grpc_server)
        self.grpc_server.add_secure_port(get_address(connector.params), _server_credentials(credentials))

    def start(self) -> None:
        """Serve until `shutdown`."""
        self.grpc_server.start()
        self.grpc_server.wait_for_termination()

    def shutdown(self) -> None:
        """End every stream and stop listening."""
        self.grpc_server.stop(grace=0.5)


class GatedDriver(GrpcDriver):  # type: ignore[misc]
    """FLARE's driver; subclasses made by `use_gate` and `use_door` say through which gate or door."""

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
        address = get_address(connector.params)
        mine = self.door.credentials
        credentials = grpc.ssl_channel_credentials(trusted, mine.key.read_bytes(), mine.certificate.read_bytes())
        channel = grpc.secure_channel(
            address, options=[tuple(option) for option in self.options], credentials=credentials
        )
        connection = StreamConnection(
            QQ(), connector, {DriverParams.PEER_ADDR.value: address}, "CLIENT", channel=channel
        )
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


def use_gate(gate: Gate, credentials: Credentials, num_parties: int) -> None:
    """Let the next cell of this process listen through a gate."""
    _use({"gate": gate, "credentials": credentials, "num_parties": num_parties})


def use_door(door: Door) -> None:
    """Let the next cell of this process connect through a door."""
    _use({"door": door})


def _use(attributes: dict[str, Any]) -> None:
    load_comm_drivers()
    # FLARE makes drivers by their class alone, so that each cell needs a class of its own.
    driver_mgr.drivers["grpc"] = type("GatedDriver", (GatedDriver,), attributes)


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
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private, stated = load_pem_private_key(key, None), x509.load_pem_x509_certificate(certificate).public_key()
    except ValueError:
        return False
    return private.public_key() == stated
