"""Keys: both ends agree, nobody else, and nothing is used for two things."""

from __future__ import annotations

import hmac
import os

import pytest

from isthmus.core.errors import BadMessage, MissingExtra
from isthmus.privacy.secure_sum import keys


def test_both_ends_agree_on_a_key() -> None:
    mine, theirs = os.urandom(32), os.urandom(32)
    first = keys.agreed(mine, keys.public_of(theirs), b"a", b"b")
    assert first == keys.agreed(theirs, keys.public_of(mine), b"a", b"b")
    assert first != keys.agreed(os.urandom(32), keys.public_of(mine), b"a", b"b")


def test_names_are_told_apart_however_they_are_cut() -> None:
    secret = os.urandom(32)
    lists = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"c", b"ab"), ()]
    assert len({keys.derived(secret, *names) for names in lists}) == len(lists)
    assert len({keys.digest(*names) for names in lists}) == len(lists)


def slow_x25519(scalar: bytes, point: int) -> bytes:
    """The Montgomery ladder of RFC 7748, section 5, word for word."""
    p, k = 2**255 - 19, bytearray(scalar)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    number = int.from_bytes(k, "little")
    x2, z2, x3, z3, swap = 1, 0, point, 1, 0
    for t in reversed(range(255)):
        bit = number >> t & 1
        if swap ^ bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        e, da, cb = a * a - b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % p, point * (da - cb) ** 2 % p
        x2, z2 = a * a * b * b % p, e * (a * a + 121665 * e) % p
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def slow_hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block, without salt."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def test_keys_are_x25519_and_hkdf_with_names_and_their_lengths() -> None:
    mine, theirs = os.urandom(32), os.urandom(32)
    public = slow_x25519(theirs, 9)
    assert keys.public_of(theirs) == public
    shared = slow_x25519(mine, int.from_bytes(public, "little") & (2**255 - 1))
    info = b"\x02\0\0\0ab" + b"\x01\0\0\0c"
    assert keys.agreed(mine, public, b"ab", b"c") == slow_hkdf(shared, info)


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_points_of_small_order_are_refused(point: bytes) -> None:
    with pytest.raises(BadMessage, match="no secret can be agreed"):
        keys.agreed(os.urandom(32), point)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_public_keys_of_another_length_are_refused(size: int) -> None:
    with pytest.raises(BadMessage, match=f"has 32 bytes, found {size}"):
        keys.agreed(os.urandom(32), bytes(size))


def test_a_stream_is_the_same_however_long_it_is_drawn() -> None:
    key = os.urandom(32)
    long = keys.stream(key, 200_001)
    assert keys.stream(key, 70_000) == long[:70_000]
    assert len(long) == 200_001 and keys.stream(key, 0) == b""


def test_a_stream_is_aes_256_ctr() -> None:
    """The first block is the block cipher of zero (NIST SP 800-38A), by the mode ECB."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import ECB

    key = os.urandom(32)
    block = Cipher(AES256(key), ECB()).encryptor()
    wanted = block.update(bytes(16) + (1).to_bytes(16, "big"))
    assert keys.stream(key, 32) == wanted


def test_what_is_sealed_opens_for_the_same_key_and_context_only() -> None:
    key, other = os.urandom(32), os.urandom(32)
    sealed = keys.seal(key, b"shares", b"context")
    assert keys.unseal(key, sealed, b"context") == b"shares"
    for wrong in [
        (other, sealed, b"context"),
        (key, sealed, b"another"),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"context"),
        (key, bytes([sealed[0] ^ 1]) + sealed[1:], b"context"),
        (key, sealed[:3], b"context"),
        (key, b"", b"context"),
    ]:
        with pytest.raises(BadMessage, match="cannot be opened"):
            keys.unseal(*wrong)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "isthmus.privacy.secure_sum.ciphers", raising=False)
    monkeypatch.delattr("isthmus.privacy.secure_sum.ciphers", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in [name for name in sys.modules if name.startswith("cryptography.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"pip install 'isthmus\[privacy\]'"):
        keys.public_of(os.urandom(32))
