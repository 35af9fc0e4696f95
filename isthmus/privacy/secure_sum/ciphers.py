"""The calls of the package `cryptography` that a secure sum needs: the only file that imports it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
_CTR_NONCE, _AEAD_NONCE = bytes(16), bytes(12)  # no key is used for two messages
# Zeros that are encrypted at a time: what is drawn stays in the processor's cache.
_ZEROS = bytes(1 << 16)


@lru_cache(maxsize=4)  # those that are in use: making one costs as much as agreeing on a secret
def _key(private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(private)


def public_of(private: bytes) -> bytes:
    """Return the public X25519 key of a private one."""
    return _key(private).public_key().public_bytes_raw()


def exchanged(private: bytes, public: bytes) -> bytes:
    """Return the X25519 secret of two keys; raises ValueError where everybody could know it."""
    return _key(private).exchange(X25519PublicKey.from_public_bytes(public))


def hkdf(secret: bytes, info: bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256."""
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


class Stream:
    """The key stream of AES-256-CTR, from its start."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(AES256(key), CTR(_CTR_NONCE)).encryptor()

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes."""
        return self._encryptor.update(bytes(num_bytes))

    def add_to(self, words: np.ndarray, sign: int) -> None:
        """Add the next bytes to words, or take them off, modulo the size of a word."""
        drawn = bytearray(min(words.nbytes, len(_ZEROS)))
        mask, step = np.frombuffer(drawn, words.dtype), len(_ZEROS) // words.itemsize
        for start in range(0, len(words), step):
            part = words[start : start + step]
            self._encryptor.update_into(memoryview(_ZEROS)[: part.nbytes], memoryview(drawn)[: part.nbytes])
            np.add(part, mask[: len(part)], out=part) if sign > 0 else np.subtract(part, mask[: len(part)], out=part)


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Return a text under ChaCha20-Poly1305."""
    return ChaCha20Poly1305(key).encrypt(_AEAD_NONCE, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes | None:
    """Return the text, or None if it was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_AEAD_NONCE, sealed, context)
    except InvalidTag:
        return None
