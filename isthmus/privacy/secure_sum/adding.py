"""The server half of a secure sum: what it asks at each stage, and what it makes of what comes back.

The server sees public keys, sealed shares, masked words and, in the end, shares of the secrets that take the masks off
the sum: never both of one client. Who is missing at a stage is left out from there on, as long as enough are left.
Where what came before counts for all or nothing, the sum is begun anew without who is missing, with other keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from isthmus.core.codec import unpack
from isthmus.core.errors import BadMessage, CourseFailed, TooFewReplies
from isthmus.core.guards.guard import Asking
from isthmus.core.outside import some
from isthmus.core.record import Record
from isthmus.privacy.secure_sum import keys as crypto
from isthmus.privacy.secure_sum import shamir
from isthmus.privacy.secure_sum.fixed_point import arrived
from isthmus.privacy.secure_sum.layout import Layout, Numbers
from isthmus.privacy.secure_sum.masks import (
    Words,
    context_of,
    group_context,
    own_mask,
    pair_mask,
    sign_of,
    terms_context,
)
from isthmus.privacy.secure_sum.rules import HOLDERS, NUMBERS, SumRules
from isthmus.privacy.secure_sum.stages import (
    ConfirmView,
    Keys,
    MakeKeys,
    MaskedWords,
    PublicKeys,
    RevealedShares,
    RevealShares,
    SealedShares,
    SendMasked,
    ShareSecrets,
    Sum,
    others,
)


class BeginAnew(Exception):
    """What came so far is worth nothing without somebody; `clients` are those that can still be in the sum."""

    def __init__(self, clients: Iterable[str]) -> None:
        super().__init__()
        self.clients = tuple(clients)


@dataclass
class Adding:
    """One sum at the server, stage by stage.

    `kind` is the type of the replies that are added up, `fits` says what is wrong with the form of one, and `note`
    takes what people should know.
    """

    rules: SumRules
    sum: Sum
    kind: type[Record]
    fits: Callable[[Record], str] = lambda outline: ""
    note: Callable[[str], None] = lambda text: None
    layouts: dict[str, Layout] = field(default_factory=dict)  # of one form
    layout: Layout | None = None
    cohort: dict[str, Keys] = field(default_factory=dict)
    began: int = 0  # how many were in it at first
    sealed: dict[str, Tensor] = field(default_factory=dict)  # by sender: a row for each other of the cohort
    promises: dict[str, Tensor] = field(default_factory=dict)
    before: dict[int, frozenset[str]] = field(default_factory=dict)  # by which sum: over whom it was, if it was
    dealt: bool = False  # whether the shares were handed out
    out: tuple[str, ...] = ()  # who is to be left out, since shares of theirs are damaged
    alive: tuple[str, ...] = ()  # of whom the last sum is
    total: float = 0.0  # what bounds all weights
    few: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    _terms: dict[int, tuple[float, Tensor]] = field(default_factory=dict)  # what clients were told of a sum

    def added(self, clients: Iterable[str], ask: Asking) -> Record:
        """Return the weighted mean of what clients hold, over those that stay to the end."""
        name, left = self.sum.name, tuple(clients)
        for attempt in range(1, len(left) + 1):
            try:
                return self._attempted(left, ask)
            except BeginAnew as found:
                left = found.clients
                self.sum = replace(self.sum, name=f"{name} {attempt}")
                self.cohort, self.sealed, self.promises, self.dealt = {}, {}, {}, False
        raise TooFewReplies(f"{self.where}: nobody is left")

    def _attempted(self, clients: tuple[str, ...], ask: Asking) -> Record:
        """Return the mean over clients of whom some may be lost, where that does no harm to what came before."""
        self.keyed(ask(dict.fromkeys(clients, self.make_keys()), self.odd_forms))
        self.shared(ask(self.share_secrets()))
        group = tuple(self.sealed)
        if self.rules.counts_holders:
            group, words = self.summed(HOLDERS, group, ask)
            self.weighed(words.wide, len(group))
            self.counted(words.narrow)
        self.alive, words = self.summed(NUMBERS, group, ask)
        return self.mean(words, len(group), len(self.alive))

    @property
    def known_layout(self) -> Layout:
        """The form of what is added up, known since stage 0."""
        assert self.layout is not None
        return self.layout

    # ---- 0

    def make_keys(self) -> MakeKeys:
        """Return what is asked for at stage 0."""
        return MakeKeys(self.sum, len(self.rules.sums))

    def odd_forms(self, replies: Mapping[str, PublicKeys]) -> dict[str, str]:
        """Return whose replies have no form, or another than most, with the reason; keep the form of the others."""
        found: dict[str, Layout] = {}
        odd: dict[str, str] = {}
        for client, reply in replies.items():
            try:
                found[client] = self._layout(reply)
            except BadMessage as error:
                odd[client] = str(error)
        forms = {client: _form(layout) for client, layout in found.items()}
        odd |= _unlike_most(forms, "what it holds has another form than what most hold")
        asked = {client: unpack(replies[client].keys.asked) for client in forms if client not in odd}
        odd |= _unlike_most(asked, "it says that it was asked for something else than most were")
        self.layouts = {client: layout for client, layout in found.items() if client not in odd}
        return odd

    def keyed(self, replies: Mapping[str, PublicKeys]) -> None:
        """Take the public keys of those whose replies have the form that most have."""
        layouts = {client: self.layouts[client] for client in replies}
        for which in (HOLDERS, NUMBERS):
            self.before[which] = over_whom(reply.before[which] for reply in replies.values())
        pinned = self.before[HOLDERS] or self.before[NUMBERS]
        self.cohort = {client: replies[client].keys for client in layouts if not pinned or client in pinned}
        if pinned:
            self._repeat(pinned, sorted(layouts))
        self.began = max(self.began, len(self.cohort))
        self._require(len(self.cohort), max(2, self.rules.min_cohort), "made keys for it")
        self._require(len(self.cohort), self.least, "made keys for it again")
        self.layout = next(iter(layouts.values()))

    def _repeat(self, pinned: frozenset[str], present: list[str]) -> None:
        """Say who is left out where the same replies were added up before, over some; all of these are needed again."""
        away = sorted(pinned - set(present))
        if away:
            raise TooFewReplies(
                f"{self.where}: the same replies were added up before, over clients of whom {some(away)} made no keys "
                "now; another sum of them would show what single ones sent, so the same clients are needed"
            )
        late = [client for client in present if client not in pinned]
        if late:
            self.note(
                f"{some(late)}: left out of the sum, as the same replies were added up without before; a course with "
                "another seed has others"
            )

    def _layout(self, reply: PublicKeys) -> Layout:
        layout = Layout.told(reply.form, self.kind)
        problem = self.fits(layout.shaped())
        if problem:
            raise BadMessage(problem)
        return layout

    # ---- 1

    def share_secrets(self) -> dict[str, ShareSecrets]:
        """Return what is asked for at stage 1."""
        request = ShareSecrets(self.sum, self.cohort, len(self.rules.sums), int(self._weighs_at_once))
        return dict.fromkeys(self.cohort, request)

    @property
    def _weighs_at_once(self) -> bool:
        """Whether weights come with the shares, under masks that come off only if all that made keys dealt shares."""
        return self.known_layout.weighted and not self.rules.counts_holders

    def shared(self, replies: Mapping[str, SealedShares]) -> None:
        """Take the sealed shares to be handed on, and what bounds the weights."""
        for client, reply in replies.items():
            self.sealed[client], self.promises[client] = reply.sealed, reply.promises
        self._require(len(self.sealed), self.least, "dealt shares of their secrets")
        self.total = float(len(self.sealed))
        if self._weighs_at_once:
            lost = sorted(self.cohort.keys() - self.sealed.keys())
            if lost:
                self.note(f"{some(lost)}: lost before the weights were bounded; the sum is begun anew without")
                raise BeginAnew(self.sealed)
            words = Words.zeros(0, 1)
            for reply in replies.values():
                words.join(Words(words.narrow, arrived(reply.weight)))
            self.weighed(words.wide, len(self.cohort))

    @property
    def needed(self) -> int:
        """How many clients must stay to the end, of those who were there at first."""
        return self.rules.needed(self.began)

    @property
    def least(self) -> int:
        """How many clients the sum must be over."""
        return self.rules.least(self.began)

    @property
    def shares_needed(self) -> int:
        """How many shares give a secret."""
        return self.rules.needed(len(self.cohort))

    # ---- 2 and 3

    def summed(self, which: int, group: tuple[str, ...], ask: Asking) -> tuple[tuple[str, ...], Words]:
        """Return who is left, and the sum of what they hold; stages 2 and 3."""
        masked = ask(self.send_masked(which, group), self.misdealt)
        again = self.before.get(which) or group
        alive = tuple(client for client in group if client in masked and client in again)
        self._require(len(alive), self.least, "could open each other's shares" if self.out else "sent what they hold")
        if self.out:
            self.note(f"{some(self.out)}: left out; the sum is begun anew")
            raise BeginAnew(alive)
        tags: dict[str, dict[str, Tensor]] = {}
        telling = alive
        if len(alive) < len(group):
            confirmed = ask(dict.fromkeys(alive, ConfirmView(self.sum, which, alive)))
            tags = {client: reply.tags for client, reply in confirmed.items()}
            telling = tuple(client for client in alive if client in tags)
            self._require(len(telling), self.needed, "confirmed who is left")
        secrets = Uncovering(self, which, group, alive)
        ask(self.reveal_shares(which, group, alive, telling, tags), secrets.wrong_shares)
        self._require(secrets.num_told, self.needed, "told their shares")
        return alive, self.uncovered(which, group, alive, masked, secrets.found())

    def misdealt(self, replies: Mapping[str, MaskedWords]) -> dict[str, str]:
        """Return who cannot be in the sum, if so many shares are damaged that a secret might not be known again.

        Nothing is uncovered yet, so that the same replies can still be added up over others. Who could open the shares
        of less than half of the others is the odd one itself; else it is who dealt them.
        """
        counts = Counter(peer for reply in replies.values() for peer in reply.unopened)
        told = {peer: f"{number} clients could not open the shares that it dealt" for peer, number in counts.items()}
        self.out = ()
        if all(len(replies) - number >= self.shares_needed for number in counts.values()):
            for peer, number in counts.items():
                self.note(f"{number} clients could not open the shares that {peer} dealt to them")
            return {}
        deaf = {client for client, reply in replies.items() if 2 * len(reply.unopened) > len(self.sealed) - 1}
        hearing = [reply for client, reply in replies.items() if client not in deaf]
        counts = Counter(peer for reply in hearing for peer in reply.unopened)
        few = {peer for peer, number in counts.items() if len(hearing) - number < self.shares_needed}
        odd = dict.fromkeys(deaf, "it says that it could not open the shares of most others")
        odd |= {peer: told[peer] for peer in few & replies.keys()}
        self.out = tuple(sorted({*deaf, *few}))
        return odd

    def send_masked(self, which: int, group: tuple[str, ...]) -> dict[str, SendMasked]:
        """Return what is asked for at stage 2; what was sealed goes along the first time."""
        narrow, wide = self._sizes(which)
        bits = 32 if which == HOLDERS else self.rules.bits
        self._terms[which] = (self.total, self.few)
        rest = (self.total, self.few, narrow, wide, bits)
        first, self.dealt = not self.dealt, True
        if not first:
            nothing = torch.empty(0, 0, dtype=torch.uint8)
            return dict.fromkeys(group, SendMasked(self.sum, which, group, nothing, *rest))
        return {client: SendMasked(self.sum, which, group, rows, *rest) for client, rows in self._handed(group)}

    def _handed(self, group: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
        """Yield for each client of a group what the others of it dealt to it, in the order of their names."""
        places = {client: place for place, client in enumerate(sorted(self.cohort))}
        every = torch.arange(len(places))
        dealt = torch.zeros(len(places), len(places), next(iter(self.sealed.values())).shape[1], dtype=torch.uint8)
        for client in group:
            dealt[places[client], every != places[client]] = self.sealed[client]
        for client in group:
            yield client, dealt[[places[peer] for peer in others(group, client)], places[client]]

    def _sizes(self, which: int) -> tuple[int, int]:
        """Return how many words of each kind there are."""
        layout = self.known_layout
        if which == NUMBERS:
            return layout.size(True), layout.size(False) + 1
        return layout.size(True), 1

    def reveal_shares(
        self,
        which: int,
        group: tuple[str, ...],
        alive: tuple[str, ...],
        telling: tuple[str, ...],
        tags: Mapping[str, Mapping[str, Tensor]],
    ) -> dict[str, RevealShares]:
        """Return what is asked for at stage 3."""
        found = {}
        for client in telling:
            for_it = {peer: theirs[client] for peer, theirs in tags.items() if client in theirs}
            found[client] = RevealShares(self.sum, which, group, alive, for_it)
        return found

    def uncovered(
        self,
        which: int,
        group: tuple[str, ...],
        alive: tuple[str, ...],
        masked: Mapping[str, MaskedWords],
        secrets: Mapping[str, bytes],
    ) -> Words:
        """Return the sum of masked words without their masks."""
        bound = group_context(context_of(self.sum, self.cohort), which, group)
        bound = terms_context(bound, *self._terms[which])
        narrow, wide = self._sizes(which)
        words = Words.zeros(narrow, wide, 32 if which == HOLDERS else self.rules.bits)
        for client in alive:
            words.join(Words(arrived(masked[client].narrow), arrived(masked[client].wide)))
        for client in group:
            if client in alive:
                words.add(own_mask(secrets[client], bound), -1)
                continue
            for peer in alive:
                key = pair_mask(secrets[client], self.mask_key(peer, which), bound)
                words.add(key, -sign_of(peer, client))
        return words

    def mask_key(self, client: str, which: int) -> bytes:
        """Return a client's public key for the masks of a sum."""
        return unpack(self.cohort[client].public[1 + self.rules.sums.index(which)])

    # ---- what the sums say

    def weighed(self, words: np.ndarray, num_group: int) -> None:
        """Take the sum of what bounds the weights."""
        weights = self.rules.weights(num_group)
        self.total = float(weights.numbers(words)[0]) if self.known_layout.weighted else float(num_group)
        if not 0.0 <= self.total <= weights.bound:
            raise CourseFailed(
                f"{self.where}: the weights of {num_group} clients add up to {self.total:g}, which is beyond "
                f"{weights.bound:g}: one of them sent what is no weight, and nobody can tell which"
            )
        if self.total == 0.0:
            raise CourseFailed(
                f"every {self.kind.__name__} has weight 0: no client in the cohort has training examples, or what else "
                "algorithm.weighting counts"
            )

    def counted(self, words: np.ndarray) -> None:
        """Take how many clients hold something at each place."""
        self.few = torch.from_numpy(words < self.rules.min_holders)
        number = int((torch.from_numpy(words.astype(np.int64)) > 0).logical_and(self.few).sum())
        if number:
            self.note(f"{number} of {len(self.few)} numbers stay as they were: too few clients hold something there")

    def mean(self, words: Words, num_group: int, num_alive: int) -> Record:
        """Return the mean of the numbers over those that stayed."""
        narrow = self.rules.narrow(num_group).numbers(words.narrow)
        wide = self.rules.wide(num_group).numbers(words.wide[:-1])
        weight = float(self.rules.weights(num_group).numbers(words.wide[-1:])[0])
        if not 0.0 <= weight <= self.total:
            raise CourseFailed(
                f"{self.where}: the weights of {num_alive} clients add up to {weight:g}, and what they said before is "
                f"that it is no more than {self.total:g}: one of them lies, and nobody can tell which"
            )
        if weight == 0.0:
            raise CourseFailed(f"{self.where}: those of positive weight were lost, nothing is left to average")
        return self.known_layout.record(Numbers(narrow * (self.total / weight), wide * (self.total / weight)), weight)

    @property
    def where(self) -> str:
        """Where in the course this is, in words."""
        return f"round {self.sum.round}, the secure sum of {self.kind.__name__}"

    def _require(self, number: int, least: int, did: str) -> None:
        if number < least:
            raise TooFewReplies(f"{self.where}: {number} clients {did}, {least} are needed")


@dataclass
class Uncovering:
    """The secrets that take the masks off one sum, as they become known from shares."""

    adding: Adding
    which: int
    group: tuple[str, ...]
    alive: tuple[str, ...]
    num_told: int = 0
    secrets: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""

    def wrong_shares(self, replies: Mapping[str, RevealedShares]) -> dict[str, str]:
        """Return who told wrong shares, and of whose secrets; the right ones of the others were enough."""
        self.num_told = len(replies)
        names = sorted(self.adding.cohort)
        given = self._given(replies, {client: place for place, client in enumerate(names, 1)})
        liars: dict[str, list[str]] = {}
        for client in self.group if self.num_told >= self.adding.needed else ():
            try:
                self.secrets[client], wrong = shamir.recovered(
                    given.get(client, {}), self.adding.shares_needed, self._proved(client)
                )
            except shamir.BadShares as error:
                self.problem = f"the masks of {client} cannot be taken off the sum: {error}"
                return {}
            for place in wrong:
                liars.setdefault(names[place - 1], []).append(client)
        return {liar: f"it told wrong shares of secrets of {some(clients)}" for liar, clients in liars.items()}

    def _given(self, replies: Mapping[str, RevealedShares], places: Mapping[str, int]) -> dict[str, dict[int, bytes]]:
        """Return by client the shares of its secret, by the place of who told them."""
        found: dict[str, dict[int, bytes]] = {}
        for client, reply in replies.items():
            for peer, share in zip(reply.of, reply.shares, strict=True):
                found.setdefault(peer, {})[places[client]] = unpack(share)
        return found

    def _proved(self, client: str) -> Callable[[bytes], bool]:
        """Return what tells a client's secret: its promise, or, where it is lost, its public key."""
        adding = self.adding
        if client not in self.alive:
            public = adding.mask_key(client, self.which)
            return lambda secret: crypto.public_of(secret) == public
        promise = unpack(adding.promises[client][adding.rules.sums.index(self.which)])
        context = context_of(adding.sum, adding.cohort)
        return lambda secret: shamir.commitment(secret, context) == promise

    def found(self) -> dict[str, bytes]:
        """Return the secrets by client; raises CourseFailed where one cannot be known."""
        if self.problem:
            raise CourseFailed(
                f"{self.adding.where}: {self.problem}. Either it dealt wrong shares, or others told wrong ones: leave "
                "it out of the course if this happens again"
            )
        return self.secrets


def over_whom(said: Iterable[tuple[str, ...]]) -> frozenset[str]:
    """Return over whom the same replies were added up before, as most of these clients say; nobody if they do not."""
    votes = Counter(frozenset(clients) for clients in said if clients)
    for clients, number in votes.most_common(1):
        if 2 * number > len(clients):
            return clients
    return frozenset()


def _unlike_most(found: Mapping[str, Hashable], why: str) -> dict[str, str]:
    """Return who says something else than most, with a reason."""
    for common, _ in Counter(found.values()).most_common(1):
        return {client: why for client, value in found.items() if value != common}
    return {}


def _form(layout: Layout) -> tuple[bytes, tuple[tuple[int, ...], ...]]:
    return unpack(layout.to_tell().reply), layout.shapes
