"""A secret in n shares, any t of which give it back, and fewer nothing (Shamir, 1979).

The field is the integers modulo P = 2^256 + 297, the smallest prime above 2^256, so that 32 bytes are always a number
of it. A share is f(x) of a polynomial f of degree t - 1 with f(0) the secret and all other coefficients evenly drawn; x
is the place of its holder, counted from 1. What is computed depends on n and t alone, never on the secret.

Shares that come back are another party's: `recovered` believes none of them without a proof of the secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice
from math import prod

P = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33  # f(x) is below P, which has 257 bits
# Choices of t shares that are tried before it is said that too many of them are wrong.
MAX_TRIES = 2_000


class BadShares(ValueError):
    """Shares that are none, or that give no secret that could be proved."""


def split(secret: bytes, threshold: int, num_shares: int, coins: bytes) -> list[bytes]:
    """Return the shares of places 1, 2, ..., num_shares; `coins` are 64 random bytes for each drawn coefficient.

    64 bytes modulo P are even but for 2^-255.
    """
    if len(secret) != SECRET_BYTES:
        raise BadShares(f"a secret has {SECRET_BYTES} bytes, found {len(secret)}")
    if not 1 <= threshold <= num_shares:
        raise BadShares(f"the threshold is {threshold}; it must be from 1 to the number of shares, {num_shares}")
    if len(coins) != coin_bytes(threshold):
        raise BadShares(f"{coin_bytes(threshold)} random bytes are needed, found {len(coins)}")
    drawn = [int.from_bytes(coins[at : at + 64], "little") % P for at in range(0, len(coins), 64)]
    coefficients = [int.from_bytes(secret, "little"), *drawn]
    return [_at(place, coefficients).to_bytes(SHARE_BYTES, "little") for place in range(1, num_shares + 1)]


def coin_bytes(threshold: int) -> int:
    """Return how many random bytes `split` needs."""
    return 64 * (threshold - 1)


def _at(place: int, coefficients: Sequence[int]) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % P
    return value


def value_of(share: bytes) -> int:
    """Return the number that a share is; raises BadShares for what is no number of the field."""
    if len(share) != SHARE_BYTES:
        raise BadShares(f"a share has {SHARE_BYTES} bytes, found {len(share)}")
    value = int.from_bytes(share, "little")
    if value >= P:
        raise BadShares("a share is no number of the field")
    return value


def recovered(
    shares: Mapping[int, bytes], threshold: int, proved: Callable[[bytes], bool]
) -> tuple[bytes, tuple[int, ...]]:
    """Return the secret that is proved, and the places whose shares are wrong.

    `shares` are by place. Wrong ones are found by leaving out others, up to `MAX_TRIES` choices of t shares.
    """
    values, wrong = {}, []
    for place, share in sorted(shares.items()):
        try:
            values[place] = _of_place(place, share)
        except BadShares:
            wrong.append(place)
    if len(values) < threshold:
        raise BadShares(f"{len(values)} usable shares came back, {threshold} are needed")
    for chosen in islice(_choices(values, threshold), MAX_TRIES):
        number = interpolated({place: values[place] for place in chosen}, 0)
        if number < 2 ** (8 * SECRET_BYTES):
            secret = number.to_bytes(SECRET_BYTES, "little")
            if proved(secret):
                mine = {place: values[place] for place in chosen}
                wrong += [place for place in values if interpolated(mine, place) != values[place]]
                return secret, tuple(sorted(wrong))
    raise BadShares(f"no {threshold} of {len(values)} shares give a secret that is what was promised")


def _of_place(place: int, share: bytes) -> int:
    if not 1 <= place < P:
        raise BadShares(f"{place} is no place of a share")
    return value_of(share)


def _choices(places: Iterable[int], threshold: int) -> Iterator[tuple[int, ...]]:
    """Yield choices of so many places: first each that lies together, then all."""
    every = list(places)
    for start in range(len(every)):
        turned = every[start:] + every[:start]
        yield tuple(turned[:threshold])
    yield from combinations(every, threshold)


def interpolated(values: Mapping[int, int], at: int) -> int:
    """Return f(at) of the polynomial of least degree through some points (Lagrange)."""
    if at in values:
        return values[at]
    return sum(value * factor for value, factor in zip(values.values(), factors(tuple(values), at), strict=True)) % P


@lru_cache(maxsize=4_096)  # the shares of all secrets of a sum lie at the same places
def factors(places: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Return what each f(place) counts for in f(at)."""
    found = []
    for place in places:
        others = [other for other in places if other != place]
        above = prod((at - other) % P for other in others) % P
        below = prod((place - other) % P for other in others) % P
        found.append(above * pow(below, -1, P) % P)
    return tuple(found)


def commitment(secret: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes by which a random secret of 32 bytes can be proved later, and which say nothing about it."""
    return hashlib.sha256(b"isthmus secret sum\x00" + purpose + b"\x00" + secret).digest()
