"""Certificates of a federation: what they say, which of them count no more, and the authority that makes them.

The list of revoked certificates, an X.509 one, is signed by the root, numbered, and honoured by the server and by every
silo. Every entry names the party too, and says whether it was expelled or only got another certificate.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.core.errors import BadInput, MissingExtra
from isthmus.core.outside import replace_file

if TYPE_CHECKING:
    from isthmus.sites.parties.kit import Kit

AUTHORITY = "authority"
SERVER, OPERATOR = "server", "operator"
LEDGER = "cert.json"
# Keys of the ledger that are no parties; a party's name has no colon.
_FACTS = ":federation"
_REVOKED, _NUMBER, _LIST = ":revoked", ":list-number", ":signed-list"
_ROOT, _ROOT_KEY = "root_cert", "root_pri_key"
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

    def __str__(self) -> str:
        expelled = ", ".join(sorted(self.expelled)) or "nobody"
        return f"list {self.number} of revoked certificates; expelled: {expelled}"


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
    """The newest list that a party has seen; an older one never takes its place, nor does one of another root."""

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


@dataclass(frozen=True)
class Facts:
    """What every kit of a federation says."""

    federation: str
    host: str
    port: int
    sites: tuple[str, ...]
    operators: tuple[str, ...]

    @property
    def parties(self) -> tuple[str, ...]:
        """Everybody who is of the federation."""
        return (SERVER, *self.operators, *self.sites)


@dataclass
class Authority:
    """The root and the ledger. The ledger is written before any kit: nothing is in use that it does not know."""

    ledger: Path
    facts: Facts
    root: bytes
    root_key: bytes
    issued: dict[str, list[bytes]] = field(default_factory=dict)
    """For every name all certificates that it ever got, the current one last."""
    revoked: list[Revoked] = field(default_factory=list)
    list_number: int = 0
    signed_list: bytes = b""

    @property
    def expelled(self) -> set[str]:
        """Who is out."""
        return {entry.party for entry in self.revoked if entry.expelled}

    def revoke(self, party: str, *, expelled: bool) -> list[Revoked]:
        """Revoke all certificates of a party that were not yet; they stay on the list for good."""
        known = {entry.serial for entry in self.revoked}
        serials = [read_passport(certificate).serial for certificate in self.issued.get(party, [])]
        when = datetime.now(UTC).isoformat(timespec="seconds")
        new = [Revoked(serial, party, expelled, when) for serial in serials if serial not in known]
        self.revoked += new
        self.mark(party, expelled=expelled)
        return new

    def mark(self, party: str, *, expelled: bool) -> None:
        """Say on a new list whether a party is out; its revoked certificates stay revoked."""
        self.revoked = [replace(entry, expelled=expelled) if entry.party == party else entry for entry in self.revoked]
        self.list_number += 1
        self.signed_list = sign_list(self.root, self.root_key, self.list_number, self.revoked)

    def issue(self, party: str) -> tuple[bytes, bytes]:
        """Make a certificate and a key for a party; the key is not kept here."""
        from isthmus.runtime.flare.provision import Pair, new_party

        made = new_party(party, Pair(self.root, self.root_key), self.facts.host if party == SERVER else "")
        self.issued.setdefault(party, []).append(made.certificate)
        return made.certificate, made.key

    def save(self) -> None:
        """Write the ledger whole, readable for its owner only."""
        content: dict[str, Any] = {
            _ROOT: self.root.decode(),
            _ROOT_KEY: self.root_key.decode(),
            _FACTS: asdict(self.facts),
            _REVOKED: [{**asdict(entry), "serial": str(entry.serial)} for entry in self.revoked],
            _NUMBER: self.list_number,
            _LIST: self.signed_list.decode(),
        }
        for party, certificates in self.issued.items():
            *earlier, current = [certificate.decode() for certificate in certificates]
            content[party] = {"cert": current, "earlier": earlier}
        for folder in reversed(self.ledger.parents[:3]):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
        replace_file(self.ledger, json.dumps(content).encode(), 0o600)


def create_authority(out: Path, facts: Facts) -> Authority:
    """Make a federation's root; nothing is written before `save`."""
    from isthmus.runtime.flare.provision import new_root

    root = new_root(facts.federation)
    ledger = out / AUTHORITY / facts.federation / "state" / LEDGER
    return Authority(ledger, facts, root.certificate, root.key)


def open_authority(out: Path) -> Authority:
    """Read the authority of the federation in a folder."""
    found = sorted((out / AUTHORITY).glob(f"*/state/{LEDGER}"))
    if len(found) != 1:
        raise BadInput(f"{out} has no federation's authority; give the folder that `isthmus federation init` made")
    (ledger,) = found
    try:
        content = json.loads(ledger.read_text(encoding="utf-8"))
        root, root_key = content.pop(_ROOT).encode(), content.pop(_ROOT_KEY).encode()
        facts = content.pop(_FACTS, None)
        revoked = [Revoked(**{**entry, "serial": int(entry["serial"])}) for entry in content.pop(_REVOKED, [])]
        list_number, signed_list = int(content.pop(_NUMBER, 0)), content.pop(_LIST, "").encode()
        issued = {
            name: [text.encode() for text in (*entry.get("earlier", ()), entry["cert"])]
            for name, entry in content.items()
            if not name.startswith(":")
        }
        if facts:
            stated = Facts(**{**facts, "sites": tuple(facts["sites"]), "operators": tuple(facts["operators"])})
        else:
            stated = _facts_of_kits(out, ledger.parents[1].name, issued)
    except OSError as error:
        raise BadInput(f"{ledger} cannot be read ({error.strerror or error})") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{ledger} is damaged: {error}; take it from a backup") from None
    return Authority(ledger, stated, root, root_key, issued, revoked, list_number, signed_list)


def _facts_of_kits(out: Path, name: str, issued: dict[str, list[bytes]]) -> Facts:
    """Read what a ledger from before there were facts in it does not say; everybody with a certificate is a site."""
    kits = [out / SERVER / "kit.json", *sorted(out.glob("*/kit.json"))]
    found = next((json.loads(path.read_text(encoding="utf-8")) for path in kits if path.is_file()), None)
    if found is None:
        raise BadInput(f"{out} has no kit left that says where the server is; put one back")
    sites = [*found["sites"], *(party for party in issued if party not in (SERVER, OPERATOR))]
    return Facts(name, found["host"], found["port"], tuple(dict.fromkeys(sites)), (OPERATOR,))


def has_authority(out: Path) -> bool:
    """Whether a folder is that of a federation."""
    return (out / AUTHORITY).is_dir()


def require_engine(purpose: str) -> None:
    """Raise where what makes certificates and carries messages between sites is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise MissingExtra("nvflare", "sites", purpose)


def alone(out: Path) -> AbstractContextManager[None]:
    """Let one command at a time change a federation."""
    require_engine("provisioning a federation")
    return locked(out / AUTHORITY / "lock", f"{out} is being changed by another command")


@contextmanager
def locked(path: Path, problem: str) -> Iterator[None]:
    """Hold a lock file, which only its owner can open; raise BadInput where another process holds it."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(problem) from None
        yield
