"""The messages of a secure sum, in their order (Bonawitz et al., 2017), and what each must be.

    0  MakeKeys      -> PublicKeys     each client makes key pairs for this sum alone, and tells the form of its reply
    1  ShareSecrets  -> SealedShares   and deals shares of its secrets to all others, sealed for each; what bounds its
                                       weight, under one mask for each pair
    2  SendMasked    -> MaskedWords    what it holds, and its weight, under its own mask and one for each pair
       ConfirmView   -> ViewTags       only if somebody was lost in between: who is said to be left, told to each other
    3  RevealShares  -> RevealedShares of who is left the share of the own mask, of who is lost that of the pairs' key

Between sites stage 0 goes along with the algorithm's own request. What bounds a weight is the power of two above it: by
the sum S of all these bounds numbers are made small enough for words, and several such sums, over clients that differ,
tell no more than that of a single one. Their masks come off only if all that made keys answer stage 1; else the sum is
begun anew among those who did. Where it is counted who holds what, no bound is in stage 1: stages 2 and 3 are done once
for holders and bounds, then for the numbers, each with keys of its own.
All public keys and sealed shares of a sum go by the server, which can read none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, int64, uint8

from isthmus.core.outside import MAX_NAME, named
from isthmus.core.protocol import Known, Request
from isthmus.core.record import Record
from isthmus.privacy.secure_sum.keys import KEY_BYTES
from isthmus.privacy.secure_sum.layout import Outline
from isthmus.privacy.secure_sum.shamir import SHARE_BYTES

MAX_SUMS = 2
# For each sum shares of two secrets are dealt: of the key of the pairs' masks, and of the own mask's.
SHARES_BYTES = 2 * SHARE_BYTES
TAG_BYTES = 16
MAX_SIGNATURE = 40_000


@dataclass(frozen=True)
class Sum(Record):
    """Which sum a message belongs to; all keys are bound to it."""

    name: str
    """A name that the server makes up for each attempt."""
    course: str
    """The course, as the server calls it."""
    round: int
    """The round that it is for."""
    exchange: int
    """The exchange whose replies are added up."""


@dataclass(frozen=True)
class Keys(Record):
    """The public keys that one client made for one sum."""

    public: Tensor
    """Bytes in rows: what shares for it are sealed with; then for each sum what masks of pairs are agreed with."""
    asked: Tensor
    """32 bytes by which all see that they were asked for the same; zeros where that may differ."""
    signature: str
    """The client's signature of both, where clients can sign; empty where they cannot."""


@dataclass(frozen=True)
class PublicKeys(Record):
    """A client's public keys for a sum."""

    keys: Keys
    """They say nothing about the client."""
    form: Outline
    """Names, kinds and shapes of what it holds; its numbers stay."""
    before: tuple[tuple[str, ...], ...]
    """For each sum (holders, numbers) over whom what it holds was added up before: it is in none over others."""


def is_bytes(tensor: Tensor, *shape: int) -> bool:
    """Whether a tensor holds bytes in this shape."""
    return tensor.dtype == uint8 and tuple(tensor.shape) == shape


def others(names: Iterable[str], me: str) -> list[str]:
    """Return all but one client, in the order of what is meant for each of them in one tensor."""
    return sorted(name for name in names if name != me)


def keys_problem(keys: Keys, num_sums: int) -> str:
    """Return what is wrong with the form of public keys."""
    if not is_bytes(keys.public, 1 + num_sums, KEY_BYTES):
        return f"public keys are {1 + num_sums} of 32 bytes"
    if not is_bytes(keys.asked, KEY_BYTES):
        return "what it was asked for is told in 32 bytes"
    return "a signature is too long" if len(keys.signature) > MAX_SIGNATURE else ""


@dataclass(frozen=True)
class MakeKeys(Request[PublicKeys]):
    """Asks for new public keys."""

    sum: Sum
    """Which sum they are for."""
    num_sums: int
    """How many sums under masks of their own belong to it."""

    def misfit(self, reply: PublicKeys, known: Known) -> str:
        """Return what is wrong with the form."""
        if len(reply.before) != MAX_SUMS or any(len(name) > MAX_NAME for names in reply.before for name in names):
            return "it does not say in what sums its reply was before"
        return keys_problem(reply.keys, self.num_sums)


@dataclass(frozen=True)
class SealedShares(Record):
    """Shares of a client's secrets, for each other client of the sum."""

    sealed: Tensor
    """Bytes, one row for each other client in the order of their names, who alone can open it."""
    promises: Tensor
    """Bytes, one row for each sum: by these the secret of the own mask is known when it comes back; they hide it."""
    weight: Tensor
    """A word, the power of two above its weight, under a mask for each pair; none where that is not asked for here."""


@dataclass(frozen=True)
class ShareSecrets(Request[SealedShares]):
    """Asks each client to deal shares of its secrets to the others."""

    sum: Sum
    """Which sum."""
    cohort: dict[str, Keys]
    """Who takes part, with the public keys; the same for all."""
    num_sums: int
    """For how many sums secrets are shared."""
    words: int
    """How many words of weights are expected."""

    def misfit(self, reply: SealedShares, known: Known) -> str:
        """Return what is wrong with the form."""
        if not is_bytes(reply.promises, self.num_sums, KEY_BYTES):
            return "promises are not 32 bytes each"
        if reply.weight.dtype != int64 or tuple(reply.weight.shape) != (self.words,):
            return f"weight has shape {tuple(reply.weight.shape)} of {reply.weight.dtype}, expected {self.words} words"
        size, rows = self.num_sums * SHARES_BYTES + TAG_BYTES, len(self.cohort) - 1  # all but itself
        if not is_bytes(reply.sealed, rows, size):
            return f"sealed has shape {tuple(reply.sealed.shape)}, expected {size} bytes for each of {rows} others"
        return ""


@dataclass(frozen=True)
class MaskedWords(Record):
    """What a client holds under masks: evenly distributed, whatever it is."""

    narrow: Tensor
    """Words of the floating-point tensors."""
    wide: Tensor
    """Words of single numbers and of whole numbers."""
    unopened: tuple[str, ...]
    """Clients whose shares came damaged."""


@dataclass(frozen=True)
class SendMasked(Request[MaskedWords]):
    """Asks for what a client holds, under masks."""

    sum: Sum
    """Which sum."""
    which: int
    """0: who holds what, and what bounds the weights; 1: the numbers, and the weights."""
    group: tuple[str, ...]
    """Whose masks count: the same for all."""
    sealed: Tensor
    """The shares that the others of the group dealt to this client, in the order of their names; later ones none."""
    total: float
    """The sum of what bounds the weights; a client's numbers count by its part of it. The same for all."""
    few: Tensor
    """True where too few clients hold something for it to be told; empty if all is told. The same for all."""
    narrow_words: int
    """How many words of the first kind are expected."""
    wide_words: int
    """And of the second."""
    bits: int
    """Of the first kind."""

    def misfit(self, reply: MaskedWords, known: Known) -> str:
        """Return what is wrong with the form."""
        for name, found, size, bits in (
            ("narrow", reply.narrow, self.narrow_words, self.bits),
            ("wide", reply.wide, self.wide_words, 64),
        ):
            if tuple(found.shape) != (size,) or found.is_floating_point() or found.element_size() * 8 != bits:
                return f"{name} has shape {tuple(found.shape)} of {found.dtype}, expected {size} words of {bits} bits"
        if set(reply.unopened) - set(self.group) or any(len(name) > MAX_NAME for name in reply.unopened):
            return "unopened names clients that are not of the group"
        return ""


@dataclass(frozen=True)
class ViewTags(Record):
    """That a client saw who is left, for each of the others to check."""

    tags: dict[str, Tensor]
    """By receiver, 32 bytes that only these two can make."""


@dataclass(frozen=True)
class ConfirmView(Request[ViewTags]):
    """Tells each client who is left, and asks it to confirm that to the others."""

    sum: Sum
    """Which sum."""
    which: int
    """0: who holds what; 1: the numbers."""
    alive: tuple[str, ...]
    """Of the group, those whose masked words came."""

    def misfit(self, reply: ViewTags, known: Known) -> str:
        """Return what is wrong with the form."""
        if len(reply.tags) != len(self.alive) - 1 or reply.tags.keys() - set(self.alive):
            return "tags are not for the others that are left"
        return next((f"tags[{named(k)}] has not 32 bytes" for k, v in reply.tags.items() if not is_bytes(v, 32)), "")


@dataclass(frozen=True)
class RevealedShares(Record):
    """One share for each client of the group: never both of one client."""

    of: tuple[str, ...]
    """Whose."""
    shares: Tensor
    """Bytes in rows: of the own mask of who is left, else of the key of its pairs' masks."""


@dataclass(frozen=True)
class RevealShares(Request[RevealedShares]):
    """Asks for the shares by which the masks can be taken off the sum."""

    sum: Sum
    """Which sum."""
    which: int
    """0: who holds what; 1: the numbers."""
    group: tuple[str, ...]
    """Whose masks are in it."""
    alive: tuple[str, ...]
    """Of the group, those whose masked words came."""
    tags: dict[str, Tensor]
    """By sender, that others saw the same, if not all of the group are left."""

    def misfit(self, reply: RevealedShares, known: Known) -> str:
        """Return what is wrong with the form."""
        if len(reply.of) > len(self.group) or len(set(reply.of)) != len(reply.of) or set(reply.of) - set(self.group):
            return "it tells shares of others than those of this sum, each once"
        if not is_bytes(reply.shares, len(reply.of), SHARE_BYTES):
            return f"shares has shape {tuple(reply.shares.shape)}, expected {SHARE_BYTES} bytes of each"
        return ""
