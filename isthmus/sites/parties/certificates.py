"""Certificates of a federation: what they say, and which of them count no more.

The list of revoked certificates is signed by the root, numbered, and honoured by the server and by every silo. It is an
X.509 revocation list. Every entry names the party too, and says whether it was expelled or only got another
certificate, so that a silo can tell whose name counts no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.core.errors import BadInput
from isthmus.core.outside import replace_file

if TYPE_CHECKING:
    from isthmus.sites.parties.kit import Kit

EXPIRY_NOTICE_DAYS = 30
REVOKED = "revoked.crl"
MAX_LIST_BYTES = 1 << 20
# An arc for private use: the entry's party, as text.
_PARTY = "1.3.6.1.4.1.99999.17.1"
_DAY = 86_400.0


@dataclass(frozen=True)
class Passport:
    """The facts of one certificate."""

    name: str
    serial: int
    valid_from: datetime
    valid_until: datetime

    @property
    def days_left(self) -> float:
        """For how many days it is still valid, by this machine's clock."""
        return (self.valid_until.timestamp() - time.time()) / _DAY

    @property
    def last_day(self) -> str:
        """The day on which it ends."""
        return self.valid_until.strftime("%Y-%m-%d")


def read_passport(content: bytes) -> Passport:
    """Read a certificate in PEM; raises ValueError for anything else."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(content)
    names = found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    if len(names) != 1:
        raise ValueError("it names nobody")
    return Passport(str(names[0].value), found.serial_number, found.not_valid_before_utc, found.not_valid_after_utc)


def passport_of(kit: Kit) -> Passport:
    """Return the facts of a kit's certificate; it must be the one of the party that the kit is for."""
    found = _read(kit.certificate)
    if found.name != kit.party:
        raise BadInput(
            f"{kit.path} says that it is the kit of {kit.party!r}, but its certificate is for {found.name!r}; "
            "use each kit as it was handed out"
        )
    return found


def _read(path: Path) -> Passport:
    try:
        return read_passport(path.read_bytes())
    except (ValueError, OSError) as error:
        raise BadInput(f"{path} is no certificate: {error}") from None


def date_problem(found: Passport) -> str:
    """Return why this machine's clock and a certificate do not go together, or nothing."""
    now = datetime.fromtimestamp(time.time(), UTC)
    if found.valid_from <= now <= found.valid_until:
        return ""
    shown = [moment.strftime("%Y-%m-%d %H:%M") for moment in (found.valid_from, found.valid_until, now)]
    problem = f"the kit's certificate is valid from {shown[0]} to {shown[1]} UTC, this machine's clock says {shown[2]}"
    return f"{problem}; {how_to_renew(found.name)}" if now > found.valid_until else problem


def expiry_notice(kit: Kit) -> str:
    """Return what to say when a kit's certificate, or the root above it, ends soon; nothing before that."""
    own, root = passport_of(kit), _read(kit.root)
    if root.days_left < EXPIRY_NOTICE_DAYS:
        return f"the federation's root certificate ends on {root.last_day}; {how_to_renew('--root')}"
    return soon(own)


def soon(found: Passport) -> str:
    """Return what to say of a certificate that ends soon."""
    if found.days_left >= EXPIRY_NOTICE_DAYS:
        return ""
    days = max(int(found.days_left), 0)
    return f"the certificate of {found.name} ends on {found.last_day}, in {days} days; {how_to_renew(found.name)}"


def how_to_renew(what: str) -> str:
    """Say which command makes a new certificate."""
    return f"who keeps the federation's authority renews it with: isthmus federation renew {what}"


@dataclass(frozen=True)
class Revoked:
    """One revoked certificate."""

    serial: int
    party: str
    expelled: bool
    """Whether the party is out; otherwise it has, or may get, another certificate."""
    when: str


@dataclass(frozen=True)
class RevocationList:
    """A list that the root has signed; a higher number is a newer one."""

    number: int = 0
    serials: frozenset[int] = frozenset()
    expelled: frozenset[str] = frozenset()
    content: bytes = b""


def sign_list(root: bytes, root_key: bytes, number: int, entries: Sequence[Revoked]) -> bytes:
    """Return a list in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    above, key = x509.load_pem_x509_certificate(root), load_pem_private_key(root_key, None)
    assert isinstance(key, RSAPrivateKey)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(above.subject)
        .last_update(now)
        .next_update(max(above.not_valid_after_utc, now))
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for entry in entries:
        reason = x509.ReasonFlags.privilege_withdrawn if entry.expelled else x509.ReasonFlags.superseded
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder()
            .serial_number(entry.serial)
            .revocation_date(datetime.fromisoformat(entry.when))
            .add_extension(x509.CRLReason(reason), critical=False)
            .add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier(_PARTY), entry.party.encode()), critical=False
            )
            .build()
        )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def read_list(content: bytes, root: bytes) -> RevocationList:
    """Read a list; raises BadInput for one that the root has not signed."""
    from cryptography import x509

    if len(content) > MAX_LIST_BYTES:
        raise BadInput(f"it has {len(content)} bytes, the limit is {MAX_LIST_BYTES}")
    try:
        found, above = x509.load_pem_x509_crl(content), x509.load_pem_x509_certificate(root)
        if found.issuer != above.subject or not found.is_signature_valid(above.public_key()):  # type: ignore[arg-type]
            raise BadInput("it is not signed by this federation's root")
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        serials, expelled = set(), set()
        for entry in found:
            serials.add(entry.serial_number)
            reason = entry.extensions.get_extension_for_class(x509.CRLReason).value.reason
            party = entry.extensions.get_extension_for_oid(x509.ObjectIdentifier(_PARTY)).value
            if reason == x509.ReasonFlags.privilege_withdrawn and isinstance(party, x509.UnrecognizedExtension):
                expelled.add(party.value.decode())
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise BadInput(f"it is damaged: {error}") from None
    return RevocationList(number, frozenset(serials), frozenset(expelled), content)


class Revocations:
    """The newest list that a party has seen; an older one never takes its place, nor does one of another root.

    The one that came with the kit and the one that was kept while the party ran are both looked at.
    """

    def __init__(self, kit: Kit) -> None:
        self._given, self._kept = kit.path / REVOKED, kit.path / "state" / REVOKED
        self._root = kit.root.read_bytes()
        self._lock = threading.Lock()
        self.current = RevocationList()
        self.reread()

    def reread(self) -> bool:
        """Look at the files again; return whether there was a newer list. One that cannot be used is an error."""
        newer = False
        for path in (self._kept, self._given):  # in this order, so that an older one given again is never kept
            if path.is_file():
                try:
                    newer |= self.offer(path.read_bytes())
                except (BadInput, OSError) as error:
                    raise BadInput(f"{path} cannot be used: {error}; take it again from whoever sent it") from None
        return newer

    def offer(self, content: bytes) -> bool:
        """Take a list if it is newer, and keep it; return whether it was."""
        found = read_list(content, self._root)
        with self._lock:
            if found.number <= self.current.number:
                return False
            self._kept.parent.mkdir(exist_ok=True)
            if not self._kept.is_file() or self._kept.read_bytes() != content:
                replace_file(self._kept, content)
            self.current = found
        return True
