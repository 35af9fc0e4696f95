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
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus.core.codec import pack, unpack
from isthmus.core.errors import BadMessage
from isthmus.core.record import Record
from isthmus.sites.parties.certificates import Passport, read_passport

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
        return Consent(self.certificate.read_text(), pack(self.signature(statement(course_id, course))))

    def signature(self, text: bytes) -> bytes:
        """Return this silo's signature of some bytes."""
        key = _private_key(self.key.read_bytes())
        signed: bytes = key.sign(text, *_scheme(key))
        return signed

    def count(self, course_id: str, course: str, consents: Mapping[str, Consent]) -> tuple[int, dict[str, str]]:
        """Return how many distinct silos of the federation consented, and what is wrong with the other consents."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        from cryptography.x509 import load_pem_x509_certificate

        found, problems = set(), {}  # what tells two silos apart is their keys
        for site, consent in consents.items():
            problem = self._consent_problem(site, consent, statement(course_id, course))
            if problem:
                problems[site] = problem
            else:
                key = load_pem_x509_certificate(consent.certificate.encode()).public_key()
                found.add(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        return len(found), problems

    def _consent_problem(self, site: str, consent: Consent, signed: bytes) -> str:
        try:
            return self.problem(site, consent.certificate, unpack(consent.signature), signed)
        except BadMessage as error:  # it is no tensor of bytes
            return f"its consent cannot be read: {error}"

    def problem(self, site: str, pem: str, signature: bytes, signed: bytes) -> str:
        """Return why a certificate and a signature of some bytes are not a silo's of this federation; empty if so."""
        from cryptography.exceptions import InvalidSignature

        if len(pem) > MAX_CERTIFICATE_CHARACTERS or len(signature) > MAX_SIGNATURE_BYTES:
            return "its certificate or its signature is too long"
        try:
            certificate, passport = _vouched_for(self.root.read_bytes(), pem.encode())
            key: Any = certificate.public_key()
            key.verify(signature, signed, *_scheme(key))
        except InvalidSignature:
            return "its certificate is not of this federation, or the signature is not of this course"
        except (ValueError, TypeError, AttributeError) as error:
            return f"its certificate or its signature cannot be read: {str(error)[:80]}"
        if _is_server(certificate):
            return "its certificate is a server's, and a server is no silo"
        if passport.name != site:
            return f"its certificate is for {passport.name[:40]!r}"
        if not passport.valid_from <= datetime.now(UTC) <= passport.valid_until:
            return "its certificate is not valid today"
        return "its certificate was revoked" if passport.serial in self.revoked() else ""


@lru_cache(maxsize=1)
def _private_key(content: bytes) -> Any:
    """Return the key in a PEM file; reading one takes ten times as long as signing does."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(content, None)


@lru_cache(maxsize=1024)  # each is looked at for every signature; those that are refused are not kept
def _vouched_for(root: bytes, pem: bytes) -> tuple[Any, Passport]:
    """Return a certificate that a root has signed, with its facts; raises where it is none."""
    from cryptography.x509 import load_pem_x509_certificate

    certificate = load_pem_x509_certificate(pem)
    certificate.verify_directly_issued_by(load_pem_x509_certificate(root))
    return certificate, read_passport(pem)


def _is_server(certificate: Any) -> bool:
    """Whether a certificate is for a server: the one party that could count itself among the silos."""
    from cryptography.x509 import ExtendedKeyUsage, ExtensionNotFound
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        return ExtendedKeyUsageOID.SERVER_AUTH in certificate.extensions.get_extension_for_class(ExtendedKeyUsage).value
    except ExtensionNotFound:
        return False


def _scheme(key: Any) -> tuple[Any, ...]:
    """Return how a key of this kind signs."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH), hashes.SHA256()
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return (ec.ECDSA(hashes.SHA256()),)
    raise ValueError(f"{type(key).__name__} is no key that signs courses")
