"""The masks of a sum: one of each client's own, and one for each pair, which is in the sum with both signs.

What bounds weights has masks of pairs alone: no share of what these are made of is ever dealt, so that nobody is said
to be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from isthmus.core.codec import encode, unpack
from isthmus.core.random import digest as digest_of
from isthmus.privacy.secure_sum.keys import add_stream, agreed, derived, digest
from isthmus.privacy.secure_sum.stages import Keys, Sum


@dataclass
class Words:
    """Words of two kinds, added up modulo their size."""

    narrow: np.ndarray
    wide: np.ndarray

    @classmethod
    def zeros(cls, narrow: int, wide: int, bits: int = 32) -> Words:
        """Return so many words of each kind that add nothing."""
        return cls(np.zeros(narrow, np.uint32 if bits == 32 else np.uint64), np.zeros(wide, np.uint64))

    def add(self, key: bytes, sign: int) -> None:
        """Add the mask of a key, or take it off."""
        add_stream(key, (self.narrow, self.wide), sign)

    def join(self, other: Words) -> None:
        """Add other words."""
        self.narrow += other.narrow
        self.wide += other.wide


def context_of(sum: Sum, cohort: Mapping[str, Keys]) -> bytes:
    """Return what all keys of a sum are bound to: course, round, exchange, attempt and the cohort with its keys."""
    members = [
        part
        for name, keys in sorted(cohort.items())
        for part in (name.encode(), unpack(keys.public.reshape(-1)), unpack(keys.asked.reshape(-1)))
    ]
    return digest(b"isthmus secure sum 3", encode(sum), *members)


def group_context(context: bytes, which: int, group: Iterable[str]) -> bytes:
    """Return what the masks of one of a sum's two parts are bound to: those whose masks are in it, too."""
    return digest(context, bytes([which]), *(name.encode() for name in sorted(group)))


def terms_context(bound: bytes, total: float, few: Tensor) -> bytes:
    """Return what the masks are bound to beside who is in the sum: by what all that is in it counts.

    Who was told other terms has masks that come off no sum. Else one client could be told that it counts for all.
    """
    return digest(bound, digest_of({"total": total, "few": few}))


def own_mask(seed: bytes, context: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return derived(seed, b"own mask", context)


def pair_mask(private: bytes, public: bytes, context: bytes) -> bytes:
    """Return the key of the mask of a pair, from either's private key and the other's public one."""
    return agreed(private, public, b"pair mask", context)


def weight_mask(secret: bytes) -> bytes:
    """Return the key of the mask of a pair on a weight, from a secret of the two for this alone."""
    return derived(secret, b"weight mask")


def sign_of(me: str, other: str) -> int:
    """Return with which sign a client adds the mask that it has in common with another."""
    return 1 if me < other else -1
