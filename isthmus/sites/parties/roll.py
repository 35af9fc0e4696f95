"""Who is of the federation now, as the server knows it: its kit's list, and the list of revoked certificates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from isthmus.core.errors import BadInput
from isthmus.runtime.seldom import Seldom
from isthmus.sites.parties.certificates import Passport, expiry_notice, soon
from isthmus.sites.parties.entrance import LIST_KIND
from isthmus.sites.parties.kit import Kit
from isthmus.sites.parties.preflight import certificate_problem
from isthmus.sites.parties.revocation import Revocations

if TYPE_CHECKING:
    from isthmus.runtime.flare.gate import Gate, Visitor


class Tells(Protocol):
    """What of a hub is needed to hand lists on."""

    def connected(self) -> set[str]:
        """Return the parties that are connected now."""

    def tell(self, peer: str, kind: str, data: bytes) -> str:
        """Send a message that needs no answer."""


class Roll:
    """The server's list of who may come in, and what it says of them."""

    def __init__(self, kit: Kit, say: Callable[[str], None]) -> None:
        self.kit, self.say = kit, say
        self.revocations = Revocations(kit)
        problem = certificate_problem(kit, self.revocations.current)
        if problem:
            raise BadInput(problem)
        notice = expiry_notice(kit)
        if notice:
            say(notice)
        self.seldom = Seldom(say)

    def gate(self) -> Gate:
        """Return the gate that lets in who is on the roll."""
        from isthmus.runtime.flare.gate import Gate

        return Gate(self.refusal, on_refused=self._refused, on_welcome=self._welcome)

    def refusal(self, visitor: Visitor) -> str:
        """Return why somebody with a certificate of this federation may not come in, or nothing."""
        name, revoked = visitor.name, self.revocations.current
        if visitor.serial in revoked.serials:
            how = f"{name} was expelled" if name in revoked.expelled else f"{name} has got another since"
            return f"its certificate was revoked: {how}"
        if name not in (*self.kit.sites, *self.kit.operators):
            return f"{name!r} is not on the server's list; the server needs the kit.json that names it"
        if visitor.valid_until < datetime.now(UTC):
            return f"the certificate of {name} ended on {visitor.valid_until:%Y-%m-%d}"
        return ""

    def greet(self, peer: str, hub: Tells) -> None:
        """Hand the list of revoked certificates to a party that has come in."""
        if self.revocations.current.number and peer in self.kit.sites:
            hub.tell(peer, LIST_KIND, self.revocations.current.content)

    def take(self, kit: Kit, hub: Tells) -> None:
        """Take a kit that was changed, and hand on a newer list of revoked certificates."""
        present = hub.connected() - {*self.kit.operators}  # those who are to be cut off are told as well
        try:
            newer = self.revocations.reread()
        except BadInput as error:
            newer = False
            self.say(f"{error}; the server goes on with the list that it read before")
        if newer:
            revoked = self.revocations.current
            for peer in sorted(present):
                hub.tell(peer, LIST_KIND, revoked.content)
            expelled = ", ".join(sorted(revoked.expelled)) or "nobody"
            self.say(f"list {revoked.number} of revoked certificates; expelled: {expelled}")
        self.kit = kit
        problem = certificate_problem(kit, self.revocations.current)
        if problem:
            self.say(f"{problem}; silos do not trust this server any more")

    def _refused(self, name: str, why: str) -> None:
        self.seldom(f"refused {name}", f"{name} is not let in: {why}")

    def _welcome(self, visitor: Visitor) -> None:
        notice = soon(Passport(visitor.name, visitor.serial, visitor.valid_until, visitor.valid_until))
        if notice:
            self.seldom(f"expiry {visitor.name} {visitor.serial}", notice)
