"""What the server needs of the network: who is there, and a way to ask them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadMessage
from isthmus.core.protocol import Failure
from isthmus.federation.agreement import Agreement, agree
from isthmus.federation.messages import Proposal, Receipt, Terms, Verdict


class Hub(Protocol):
    """The server's end of the links to all sites."""

    def connected(self) -> set[str]:
        """Return the parties that are connected now."""

    def generation(self, site: str) -> int:
        """Return how often a site has connected: a higher number means that it came back, perhaps restarted."""

    def ask(
        self, kind: str, messages: Mapping[str, bytes], timeout_seconds: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send each party its message; yield each one's answer, or why there is none, once, as they come."""


class SiteTransport:
    """Brings exchanges to the sites that agreed to the course; one that comes back is asked to agree again."""

    def __init__(
        self,
        hub: Hub,
        proposal: Proposal,
        version: str,
        timeout_seconds: float,
        note: Callable[[str, str], None] = lambda site, text: None,
    ) -> None:
        self.hub, self.proposal, self.version, self.timeout_seconds = hub, proposal, version, timeout_seconds
        self.note = note
        self.agreement: Agreement | None = None
        self._agreed: dict[str, int] = {}  # site -> its generation when it agreed

    def agree(self) -> Agreement:
        """Propose the course to everybody who is connected, compare their terms and tell them the verdict."""
        present = [site for site in self.proposal.sites if site in self.hub.connected()]
        generations = {site: self.hub.generation(site) for site in present}
        self.agreement = agree(self._terms(present), self.version)
        self._agreed = {site: generations[site] for site in self.agreement.holds}
        self._tell({site: self.agreement.refused.get(site, "") for site in present})
        return self.agreement

    def _terms(self, sites: list[str]) -> dict[str, Terms]:
        message = encode(self.proposal)
        found: dict[str, Terms] = {}
        for site, answer in self.hub.ask("propose", dict.fromkeys(sites, message), self.timeout_seconds):
            found[site] = self._opened(answer)
        return {site: found[site] for site in sites}

    def _opened(self, answer: bytes | Failure) -> Terms:
        if isinstance(answer, Failure):
            return Terms(f"it did not answer: {answer.reason}", "", 0, (), "")
        try:
            terms: Terms = decode(answer, Terms)
            return terms
        except BadMessage as error:
            return Terms(f"it answered nonsense: {error}", "", 0, (), "")

    def _tell(self, verdicts: Mapping[str, str]) -> None:
        messages = {site: encode(Verdict(self.proposal.course_id, why)) for site, why in verdicts.items()}
        for site, why in verdicts.items():
            if why:
                self.note(site, f"is refused: {why}")
        for _ in self.hub.ask("verdict", messages, self.timeout_seconds):
            pass

    def _take_back(self, sites: list[str]) -> None:
        """Let sites that connected anew agree again; their terms must be those of the course."""
        assert self.agreement is not None
        generations = {site: self.hub.generation(site) for site in sites}
        verdicts = {}
        for site, terms in self._terms(sites).items():
            why = terms.refusal
            if not why and (terms.version, terms.input_dim, terms.class_names) != (
                self.version,
                self.agreement.input_dim,
                self.agreement.class_names,
            ):
                why = "it came back with another version, other features or other classes than the course has"
            verdicts[site] = why
            if why:
                self.agreement.refused[site] = why
            else:
                self.agreement.refused.pop(site, None)
                self._agreed[site] = generations[site]
                self.note(site, "takes part again")
        self._tell(verdicts)

    def send(
        self, messages: Mapping[str, bytes], timeout_seconds: float | None
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Deliver exchanges; a site that is away, or was refused, is a failure at once."""
        assert self.agreement is not None
        present = self.hub.connected()
        back = [
            site
            for site in messages
            if site in present
            and self._agreed.get(site) != self.hub.generation(site)
            and site not in self.agreement.refused
        ]
        if back:
            self._take_back(back)
        reachable = {}
        for site, message in messages.items():
            if site in self.agreement.refused:
                yield site, Failure(site, "refused", self.agreement.refused[site])
            elif site not in present:
                yield site, Failure(site, "lost", "it is not connected")
            else:
                reachable[site] = message
        yield from self.hub.ask("exchange", reachable, timeout_seconds or self.timeout_seconds)


def receipts(answers: Iterator[tuple[str, bytes | Failure]]) -> dict[str, str]:
    """Return what went wrong at each party; empty texts where nothing did."""
    problems: dict[str, str] = {}
    for site, answer in answers:
        if isinstance(answer, Failure):
            problems[site] = answer.reason
            continue
        try:
            receipt: Receipt = decode(answer, Receipt)
            problems[site] = receipt.problem
        except BadMessage as error:
            problems[site] = str(error)
    return problems
