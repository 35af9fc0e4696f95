"""The client half of a secure sum: what a client keeps between two messages, and what it answers.

Every function takes what the client remembers and a message, and returns what it remembers then and its answer; it
draws nothing but the 32 bytes that all secrets of the sum are made of. So the same message, answered from the same
memory, gets the same answer, and `Settled` sees to it that no other message does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
from isthmus.privacy.secure_sum.holding import hold, number_words, weight_words
from isthmus.privacy.secure_sum.layout import Outline
from isthmus.privacy.secure_sum.masks import context_of, group_context, own_mask, pair_mask, sign_of
from isthmus.privacy.secure_sum.rules import MAX_CLIENTS, SumRules
from isthmus.privacy.secure_sum.stages import (
    NUMBERS,
    SUMS,
    WEIGHTS,
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

    def held(self, reply: Record, request: Record, at: tuple[int, int]) -> tuple[State, Record]:
        """Hold a reply back; return what is remembered, and the empty reply that leaves in its place."""
        memory, outline = hold(reply, request, self.rules)
        return {"held": {**memory, "at": at, "course": self.course}}, outline

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
        secrets = _Secrets(root)
        channel, masks = secrets.public()
        text = signed_text(self.name, wanted, channel, masks)
        keys = Keys(channel, masks, "" if self.signer is None else self.signer.sign(text))
        mine = {"name": wanted.name, "course": wanted.course, "round": wanted.round, "exchange": wanted.exchange}
        outline, shapes = held["form"]
        found = {"held": held, "sum": mine, "root": pack(root), "name": unpack(channel).hex()}
        before: tuple[tuple[str, ...], ...] = ((),) * len(SUMS)
        if self.settled is not None:
            self.settled.open(found["name"])
            found["reply"] = digest_of({name: held[name] for name in ("at", "narrow", "wide", "weight")}).hex()
            before = tuple(self.settled.added(f"{which} {found['reply']}") for which in SUMS)
        return found, PublicKeys(keys, Outline(outline, shapes), before)

    # ---- 1

    def share_secrets(self, memory: State, request: ShareSecrets) -> tuple[State, SealedShares]:
        """Deal shares of all secrets to the cohort."""
        secrets = self._secrets(memory, request.sum)
        self._check_cohort(request, secrets)
        context = context_of(request.sum, request.cohort)
        self._settle(memory, "cohort", context)
        dealt = self._dealt(secrets, context, sorted(request.cohort))
        sealed = {}
        for peer, keys in request.cohort.items():
            if peer != self.name:
                key = secrets.channel_key(keys, b"shares", context, self.name, peer)
                sealed[peer] = pack(crypto.seal(key, dealt[peer], context))
        promises = [shamir.commitment(secrets.seed(which), context) for which in SUMS]
        cohort = {peer: (keys.channel, keys.masks) for peer, keys in request.cohort.items()}
        mine = pack(dealt[self.name])
        return {**memory, "cohort": cohort, "context": pack(context), "mine": mine}, SealedShares(
            sealed, _rows(promises)
        )

    def _check_cohort(self, request: ShareSecrets, secrets: _Secrets) -> None:
        cohort, (channel, masks) = request.cohort, secrets.public()
        if len(cohort) < self.rules.min_cohort or len(cohort) > MAX_CLIENTS:
            raise BadMessage(
                f"the sum is to be over {len(cohort)} clients; from {self.rules.min_cohort} to {MAX_CLIENTS} are needed"
            )
        mine = cohort.get(self.name)
        if mine is None or not _same(mine, channel, masks):
            raise BadMessage("the keys that are said to be this client's are not: the sum has to begin anew")
        seen: set[bytes] = set()
        for peer, keys in cohort.items():
            wrong = keys_problem(keys) or self._unsigned(peer, keys, request.sum)
            if wrong:
                raise BadMessage(f"the keys of {named(peer)}: {wrong}")
            for raw in (keys.channel, *keys.masks):
                seen.add(unpack(raw))
        if len(seen) != len(cohort) * (1 + len(SUMS)):
            raise BadMessage("the same public key occurs twice: two of the clients are one")

    def _unsigned(self, peer: str, keys: Keys, wanted: Sum) -> str:
        if self.signer is None or peer == self.name:
            return ""
        return self.signer.problem(peer, signed_text(peer, wanted, keys.channel, keys.masks), keys.signature)

    def _dealt(self, secrets: _Secrets, context: bytes, cohort: list[str]) -> dict[str, bytes]:
        """Return for each client of the cohort its shares of this client's secrets."""
        needed, found = self.rules.needed(len(cohort)), dict.fromkeys(cohort, b"")
        for place, secret in enumerate(secrets.all()):
            coins = crypto.stream(secrets.derived(b"coins", context, bytes([place])), shamir.coin_bytes(needed))
            shares = shamir.split(secret, needed, len(cohort), coins)
            for peer, share in zip(cohort, shares, strict=True):
                found[peer] += share
        return found

    # ---- 2

    def send_masked(self, memory: State, request: SendMasked) -> tuple[State, MaskedWords]:
        """Return what is held under masks that only come off the sum."""
        secrets, cohort, context = self._begun(memory, request.sum)
        group, which = request.group, request.which
        memory, unopened = self._first(memory, secrets, request, context)
        self._check_group(memory, group, len(cohort))
        asked = {"which": which, "group": group, "total": request.total, "few": request.few}
        self._settle(memory, f"masked {which}", digest_of(asked))
        held: State = memory["held"]
        words = weight_words(held, self.rules, group) if which == WEIGHTS else number_words(held, self.rules, request)
        bound = group_context(context, which, group)
        words.add(own_mask(secrets.seed(which), bound), 1)
        for peer in group:
            if peer != self.name:
                key = pair_mask(secrets.mask(which), unpack(cohort[peer][1][which]), bound)
                words.add(key, sign_of(self.name, peer))
        memory = {**memory, "which": which, "group": group}
        return memory, MaskedWords(crossing(words.narrow), crossing(words.wide), unopened)

    def _first(
        self, memory: State, secrets: _Secrets, request: SendMasked, context: bytes
    ) -> tuple[State, tuple[str, ...]]:
        """Take the shares that others dealt, which come with the first of the two sums."""
        if "shares" in memory:
            return memory, ()
        shares, unopened = {}, []
        for peer in request.group:
            if peer == self.name or peer not in memory["cohort"]:
                continue
            channel, masks = memory["cohort"][peer]
            key = secrets.channel_key(Keys(channel, masks, ""), b"shares", context, peer, self.name)
            try:
                shares[peer] = pack(crypto.unseal(key, unpack(request.sealed[peer]), context))
            except (BadMessage, KeyError):
                unopened.append(peer)
        held = memory["held"]
        if request.which == NUMBERS and (held["weighted"] or "sent" in held):
            raise BadMessage("the weights have to be added up before the numbers")
        return {**memory, "shares": {**shares, self.name: memory["mine"]}}, tuple(unopened)

    def _check_group(self, memory: State, group: tuple[str, ...], num_cohort: int) -> None:
        if len(set(group)) != len(group) or self.name not in group or set(group) - memory["cohort"].keys():
            raise BadMessage("those whose masks are to count are not this client and others of the cohort, each once")
        least = self.rules.least(num_cohort)
        if len(group) < least:
            raise BadMessage(f"{len(group)} clients are left of {num_cohort}; the sum needs {least}")
        if "alive" in memory and set(group) != set(memory["alive"]):
            raise BadMessage("others are to be in the sum of the numbers than were left in that of the weights")

    # ---- 2, if somebody was lost

    def confirm_view(self, memory: State, request: ConfirmView) -> tuple[State, ViewTags]:
        """Confirm to the others who is said to be left."""
        secrets, cohort, context = self._begun(memory, request.sum)
        view = self._settle_view(memory, request.which, request.alive, context)
        tags = {}
        for peer in request.alive:
            if peer != self.name:
                channel, masks = cohort[peer]
                key = secrets.channel_key(Keys(channel, masks, ""), b"view", context, self.name, peer)
                tags[peer] = pack(crypto.derived(key, view))
        return memory, ViewTags(tags)

    def _settle_view(self, memory: State, which: int, alive: tuple[str, ...], context: bytes) -> bytes:
        """Return what tells a view of who is left, once it is settled that there is no other."""
        if memory.get("which") != which:
            raise BadMessage("this client sent nothing for the sum that is to be uncovered")
        group: tuple[str, ...] = memory["group"]
        if len(set(alive)) != len(alive) or self.name not in alive or set(alive) - set(group):
            raise BadMessage("who is said to be left are not this client and others of the sum, each once")
        least = self.rules.least(len(memory["cohort"]))
        if len(alive) < least:
            raise BadMessage(f"{len(alive)} clients are left; the sum needs {least}")
        view = group_context(group_context(context, which, group), which, alive)
        self._settle(memory, f"view {which}", view)
        return view

    # ---- 3

    def reveal_shares(self, memory: State, request: RevealShares) -> tuple[State, RevealedShares]:
        """Return one share for each of the group: which one, follows from who is left."""
        secrets, cohort, context = self._begun(memory, request.sum)
        which, alive = request.which, request.alive
        view = self._settle_view(memory, which, alive, context)
        group: tuple[str, ...] = memory["group"]
        if len(alive) < len(group):
            self._check_tags(request, secrets, cohort, context, view)
        if self.settled is not None and (which == NUMBERS or "sent" in memory["held"]):
            self.settled.add_up(f"{which} {memory['reply']}", alive)
        found = {}
        for peer in group:
            if peer in memory["shares"]:
                place = len(SUMS) * which + (1 if peer in alive else 0)
                start = place * shamir.SHARE_BYTES
                found[peer] = memory["shares"][peer][start : start + shamir.SHARE_BYTES].clone()
        # After the numbers nothing is left to be asked for.
        left = {} if which == NUMBERS else {**memory, "alive": alive}
        return left, RevealedShares(found)

    def _check_tags(self, request: RevealShares, secrets: _Secrets, cohort: State, context: bytes, view: bytes) -> None:
        """See that as many as are needed confirmed that the same are left, this client among them."""
        seen = 1
        for peer in set(request.alive) - {self.name}:
            channel, masks = cohort[peer]
            key = secrets.channel_key(Keys(channel, masks, ""), b"view", context, peer, self.name)
            tag = request.tags.get(peer)
            seen += tag is not None and crypto.same(unpack(tag.reshape(-1)), crypto.derived(key, view))
        needed = self.rules.needed(len(cohort))
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
        return _Secrets(unpack(memory["root"]))

    def _begun(self, memory: State, wanted: Sum) -> tuple[_Secrets, State, bytes]:
        secrets = self._secrets(memory, wanted)
        if "cohort" not in memory:
            raise BadMessage("this client dealt no shares for this sum")
        return secrets, memory["cohort"], unpack(memory["context"])

    def _settle(self, memory: State, what: str, value: bytes) -> None:
        if self.settled is not None:
            self.settled.settle(memory["name"], what, value)


class _Secrets:
    """All secrets of a client in one sum, made of 32 bytes."""

    def __init__(self, root: bytes) -> None:
        self._root = root

    def derived(self, *names: bytes) -> bytes:
        return crypto.derived(self._root, *names)

    def mask(self, which: int) -> bytes:
        return self.derived(b"mask key", bytes([which]))

    def seed(self, which: int) -> bytes:
        return self.derived(b"own mask", bytes([which]))

    def all(self) -> list[bytes]:
        """Return the secrets of which shares are dealt: for each sum the key of the pairs' masks, and the own mask."""
        return [secret for which in SUMS for secret in (self.mask(which), self.seed(which))]

    def public(self) -> tuple[Tensor, Tensor]:
        """Return the public keys: of the channel, and of the pairs' masks."""
        masks = _rows([crypto.public_of(self.mask(which)) for which in SUMS])
        return pack(crypto.public_of(self.derived(b"channel"))), masks

    def channel_key(self, keys: Keys, purpose: bytes, context: bytes, sender: str, receiver: str) -> bytes:
        """Return the key for what one sends the other."""
        names = (purpose, context, sender.encode(), receiver.encode())
        return crypto.agreed(self.derived(b"channel"), unpack(keys.channel), *names)


def signed_text(client: str, wanted: Sum, channel: Tensor, masks: Tensor) -> bytes:
    """Return what a client signs of its keys: whose, and for which sum of which course, they are."""
    return b"isthmus sum keys 1" + context_of(wanted, {client: Keys(channel, masks, "")})


def _same(keys: Keys, channel: Tensor, masks: Tensor) -> bool:
    return torch.equal(keys.channel, channel) and torch.equal(keys.masks, masks)


def _rows(parts: Iterable[bytes]) -> Tensor:
    return torch.stack([pack(part) for part in parts])
