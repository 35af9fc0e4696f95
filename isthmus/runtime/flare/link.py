"""Links between parties over FLARE cells: mutual TLS, names from certificates, messages in parts."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    Encoding,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
)
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager

from isthmus.core.codec import DEFAULT_MAX_BYTES
from isthmus.core.errors import IsthmusError
from isthmus.core.protocol import Failure
from isthmus.runtime.flare.gate import Credentials as Credentials
from isthmus.runtime.flare.gate import Door as Door
from isthmus.runtime.flare.gate import Gate, Visitor, use
from isthmus.runtime.flare.message_parts import PART_BYTES, Assembly, num_parts
from isthmus.runtime.remote import Answered
from isthmus.runtime.seldom import Seldom, SeldomHandler

SERVER = "server"
CHANNEL, TOPIC = "isthmus", "part"
FRAME_BYTES = PART_BYTES + (64 << 10)
STOP_SECONDS = 5.0
LISTEN_SECONDS = 20.0
CHECK_SECONDS = 0.25
MAX_QUEUED_FRAMES = 64  # for one peer
READ_SECONDS = 60.0  # how long a peer may read nothing of what is queued for it

log = logging.getLogger("isthmus.link")
_starting = threading.Lock()

OnMessage = Callable[[str, str, str, bytes], None]  # peer, kind, id, data


def configure() -> None:
    """Set what FLARE would read from comm_config.json; once per process, before the first cell."""
    engine = logging.getLogger("nvflare")
    if not engine.handlers:
        engine.addHandler(SeldomHandler())  # it writes a line for every frame that it cannot read
        engine.propagate = False
    CommConfigurator._config_loaded = True
    CommConfigurator._configuration = {
        "max_message_size": FRAME_BYTES,
        "allow_adhoc_conns": False,  # sites speak to the server and to nobody else
        "heartbeat_interval": 5,
        "grpc": {
            "options": [
                ["grpc.max_send_message_length", FRAME_BYTES],
                ["grpc.max_receive_message_length", FRAME_BYTES],
                # A peer whose network is cut is seen as gone after 15 s at the latest.
                ["grpc.keepalive_time_ms", 10_000],
                ["grpc.keepalive_timeout_ms", 5_000],
                ["grpc.http2.max_pings_without_data", 0],
                ["grpc.keepalive_permit_without_calls", 1],
                ["grpc.http2.min_recv_ping_interval_without_data_ms", 5_000],
                ["grpc.so_reuseport", 0],  # a port in use must be an error
            ],
        },
    }


class Link:
    """One party's end. `allowed` names who may speak to it; everything else is dropped before it is looked at."""

    def __init__(
        self,
        name: str,
        address: str,
        credentials: Credentials,
        allowed: set[str],
        on_message: OnMessage,
        *,
        on_coming: Callable[[str], None] = lambda peer: None,
        on_up: Callable[[str], None] = lambda peer: None,
        on_down: Callable[[str], None] = lambda peer: None,
        on_refused: Callable[[str, str, str], None] = lambda peer, ident, problem: None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        gate: Gate | None = None,
        door: Door | None = None,
    ) -> None:
        configure()
        self._on_refused, self._on_coming = on_refused, on_coming
        self.name, self.allowed, self.max_bytes = name, allowed, max_bytes
        self._on_message, self._on_up, self._on_down = on_message, on_up, on_down
        self._lock = threading.Lock()
        self._seldom = Seldom(log.warning)
        self._assemblies: dict[str, Assembly] = {}
        self._cell = CoreCell(
            fqcn=name,
            root_url=f"grpc://{address}",
            secure=True,
            credentials=_driver_params(credentials, name == SERVER),
            auth_identity_map={SERVER: SERVER},
        )
        self._live: set[str] = set()
        self._stopping = False  # then peers go because we do
        self._cell.set_cell_connected_cb(lambda agent: self._came(agent.get_fqcn()))
        self._cell.set_cell_disconnected_cb(lambda agent: self._gone(agent.get_fqcn()))
        self._cell.add_incoming_filter("*", "*", self._refuse)
        self._cell.register_request_cb(CHANNEL, TOPIC, self._part)
        with _starting:
            if gate is not None:
                use(credentials, gate=gate, num_parties=len(allowed))
            else:
                use(credentials, door=door or Door(credentials.root.read_bytes))
            self._cell.start()

    def peers(self) -> set[str]:
        """Return who is connected."""
        with self._lock:
            return set(self._live)

    def _came(self, peer: str) -> None:
        if peer not in self.allowed:
            return  # with a party's certificate one can also call oneself by a longer name
        with self._lock:
            self._on_coming(peer)  # before anybody can see the peer as connected
            self._live.add(peer)
        self._on_up(peer)

    def send(self, peer: str, kind: str, ident: str, data: bytes, patience_seconds: float = READ_SECONDS) -> str:
        """Send a message in parts; return the reason if it could not be sent, such as that the peer does not read."""
        view, message = memoryview(data), uuid.uuid4().hex
        for number, start in enumerate(range(0, max(len(data), 1), PART_BYTES)):
            if not self._has_room(peer, patience_seconds):
                return "it does not read what was sent to it before"
            if self._stopping:
                return "the connection was closed on this side"
            head = {"kind": kind, "ident": ident, "message": message, "number": number, "size": len(data)}
            part = Message(head, bytes(view[start : start + PART_BYTES]))
            problem = self._cell.fire_and_forget(CHANNEL, TOPIC, peer, part, optional=True)[peer]
            if problem:
                return str(problem)
        return ""

    def _has_room(self, peer: str, patience_seconds: float) -> bool:
        """Wait until few frames are queued for a peer; False if it reads none of them for a while."""
        before, since = self._num_queued(peer), time.monotonic()
        while before >= MAX_QUEUED_FRAMES:
            if time.monotonic() - since >= patience_seconds:
                return False
            time.sleep(0.01)
            now = self._num_queued(peer)
            if now < before:
                since = time.monotonic()
            before = now
        return True

    def _num_queued(self, peer: str) -> int:
        endpoint = self._cell.communicator.conn_manager.sfm_endpoints.get(peer)
        connections = [] if endpoint is None else list(endpoint.connections)
        return sum(connection.conn.oq.q.qsize() for connection in connections)

    def stop(self) -> None:
        """Close every connection; afterwards the same party can make a new link."""
        # FLARE waits without a limit for its gRPC server to end, and loses a stop that comes while it starts.
        self._stopping = True
        servers = self._grpc_servers()
        ending = threading.Thread(target=self._cell.stop, daemon=True)
        ending.start()
        ending.join(STOP_SECONDS)
        if ending.is_alive():
            log.warning("the engine does not end by itself; ending its servers")
            for server in [*servers, *self._grpc_servers()]:
                server.stop(None)
            ending.join(STOP_SECONDS)
        # FLARE keeps these for the life of the process, and refuses a second cell of the same name because of them.
        CoreCell.ALL_CELLS.pop(self.name, None)
        StatsPoolManager.pools.clear()

    def _grpc_servers(self) -> list[Any]:
        connectors = list(self._cell.communicator.conn_manager.connectors.values())
        found = [getattr(getattr(connector.driver, "server", None), "grpc_server", None) for connector in connectors]
        return [server for server in found if server is not None]

    def _gone(self, peer: str) -> None:
        with self._lock:
            if peer not in self._live:
                return
            self._live.discard(peer)
            self._assemblies.pop(peer, None)
        if not self._stopping:
            self._on_down(peer)

    def _refuse(self, message: Message) -> bool | None:
        """Drop what is not plain bytes on our own topic, straight from a party that may speak to us."""
        # FLARE would otherwise decode other encodings, forward messages and answer on its own topics.
        peer = message.get_prop(MessagePropKey.ENDPOINT).name
        place = (message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC))
        is_part = place == (CHANNEL, TOPIC) and message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ
        if not self._is_direct(message, peer) or not (is_part or place == (CellChannel.CELLNET, CellChannelTopic.Bye)):
            self._seldom(f"refused {peer}", f"refused a message of {peer} on {str(place)[:80]}")
            return True
        if not is_part and message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ:
            # A clean goodbye; FLARE does not call the disconnected callback after one.
            threading.Thread(target=self._gone, args=(peer,), daemon=True).start()
        return None

    def _is_direct(self, message: Message, peer: str) -> bool:
        """Whether a message is plain bytes for us that a party who may speak to us has sent itself."""
        encoding = message.get_header(MessageHeaderKey.PAYLOAD_ENCODING, Encoding.NONE)
        return (
            peer in self.allowed
            and message.get_header(MessageHeaderKey.ORIGIN) == peer
            and message.get_header(MessageHeaderKey.DESTINATION) == self.name
            and not message.get_header(MessageHeaderKey.SECURE)
            and encoding in (Encoding.NONE, Encoding.BYTES)
        )

    def _part(self, message: Message) -> None:
        peer = message.get_prop(MessagePropKey.ENDPOINT).name
        head = {key: message.get_header(key) for key in ("kind", "ident", "message", "number", "size")}
        data = bytes(message.payload) if message.payload is not None else b""
        problem = _head_problem(head, len(data), self.max_bytes)
        if problem:
            self._seldom(f"malformed {peer}", f"refused a message of {peer}: {problem}")
            if isinstance(head["ident"], str):
                self._on_refused(peer, head["ident"][:64], problem)
            return
        with self._lock:
            whole, given_up = self._assemblies.setdefault(peer, Assembly(self.max_bytes)).add(head, data)
        for ident in given_up:
            self._on_refused(peer, ident, "too many messages were under way at once")
        if whole is not None:
            self._on_message(peer, head["kind"], head["ident"], whole)


def _head_problem(head: Mapping[str, Any], num_bytes: int, max_bytes: int) -> str:
    if not all(isinstance(head[key], str) and len(head[key]) <= 64 for key in ("kind", "ident", "message")):
        return "its head is malformed"
    size, number = head["size"], head["number"]
    if type(size) is not int or type(number) is not int or size < 0 or not 0 <= number < num_parts(size):
        return "its parts are misnumbered"
    if size > max_bytes:
        return f"it announces {size} bytes, the limit is {max_bytes}"
    if num_bytes != min(PART_BYTES, size - number * PART_BYTES):
        return f"part {number} has {num_bytes} bytes, which does not fit the {size} announced"
    return ""


def _driver_params(credentials: Credentials, is_server: bool) -> dict[str, str]:
    side = "SERVER" if is_server else "CLIENT"
    return {
        DriverParams.CA_CERT.value: str(credentials.root),
        DriverParams[f"{side}_CERT"].value: str(credentials.certificate),
        DriverParams[f"{side}_KEY"].value: str(credentials.key),
        DriverParams.CONNECTION_SECURITY.value: "mtls",
    }


class LinkHub:
    """The server's end: asks parties and gives their answers as they come; hears what the operator says unasked."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        parties: set[str],
        *,
        on_unasked: OnMessage = lambda peer, kind, ident, data: None,
        on_change: Callable[[str, str], None] = lambda peer, what: None,
        on_up: Callable[[str], None] = lambda peer: None,
        gate: Gate | None = None,
    ) -> None:
        self._parties = parties
        self._on_unasked, self._on_change, self._on_up = on_unasked, on_change, on_up
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[queue.Queue[Answered], set[str]]] = {}
        self._generations: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        self.check: Callable[[], None] = lambda: None
        self.link = Link(
            SERVER,
            address,
            credentials,
            parties,
            self._answer,
            on_coming=self._coming,
            on_up=self._up,
            on_down=self._down,
            on_refused=self._oversized,
            gate=gate or Gate(self._unknown),
        )
        self._wait_until_listening(int(address.rpartition(":")[2]))

    def _unknown(self, visitor: Visitor) -> str:
        return "" if visitor.name in self._parties else f"{visitor.name!r} is not on the server's list"

    def _wait_until_listening(self, port: int) -> None:
        """Return when the port answers: FLARE listens from a thread of its own, and a stop before that is lost."""
        deadline = time.monotonic() + LISTEN_SECONDS
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("localhost", port), 1.0):
                    return
            except OSError:
                time.sleep(0.01)
        self.link.stop()
        raise IsthmusError(f"the engine does not listen on port {port} after {LISTEN_SECONDS:.0f} s")

    def set_parties(self, parties: set[str]) -> None:
        """Change who is of the federation."""
        self._parties = self.link.allowed = parties

    def connected(self) -> set[str]:
        """Return the parties that are connected now."""
        return self.link.peers() & self._parties

    def tell(self, peer: str, kind: str, data: bytes) -> str:
        """Send a message that needs no answer; return the reason if it could not be sent."""
        return self.link.send(peer, kind, "", data)

    def generation(self, site: str) -> int:
        """Return how often a site has connected."""
        return self._generations.get(site, 0)

    def heard(self, site: str) -> int:
        """Return how many messages have come from a site, in time or not."""
        return self._heard.get(site, 0)

    def ping(self, site: str) -> None:
        """Ask a site for a sign of life, without waiting for it."""
        threading.Thread(target=self.link.send, args=(site, "ping", uuid.uuid4().hex, b""), daemon=True).start()

    def stop(self) -> None:
        """Close every connection."""
        self.link.stop()

    def ask(self, kind: str, messages: Mapping[str, bytes], timeout_seconds: float) -> Iterator[Answered]:
        """Send each party its message; yield each one's answer, or why there is none, once, as they come."""
        ident, open_ = uuid.uuid4().hex, set(messages)
        answers: queue.Queue[Answered] = queue.Queue()
        with self._lock:
            self._waiting[ident] = (answers, open_)
        deadline = time.monotonic() + timeout_seconds
        try:
            for site, data in messages.items():
                threading.Thread(target=self._deliver, args=(site, kind, ident, data), daemon=True).start()
            given = 0
            while given < len(messages):
                self.check()
                try:
                    answer = answers.get(timeout=max(min(deadline - time.monotonic(), CHECK_SECONDS), 0.001))
                except queue.Empty:
                    if time.monotonic() < deadline:
                        continue
                    yield from self._late(ident, timeout_seconds)
                    return
                given += 1
                yield answer
        finally:
            with self._lock:
                self._waiting.pop(ident, None)

    def _deliver(self, site: str, kind: str, ident: str, data: bytes) -> None:
        problem = self.link.send(site, kind, ident, data)
        if problem:
            self._settle(site, ident, Failure(site, "lost", f"the request could not be delivered: {problem}"))

    def _late(self, ident: str, timeout_seconds: float) -> Iterator[Answered]:
        with self._lock:
            answers, open_ = self._waiting[ident]
            late = sorted(open_)
            open_.clear()
        while not answers.empty():
            yield answers.get()
        for site in late:
            yield site, Failure(site, "late", f"no answer within {timeout_seconds} s")

    def _settle(self, site: str, ident: str, answer: bytes | Failure) -> bool:
        with self._lock:
            answers, open_ = self._waiting.get(ident, (None, set()))
            if answers is None or site not in open_:
                return False
            open_.discard(site)
            answers.put((site, answer))
            return True

    def _oversized(self, peer: str, ident: str, why: str) -> None:
        self._settle(peer, ident, Failure(peer, "oversized", why))

    def _answer(self, peer: str, kind: str, ident: str, data: bytes) -> None:
        self._heard[peer] = self._heard.get(peer, 0) + 1
        if kind == "refused":
            self._oversized(peer, ident, data[:300].decode(errors="replace"))
        elif kind != "answer":
            self._on_unasked(peer, kind, ident, data)
        elif not self._settle(peer, ident, data):
            log.info("an answer of %s came too late, or to no question", peer)

    def _coming(self, peer: str) -> None:
        self._generations[peer] = self._generations.get(peer, 0) + 1

    def _up(self, peer: str) -> None:
        if peer in self._parties:
            self._on_change(peer, "is connected")
            self._on_up(peer)

    def _down(self, peer: str) -> None:
        if peer in self._parties:
            self._on_change(peer, "is gone")
        with self._lock:
            idents = [ident for ident, (_, open_) in self._waiting.items() if peer in open_]
        for ident in idents:
            self._settle(peer, ident, Failure(peer, "lost", "the connection was lost"))
