"""What is seen of secure sums: all that clients hold, all that sums come to, and which mask hides what."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.core.folds import weight_of
from isthmus.core.record import Record, leaves
from isthmus.privacy.secure_sum import giving
from isthmus.privacy.secure_sum.adding import Adding
from isthmus.privacy.secure_sum.giving import Giver
from isthmus.privacy.secure_sum.rules import WEIGHT_BITS, SumRules


@dataclass(frozen=True)
class Added:
    """A sum that a server came to."""

    round: int
    exchange: int
    alive: tuple[str, ...]
    num_group: int
    mean: Record


@dataclass
class Watch:
    """An oracle: it sees every reply that a client holds back, and everything that is done with keys."""

    held: dict[tuple[str, int, int, str], Record] = field(default_factory=dict)
    sums: list[Added] = field(default_factory=list)
    hidden: dict[bytes, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    told: dict[tuple[str, str, int, str], set[bool]] = field(default_factory=lambda: defaultdict(set))
    names: set[str] = field(default_factory=set)

    def added(self, round: int) -> list[Added]:
        """Return the sums of models in a round."""
        return [each for each in self.sums if each.round == round and hasattr(each.mean, "params")]

    def check(self, rules: SumRules) -> None:
        """See that no sum is wrong, no mask hides two things, and nobody told both shares of one client."""
        for each in self.sums:
            self._check_sum(each, rules)
        for key, uses in self.hidden.items():
            clients = [client for client, _ in uses]
            assert len(clients) == len(set(clients)) <= 2, f"the mask {key.hex()[:8]} hides {len(uses)} things"
        assert all(len(kinds) == 1 for kinds in self.told.values())

    def _check_sum(self, each: Added, rules: SumRules) -> None:
        """Compare with the mean of what those who are in it hold, number by number, in double precision."""
        place = (each.round, each.exchange, type(each.mean).__name__)
        replies = [self.held[client, *place] for client in each.alive]
        weights = [weight_of(reply) for reply in replies]
        whole, found = sum(weights), leaves(each.mean)
        every = sum(weight_of(reply) for (_, *at), reply in self.held.items() if tuple(at) == place)
        for path, leaf in found.items():
            if path == ".weight":
                assert abs(float(leaf) - whole) <= each.num_group * 2.0**-WEIGHT_BITS
                continue
            parts = [_double(leaves(reply)[path]) * (w / whole) for reply, w in zip(replies, weights, strict=True)]
            wanted = torch.stack(parts).sum(0)
            way = rules.narrow(each.num_group) if isinstance(leaf, Tensor) else rules.wide(each.num_group)
            off = float((_double(leaf) - wanted).abs().max()) if wanted.numel() else 0.0
            bound = way.error * max(1.0, every / whole) + 2.0**-23 * float(wanted.abs().max() if wanted.numel() else 0)
            assert off <= bound, f"round {each.round}: {path} is off by {off:.3g}, {bound:.3g} is allowed"


def _double(leaf: Any) -> Tensor:
    return leaf.double() if isinstance(leaf, Tensor) else torch.tensor([float(leaf)], dtype=torch.float64)


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch all secure sums of this process."""
    watch, using = Watch(), set()
    with pytest.MonkeyPatch.context() as patch:
        held, masked, told, added = Giver.held, Giver.send_masked, Giver.reveal_shares, Adding.added

        def hold(self: Giver, reply: Record, request: Record, at: tuple[int, int]) -> Any:
            watch.held[self.name, *at, type(reply).__name__] = reply
            return held(self, reply, request, at)

        def mask(self: Giver, memory: Any, request: Any) -> Any:
            using.clear()
            found = masked(self, memory, request)
            words = found[1]
            content = hashlib.sha256(words.narrow.numpy().tobytes() + words.wide.numpy().tobytes()).hexdigest()
            for key in using:
                watch.hidden[key].add((self.name, content))
            return found

        def tell(self: Giver, memory: Any, request: Any) -> Any:
            found = told(self, memory, request)
            for peer in found[1].shares:
                watch.told[self.name, request.sum.name, request.which, peer].add(peer in request.alive)
            return found

        def add(self: Adding, clients: Any, ask: Any) -> Record:
            assert self.sum.name not in watch.names, "a name of a sum was used again"
            watch.names.add(self.sum.name)
            found = added(self, clients, ask)
            group = len(self.cohort)
            watch.sums.append(Added(self.sum.round, self.sum.exchange, self.alive, group, found))
            return found

        for name, real in (("own_mask", giving.own_mask), ("pair_mask", giving.pair_mask)):
            patch.setattr(giving, name, lambda *parts, real=real: _noted(using, real(*parts)))
        patch.setattr(Giver, "held", hold)
        patch.setattr(Giver, "send_masked", mask)
        patch.setattr(Giver, "reveal_shares", tell)
        patch.setattr(Adding, "added", add)
        yield watch


def _noted(using: set[bytes], key: bytes) -> bytes:
    using.add(key)
    return key
