"""A silo's hand: it signs, by its certificate, what other silos are to believe although the server brings it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection
from dataclasses import dataclass

from isthmus.sites.silo.consent import Identity

_HEAD = b"isthmus hand 1\n"


@dataclass(frozen=True)
class Hand:
    """Signs with the key of a silo's certificate; a signature brings the certificate along.

    Fields:
        identity: this silo's certificate, its key, and the root that vouches for the others'
        expelled: returns the names of silos that count no more
    """

    identity: Identity
    expelled: Callable[[], Collection[str]] = frozenset

    def sign(self, text: bytes) -> str:
        """Return a signature of some bytes, with the certificate that it can be checked by."""
        signature = self.identity.signature(_HEAD + text)
        return self.identity.certificate.read_text() + base64.b64encode(signature).decode()

    def problem(self, client: str, text: bytes, signature: str) -> str:
        """Return what is wrong with a signature that should be a silo's; empty if it is that silo's."""
        if client in self.expelled():
            return "it was expelled"
        certificate, end, rest = signature.rpartition("-----\n")
        try:
            raw = base64.b64decode(rest, validate=True)
        except (binascii.Error, ValueError):
            return "its signature cannot be read"
        return self.identity.problem(client, certificate + end, raw, _HEAD + text)
