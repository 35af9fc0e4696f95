"""What the server needs of the network: who is there, and a way to ask them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.outside import MAX_NAME, foreign
from isthmus.core.protocol import Failure, Holdings
from isthmus.data.conventions import SPLITS
from isthmus.sites.courses.agreement import OTHER_COLUMNS, Agreement, Outputs, SiteModels, agree, outputs_of
from isthmus.sites.courses.messages import NOT_AGREED, AskColumns, Columns, Proposal, Receipt, Terms, Verdict
from isthmus.sites.silo.consent import Consent

LATE_BEFORE_LOST = 2
PING_SECONDS = 5.0
MAX_TERMS_BYTES = 10**6
MAX_COLUMNS_BYTES = 2 * 10**6
MAX_CLASS_NAME = 300
MAX_INPUT_DIM = 10**7
MAX_OUTPUT_DIM = 10**6
MAX_HELD = 10**10
CHANGED = "holds other data than in this course before"
NOT_THE_SAME = "its scores before and after are of other examples"


class Hub(Protocol):
    """The server's end of the links to all sites."""

    check: Callable[[], None]  # called while answers are waited for; it may raise to end the wait

    def connected(self) -> set[str]:
        """Return the parties that are connected now."""

    def generation(self, site: str) -> int:
        """Return how often a site has connected: a higher number means that it came back, perhaps restarted."""

    def heard(self, site: str) -> int:
        """Return how many messages have come from a site, in time or not."""

    def ping(self, site: str) -> None:
        """Ask a site for a sign of life, without waiting for it."""

    def ask(
        self, kind: str, messages: Mapping[str, bytes], timeout_seconds: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send each party its message; yield each one's answer, or why there is none, once, as they come."""


class Silence:
    """Which sites are connected and do not answer: late twice in a row, and nothing heard of them since."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._num_late: dict[str, int] = {}
        self._silent: dict[str, tuple[int, int]] = {}  # site -> what had been heard of it, and its generation, then
        self._pinged: dict[str, float] = {}

    def judge(self, site: str, answer: bytes | Failure) -> None:
        """Take note of what a site answered, or that it did not."""
        if not isinstance(answer, Failure) or answer.kind != "late":
            self._num_late.pop(site, None)
            return
        self._num_late[site] = self._num_late.get(site, 0) + 1
        if self._num_late[site] >= LATE_BEFORE_LOST:
            self._silent[site] = (self.hub.heard(site), self.hub.generation(site))

    def has(self, site: str) -> bool:
        """Whether a site is silent; asks it for a sign of life now and then, and hears of late answers too."""
        if site not in self._silent:
            return False
        if self._silent[site] != (self.hub.heard(site), self.hub.generation(site)):
            for notes in (self._silent, self._num_late, self._pinged):
                notes.pop(site, None)
            return False
        if time.monotonic() - self._pinged.get(site, -PING_SECONDS) >= PING_SECONDS:
            self._pinged[site] = time.monotonic()
            self.hub.ping(site)
        return True


@dataclass(eq=False)
class SiteTransport:
    """Brings exchanges to the sites that agreed to the course; one that comes back is asked to agree again."""

    hub: Hub
    proposal: Proposal
    timeout_seconds: float
    models: SiteModels
    note: Callable[[str, str], None]

    def __post_init__(self) -> None:
        self.free = self.models.freedom()
        self.agreement: Agreement  # once they have agreed
        self._silence = Silence(self.hub)
        self.holdings: dict[str, Holdings] = {}  # of the sites that agreed, as they said first
        # When a site agreed, and when it was refused, by its generation: one that comes back is asked anew.
        self._agreed: dict[str, int] = {}
        self._consents: dict[str, Consent] = {}
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
        self.agreement = agree(terms, self.proposal.version, self.models.stated, self.free)
        self._agreed = {site: generations[site] for site in self.agreement.holds}
        self.holdings = {site: terms[site].holdings for site in self.agreement.holds}
        self._refused = {site: (generations[site], why) for site, why in self.agreement.refused.items()}
        for site, text in self.agreement.notes.items():
            self.note(site, text)
        for site in self.agreement.holds:
            if terms[site].changed:  # the server goes on with a course, so it has nothing to compare sizes with
                self.note(site, f"{CHANGED}; {NOT_THE_SAME}")
        self._tell({site: self.agreement.refused.get(site, "") for site in terms})
        return self.agreement

    def _terms(self, sites: list[str]) -> dict[str, Terms]:
        """Return the terms of the sites that answered."""
        message = encode(self.proposal)
        found: dict[str, Terms] = {}
        for site, answer in self.hub.ask("propose", dict.fromkeys(sites, message), self.timeout_seconds):
            self._silence.judge(site, answer)
            if isinstance(answer, Failure):
                self.note(site, f"did not answer the proposal: {foreign(answer.reason)}")
                continue
            try:
                found[site] = checked_terms(decode(answer, Terms, max_bytes=MAX_TERMS_BYTES))
                consent = found[site].consent
                if consent is not None:
                    self._consents[site] = consent
            except BadMessage as error:
                found[site] = Terms(f"it answered nonsense: {error}", "", 0, 0, (), "")
        return {site: found[site] for site in sites if site in found}

    def _tell(self, verdicts: Mapping[str, str]) -> None:
        """Tell every site whether it takes part; one with other feature columns gets those that are wanted."""
        columns = self._columns() if OTHER_COLUMNS in verdicts.values() else ()
        consents = {site: consent for site, consent in self._consents.items() if site in self._agreed}
        course_id, messages = self.proposal.course_id, {}
        for site, why in verdicts.items():
            wanted = columns if why == OTHER_COLUMNS else ()
            messages[site] = encode(Verdict(course_id, why, wanted, {} if why else consents))
            if why:
                self.note(site, f"is refused: {why}")
        for site, problem in problems_of(self.hub.ask("verdict", messages, self.timeout_seconds)):
            self.note(site, f"leaves again: {problem}")

    def _columns(self) -> tuple[str, ...]:
        """Return what the feature columns of a site that takes part are called; nothing if it does not say."""
        message = encode(AskColumns(self.proposal.course_id))
        for site in sorted(self._agreed):
            for _, answer in self.hub.ask("columns", {site: message}, self.timeout_seconds):
                with suppress(BadMessage):
                    content = b"" if isinstance(answer, Failure) else answer
                    found: Columns = decode(content, Columns, max_bytes=MAX_COLUMNS_BYTES)
                    if found.names:
                        return tuple(foreign(name, MAX_CLASS_NAME) for name in found.names)
        return ()

    def _take_back(self, sites: list[str]) -> None:
        """Let sites that connected anew agree again; their terms must be those of the course."""
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
                self.holdings.setdefault(site, terms.holdings)
                self.note(site, f"takes part again{_other_data(self.agreement.holds.get(site), terms)}")
        self._tell(verdicts)

    def _change(self, site: str, terms: Terms) -> str:
        """Return what keeps a site from taking part again, or from coming late; nothing if its terms are as before."""
        same_columns = terms.features == self.agreement.features or self._free_columns(site, terms)
        wanted = self.proposal.version, *self._wanted(site, terms)
        if (terms.version, terms.input_dim, outputs_of(terms)) != wanted or not same_columns:
            return "it came back with another version, other features or other classes than the course has"
        held = self.holdings.get(site)
        if held is not None and _exceeds(terms.holdings, held):
            return "it came back with more data than it agreed to hold; the course has to be started anew with it"
        return self.models.problem(site, terms) if site not in self.agreement.holds else ""

    def unlike(self, name: str, terms: Terms) -> str:
        """Return what keeps somebody's data from being those of a silo of this course; empty if nothing does."""
        return self._change(name, terms).replace("it came back with", "it has")

    def _wanted(self, site: str, terms: Terms) -> tuple[int, Outputs]:
        """Return the inputs and outputs that a site must have; those it has, where it comes late and is free to."""
        classes = self.agreement.class_names if terms.class_names or not self.free.by_position else ()
        inputs, outputs = self.agreement.input_dim, (self.agreement.output_dim, classes)
        own_model = site in self.free.models
        if own_model or (self.free.classes and not self.models.stated):
            outputs = outputs_of(terms)
        if own_model or self.free.features:
            inputs = terms.input_dim
        return self.agreement.inputs.get(site, inputs), self.agreement.own.get(site, outputs)

    def _free_columns(self, site: str, terms: Terms) -> bool:
        """Whether a site may have feature columns of other names than the course has."""
        nameless = not terms.features or not self.agreement.features
        return self.free.features or site in self.free.models or (self.free.by_position and nameless)

    def _is_settled(self, site: str) -> bool:
        """Whether a site has agreed or was refused since it last connected."""
        return self._agreed.get(site) == self.hub.generation(site) or self._is_refused(site)

    def send(
        self, messages: Mapping[str, bytes], timeout_seconds: float | None
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Deliver exchanges; a site that is away, or was refused, is a failure at once."""
        failures = self._failures(messages)
        yield from failures.items()
        reachable = {site: message for site, message in messages.items() if site not in failures}
        for site, answer in self.hub.ask("exchange", reachable, timeout_seconds or self.timeout_seconds):
            self._silence.judge(site, answer)
            if answer == NOT_AGREED:
                # It was restarted without our seeing it go; it is asked to agree before the next exchange.
                self._agreed.pop(site, None)
                answer = Failure(site, "lost", "it was restarted and has to agree again")
            yield site, answer

    def settle(self, sites: Collection[str]) -> None:
        """Let those agree again who came back."""
        self._failures(sites)

    def _failures(self, sites: Collection[str]) -> dict[str, Failure]:
        """Return why sites cannot be asked, of those that cannot; who came back is let agree again first."""
        connected = self.hub.connected()
        present = [site for site in sites if site in connected]
        silent = set(filter(self._silence.has, present))
        back = [site for site in present if site not in silent and not self._is_settled(site)]
        if back:
            self._take_back(back)
        found = {site: self._failure(site, site in connected, site in silent) for site in sites}
        return {site: failure for site, failure in found.items() if failure is not None}

    def _failure(self, site: str, connected: bool, silent: bool) -> Failure | None:
        if not connected:
            return Failure(site, "lost", "it is not connected")
        if silent:
            return Failure(site, "lost", f"it was late {LATE_BEFORE_LOST} times in a row and is silent since")
        if site in self._refused:
            return Failure(site, "refused", self._refused[site][1])
        return None if self._is_settled(site) else Failure(site, "lost", "it came back, but does not answer")

    def available(self) -> set[str]:
        """Return the sites that can be asked: connected, not silent, and not refused since they last connected."""
        present = self.hub.connected() & set(self.proposal.sites)
        return {site for site in present if not self._is_refused(site) and not self._silence.has(site)}

    def _is_refused(self, site: str) -> bool:
        return self._refused.get(site, (None, ""))[0] == self.hub.generation(site)


def checked_terms(terms: Terms) -> Terms:
    """Refuse terms with impossible numbers, and take control characters out of texts that will be shown."""
    if not 0 <= terms.input_dim <= MAX_INPUT_DIM:
        raise BadMessage(f"it states {float(terms.input_dim):.3g} features")
    if not 0 <= terms.output_dim <= MAX_OUTPUT_DIM:
        raise BadMessage(f"it states {float(terms.output_dim):.3g} outputs")
    if len(terms.class_names) > MAX_OUTPUT_DIM:
        raise BadMessage(f"it names {len(terms.class_names)} classes")
    for split in terms.holdings.examples:
        if split not in SPLITS:
            raise BadMessage(f"it states examples of {foreign(split, MAX_NAME)!r}; known: {', '.join(SPLITS)}")
    for what, number in (("nodes", terms.holdings.nodes), *terms.holdings.examples.items()):
        if not 0 <= number <= MAX_HELD:
            raise BadMessage(f"it states {float(number):.3g} {what}")
    return replace(
        terms,
        refusal=foreign(terms.refusal),
        version=foreign(terms.version, MAX_NAME),
        features=foreign(terms.features, MAX_NAME),
        schema=foreign(terms.schema, MAX_NAME),
        holds=foreign(terms.holds, MAX_CLASS_NAME),
        class_names=tuple(foreign(name, MAX_CLASS_NAME) for name in terms.class_names),
    )


def _exceeds(now: Holdings, before: Holdings) -> bool:
    more = [count > before.examples.get(split, 0) for split, count in now.examples.items()]
    return now.nodes > before.nodes or any(more)


def _other_data(before: str | None, terms: Terms) -> str:
    """Return what to add where a site came back with other data than it had, by their sizes or as it says itself."""
    if before not in (None, terms.holds):
        return f", and holds other data: {terms.holds}, before {before}; {NOT_THE_SAME}"
    return f", and {CHANGED}; {NOT_THE_SAME}" if terms.changed else ""


def problems_of(answers: Iterator[tuple[str, bytes | Failure]]) -> Iterator[tuple[str, str]]:
    """Yield each party whose answer is no receipt that all went well, with what went wrong."""
    for site, answer in answers:
        try:
            problem = answer.reason if isinstance(answer, Failure) else decode(answer, Receipt).problem
        except BadMessage as error:
            problem = str(error)
        if problem:
            yield site, foreign(problem)
