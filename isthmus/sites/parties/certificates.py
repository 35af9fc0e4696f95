"""What a kit's certificate says: whose it is, and until when."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.core.errors import BadInput

if TYPE_CHECKING:
    from isthmus.sites.parties.kit import Kit

EXPIRY_NOTICE_DAYS = 30
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
