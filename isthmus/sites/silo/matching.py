"""Names for nodes that silos have in common, where they share no secret: each id goes round all of them, blinded.

    round of the ring:  every silo blinds its own ids, and hands them to the next
                        every silo multiplies what it is handed by its secret, and hands it on
                        what was everywhere is unblinded by its owner: s_1 s_2 ... s_K H(id), the same at all
    key of a node     = the first 8 bytes of SHA-256(course, that point), as a signed integer

The server carries the points (`isthmus.sites.courses.ring`). To it, and to the other silos, they are as good as
random: each has its owner's blind. Nobody can make the key of an id alone: that takes every silo's secret, and a silo
multiplies one list for each other silo, which must be signed by the one before it in the ring. So a guess costs a place
in a list, whose length the others are told, and in the course itself; by a secret of all silos they cost nothing.

What the server learns from keys is what it learns with a secret of all silos (`identities.py`): which nodes are the
same, as far as the algorithm says them.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import decode, encode, unpack
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.guards.guard import Signer
from isthmus.core.outside import Damaged, replace_file, sealed, unsealed
from isthmus.core.record import CPU, Record, moved
from isthmus.data.folders.graph_folder import GraphFolder
from isthmus.data.folders.own_folder import OwnData
from isthmus.learn.graph_client import ForeignEdges
from isthmus.sites.courses.messages import NO_POINTS, PassOn, Points
from isthmus.sites.silo import blinding
from isthmus.sites.silo.identities import KEY_BYTES, course_secret, neighbor_keys, node_keys, refuse_twins

KEYS_FILE = "matched"
MAX_IDS = 2**21
SECRET, PRIVATE = "secret", "private"
Found = tuple[Tensor | None, ForeignEdges | None]


def foreign_of(folder: OwnData[Any]) -> Any:
    """Return the edges to nodes of other silos, if a folder has some."""
    return folder.foreign if isinstance(folder, GraphFolder) else None


def keys_by_secret(id_secret: bytes | None, course_id: str, folder: OwnData[Any], device: torch.device) -> Found:
    """Return the keys of nodes, and of edges to those of other silos; without the secret nobody is told of them."""
    if id_secret is None:
        return None, None
    secret, foreign = course_secret(id_secret, course_id), foreign_of(folder)
    keys = None if folder.node_ids is None else node_keys(folder.node_ids, secret).to(device)
    if foreign is None:
        return keys, None
    edges = (foreign.node, neighbor_keys(foreign.ids, secret), foreign.weight)
    return keys, ForeignEdges(*moved(edges, device))


@dataclass(frozen=True)
class Matched(Record):
    """What came of the ring, as it lies in a file of the silo's own."""

    ids: str
    """Digest of the ids, in order: the keys are of no others."""
    keys: Tensor
    """The key of each, int64."""


@dataclass
class _Turn:
    """One attempt: its secrets go when it is over, and are in no file."""

    ring: tuple[str, ...]
    secret: int
    blind: int
    last: int
    order: Tensor  # in which the own ids go round
    step: int = 0  # the one that comes next
    seen: dict[str, int] = field(default_factory=dict)  # how many ids the others brought


@dataclass
class Matching:
    """A silo's part in the ring of one course."""

    name: str
    course_id: str
    folder: OwnData[Any]
    file: Path
    signer: Signer | None = None
    device: torch.device = CPU
    ids: tuple[str, ...] = ()
    told: dict[str, int] = field(default_factory=dict)  # how many ids each silo of the last ring brought
    _turns: dict[str, _Turn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        foreign = foreign_of(self.folder)
        if self.folder.node_ids is None:
            raise BadInput("its nodes have ids within a graph only, and no others that silos could have in common")
        refuse_twins(self.folder.node_ids)
        texts = [*self.folder.node_ids, *(() if foreign is None else foreign.ids)]
        self.ids = tuple(sorted({unicodedata.normalize("NFC", text) for text in texts}))
        if len(self.ids) > MAX_IDS:
            raise BadInput(f"it has {len(self.ids)} ids, and {MAX_IDS} at most are matched")

    # ---- the ring

    def passed(self, request: PassOn) -> Points:
        """Return what this silo hands on at a step."""
        turn = self._turn(request)
        number, me = len(turn.ring), turn.ring.index(self.name)
        if request.step == 0:
            outgoing = blinding.multiplied(blinding.points_of(self.ids)[turn.order], turn.blind)
        else:
            self._check(request, turn)
            outgoing = blinding.multiplied(request.handed.points, turn.last if request.step == number else turn.secret)
            turn.seen[turn.ring[(me - request.step) % number]] = len(outgoing)
        turn.step += 1
        if request.step == number:
            self._finish(outgoing, turn)
            self.told, self._turns = turn.seen, {}
            return NO_POINTS
        text = _signed_text(request, turn.ring[(me - request.step) % number], request.step, outgoing)
        return Points(outgoing, "" if self.signer is None else self.signer.sign(text))

    def _turn(self, request: PassOn) -> _Turn:
        """Return the attempt that a request is of, which is done step by step, once."""
        if request.step == 0:
            if request.attempt in self._turns:
                raise BadMessage("this ring was begun already")
            secret = blinding.drawn()
            order = torch.randperm(len(self.ids), generator=torch.Generator().manual_seed(blinding.drawn() % 2**63))
            # Of one that was begun before nothing is left: what was blinded for it is of no more use.
            self._turns = {request.attempt: _Turn(request.ring, secret, *blinding.blinds(secret), order)}
        turn = self._turns.get(request.attempt)
        if turn is None or turn.step != request.step or turn.ring != request.ring:
            raise BadMessage("that is not the next step of the ring that this silo takes part in")
        return turn

    def _check(self, request: PassOn, turn: _Turn) -> None:
        """See that what was handed on is from the one before in the ring, and of the right length."""
        number, me = len(turn.ring), turn.ring.index(self.name)
        before, origin = turn.ring[me - 1], turn.ring[(me - request.step) % number]
        points = request.handed.points
        if points.dim() != 2 or len(points) > MAX_IDS:
            raise BadMessage(f"what {before} handed on are not {MAX_IDS} points at most")
        if request.step == number and len(points) != len(self.ids):
            raise BadMessage(f"{len(points)} of {len(self.ids)} points came back")
        if self.signer is not None:
            text = _signed_text(request, origin, request.step - 1, points)
            problem = self.signer.problem(before, text, request.handed.signature)
            if problem:
                raise BadMessage(f"what {before} is said to have handed on: {problem}")

    def _finish(self, points: Tensor, turn: _Turn) -> None:
        content, found = unpack(points.reshape(-1)), torch.empty(len(self.ids), dtype=torch.int64)
        head = hashlib.sha256(b"isthmus matched id 1\n" + self.course_id.encode()).digest()
        for place, row in enumerate(turn.order.tolist()):
            point = content[place * blinding.POINT_BYTES : (place + 1) * blinding.POINT_BYTES]
            key = hashlib.sha256(head + point).digest()[:KEY_BYTES]
            found[row] = int.from_bytes(key, "big", signed=True)
        if len(set(found.tolist())) != len(found):
            raise BadMessage("two ids came back as one: somebody handed on other points than it was handed")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.file, sealed(encode(Matched(self._digest, found))), 0o600)

    @property
    def _digest(self) -> str:
        return hashlib.sha256("\n".join(self.ids).encode()).hexdigest()

    # ---- what came of it

    def keys(self) -> Found:
        """Return the keys of nodes, and of edges to those of other silos; nothing before the ring is closed."""
        try:
            content = unsealed(self.file.read_bytes())
            found: Matched = decode(content, Matched, max_bytes=len(content))
        except (OSError, Damaged, BadMessage):
            return None, None
        if found.ids != self._digest or len(found.keys) != len(self.ids):
            return None, None  # its ids are others by now: their keys are nobody's
        by_id = dict(zip(self.ids, found.keys.tolist(), strict=True))
        foreign = foreign_of(self.folder)
        keys = _keys(by_id, self.folder.node_ids or ()).to(self.device)
        if foreign is None:
            return keys, None
        edges = (foreign.node, _keys(by_id, foreign.ids), foreign.weight)
        return keys, ForeignEdges(*moved(edges, self.device))


def _keys(by_id: dict[str, int], ids: tuple[str, ...]) -> Tensor:
    return torch.tensor([by_id[unicodedata.normalize("NFC", id)] for id in ids], dtype=torch.int64)


def _signed_text(request: PassOn, origin: str, step: int, points: Tensor) -> bytes:
    """Return what a silo signs of a list that it hands on: in which ring, whose it is, how far it went, all of it."""
    content = hashlib.sha256(unpack(points.reshape(-1))).hexdigest()
    lines = ("isthmus matching 1", request.course_id, request.attempt, *request.ring, origin, str(step), content)
    return "\n".join(lines).encode()
