"""A party that speaks the engine's protocol by hand, in this process: for what an honest one would not do."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import grpc
import msgpack
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from isthmus.runtime.flare.link import CHANNEL, SERVER, TOPIC
from isthmus.sites.parties.kit import Kit


def frame(kind: int, headers: dict[str, Any] | None, payload: bytes, app_id: int = 0) -> Frame:
    """Return one frame of the engine's."""
    head = msgpack.packb(headers) if headers else b""
    buffer = bytearray(PREFIX_LEN + len(head) + len(payload))
    Prefix(len(buffer), len(head), kind, 0, 0, app_id, 17, 1).to_buffer(buffer, 0)
    buffer[PREFIX_LEN:] = head + payload
    return Frame(seq=1, data=bytes(buffer))


def part(sender: str, kind: str, payload: bytes) -> Frame:
    """Return a frame with a whole message for the server, as an honest party's link would send it."""
    headers = {
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.CHANNEL: CHANNEL,
        MessageHeaderKey.TOPIC: TOPIC,
        MessageHeaderKey.ORIGIN: sender,
        MessageHeaderKey.DESTINATION: SERVER,
        MessageHeaderKey.FROM_CELL: sender,
        MessageHeaderKey.TO_CELL: SERVER,
        MessageHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
        "kind": kind,
        "ident": uuid4().hex,
        "message": uuid4().hex,
        "number": 0,
        "size": len(payload),
    }
    return frame(Types.DATA, headers, payload, CoreCell.APP_ID)


class RawPeer:
    """One connection to the server with a kit's certificate, and as many streams on it as wanted."""

    def __init__(self, kit: Kit, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        credentials = grpc.ssl_channel_credentials(
            kit.root.read_bytes(), kit.key.read_bytes(), kit.certificate.read_bytes()
        )
        # Without an own pool of subchannels, channels of equal options would share one connection.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.channel = grpc.secure_channel(f"{kit.host}:{kit.port}", credentials, options)
        self.kit, self.metadata = kit, metadata
        self.calls: list[Any] = []
        self._queues: list[queue.Queue[Frame | None]] = []

    def stream(self, hello: bool = True) -> Any:
        """Open a stream; say who we are, or nothing at all."""
        frames: queue.Queue[Frame | None] = queue.Queue()
        if hello:
            said = {HandshakeKeys.ENDPOINT_NAME: self.kit.party, HandshakeKeys.TIMESTAMP: time.time()}
            frames.put(frame(Types.HELLO, None, msgpack.packb(said)))

        def out() -> Iterator[Frame]:
            while True:
                item = frames.get()
                if item is None:
                    return
                yield item

        call = StreamerStub(self.channel).Stream(out(), metadata=self.metadata)
        self.calls.append(call)
        self._queues.append(frames)
        threading.Thread(target=_drain, args=(call,), daemon=True).start()
        return call

    def send(self, sent: Frame, stream: int = 0) -> None:
        """Send a frame."""
        self._queues[stream].put(sent)

    def close(self) -> None:
        """Hang up."""
        for frames in self._queues:
            frames.put(None)
        for call in self.calls:
            call.cancel()
        self.channel.close()


def _drain(call: Any) -> None:
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
