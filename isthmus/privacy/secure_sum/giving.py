"""The client half of a secure sum: what a client keeps between two messages, and what it answers.

Every function takes what the client remembers and a message, and returns what it remembers then and its answer; it
draws nothing but the 32 bytes that all secrets of the sum are made of. So the same message, answered from the same
memory, gets the same answer, and `Settled` sees to it that no other message does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus.core.codec import pack, unpack
from isthmus.core.errors import BadMessage
from isthmus.core.guards.guard import Book, Signer
from isthmus.core.outside import named
from isthmus.core.random import digest as digest_of
from isthmus.core.record import Record, State
from isthmus.privacy.secure_sum import keys as crypto
from isthmus.privacy.secure_sum import shamir
from isthmus.privacy.secure_sum.fixed_point import crossing
from isthmus.privacy.secure_sum.holding import bound_words, hold, holder_words, number_words
from isthmus.privacy.secure_sum.layout import Outline
from isthmus.privacy.secure_sum.masks import (
    Words,
    context_of,
    group_context,
    own_mask,
    pair_mask,
    sign_of,
    terms_context,
    weight_mask,
)
from isthmus.privacy.secure_sum.rules import HOLDERS, MAX_CLIENTS, NUMBERS, SumRules
from isthmus.privacy.secure_sum.stages import (
    MAX_SUMS,
    SHARES_BYTES,
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
    ViewTags,
    keys_problem,
    others,
)


@dataclass(frozen=True)
class Giver:
    """A client of a sum: its name, what both halves go by, the course it knows of, its book and its hand, if any.

    Without a book nothing keeps the server from asking twice: that is for simulations, where there is no secret.
    """

    name: str
    rules: SumRules
    course: str = ""
    settled: Book | None = None
    signer: Signer | None = None

    # ---- what is held

    def held(
        self, reply: Record, request: Record, at: tuple[int, int], asked: bytes = bytes(crypto.KEY_BYTES)
    ) -> tuple[State, Record]:
        """Hold a reply back; return what is remembered, and the empty reply that leaves in its place.

        `asked` tells what it is the reply to; all whose replies are added up must have been asked for the same.
        """
        memory, outline = hold(reply, request, self.rules)
        return {"held": {**memory, "at": at, "course": self.course, "asked": pack(asked)}}, outline

    # ---- 0

    def make_keys(self, memory: State, request: MakeKeys, root: bytes) -> tuple[State, PublicKeys]:
        """Make the keys of a sum out of 32 bytes that nobody else has."""
        if "held" not in memory:
            raise BadMessage("there is nothing to add up: this client was not asked for it")
        held, wanted = memory["held"], request.sum
        if wanted.course != self.course or held["course"] != self.course:
            raise BadMessage(f"the sum is of the course {named(wanted.course)}, this client takes part in another")
        if held["at"] != (wanted.round, wanted.exchange):
            raise BadMessage(f"what is held is of round and exchange {held['at']}, and not of what is asked for")
        public = _Secrets(root, self.rules.sums).public()
        keys = Keys(public, held["asked"], "")
        if self.signer is not None:
            keys = replace(keys, signature=self.signer.sign(signed_text(self.name, wanted, keys)))
        mine = {"name": wanted.name, "course": wanted.course, "round": wanted.round, "exchange": wanted.exchange}
        outline, shapes = held["form"]
        found = {"held": held, "sum": mine, "root": pack(root), "public": public, "name": unpack(public[0]).hex()}
        before: tuple[tuple[str, ...], ...] = ((),) * MAX_SUMS
        if self.settled is not None:
            self.settled.open(found["name"])
            found["reply"] = digest_of({name: held[name] for name in ("at", "narrow", "wide", "weight")}).hex()
            before = tuple(self.settled.added(f"{which} {found['reply']}") for which in (HOLDERS, NUMBERS))
        return found, PublicKeys(keys, Outline(outline, shapes), before)

    # ---- 1

    def share_secrets(self, memory: State, request: ShareSecrets) -> tuple[State, SealedShares]:
        """Deal shares of all secrets to the cohort; tell what bounds the weight under masks that come off the sum."""
        secrets = self._secrets(memory, request.sum)
        self._check_cohort(request, memory["public"], memory["held"]["asked"])
        context = context_of(request.sum, request.cohort)
        self._settle(memory, "cohort", context)
        names = sorted(request.cohort)
        keys = torch.stack([request.cohort[peer].public for peer in names])
        channels = torch.stack([self._channel(peer, request.cohort[peer], secrets, context) for peer in names])
        begun = {**memory, "cohort": tuple(names), "keys": keys, "channels": channels, "context": pack(context)}
        sum = _Begun(self.name, secrets, begun)
        dealt = self._dealt(secrets, context, names)
        sealed = [
            pack(crypto.seal(sum.channel_key(b"shares", self.name, peer), dealt[peer], context))
            for peer in others(names, self.name)
        ]
        promises = [shamir.commitment(secrets.seed(which), context) for which in self.rules.sums]
        weight = self._masked_bound(memory["held"], sum)
        return {**begun, "mine": pack(dealt[self.name])}, SealedShares(
            torch.stack(sealed), _rows(promises), crossing(weight.wide)
        )

    def _check_cohort(self, request: ShareSecrets, mine: Tensor, asked: Tensor) -> None:
        cohort = request.cohort
        if len(cohort) < self.rules.min_cohort or len(cohort) > MAX_CLIENTS:
            raise BadMessage(
                f"the sum is to be over {len(cohort)} clients; from {self.rules.min_cohort} to {MAX_CLIENTS} are needed"
            )
        if self.name not in cohort or not torch.equal(cohort[self.name].public, mine):
            raise BadMessage("the keys that are said to be this client's are not: the sum has to begin anew")
        seen: set[bytes] = set()
        for peer, keys in cohort.items():
            wrong = keys_problem(keys, len(self.rules.sums)) or self._unsigned(peer, keys, request.sum)
            if not wrong and not torch.equal(keys.asked, asked):
                wrong = "it was asked something else"
            if wrong:
                raise BadMessage(f"the keys of {named(peer)}: {wrong}")
            seen.update(unpack(raw) for raw in keys.public)
        if len(seen) != len(cohort) * len(mine):
            raise BadMessage("the same public key occurs twice: two of the clients are one")

    def _channel(self, peer: str, keys: Keys, secrets: _Secrets, context: bytes) -> Tensor:
        """Return what this client has in common with another; with itself it has nothing to hide."""
        if peer == self.name:
            return torch.zeros(crypto.KEY_BYTES, dtype=torch.uint8)
        return secrets.channel(keys.public[0], context)

    def _unsigned(self, peer: str, keys: Keys, wanted: Sum) -> str:
        if self.signer is None or peer == self.name:
            return ""
        return self.signer.problem(peer, signed_text(peer, wanted, keys), keys.signature)

    def _dealt(self, secrets: _Secrets, context: bytes, cohort: list[str]) -> dict[str, bytes]:
        """Return for each client of the cohort its shares of this client's secrets."""
        needed, found = self.rules.needed(len(cohort)), dict.fromkeys(cohort, b"")
        for place, secret in enumerate(secrets.all()):
            coins = crypto.stream(secrets.derived(b"coins", context, bytes([place])), shamir.coin_bytes(needed))
            shares = shamir.split(secret, needed, len(cohort), coins)
            for peer, share in zip(cohort, shares, strict=True):
                found[peer] += share
        return found

    def _masked_bound(self, held: State, sum: _Begun) -> Words:
        """Return what bounds the weight under a mask for each pair; no word where that is not asked for yet."""
        if not held["weighted"] or self.rules.counts_holders:
            return Words.zeros(0, 0)
        words = bound_words(held, self.rules, len(sum.cohort))
        for peer in others(sum.cohort, self.name):
            words.add(weight_mask(sum.channel_key(b"weight", *sorted((self.name, peer)))), sign_of(self.name, peer))
        return words

    # ---- 2

    def send_masked(self, memory: State, request: SendMasked) -> tuple[State, MaskedWords]:
        """Return what is held under masks that only come off the sum."""
        sum = self._begun(memory, request.sum)
        group, which = request.group, request.which
        if which not in self.rules.sums:
            raise BadMessage(f"there is no sum {which} here: nobody counts who holds what")
        self._check_group(memory, group)
        memory, unopened = self._first(memory, sum, request)
        bound = terms_context(group_context(sum.context, which, group), request.total, request.few)
        self._settle(memory, f"masked {which}", bound)
        held: State = memory["held"]
        words = holder_words(held, self.rules, group) if which == HOLDERS else number_words(held, self.rules, request)
        words.add(own_mask(sum.secrets.seed(which), bound), 1)
        for peer in others(group, self.name):
            key = pair_mask(sum.secrets.mask(which), sum.public(peer, self.rules.sums.index(which)), bound)
            words.add(key, sign_of(self.name, peer))
        memory = {**memory, "which": which, "group": group}
        return memory, MaskedWords(crossing(words.narrow), crossing(words.wide), unopened)

    def _first(self, memory: State, sum: _Begun, request: SendMasked) -> tuple[State, tuple[str, ...]]:
        """Take the shares that others dealt, which come with the first of the sums."""
        if "opened" in memory:
            return memory, ()
        if request.which == NUMBERS and self.rules.counts_holders:
            raise BadMessage("it has to be counted who holds what before the numbers are added up")
        peers = others(request.group, self.name)
        if request.sealed.ndim != 2 or len(request.sealed) != len(peers):
            raise BadMessage(f"shares of {len(peers)} others are to come, found {tuple(request.sealed.shape)}")
        opened, unopened = {self.name: memory["mine"]}, []
        for peer, sealed in zip(peers, request.sealed, strict=True):
            try:
                text = crypto.unseal(sum.channel_key(b"shares", peer, self.name), unpack(sealed), sum.context)
            except BadMessage:
                text = b""
            if len(text) == SHARES_BYTES * len(self.rules.sums):
                opened[peer] = pack(text)
            else:
                unopened.append(peer)
        found = {**memory, "opened": tuple(opened), "shares": torch.stack(list(opened.values()))}
        return found, tuple(unopened)

    def _check_group(self, memory: State, group: tuple[str, ...]) -> None:
        cohort: tuple[str, ...] = memory["cohort"]
        if len(set(group)) != len(group) or self.name not in group or set(group) - set(cohort):
            raise BadMessage("those whose masks are to count are not this client and others of the cohort, each once")
        least = self.rules.least(len(cohort))
        if len(group) < least:
            raise BadMessage(f"{len(group)} clients are left of {len(cohort)}; the sum needs {least}")
        weighed: Collection[str] | None = memory.get("alive")
        if memory["held"]["weighted"] and not self.rules.counts_holders:
            weighed = cohort
        if weighed is not None and set(group) != set(weighed):
            raise BadMessage("others are to be in the sum of the numbers than were left in that of the weights")

    # ---- 2, if somebody was lost

    def confirm_view(self, memory: State, request: ConfirmView) -> tuple[State, ViewTags]:
        """Confirm to the others who is said to be left."""
        sum = self._begun(memory, request.sum)
        view = self._settle_view(memory, request.which, request.alive, sum)
        peers = others(request.alive, self.name)
        return memory, ViewTags({peer: pack(sum.tag(view, self.name, peer)) for peer in peers})

    def _settle_view(self, memory: State, which: int, alive: tuple[str, ...], sum: _Begun) -> bytes:
        """Return what tells a view of who is left, once it is settled that there is no other."""
        if memory.get("which") != which:
            raise BadMessage("this client sent nothing for the sum that is to be uncovered")
        group: tuple[str, ...] = memory["group"]
        if len(set(alive)) != len(alive) or self.name not in alive or set(alive) - set(group):
            raise BadMessage("who is said to be left are not this client and others of the sum, each once")
        least = self.rules.least(len(sum.cohort))
        if len(alive) < least:
            raise BadMessage(f"{len(alive)} clients are left; the sum needs {least}")
        view = group_context(group_context(sum.context, which, group), which, alive)
        self._settle(memory, f"view {which}", view)
        return view

    # ---- 3

    def reveal_shares(self, memory: State, request: RevealShares) -> tuple[State, RevealedShares]:
        """Return one share for each of the group: which one, follows from who is left."""
        sum = self._begun(memory, request.sum)
        which, alive = request.which, request.alive
        view = self._settle_view(memory, which, alive, sum)
        group: tuple[str, ...] = memory["group"]
        if len(alive) < len(group):
            self._check_tags(request, sum, view)
        if self.settled is not None:
            self.settled.add_up(f"{which} {memory['reply']}", alive)
        start = SHARES_BYTES * self.rules.sums.index(which)
        of, found = tuple(peer for peer in memory["opened"] if peer in group), []
        for peer, shares in zip(memory["opened"], memory["shares"], strict=True):
            if peer in group:
                at = start + (shamir.SHARE_BYTES if peer in alive else 0)
                found.append(shares[at : at + shamir.SHARE_BYTES])
        # After the numbers nothing is left to be asked for.
        left = {} if which == NUMBERS else {**memory, "alive": alive}
        return left, RevealedShares(of, torch.stack(found))

    def _check_tags(self, request: RevealShares, sum: _Begun, view: bytes) -> None:
        """See that as many as are needed confirmed that the same are left, this client among them."""
        seen = 1
        for peer in others(request.alive, self.name):
            tag = request.tags.get(peer)
            seen += tag is not None and crypto.same(unpack(tag.reshape(-1)), sum.tag(view, peer, self.name))
        needed = self.rules.needed(len(sum.cohort))
        if seen < needed:
            raise BadMessage(
                f"{seen} clients confirmed that {len(request.alive)} of {len(request.group)} are left; before shares "
                f"of the lost ones' keys are told, {needed} must"
            )

    # ---- what was begun

    def _secrets(self, memory: State, wanted: Sum) -> _Secrets:
        known = memory.get("sum")
        if known is None or any(known[name] != value for name, value in vars(wanted).items()):
            raise BadMessage("this client made no keys for this sum")
        return _Secrets(unpack(memory["root"]), self.rules.sums)

    def _begun(self, memory: State, wanted: Sum) -> _Begun:
        secrets = self._secrets(memory, wanted)
        if "cohort" not in memory:
            raise BadMessage("this client dealt no shares for this sum")
        return _Begun(self.name, secrets, memory)

    def _settle(self, memory: State, what: str, value: bytes) -> None:
        if self.settled is not None:
            self.settled.settle(memory["name"], what, value)


class _Secrets:
    """All secrets of a client in one sum, made of 32 bytes."""

    def __init__(self, root: bytes, sums: tuple[int, ...]) -> None:
        self._root, self._sums = root, sums

    def derived(self, *names: bytes) -> bytes:
        return crypto.derived(self._root, *names)

    def mask(self, which: int) -> bytes:
        return self.derived(b"mask key", bytes([which]))

    def seed(self, which: int) -> bytes:
        return self.derived(b"own mask", bytes([which]))

    def all(self) -> list[bytes]:
        """Return the secrets of which shares are dealt: for each sum the key of the pairs' masks, and the own mask."""
        return [secret for which in self._sums for secret in (self.mask(which), self.seed(which))]

    def public(self) -> Tensor:
        """Return the public keys in rows: of the channel, and of the pairs' masks."""
        private = [self.derived(b"channel"), *map(self.mask, self._sums)]
        return _rows([crypto.public_of(key) for key in private])

    def channel(self, public: Tensor, context: bytes) -> Tensor:
        """Return what this client has in common with the owner of a public key, and with nobody else."""
        return pack(crypto.agreed(self.derived(b"channel"), unpack(public), b"channel", context))


class _Begun:
    """A sum whose cohort is known."""

    def __init__(self, name: str, secrets: _Secrets, memory: State) -> None:
        self.name, self.secrets, self.context = name, secrets, unpack(memory["context"])
        self.cohort: tuple[str, ...] = memory["cohort"]
        self._keys, self._channels = memory["keys"], memory["channels"]

    def public(self, peer: str, place: int) -> bytes:
        """Return a peer's public key for the masks of a sum."""
        return unpack(self._keys[self.cohort.index(peer), 1 + place])

    def channel_key(self, purpose: bytes, first: str, second: str) -> bytes:
        """Return a key that only two have, of whom one is this client, for a purpose and in this direction."""
        peer = second if first == self.name else first
        secret = unpack(self._channels[self.cohort.index(peer)])
        return crypto.derived(secret, purpose, self.context, first.encode(), second.encode())

    def tag(self, view: bytes, sender: str, receiver: str) -> bytes:
        """Return what one says to the other of who is left."""
        return crypto.derived(self.channel_key(b"view", sender, receiver), view)


def signed_text(client: str, wanted: Sum, keys: Keys) -> bytes:
    """Return what a client signs of its keys: whose, for which sum of which course, and for what it was asked."""
    return b"isthmus sum keys 3" + context_of(wanted, {client: keys})


def _rows(parts: Iterable[bytes]) -> Tensor:
    return torch.stack([pack(part) for part in parts])
