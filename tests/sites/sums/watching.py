"""What is seen of secure sums: all that clients hold, all that sums come to, and which mask hides what."""

from __future__ import annotations

import hashlib
import json
import math
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.core.codec import decode, encode
from isthmus.core.folds import weight_of
from isthmus.core.record import Record, leaves, with_leaves
from isthmus.privacy.secure_sum import giving
from isthmus.privacy.secure_sum.adding import Adding
from isthmus.privacy.secure_sum.giving import Giver
from isthmus.privacy.secure_sum.rules import WEIGHT_BITS, SumRules
from isthmus.privacy.secure_sum.scores import ScoreSums
from isthmus.privacy.secure_sum.stages import MakeKeys, Sum

KINDS: dict[str, type[Record]] = {"ModelUpdate": ModelUpdate, "ScoreSums": ScoreSums}
# Course, round, exchange, and the kind of reply: scores at the end stand at the place of a round's models.
Place = tuple[str, int, int, str]


def place_of(course: str, round: int, exchange: int, reply: Record) -> Place:
    return course, round, exchange, type(reply).__name__


@dataclass(frozen=True)
class Added:
    """A sum that a server came to."""

    place: Place
    alive: tuple[str, ...]
    group: tuple[str, ...]  # among whom it was counted who holds what
    num_cohort: int
    mean: Record


@dataclass
class Watch:
    """An oracle: it sees every reply that a client holds back, and everything that is done with keys."""

    replies: dict[tuple[str, Place], Record] = field(default_factory=dict)
    sent: dict[tuple[str, Place], Record] = field(default_factory=dict)  # what stood in the place of each number
    sums: list[Added] = field(default_factory=list)
    hidden: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    told: dict[tuple[Any, ...], set[bool]] = field(default_factory=lambda: defaultdict(set))
    names: list[str] = field(default_factory=list)

    def hold(self, client: str, course: str, round: int, exchange: int, reply: Record, sent: Record) -> None:
        """Take note of what a client holds back."""
        self.replies[client, place_of(course, round, exchange, reply)] = reply
        self.sent[client, place_of(course, round, exchange, reply)] = sent

    def mask(self, client: str, key: str, content: str) -> None:
        """Take note of what a mask hides, by digests."""
        self.hidden[key].add((client, content))

    def tell(self, client: str, name: str, which: int, peer: str, alive: bool) -> None:
        """Take note of a share that was told."""
        self.told[client, name, which, peer].add(alive)

    def begin(self, name: str) -> None:
        """Take note of a sum that is begun."""
        self.names.append(name)

    def add(
        self,
        course: str,
        round: int,
        exchange: int,
        alive: list[str],
        group: list[str],
        num_cohort: int,
        mean: Record,
    ) -> None:
        """Take note of what a sum came to."""
        place = place_of(course, round, exchange, mean)
        self.sums.append(Added(place, tuple(alive), tuple(group), num_cohort, mean))

    def added(self, round: int) -> list[Added]:
        """Return the sums of models in a round."""
        return [each for each in self.sums if each.place[1] == round and each.place[3] == "ModelUpdate"]

    # ---- what must be so

    def check(self, rules: SumRules) -> None:
        """See that no sum is wrong, no mask hides two things, and nobody told both shares of one client."""
        for each in self.sums:
            self._check_sum(each, rules)
        for key, uses in self.hidden.items():
            clients = [client for client, _ in uses]
            assert len(clients) == len(set(clients)) <= 2, f"the mask {key[:8]} hides {len(uses)} things"
        assert all(len(kinds) == 1 for kinds in self.told.values())
        assert len(self.names) == len(set(self.names))

    def _check_sum(self, each: Added, rules: SumRules) -> None:
        """Compare with the mean of what those who are in it hold, number by number, in double precision."""
        replies = [self.replies[client, each.place] for client in each.alive]
        weights = [weight_of(reply) for reply in replies]
        whole, found = sum(weights), leaves(each.mean)
        every = sum(bound_of(weight_of(reply)) for (_, place), reply in self.replies.items() if place == each.place)
        for path, leaf in found.items():
            if path == ".weight":
                assert abs(float(leaf) - whole) <= each.num_cohort * 2.0**-WEIGHT_BITS
                continue
            parts = [_double(leaves(reply)[path]) * (w / whole) for reply, w in zip(replies, weights, strict=True)]
            wanted = torch.stack(parts).sum(0)
            if rules.counts_holders and isinstance(leaf, Tensor) and leaf.is_floating_point():
                wanted = torch.where(self._few(each, path, rules), _double(self._sent(each, path)), wanted)
            way = rules.narrow(each.num_cohort) if isinstance(leaf, Tensor) else rules.wide(each.num_cohort)
            off = float((_double(leaf) - wanted).abs().max()) if wanted.numel() else 0.0
            bound = way.error * max(1.0, every / whole) + 2.0**-23 * float(wanted.abs().max() if wanted.numel() else 0)
            assert off <= bound, f"{each.place}: {path} is off by {off:.3g}, {bound:.3g} is allowed"

    def _sent(self, each: Added, path: str) -> Tensor:
        found: Tensor = leaves(self.sent[each.alive[0], each.place])[path]  # type: ignore[assignment]
        return found

    def _few(self, each: Added, path: str, rules: SumRules) -> Tensor:
        """Return which numbers too few clients hold for them to be told."""
        held = [self.replies[client, each.place] for client in each.group]
        own = [(leaves(reply)[path] != self._sent(each, path)) & (weight_of(reply) > 0.0) for reply in held]
        return torch.stack(own).sum(0) < rules.min_holders  # type: ignore[arg-type]


def bound_of(weight: float) -> float:
    """Return the power of two above a weight, which is counted in units of 2^-20."""
    return 2.0 ** math.ceil(math.log2(weight)) if weight > 0.0 else 0.0


def in_place_of(reply: Record, request: Record) -> Record:
    """Return a reply with what was sent in the place of its numbers, zeros where nothing was."""
    sent, base = leaves(request), leaves(reply)
    for path, leaf in base.items():
        if isinstance(leaf, Tensor):
            before = sent.get(path)
            same = isinstance(before, Tensor) and before.shape == leaf.shape
            base[path] = before.to(leaf.dtype) if same else torch.zeros_like(leaf)  # type: ignore[union-attr]
    return with_leaves(reply, base)


def _double(leaf: Any) -> Tensor:
    return leaf.double() if isinstance(leaf, Tensor) else torch.tensor([float(leaf)], dtype=torch.float64)


class Scribe:
    """Writes the same down, for another process: a line at once for each call, so that none is lost in a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getattr__(self, what: str) -> Any:
        def write(*parts: Any) -> None:
            plain = [
                {"kind": type(part).__name__, "bytes": b64encode(encode(part)).decode()}
                if isinstance(part, Record)
                else part
                for part in parts
            ]
            with self.path.open("a") as file:
                file.write(json.dumps([what, *plain]) + "\n")

        return write


def read(folder: Path) -> Watch:
    """Return what scribes have written into a folder."""
    watch = Watch()
    for path in sorted(folder.glob("*.seen")):
        for line in path.read_text().splitlines():
            what, *parts = json.loads(line)
            getattr(watch, what)(*map(_unwritten, parts))
    return watch


def _unwritten(part: Any) -> Any:
    return decode(b64decode(part["bytes"]), KINDS[part["kind"]]) if isinstance(part, dict) else part


@contextmanager
def watched(watch: Watch | Scribe) -> Iterator[None]:
    """Let all secure sums of this process be seen."""
    using: set[str] = set()
    held, masked, told, added = Giver.held, Giver.send_masked, Giver.reveal_shares, Adding.added
    dealt = Giver.share_secrets

    def hold(self: Giver, reply: Record, request: Record, at: tuple[int, int], asked: bytes) -> Any:
        watch.hold(self.name, self.course, *at, reply, in_place_of(reply, request))
        return held(self, reply, request, at, asked)

    def mask(self: Giver, memory: Any, request: Any) -> Any:
        using.clear()
        found = masked(self, memory, request)
        words = found[1].narrow.numpy().tobytes() + found[1].wide.numpy().tobytes()
        for key in using:
            watch.mask(self.name, key, hashlib.sha256(words).hexdigest())
        return found

    def deal(self: Giver, memory: Any, request: Any) -> Any:
        using.clear()
        found = dealt(self, memory, request)
        for key in using:
            watch.mask(self.name, key, hashlib.sha256(found[1].weight.numpy().tobytes()).hexdigest())
        return found

    def tell(self: Giver, memory: Any, request: Any) -> Any:
        found = told(self, memory, request)
        for peer in found[1].of:
            watch.tell(self.name, request.sum.name, request.which, peer, peer in request.alive)
        return found

    def add(self: Adding, clients: Any, ask: Any) -> Record:
        at: Sum = self.sum

        def asked(requests: Any, review: Any = None) -> Any:
            if any(isinstance(request, MakeKeys) for request in requests.values()):
                watch.begin(self.sum.name)
            return ask(requests, review)

        found = added(self, clients, asked)
        watch.add(at.course, at.round, at.exchange, list(self.alive), groups[-1], len(self.cohort), found)
        return found

    groups: list[list[str]] = []
    summed = Adding.summed

    def sum_up(self: Adding, which: int, group: tuple[str, ...], ask: Any) -> Any:
        groups.append(list(group))
        return summed(self, which, group, ask)

    def noted(key: bytes) -> bytes:
        using.add(hashlib.sha256(key).hexdigest())
        return key

    with pytest.MonkeyPatch.context() as patch:
        for name in ("own_mask", "pair_mask", "weight_mask"):
            real = getattr(giving, name)
            patch.setattr(giving, name, lambda *parts, real=real: noted(real(*parts)))
        patch.setattr(Giver, "share_secrets", deal)
        patch.setattr(Giver, "held", hold)
        patch.setattr(Giver, "send_masked", mask)
        patch.setattr(Giver, "reveal_shares", tell)
        patch.setattr(Adding, "added", add)
        patch.setattr(Adding, "summed", sum_up)
        yield
