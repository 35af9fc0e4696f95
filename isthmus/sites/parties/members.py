"""Changes to a federation that exists: certificates are renewed, parties are expelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import replace_file
from isthmus.sites.parties.certificates import (
    SERVER,
    Authority,
    Passport,
    alone,
    has_authority,
    open_authority,
    read_passport,
)
from isthmus.sites.parties.kit import hand_out


@dataclass(frozen=True)
class Renewal:
    """What a renewal made."""

    kits: dict[str, Path]
    """The kits with a new certificate."""
    passports: dict[str, Passport]
    """What the new certificates say."""
    root: Passport


def renew(out: Path, parties: Sequence[str] = (), *, root: bool = False, revoke_old: bool = False) -> Renewal:
    """Make new certificates and keys for some parties, or for all, under the same root; before or after the old end.

    With `root`, the root certificate is renewed too, under the same key. With `revoke_old`, what the parties had before
    counts no more, at once.
    """
    with _changing(out) as authority:
        chosen = tuple(dict.fromkeys(parties)) or (() if root else authority.facts.parties)
        for party in chosen:
            _require(authority, party)
        for party in chosen if revoke_old else ():
            authority.revoke(party, expelled=False)
        if root:
            authority.renew_root()
        above = read_passport(authority.root)
        if above.days_left <= 0:
            remedy = "renew it too: isthmus federation renew --root"
            raise BadInput(f"the root certificate ended on {above.last_day}; {remedy}")
        pairs = {party: authority.issue(party) for party in chosen}
        kits = hand_out(out, authority, pairs)
        for path in kits.values() if root else ():
            replace_file(path / "rootCA.pem", authority.root, 0o600)
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
