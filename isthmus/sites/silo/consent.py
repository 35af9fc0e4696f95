"""What a silo signs when it agrees to a course, and how others see that enough silos of the federation did.

A server says who takes part, and could make names up. So each silo signs the course that it agreed to with the key of
its certificate, the server hands these consents on, and a silo whose policy asks for several sites counts those that
the federation's root vouches for. Whoever has the root's key can make silos: that one is trusted by all anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus.core.codec import pack, unpack
from isthmus.core.record import Record
from isthmus.sites.parties.certificates import read_passport

MAX_CERTIFICATE_CHARACTERS = 20_000
MAX_SIGNATURE_BYTES = 4_096


@dataclass(frozen=True)
class Consent(Record):
    """That a silo agreed to a course; whoever has the federation's root can check it."""

    certificate: str
    """The silo's certificate, as PEM; the server and all silos of the federation see its name in any case."""
    signature: Tensor
    """Bytes: the silo's signature of the course's id and text."""


def statement(course_id: str, course: str) -> bytes:
    """Return what a silo signs."""
    return b"isthmus consent 1\n" + course_id.encode() + b"\n" + hashlib.sha256(course.encode()).digest()


@dataclass(frozen=True)
class Identity:
    """A silo's certificate with its key, and the root that vouches for the others'.

    Fields:
        root, certificate, key: PEM files
        revoked:                returns the serial numbers of certificates that count no more
    """

    root: Path
    certificate: Path
    key: Path
    revoked: Callable[[], frozenset[int]] = frozenset

    def sign(self, course_id: str, course: str) -> Consent:
        """Return this silo's consent to a course."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key: Any = load_pem_private_key(self.key.read_bytes(), None)
        return Consent(self.certificate.read_text(), pack(key.sign(statement(course_id, course), *_scheme(key))))

    def count(self, course_id: str, course: str, consents: Mapping[str, Consent]) -> tuple[int, dict[str, str]]:
        """Return how many distinct silos of the federation consented, and what is wrong with the other consents."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        from cryptography.x509 import load_pem_x509_certificate

        found, problems = set(), {}  # what tells two silos apart is their keys
        for site, consent in consents.items():
            problem = self._problem(site, consent, statement(course_id, course))
            if problem:
                problems[site] = problem
            else:
                key = load_pem_x509_certificate(consent.certificate.encode()).public_key()
                found.add(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        return len(found), problems

    def _problem(self, site: str, consent: Consent, signed: bytes) -> str:
        from cryptography.exceptions import InvalidSignature
        from cryptography.x509 import load_pem_x509_certificate

        if len(consent.certificate) > MAX_CERTIFICATE_CHARACTERS or consent.signature.numel() > MAX_SIGNATURE_BYTES:
            return "its consent is too long"
        root = load_pem_x509_certificate(self.root.read_bytes())
        try:
            content = consent.certificate.encode()
            certificate, passport = load_pem_x509_certificate(content), read_passport(content)
            certificate.verify_directly_issued_by(root)
            key: Any = certificate.public_key()
            key.verify(unpack(consent.signature), signed, *_scheme(key))
        except InvalidSignature:
            return "its certificate is not of this federation, or the signature is not of this course"
        except (ValueError, TypeError, AttributeError) as error:
            return f"its consent cannot be read: {str(error)[:80]}"
        if passport.name != site:
            return f"its certificate is for {passport.name[:40]!r}"
        if not passport.valid_from <= datetime.now(UTC) <= passport.valid_until:
            return "its certificate is not valid today"
        return "its certificate was revoked" if passport.serial in self.revoked() else ""


def _scheme(key: Any) -> tuple[Any, ...]:
    """Return how a key of this kind signs."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH), hashes.SHA256()
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return (ec.ECDSA(hashes.SHA256()),)
    raise ValueError(f"{type(key).__name__} is no key that signs courses")
