"""Ids as points of Curve25519 that several silos multiply by secrets of their own, in any order, to the same end.

    F(id) = s_1 s_2 ... s_K H(id)

H hashes into the curve: SHA-256 with a counter, until the number is the u of a point on it; on the twist beside the
curve, where the other half are, one could tell of every blinded point to which half its id belongs. A silo blinds its
points by r, a multiple of 8, which also takes them into the subgroup of prime order l; the others multiply them by
their secrets; and the silo takes r off again together with putting its own secret on: by r^-1 s modulo l. X25519 does
all multiplications: in constant time, by numbers of its own form only (multiples of 8 from 2^254 to 2^255), so r is
drawn until r^-1 s has a number of that form among its representatives.
"""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.core.codec import pack, unpack
from isthmus.core.errors import BadMessage

POINT_BYTES = 32
# The field, the order of the subgroup, and the curve's coefficient (RFC 7748).
P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
A = 486662
_HEAD = b"isthmus id on curve 1"


def point_of(id: str) -> bytes:
    """Return the point of an id, of which nobody knows a relation to another; the spellings of a text are one (NFC)."""
    text = unicodedata.normalize("NFC", id).encode()
    counter = 0
    while True:
        found = hashlib.sha256(_HEAD + counter.to_bytes(4, "little") + text).digest()
        u = int.from_bytes(found, "little") % 2**255
        if u < P and is_on_curve(u):
            return u.to_bytes(POINT_BYTES, "little")
        counter += 1


def is_on_curve(u: int) -> bool:
    """Whether v^2 = u^3 + A u^2 + u has a solution (Euler's criterion)."""
    square = u * (u * u + A * u + 1) % P
    return pow(square, (P - 1) // 2, P) == 1


def points_of(ids: Sequence[str]) -> Tensor:
    """Return the points of some ids, (ids, 32), uint8."""
    return _rows(b"".join(map(point_of, ids)))


def _rows(content: bytes) -> Tensor:
    return pack(content).view(-1, POINT_BYTES)


def multiplied(points: Tensor, number: int) -> Tensor:
    """Return every point times a number of X25519's form; raises BadMessage where a point is one of small order."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    if points.dtype != torch.uint8 or points.dim() != 2 or points.shape[1] != POINT_BYTES:
        raise BadMessage(f"points are rows of {POINT_BYTES} bytes, found {tuple(points.shape)} of {points.dtype}")
    key = X25519PrivateKey.from_private_bytes(number.to_bytes(POINT_BYTES, "little"))
    content, take = unpack(points.reshape(-1)), X25519PublicKey.from_public_bytes
    try:
        return _rows(
            b"".join(
                key.exchange(take(content[start : start + POINT_BYTES]))
                for start in range(0, len(content), POINT_BYTES)
            )
        )
    except ValueError:
        raise BadMessage("a point is one of small order, from which everybody knows what becomes of it") from None


def drawn() -> int:
    """Return a random number of X25519's form."""
    return 2**254 + 8 * secrets.randbelow(2**251)


def blinds(secret: int) -> tuple[int, int]:
    """Return r, and a number of X25519's form that is r^-1 times the secret modulo the order."""
    while True:
        blind = drawn()
        found = pow(blind, -1, ORDER) * secret % ORDER
        for times in range(4, 9):
            number = found + times * ORDER
            if number % 8 == 0 and 2**254 <= number < 2**255:
                return blind, number
