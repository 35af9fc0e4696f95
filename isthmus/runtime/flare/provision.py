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
    until = datetime.now(UTC) + timedelta(days=ROOT_DAYS)
    return _signed(Identity(name), Identity(name), private, private, until, ca=True)


def new_party(party: str, root: Pair, host: str = "", days: float = PARTY_DAYS) -> Pair:
    """Make a party's certificate, valid no longer than the root; one with a host is for a server, and only that."""
    above = x509.load_pem_x509_certificate(root.certificate)
    (issuer,) = above.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    use = ExtendedKeyUsageOID.SERVER_AUTH if host else ExtendedKeyUsageOID.CLIENT_AUTH
    until = min(datetime.now(UTC) + timedelta(days=days), above.not_valid_after_utc)
    local = sorted({"localhost", "127.0.0.1"} - {host})
    names: dict[str, Any] = {"server_default_host": host, "server_additional_hosts": local} if host else {}
    # Otherwise a site that is called like the server's host could play the server.
    names["extra_extensions"] = [(x509.ExtendedKeyUsage([use]), False)]
    subject, private = Identity(party, ORGANISATION), generate_keys()[0]
    return _signed(subject, Identity(issuer.value), _loaded(root.key), private, until, **names)


def _signed(
    subject: Identity, issuer: Identity, signing: RSAPrivateKey, private: RSAPrivateKey, until: datetime, **more: Any
) -> Pair:
    keys = {"signing_pri_key": signing, "subject_pub_key": private.public_key()}
    since = datetime.now(UTC) - BACKDATED
    made = generate_cert(subject, issuer, **keys, not_valid_before=since, not_valid_after=until, **more)
    return Pair(serialize_cert(made), serialize_pri_key(private))


def _loaded(key: bytes) -> RSAPrivateKey:
    private = load_pem_private_key(key, password=None)
    assert isinstance(private, RSAPrivateKey)
    return private
