"""Kits: what each party of a federation gets, once and out of band: certificate, key, and where the server is."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import new_folder, replace_file, require_types
from isthmus.sites.parties.certificates import (
    AUTHORITY,
    OPERATOR,
    REVOKED,
    SERVER,
    Authority,
    Facts,
    Passport,
    alone,
    create_authority,
    has_authority,
    locked,
    open_authority,
    read_passport,
)

KIT_FILE = "kit.json"
SITE = "site"
WATCH_SECONDS = 0.5
# An operator whose one command watches a course wants to list, or to submit the next one, from another terminal.
WATCHING = (
    "if that one watches a course, Ctrl-C ends the watching and not the course (isthmus courses KIT attach ID watches "
    "again), or use another operator's kit (isthmus federation add --operators NAME makes one)"
)
log = logging.getLogger("isthmus.watch")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Kit(Facts):
    """One party's kit."""

    path: Path
    party: str
    role: str  # "server", "operator" or "site"
    operators: tuple[str, ...] = (OPERATOR,)  # as in kits from before there could be several

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
        named = {key: _names(facts[key]) for key in ("sites", "operators") if key in facts}
        kit = Kit(path=path, **{**facts, **named})
        require_types(kit)
        _names([kit.party])
        if not 0 < kit.port < 65536:
            raise ValueError(f"the server is at {kit.host!r}:{kit.port!r}")
    except OSError as error:
        raise BadInput(f"{path} is not a kit: {KIT_FILE} cannot be read ({error.strerror or error})") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(f"{path / KIT_FILE} is damaged: {str(error)[:200]}; ask for a new kit") from None
    if kit.role != role:
        verb = {"server": "isthmus serve", "site": "isthmus join", "operator": "isthmus submit"}
        raise BadInput(
            f"{path} is the kit of the {kit.role[:40]} {kit.party!r}; this command needs a kit for the role {role} "
            f"(a {kit.role[:40]}'s kit is for: {verb.get(kit.role, 'nothing known')})"
        )
    for needed in (kit.root, kit.certificate, kit.key):
        if not needed.is_file():
            raise BadInput(f"{path} is incomplete: {needed.name} is missing; ask for a new kit")
    return kit


def _names(found: object) -> tuple[str, ...]:
    """Return names as a kit lists them; raises ValueError for anything else."""
    if not isinstance(found, list) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in found):
        raise ValueError(f"{found!r} are no names")
    return tuple(found)


def hold(kit: Kit) -> AbstractContextManager[None]:
    """Hold the kit's lock: a second process with the same name would push the first one out."""
    kit.path.joinpath("state").mkdir(exist_ok=True)
    remedy = WATCHING if kit.role == OPERATOR else "end that one first"
    return locked(kit.path / "state" / "lock", f"{kit.path} is in use by another process; {remedy}")


def parse_server(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"--server is {text!r}; give HOST:PORT, for example fl.example.org:8443")
    return host, int(port)


@dataclass(frozen=True)
class Enrolment:
    """What making or enlarging a federation did."""

    facts: Facts
    kits: dict[str, Path]
    """Every party's kit that lies in the folder."""
    added: tuple[str, ...]
    """Who is new."""


def make_federation(out: Path, server: str | None, sites: Sequence[str]) -> dict[str, Path]:
    """Make a federation, or add to one; return the folder of each party's kit."""
    return enrol(out, server, sites).kits


def enrol(
    out: Path, server: str | None, sites: Sequence[str], operators: Sequence[str] = (), name: str | None = None
) -> Enrolment:
    """Make a federation of one folder per party; with one that exists, parties are added under the same root.

    Nobody is ever dropped, and a kit that exists keeps its key. The folder `authority` holds the root key: whoever has
    it can make parties, so it stays with the one who runs this.
    """
    if not has_authority(out):
        return _found(out, server, sites, operators or (OPERATOR,), name or "federation")
    with alone(out):
        authority = open_authority(out)
        facts = authority.facts
        host, port = (facts.host, facts.port) if server is None else parse_server(server)
        if facts.host != host:
            raise BadInput(
                f"--server is {server!r}, but the server's certificate in {out} is for {facts.host!r}; "
                "make a new federation for another host"
            )
        if name not in (None, facts.federation):
            raise BadInput(f"--name is {name!r}, but {out} is the federation {facts.federation!r}; leave --name out")
        _check_names(facts, sites, operators)
        return _admit(out, authority, replace(facts, port=port), sites, operators)


def _found(out: Path, server: str | None, sites: Sequence[str], operators: Sequence[str], name: str) -> Enrolment:
    if server is None:
        raise BadInput(f"{out} is no federation yet: say where its server will be, with --server HOST:PORT")
    host, port = parse_server(server)
    if not _NAME.fullmatch(name):
        raise BadInput(f"--name is {name!r}; a federation's name is of small letters, digits and hyphens")
    if not sites:
        raise BadInput("--sites is empty; name the sites, for example bank-a,bank-b,bank-c")
    facts = Facts(federation=name, host=host, port=port, sites=(), operators=())
    _check_names(facts, sites, operators)
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} exists already and is no federation; choose another folder")
    (out / AUTHORITY).mkdir(parents=True)
    with alone(out):
        return _admit(out, create_authority(out, facts), facts, sites, operators)


def _admit(out: Path, authority: Authority, facts: Facts, sites: Sequence[str], operators: Sequence[str]) -> Enrolment:
    """Give every new party a certificate and a kit, and all kits the new facts."""
    authority.facts = replace(
        facts,
        sites=tuple(dict.fromkeys((*facts.sites, *sites))),
        operators=tuple(dict.fromkeys((*facts.operators, *operators))),
    )
    gone = authority.expelled
    added = tuple(party for party in authority.facts.parties if party not in authority.issued or party in gone)
    for party in gone & set(added):
        authority.mark(party, expelled=False)  # with another certificate
    pairs = {party: authority.issue(party) for party in added}
    return Enrolment(authority.facts, hand_out(out, authority, pairs), added)


def hand_out(
    out: Path, authority: Authority, pairs: Mapping[str, tuple[bytes, bytes]], *, root: bool = False
) -> dict[str, Path]:
    """Write the ledger, new certificates with their keys, and to all kits what all know, or a new root; return them."""
    authority.save()
    for party, (certificate, key) in pairs.items():
        folder = out / party
        with nullcontext(folder) if folder.exists() else new_folder(folder, 0o700) as target:
            for file, content in (("rootCA.pem", authority.root), ("party.key", key), ("party.crt", certificate)):
                replace_file(target / file, content, 0o600)
    kits = _write_facts(out, authority.facts, tuple(pairs))
    for folder in (out, *kits.values()) if authority.signed_list else ():
        replace_file(folder / REVOKED, authority.signed_list)
    for folder in kits.values() if root else ():
        replace_file(folder / "rootCA.pem", authority.root, 0o600)
    return kits


def _check_names(facts: Facts, sites: Sequence[str], operators: Sequence[str]) -> None:
    """Refuse names that are no names, are taken, or come twice."""
    taken = {
        "--sites": {SERVER, OPERATOR, AUTHORITY, facts.host, *facts.operators, *operators},
        "--operators": {SERVER, AUTHORITY, facts.host, *facts.sites},
    }
    for option, names in (("--sites", sites), ("--operators", operators)):
        for party in names:
            if not _NAME.fullmatch(party):
                raise BadInput(f"{option} has {party!r}; a name is of small letters, digits and hyphens")
            if party in taken[option]:
                raise BadInput(f"{option} has {party!r}, which is taken in this federation; choose another name")
        twice = [party for party in names if list(names).count(party) > 1]
        if twice:
            raise BadInput(f"{option} has {twice[0]!r} twice")


def _write_facts(out: Path, facts: Facts, new: Sequence[str]) -> dict[str, Path]:
    """Tell every kit in the folder, and those of new parties, who is of the federation; return where they lie."""
    roles = {SERVER: SERVER, **dict.fromkeys(facts.operators, OPERATOR), **dict.fromkeys(facts.sites, SITE)}
    kits = {}
    for party, role in roles.items():
        path = out / party / KIT_FILE
        if party in new or path.is_file():
            content = json.dumps({**asdict(facts), "party": party, "role": role}, indent=2).encode()
            if not path.is_file() or path.read_bytes() != content:
                replace_file(path, content)
            kits[party] = path.parent
    return kits


# ---- changes to a federation that exists: certificates are renewed, parties are expelled


@dataclass(frozen=True)
class Renewal:
    """What a renewal made."""

    kits: dict[str, Path]
    """The kits with a new certificate."""
    passports: dict[str, Passport]
    """What the new certificates say."""
    root: Passport


def renew(out: Path, parties: Sequence[str] = (), *, root: bool = False, revoke_old: bool = False) -> Renewal:
    """Make new certificates and keys for some parties, or for all, before or after the old end; `root` gets one too.

    With `revoke_old`, what the parties had before counts no more, at once.
    """
    with _changing(out) as authority:
        chosen = tuple(dict.fromkeys(parties)) or (() if root else authority.facts.parties)
        for party in chosen:
            _require(authority, party)
            if revoke_old:
                authority.revoke(party, expelled=False)
        if root:  # another ten years under the same key: what it has signed stays valid under the new one
            from isthmus.runtime.flare.provision import new_root

            authority.root = new_root(authority.facts.federation, authority.root_key).certificate
        above = read_passport(authority.root)
        if above.days_left <= 0:
            remedy = "renew it too: isthmus federation renew --root"
            raise BadInput(f"the root certificate ended on {above.last_day}; {remedy}")
        pairs = {party: authority.issue(party) for party in chosen}
        kits = hand_out(out, authority, pairs, root=root)
        passports = {party: read_passport(certificate) for party, (certificate, _) in pairs.items()}
        return Renewal({party: kits[party] for party in chosen}, passports, above)


def expel(out: Path, parties: Sequence[str]) -> tuple[int, int]:
    """Revoke all certificates of some sites or operators and take them off every kit's list.

    Return the number of the list of revoked certificates, and how many are new on it.
    """
    with _changing(out) as authority:
        for party in parties:
            _require(authority, party)
            if party == SERVER:
                raise BadInput(
                    "the server cannot be expelled; if its key is in wrong hands, make it another and revoke the old: "
                    "isthmus federation renew server --revoke-old"
                )
        revoked = [entry for party in dict.fromkeys(parties) for entry in authority.revoke(party, expelled=True)]
        facts = authority.facts
        authority.facts = replace(
            facts,
            sites=tuple(site for site in facts.sites if site not in parties),
            operators=tuple(operator for operator in facts.operators if operator not in parties),
        )
        hand_out(out, authority, {})
        return authority.list_number, len(revoked)


@contextmanager
def _changing(out: Path) -> Iterator[Authority]:
    if not has_authority(out):
        raise BadInput(f"{out} is no federation; give the folder that holds its `authority` with --folder")
    with alone(out):
        yield open_authority(out)


def _require(authority: Authority, party: str) -> None:
    members = authority.facts.parties
    if party in authority.expelled:
        raise BadInput(
            f"{party!r} was expelled; take it back, with another certificate: isthmus federation add {party}"
        )
    if party not in members:
        raise BadInput(f"{party!r} is not of this federation; {nearest(party, members)}")


# ---- kits that change while a process runs


class Watch:
    """Calls back, from a thread of its own, after one of some files was changed, made or removed."""

    def __init__(self, paths: Sequence[Path], changed: Callable[[], None], seconds: float = WATCH_SECONDS) -> None:
        self._paths, self._changed, self._seconds = tuple(paths), changed, seconds
        self._seen = list(map(_mark, self._paths))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="isthmus-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds):
            now = list(map(_mark, self._paths))
            if now != self._seen:
                self._seen = now
                try:
                    self._changed()
                except Exception as error:  # the next change must be noticed all the same
                    log.warning("what changed in %s could not be taken: %s", self._paths[0].parent, error)


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what tells two versions of a file apart without reading it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
