"""What guards that code parameters have in common: what both sides know, what was lost on the way, and which messages.

Coded are parameters: tensors of floats in a dict by name, of at least `min_numbers`. What crosses is how they
differ from what both sides know:

    request:  from what the client has of the same field since the last one. Who has nothing of it, or failed since, is
              sent all of it, and so is who would be left with a model that is too far off (`max_drift`). Who is sent
              the same again, as after an evaluation, has the same again, and that takes no bytes.
    reply:    from the request's tensor of the same field and name; where the request has one of the same name and form
              in another field, as of gradients and control variates, the tensor itself is coded; others are left.

With error feedback (Seide et al., 2014; Karimireddy et al., 2019) a client remembers what its messages lacked and adds
it to the next one of the same kind. What requests lack, the next difference holds by itself. The server takes a reply
for a change of the model that it has, not of the one that the client was left with, so that nothing is lost.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.core.errors import BadMessage, CourseFailed, refuse, refuse_unknown
from isthmus.core.exposure import Exchange
from isthmus.core.guards.guard import AtClient, AtServer, Guard
from isthmus.core.protocol import EvaluateModel, Request, Requests
from isthmus.core.random import torch_generator
from isthmus.core.record import CPU, Params, Record, State, moved
from isthmus.privacy.compression.blob import Form, Kind, is_blob, read_since, standing_at, write_since
from isthmus.privacy.compression.draws import Draws
from isthmus.privacy.compression.states import (
    Book,
    base_of,
    changed_by,
    entry_of,
    filled,
    owes_tensors,
    params_of,
    same_objects,
    tag_of,
)

DIRECTIONS = ("both", "up", "down")
# Bytes that a coded tensor may take beyond the tensor itself.
_SLACK = 256


@dataclass(frozen=True)
class Coder(Guard):
    """A guard that codes parameters in fewer bytes, in requests ("down"), replies ("up"), or "both".

    Fields:
        direction:      which messages are coded
        error_feedback: whether a client adds what its last reply lacked to its next
        max_drift:      a client whose model would be off by more than this share of its length is sent all of it
        min_numbers:    tensors of fewer numbers cross as they are: their codes would be no shorter
    """

    linear: ClassVar[bool] = False
    keeps_form: ClassVar[bool] = False
    receives_alike: ClassVar[bool] = False
    # Whether what arrives is what was sent to the bit.
    lossless: ClassVar[bool] = False

    direction: str = "both"
    error_feedback: bool = True
    max_drift: float = 0.3
    min_numbers: int = 256

    def __post_init__(self) -> None:
        refuse_unknown(self, "direction", DIRECTIONS)
        refuse(not self.max_drift >= 0.0, self, "max_drift", "it must be at least 0")
        refuse(self.min_numbers < 1, self, "min_numbers", "it must be at least 1")

    # ---- the codec

    @abstractmethod
    def coded(self, value: Tensor, base: Tensor, draws: Draws, kept: State) -> Tensor | None:
        """Return what crosses in the place of a tensor whose receiver has another; None if it is left as it is.

        `kept` is what the codec remembers of this tensor; it may put new entries there.
        """

    @abstractmethod
    def applied(self, wire: Tensor, base: Tensor, draws: Draws) -> Tensor:
        """Return the tensor that the receiver makes of what crossed; raises BadMessage."""

    def is_wire(self, found: Tensor, form: Form) -> bool:
        """Whether this stands in the place of a tensor of a form, rather than being one."""
        return found.dtype == torch.uint8 and found.dim() == 1

    # ---- beside other guards

    @property
    def ups(self) -> bool:
        """Whether replies are coded."""
        return self.direction in ("up", "both")

    @property
    def downs(self) -> bool:
        """Whether requests are coded."""
        return self.direction in ("down", "both")

    @property
    def asks_alike(self) -> bool:
        """Whether requests cross as they are: else what a client is left with depends on what it had."""
        return not self.downs

    @property
    def restores(self) -> bool:
        """Whether replies are taken for changes of the model that the server has."""
        return self.downs

    def problem(self, course: Any) -> str:
        """Return which other guard it cannot stand beside, or not in this order."""
        place = course.guards.index(self)
        others = (guard for at, guard in enumerate(course.guards) if at != place)
        return next(filter(None, map(self._beside, others)), "")

    def _beside(self, other: Guard) -> str:
        mine, theirs = type(self).__name__, type(other).__name__
        if other.sums and self.downs and not self.ups:
            return (
                "requests alone are coded, so that some clients change another model than those that are sent all of "
                f'it, and {theirs} shows but their sum; set direction to "both" or "up"'
            )
        if isinstance(other, Coder) and ((self.ups and other.ups) or (self.downs and other.downs)):
            return (
                f"{mine} and {theirs} code the same messages, and what one has coded the other cannot; leave one out "
                'or give them the directions "up" and "down". Each codes changes of what both sides know, and those '
                "of top_k and low_rank have bits of their own"
            )
        return ""

    def shown(self, exchange: Exchange) -> Exchange:
        """Say which messages are coded; who has the request can undo that."""
        said = f"its parameters coded by {type(self).__name__}, which hides nothing"
        down = f"{exchange.wire_down}, {said}" if self.downs and exchange.params_down else exchange.wire_down
        up = f"{exchange.wire_up}, {said}" if self.ups and exchange.params_up else exchange.wire_up
        return replace(exchange, wire_down=down, wire_up=up)

    # ---- server

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Code each request against what its client has."""
        memory = {**at.memory, "meant": self._meanings(requests)}
        if not self.downs:
            at.remember(filled(memory))
            return requests
        book, codec = Book(memory), dict(memory.get("codec", {}))
        made: dict[Any, Any] = {}
        found = {client: self._sent(request, book, client, codec, made, at) for client, request in requests.items()}
        at.remember(filled({**memory, "codec": codec, "meanings": book.meanings}))
        return found

    def _meanings(self, requests: Requests) -> dict[str, Params]:
        """Return what is meant for each client, of requests whose replies may be changes of it."""
        if not any(owes_tensors(kind) for kind in {type(request) for request in requests.values()}):
            return {}
        meant = {client: self._params(request) for client, request in requests.items()}
        return {client: {entry_of(path): t for path, t in params.items()} for client, params in meant.items()}

    def _sent(
        self,
        request: Request[Any],
        book: Book,
        client: str,
        codec: dict[str, State],
        made: dict[Any, Any],
        at: AtServer,
    ) -> Request[Any]:
        """Return what is sent a client; `made` has what was made for others."""
        tags = book.tags(client)
        key = (id(request), *tags.values())
        if key not in made:
            # The model that is kept is scored as it is, not as clients have it.
            exact = isinstance(request, EvaluateModel) and request.best and not self.lossless
            changed: dict[str, Tensor] = {}
            for path, value in self._params(request).items():
                tag = tags.get(entry_of(path), b"")
                base = book.held.get(tag)
                if base is None or exact or Form.of(base) != Form.of(value):
                    continue
                one = (path, id(value), tag)
                if one not in made:
                    made[one] = self._since(path, value, tag, book, codec, at)
                if made[one] is not None:
                    changed[path] = made[one]
            made[key] = changed_by(request, changed)
        found: Request[Any] = made[key]
        return found

    def _since(
        self, path: str, value: Tensor, tag: bytes, book: Book, codec: dict[str, State], at: AtServer
    ) -> Tensor | None:
        """Return a tensor coded against a state; None where all of it is sent."""
        entry = entry_of(path)
        meaning = tag_of(entry, b"", value)
        if book.meaning(tag) == meaning:  # who is sent the same again has the same again
            return write_since(tag, torch.empty(0, dtype=torch.uint8))
        base, draws, kept = book.held[tag], self._draws_at_server(path, tag, at), dict(codec.get(entry, {}))
        wire = self.coded(value, base, draws, kept)
        codec[entry] = kept
        if wire is None or not self._near(value, self.applied(wire, base, draws)):
            return None
        wire = write_since(tag, wire)
        book.meanings[tag_of(entry, tag, wire).hex()] = meaning.hex()
        return wire

    def _near(self, value: Tensor, got: Tensor) -> bool:
        length = float(torch.linalg.vector_norm(value.float()))
        return float(torch.linalg.vector_norm(value.float() - got.float())) <= self.max_drift * length

    def heard(self, requests: Requests, at: AtServer) -> Requests:
        """Return requests as their clients have them, and take note of that."""
        if not self.downs:
            return requests
        book = Book(at.memory)
        made: dict[Any, Any] = {}
        found: dict[str, Request[Any]] = {}
        for client, request in requests.items():
            tags, held = book.tags(client), book.held
            key = (id(request), *tags.values())
            if key not in made:
                made[key] = self._received(request, tags, held, partial(self._draws_at_server, at=at), made)
            found[client], new = made[key]
            book.take(client, new, self._params(found[client]))
        at.remember({**at.memory, **book.kept()})
        return found

    def failed(self, client: str, at: AtServer) -> None:
        """Forget what a client has: it may have gone back to what it had before."""
        book = Book(at.memory)
        if book.who.pop(client, None) is not None:
            at.remember({**at.memory, **book.kept()})

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        """Return a reply as a change of the model that the server has."""
        known = self._params(request)
        meant = self._meant(client, at)
        changed: dict[str, Tensor] = {}
        for path, came in self._params(reply, wires=True).items():
            base = base_of(path, known)
            if base is None:
                continue
            start = meant.get(entry_of(path), base) if path in known else base
            if self.ups and self.is_wire(came, Form.of(base)):
                with standing_at(path):
                    changed[path] = self.applied(came, start, self._draws_at_server(path, b"", at))
            elif start is not base and Form.of(came) == Form.of(base) and not torch.equal(start, base):
                changed[path] = (came.float() + (start.float() - base.float())).to(came.dtype)
        found: Record = changed_by(reply, changed)
        return found

    def _meant(self, client: str, at: AtServer) -> Params:
        """Return the parameters that a client was to be sent; of a mean of several, those that all were."""
        meant: Mapping[str, Params] = at.memory.get("meant", {})
        if client or not meant:
            return meant.get(client, {})
        first, *others = meant.values()
        if any(not same_objects(first, other) for other in others):
            raise CourseFailed(
                f"{type(self).__name__} codes replies as changes of what was sent, and each client was sent another "
                "model: their mean is a change of none; leave it out"
            )
        return first

    def round_done(self, round: int, memory: State) -> State:
        """Keep what clients have."""
        return {name: entry for name, entry in memory.items() if name != "meant"}

    def _draws_at_server(self, path: str, tag: bytes, at: AtServer) -> Draws:
        where, name = at.position, f"{at.entry}{path}"
        own = (where.seed, where.round, where.exchange, "server", name, tag.hex())
        made_up = bool(tag) or self.error_feedback
        return Draws(where, name, lambda: torch_generator(*own), made_up)

    # ---- client

    def receive(self, request: Request[Any], at: AtClient) -> Request[Any]:
        """Return a request with what was coded put together with what the client has."""
        if not self.downs:
            return request
        memory = at.memory
        tags = {entry: bytes.fromhex(tag) for entry, tag in memory.get("tags", {}).items()}
        held = {tags[entry]: tensor for entry, tensor in memory.get("held", {}).items()}
        found, new = self._received(
            request, tags, held, lambda path, tag: self._draws_at_client(path, at, down=True), {}
        )
        tensors = {entry_of(path): tensor for path, tensor in self._params(found).items()}
        kept = {entry: tag.hex() for entry, tag in {**tags, **new}.items()}
        at.remember({**memory, "tags": kept, "held": {**memory.get("held", {}), **tensors}})
        return found

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return a reply coded as a change of what was asked."""
        if not self.ups:
            return reply
        known = self._params(moved(request, CPU))
        memory, changed = at.memory, dict[str, Tensor]()
        lacked: dict[str, State] = dict(memory.get("lacked", {}))
        for path, value in self._params(reply).items():
            base = base_of(path, known)
            if base is None or Form.of(base) != Form.of(value) or not bool(torch.isfinite(value).all()):
                continue  # numbers that are none are named where they are looked at
            entry = entry_of(f"{type(request).__name__}{path}")
            wire, kept = self._released(value, base, self._draws_at_client(path, at, down=False), lacked.get(entry, {}))
            if wire is not None:
                changed[path] = wire
                lacked[entry] = kept
        at.remember(filled({**memory, "lacked": lacked}))
        found: Record = changed_by(reply, changed)
        return found

    def _released(self, value: Tensor, base: Tensor, draws: Draws, kept: State) -> tuple[Tensor | None, State]:
        """Return what crosses, and what is remembered of a tensor."""
        kept = dict(kept)
        lack = kept.get("lack")
        if lack is not None and lack.shape == value.shape:
            value = value + lack
        wire = self.coded(value, base, draws, kept)
        if wire is not None and self.error_feedback:
            kept["lack"] = value - self.applied(wire, base, draws)
        return wire, kept

    def _draws_at_client(self, path: str, at: AtClient, down: bool) -> Draws:
        name = f"{at.entry}{path}"
        return Draws(at.position, name, lambda: at.client.generator(name), down or self.error_feedback)

    # ---- both

    def _params(self, record: Record, wires: bool = False) -> Params:
        """Return what is coded of a message, or with `wires` what may stand in its place, too."""
        return params_of(record, 1 if wires else self.min_numbers, wires)

    def _received(
        self,
        request: Request[Any],
        tags: Mapping[str, bytes],
        held: Mapping[bytes, Tensor],
        draws: Callable[[str, bytes], Draws],
        made: dict[Any, Any],
    ) -> tuple[Request[Any], dict[str, bytes]]:
        """Return a request put together with what its client has, and the tags of what it has then."""
        changed: dict[str, Tensor] = {}
        new: dict[str, bytes] = {}
        for path, wire in self._params(request, wires=True).items():
            entry = entry_of(path)
            tag = tags.get(entry, b"")
            one = (path, id(wire), tag)
            if is_blob(wire, Kind.SINCE):
                if one not in made:
                    made[one] = self._put_together(path, wire, tag, held.get(tag), draws)
                changed[path], new[entry] = made[one]
            elif wire.dtype != torch.uint8 and wire.numel() >= self.min_numbers:
                if one not in made:
                    made[one] = tag_of(entry, b"", wire)
                new[entry] = made[one]
        return changed_by(request, changed), new

    def _put_together(
        self, path: str, wire: Tensor, tag: bytes, base: Tensor | None, draws: Callable[[str, bytes], Draws]
    ) -> tuple[Tensor, bytes]:
        """Return the tensor that was coded against a state, and the tag of the state after."""
        strange = f"{path} is coded against a state that this client does not have; after this it is sent all of it"
        if base is None:
            raise BadMessage(strange)
        with standing_at(path):
            since, inner = read_since(wire, Form.of(base).size + _SLACK)
        if since != tag:
            raise BadMessage(strange)
        if not inner.numel():
            return base, tag
        with standing_at(path):
            return self.applied(inner, base, draws(path, tag)), tag_of(entry_of(path), tag, wire)
