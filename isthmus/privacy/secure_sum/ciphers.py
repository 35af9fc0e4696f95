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


def stream(key: bytes, num_bytes: int) -> np.ndarray:
    """Return the key stream of AES-256-CTR from its start."""
    encryptor = Cipher(AES256(key), CTR(_CTR_NONCE)).encryptor()
    found = bytearray(num_bytes)
    for start in range(0, num_bytes, len(_ZEROS)):
        part = min(len(_ZEROS), num_bytes - start)
        encryptor.update_into(memoryview(_ZEROS)[:part], memoryview(found)[start : start + part])
    return np.frombuffer(found, np.uint8)


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Return a text under ChaCha20-Poly1305."""
    return ChaCha20Poly1305(key).encrypt(_AEAD_NONCE, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes | None:
    """Return the text, or None if it was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_AEAD_NONCE, sealed, context)
    except InvalidTag:
        return None
