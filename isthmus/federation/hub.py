"""What the server needs of the network: who is there, and a way to ask them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.protocol import Failure
from isthmus.federation.agreement import Agreement, Freedom, agree, outputs_of
from isthmus.federation.messages import NOT_AGREED, Proposal, Receipt, Terms, Verdict

MAX_TERMS_BYTES = 10**6
MAX_INPUT_DIM = 10**7
MAX_OUTPUT_DIM = 10**6


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
        class_names: tuple[str, ...] = (),
        free: Freedom | None = None,
        problem: Callable[[str, Terms], str] = lambda site, terms: "",
    ) -> None:
        self.class_names, self.free, self.problem = class_names, free or Freedom(), problem
        self.hub, self.proposal, self.version, self.timeout_seconds = hub, proposal, version, timeout_seconds
        self.note = note
        self.agreement: Agreement | None = None
        # When a site agreed, and when it was refused, by its generation: one that comes back is asked anew.
        self._agreed: dict[str, int] = {}
        self._refused: dict[str, tuple[int, str]] = {}

    def agree(self) -> Agreement:
        """Propose the course to everybody who is connected, compare their terms and tell them the verdict.

        A site that does not answer is not refused: it is asked again when it is next needed.
        """
        present = [site for site in self.proposal.sites if site in self.hub.connected()]
        generations = {site: self.hub.generation(site) for site in present}
        terms = self._terms(present)
        if not terms:
            raise CourseFailed("no silo answered the proposal")
        self.agreement = agree(terms, self.version, self.class_names, self.free)
        self._agreed = {site: generations[site] for site in self.agreement.holds}
        self._refused = {site: (generations[site], why) for site, why in self.agreement.refused.items()}
        self._tell({site: self.agreement.refused.get(site, "") for site in terms})
        return self.agreement

    def _terms(self, sites: list[str]) -> dict[str, Terms]:
        """Return the terms of the sites that answered."""
        message = encode(self.proposal)
        found: dict[str, Terms] = {}
        for site, answer in self.hub.ask("propose", dict.fromkeys(sites, message), self.timeout_seconds):
            if isinstance(answer, Failure):
                self.note(site, f"did not answer the proposal: {answer.reason}")
                continue
            try:
                found[site] = checked_terms(decode(answer, Terms, max_bytes=MAX_TERMS_BYTES))
            except BadMessage as error:
                found[site] = Terms(f"it answered nonsense: {error}", "", 0, 0, (), "")
        return {site: found[site] for site in sites if site in found}

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
            why = terms.refusal or self._change(site, terms)
            verdicts[site] = why
            self._refused.pop(site, None)
            if why:
                self._refused[site] = (generations[site], why)
            else:
                self._agreed[site] = generations[site]
                self.note(site, "takes part again")
        self._tell(verdicts)

    def _change(self, site: str, terms: Terms) -> str:
        """Return what keeps a site from taking part again, or from coming late; nothing if its terms are as before."""
        assert self.agreement is not None
        late = site not in self.agreement.holds
        outputs = self.agreement.own.get(site, (self.agreement.output_dim, self.agreement.class_names))
        inputs = self.agreement.inputs.get(site, self.agreement.input_dim)
        own_model = site in self.free.models
        if late and (own_model or (self.free.classes and not self.class_names)):
            outputs = outputs_of(terms)
        if late and (own_model or self.free.features):
            inputs = terms.input_dim
        if (terms.version, terms.input_dim, outputs_of(terms)) != (self.version, inputs, outputs):
            return "it came back with another version, other features or other classes than the course has"
        return self.problem(site, terms) if late else ""

    def _is_settled(self, site: str) -> bool:
        """Whether a site has agreed or was refused since it last connected."""
        generation = self.hub.generation(site)
        return self._agreed.get(site) == generation or self._refused.get(site, (None, ""))[0] == generation

    def send(
        self, messages: Mapping[str, bytes], timeout_seconds: float | None
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Deliver exchanges; a site that is away, or was refused, is a failure at once."""
        present = self.hub.connected()
        back = [site for site in messages if site in present and not self._is_settled(site)]
        if back:
            self._take_back(back)
        reachable = {}
        for site, message in messages.items():
            if site not in present:
                yield site, Failure(site, "lost", "it is not connected")
            elif site in self._refused:
                yield site, Failure(site, "refused", self._refused[site][1])
            elif not self._is_settled(site):
                yield site, Failure(site, "lost", "it came back, but does not answer")
            else:
                reachable[site] = message
        for site, answer in self.hub.ask("exchange", reachable, timeout_seconds or self.timeout_seconds):
            if answer == NOT_AGREED:
                # It was restarted without our seeing it go; it is asked to agree before the next exchange.
                self._agreed.pop(site, None)
                answer = Failure(site, "lost", "it was restarted and has to agree again")
            yield site, answer

    def available(self) -> set[str]:
        """Return the sites that are connected and not refused."""
        return {site for site in self.hub.connected() & set(self.proposal.sites) if site not in self._refused}


def checked_terms(terms: Terms) -> Terms:
    """Refuse terms with impossible numbers, and take control characters out of texts that will be shown."""
    if not 0 <= terms.input_dim <= MAX_INPUT_DIM:
        raise BadMessage(f"it states {float(terms.input_dim):.3g} features")
    if not 0 <= terms.output_dim <= MAX_OUTPUT_DIM:
        raise BadMessage(f"it states {float(terms.output_dim):.3g} outputs")
    return replace(
        terms,
        refusal=_clean(terms.refusal),
        version=_clean(terms.version),
        holds=_clean(terms.holds),
        class_names=tuple(_clean(name) for name in terms.class_names),
    )


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:300])


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
