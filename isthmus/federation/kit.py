"""Kits: what each party of a federation gets, once and out of band: certificate, key, and where the server is."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isthmus.core.errors import BadInput, MissingExtra

KIT_FILE = "kit.json"
AUTHORITY = "authority"
SERVER, OPERATOR = "server", "operator"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class Kit:
    """One party's kit."""

    path: Path
    federation: str
    party: str
    role: str  # "server", "operator" or "site"
    host: str
    port: int
    sites: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The federation's root certificate."""
        return self.path / "rootCA.pem"

    @property
    def certificate(self) -> Path:
        """The party's certificate."""
        return self.path / "party.crt"

    @property
    def key(self) -> Path:
        """The party's private key."""
        return self.path / "party.key"


def open_kit(path: Path, role: str) -> Kit:
    """Read a kit that must be of a given role."""
    try:
        facts = json.loads((path / KIT_FILE).read_text(encoding="utf-8"))
        kit = Kit(path=path, **{**facts, "sites": tuple(facts["sites"])})
        if not isinstance(kit.host, str) or type(kit.port) is not int or not 0 < kit.port < 65536:
            raise ValueError(f"the server is at {kit.host!r}:{kit.port!r}")
    except OSError as error:
        raise BadInput(f"{path} is not a kit: {KIT_FILE} cannot be read ({error.strerror or error})") from None
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{path / KIT_FILE} is damaged: {error}; ask for a new kit") from None
    if kit.role != role:
        verb = {"server": "isthmus serve", "site": "isthmus join", "operator": "isthmus submit"}
        raise BadInput(
            f"{path} is the kit of the {kit.role} {kit.party!r}; this command needs a kit for the role {role} "
            f"(a {kit.role}'s kit is for: {verb.get(kit.role, 'nothing known')})"
        )
    for needed in (kit.root, kit.certificate, kit.key):
        if not needed.is_file():
            raise BadInput(f"{path} is incomplete: {needed.name} is missing; ask for a new kit")
    return kit


@contextmanager
def hold(kit: Kit) -> Iterator[None]:
    """Hold the kit's lock: a second process with the same name would push the first one out."""
    kit.path.joinpath("state").mkdir(exist_ok=True)
    with (kit.path / "state" / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{kit.path} is in use by another process") from None
        yield


def parse_server(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"--server is {text!r}; give HOST:PORT, for example fl.example.org:8443")
    return host, int(port)


def make_federation(out: Path, server: str, sites: list[str], name: str = "federation") -> dict[str, Path]:
    """Provision a federation into one folder per party; with an existing folder, new sites join under the same root.

    The folder `authority` holds the root key: whoever has it can make parties, so it stays with the one who runs this.
    """
    host, port = parse_server(server)
    _check_names(sites)
    if not _NAME.fullmatch(name):
        raise BadInput(f"--name is {name!r}; a federation's name is of small letters, digits and hyphens")
    try:
        from isthmus.runtime.flare.provision import provision
    except ImportError:
        raise MissingExtra("nvflare", "sites", "provisioning a federation") from None
    parties = {SERVER: SERVER, OPERATOR: OPERATOR, **dict.fromkeys(sites, "site")}
    if out.exists() and any(out.iterdir()) and not (out / AUTHORITY).is_dir():
        raise BadInput(f"{out} exists already and is no federation; choose another folder")
    before = open_kit(out / SERVER, SERVER).host if (out / SERVER / KIT_FILE).is_file() else host
    if before != host:
        raise BadInput(
            f"--server is {server!r}, but the server's certificate in {out} is for {before!r}; "
            "make a new federation for another host"
        )
    out.mkdir(parents=True, exist_ok=True)
    certificates = provision(out / AUTHORITY, name, host, port, [p for p in parties if p != SERVER])
    for path in (out / AUTHORITY, *(out / AUTHORITY).rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)  # FLARE leaves the root's key readable for all
    made = {}
    for party, role in parties.items():
        facts = {"federation": name, "party": party, "role": role, "host": host, "port": port, "sites": sites}
        made[party] = _write(out / party, facts, certificates[party], SERVER if party == SERVER else "client")
    return made


def _check_names(sites: list[str]) -> None:
    if not sites:
        raise BadInput("--sites is empty; name the sites, for example bank-a,bank-b,bank-c")
    for site in sites:
        if not _NAME.fullmatch(site) or site in (SERVER, OPERATOR, AUTHORITY):
            raise BadInput(
                f"--sites has {site!r}; a site's name is of small letters, digits and hyphens, and not "
                f"{SERVER}, {OPERATOR} or {AUTHORITY}"
            )
    twice = [site for site in sites if sites.count(site) > 1]
    if twice:
        raise BadInput(f"--sites has {twice[0]!r} twice")


def _write(folder: Path, facts: dict[str, object], certificates: Path, kind: str) -> Path:
    """Write a kit whole or not at all; one that exists gets only the new list of sites, and keeps its key."""
    if (folder / KIT_FILE).is_file():
        (folder / KIT_FILE).write_text(json.dumps(facts, indent=2))
        return folder
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    shutil.copy(certificates / "rootCA.pem", temporary / "rootCA.pem")
    shutil.copy(certificates / f"{kind}.crt", temporary / "party.crt")
    shutil.copy(certificates / f"{kind}.key", temporary / "party.key")
    (temporary / "party.key").chmod(0o600)
    (temporary / KIT_FILE).write_text(json.dumps(facts, indent=2))
    temporary.chmod(0o700)
    temporary.rename(folder)
    return folder
