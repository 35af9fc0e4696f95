"""Certificates as FLARE makes them: a root for a federation, and one for every party under it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

ORGANISATION = "isthmus"
ROOT_DAYS = 3650
PARTY_DAYS = 360
BACKDATED = timedelta(hours=1)  # a party whose clock is a little slow can use its new certificate at once


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


def new_root(name: str, key: bytes | None = None) -> Pair:
    """Make a federation's root; with the key of an earlier one, what was signed under that is valid under this too."""
    private = _loaded(key) if key else generate_keys()[0]
    now = datetime.now(UTC)
    made = generate_cert(
        subject=Identity(name),
        issuer=Identity(name),
        signing_pri_key=private,
        subject_pub_key=private.public_key(),
        ca=True,
        not_valid_before=now - BACKDATED,
        not_valid_after=now + timedelta(days=ROOT_DAYS),
    )
    return Pair(serialize_cert(made), serialize_pri_key(private))


def new_party(party: str, root: Pair, host: str = "", days: float = PARTY_DAYS) -> Pair:
    """Make a party's certificate, valid no longer than the root; one with a host is for a server, and only that."""
    above = x509.load_pem_x509_certificate(root.certificate)
    (issuer,) = above.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    private, public = generate_keys()
    use = ExtendedKeyUsageOID.SERVER_AUTH if host else ExtendedKeyUsageOID.CLIENT_AUTH
    now = datetime.now(UTC)
    local = sorted({"localhost", "127.0.0.1"} - {host})
    names: dict[str, Any] = {"server_default_host": host, "server_additional_hosts": local} if host else {}
    made = generate_cert(
        subject=Identity(party, ORGANISATION),
        issuer=Identity(issuer.value),
        signing_pri_key=_loaded(root.key),
        subject_pub_key=public,
        not_valid_before=now - BACKDATED,
        not_valid_after=min(now + timedelta(days=days), above.not_valid_after_utc),
        # Otherwise a site that is called like the server's host could play the server.
        extra_extensions=[(x509.ExtendedKeyUsage([use]), False)],
        **names,
    )
    return Pair(serialize_cert(made), serialize_pri_key(private))


def _loaded(key: bytes) -> RSAPrivateKey:
    private = load_pem_private_key(key, password=None)
    assert isinstance(private, RSAPrivateKey)
    return private
