"""Keys of two clients that the server between them does not learn: X25519, HKDF, and what is drawn from the key.

What belongs to whom is in the key itself: a key is derived for a purpose and a context, so that the same two private
keys give other bytes in another round, exchange, attempt or cohort. No key is used for two messages, so the nonces of
AES-CTR and of ChaCha20-Poly1305 can be zero.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

import numpy as np

from isthmus.core.errors import BadMessage, MissingExtra

KEY_BYTES = 32


def _cryptography() -> Any:
    """Return what is used of the package `cryptography`, which is an extra."""
    try:
        from isthmus.privacy.secure_sum import ciphers
    except ImportError:
        raise MissingExtra("cryptography", "privacy", "a secure sum") from None
    return ciphers


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    public: bytes = _cryptography().public_of(private)
    return public


def agreed(private: bytes, public: bytes, *names: bytes) -> bytes:
    """Return the key that the owners of two key pairs have in common, for a purpose and a context."""
    if len(public) != KEY_BYTES:
        raise BadMessage(f"a public key has {KEY_BYTES} bytes, found {len(public)}")
    try:
        shared = _cryptography().exchanged(private, public)
    except ValueError:  # a point of small order: everybody knows the result
        raise BadMessage("a public key is one with which no secret can be agreed") from None
    return derived(shared, *names)


def derived(secret: bytes, *names: bytes) -> bytes:
    """Return 32 bytes for a purpose and a context (HKDF-SHA256)."""
    found: bytes = _cryptography().hkdf(secret, b"".join(len(name).to_bytes(4, "little") + name for name in names))
    return found


def stream(key: bytes, num_bytes: int) -> bytes:
    """Return the first bytes of AES-256-CTR under a key."""
    found: bytes = _cryptography().Stream(key).take(num_bytes)
    return found


def add_stream(key: bytes, rows: Iterable[np.ndarray], sign: int) -> None:
    """Add AES-256-CTR under a key to rows of words, or take it off; each row begins at a multiple of 8 bytes."""
    drawn = _cryptography().Stream(key)
    for words in rows:
        drawn.add_to(words, sign)
        drawn.take(-words.nbytes % 8)


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Return a text that only who has the key can read, and nobody change; a key seals one text."""
    found: bytes = _cryptography().seal(key, text, context)
    return found


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Return the text; raises BadMessage if it is not what was sealed with this key in this context."""
    found: bytes | None = _cryptography().unseal(key, sealed, context)
    if found is None:
        raise BadMessage("what was sealed for this client cannot be opened: it was changed, or is another's")
    return found


def digest(*parts: bytes) -> bytes:
    """Return 32 bytes that tell lists of byte strings apart."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def same(first: bytes, second: bytes) -> bool:
    """Whether two byte strings are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(first, second)
