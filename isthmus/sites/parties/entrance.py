"""A party's way in: it trusts no server whose certificate was revoked, and takes a refusal as the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.core.errors import BadInput
from isthmus.runtime.seldom import Seldom
from isthmus.sites.parties.certificates import read_passport
from isthmus.sites.parties.kit import Kit
from isthmus.sites.parties.preflight import NOBODY, certificate_problem, probe_server
from isthmus.sites.parties.revocation import Revocations

if TYPE_CHECKING:
    from isthmus.runtime.flare.link import Door

LIST_KIND = "revoked"  # the message in which the server hands on the list of revoked certificates
TWICE_SECONDS = 30.0  # above the time after which the server takes a silent connection as lost


class Entrance:
    """Keeps the list of revoked certificates of one party while it runs, and why it must end, if it must."""

    def __init__(self, kit: Kit, say: Callable[[str], None]) -> None:
        self.kit, self.say = kit, say
        self.revocations = Revocations(kit)
        self.problem = ""
        self._seldom = Seldom(say)
        self._server: int | None = None
        self._twice_since: float | None = None

    def door(self) -> Door:
        """Return the way that a link goes."""
        from isthmus.runtime.flare.link import Credentials, Door

        kit = self.kit
        return Door(Credentials(kit.root, kit.certificate, kit.key), self._trusted, self._unwelcome)

    def check(self) -> None:
        """Raise if it is over."""
        if self.problem:
            raise BadInput(self.problem)

    def expelled(self) -> frozenset[str]:
        """Return whose names count no more."""
        return self.revocations.current.expelled

    def came_in(self) -> None:
        """Forget that the server had said no."""
        self._twice_since = None

    def heard_list(self, content: bytes) -> None:
        """Take a list of revoked certificates that the server handed on, if it is the root's and newer."""
        try:
            newer = self.revocations.offer(content)
        except BadInput as error:
            self._seldom("list", f"the server's list of revoked certificates is not taken: {error}")
            return
        if newer:
            self.take_list()

    def look_again(self) -> None:
        """Take a list that was put into the kit by hand."""
        try:
            if self.revocations.reread():
                self.take_list()
        except BadInput as error:
            self.say(f"{error}; the one from before still counts")

    def take_list(self) -> None:
        """Do what the list says: somebody's name counts no more, the server's certificate, or one's own."""
        revoked = self.revocations.current
        expelled = ", ".join(sorted(revoked.expelled)) or "nobody"
        self.say(f"list {revoked.number} of revoked certificates; expelled: {expelled}")
        self.problem = self.problem or certificate_problem(self.kit, revoked)
        if self._server in revoked.serials and not self.problem:
            self.problem = "the server's certificate was revoked; it needs its renewed kit"

    def _trusted(self) -> bytes | None:
        """Look at the server before every connection; nothing but the very certificate that it shows is trusted."""
        found = probe_server(self.kit, self.revocations.current)
        if found.problem:
            if not found.problem.startswith(NOBODY):
                self._seldom(found.problem, found.problem)
            return None
        self._server = read_passport(found.certificate).serial
        return found.certificate

    def _unwelcome(self, for_good: bool, why: str) -> None:
        why = "".join(c if c.isprintable() else "?" for c in why[:300])
        if for_good:
            self.problem = f"the server does not let {self.kit.party} in: {why}"
            return
        now = time.monotonic()
        if self._twice_since is None:
            self._twice_since = now
            self.say(f"{why}; trying for {TWICE_SECONDS:.0f} s, in case that one is already gone")
        elif now - self._twice_since > TWICE_SECONDS:
            self.problem = f"{why}: the kit {self.kit.path} is in use elsewhere; a kit is for one process at a time"
