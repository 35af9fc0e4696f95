"""The authority of a federation: its root key, and a ledger of every certificate that was ever made."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput, MissingExtra
from isthmus.core.outside import replace_file
from isthmus.sites.parties.certificates import Revoked, read_passport, sign_list

AUTHORITY = "authority"
SERVER, OPERATOR = "server", "operator"
LEDGER = "cert.json"
# Keys of the ledger that are no parties; a party's name has no colon.
_FACTS = ":federation"
_REVOKED, _NUMBER, _LIST = ":revoked", ":list-number", ":signed-list"
_ROOT, _ROOT_KEY = "root_cert", "root_pri_key"


@dataclass(frozen=True)
class Facts:
    """What every kit of a federation says."""

    federation: str
    host: str
    port: int
    sites: tuple[str, ...]
    operators: tuple[str, ...]


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
        self.revoked = [
            replace(entry, expelled=expelled) if entry.party == party else entry for entry in (*self.revoked, *new)
        ]
        self._change_list()
        return new

    def take_back(self, party: str) -> None:
        """Let the name of an expelled party count again; its old certificates stay revoked."""
        self.revoked = [replace(entry, expelled=False) if entry.party == party else entry for entry in self.revoked]
        self._change_list()

    def _change_list(self) -> None:
        self.list_number += 1
        self.signed_list = sign_list(self.root, self.root_key, self.list_number, self.revoked)

    def renew_root(self) -> None:
        """Give the root another ten years under the same key: what it has signed stays valid under the new one."""
        from isthmus.runtime.flare.provision import new_root

        self.root = new_root(self.facts.federation, self.root_key).certificate

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
        replace_file(self.ledger, json.dumps(content).encode())
        self.ledger.chmod(0o600)


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
        return _authority_of(out, ledger, json.loads(ledger.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"{ledger} cannot be read ({error.strerror or error})") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{ledger} is damaged: {error}; take it from a backup") from None


def _authority_of(out: Path, ledger: Path, content: dict[str, Any]) -> Authority:
    root, root_key = content.pop(_ROOT).encode(), content.pop(_ROOT_KEY).encode()
    facts = content.pop(_FACTS, None)
    revoked = [Revoked(**{**entry, "serial": int(entry["serial"])}) for entry in content.pop(_REVOKED, [])]
    list_number, signed_list = int(content.pop(_NUMBER, 0)), content.pop(_LIST, "").encode()
    parties = {name: entry for name, entry in content.items() if not name.startswith(":")}
    issued = {
        name: [text.encode() for text in (*entry.get("earlier", ()), entry["cert"])] for name, entry in parties.items()
    }
    stated = _facts(facts) if facts else _facts_of_kits(out, ledger.parents[1].name, issued)
    return Authority(ledger, stated, root, root_key, issued, revoked, list_number, signed_list)


def _facts(stated: dict[str, Any]) -> Facts:
    return Facts(**{**stated, "sites": tuple(stated["sites"]), "operators": tuple(stated["operators"])})


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


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Let one command at a time change a federation."""
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise MissingExtra("nvflare", "sites", "provisioning a federation") from None
    with (out / AUTHORITY / "lock").open("w") as lock:
        (out / AUTHORITY / "lock").chmod(0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{out} is being changed by another command") from None
        yield
