"""Secure sums: the server learns what all replies of an exchange add up to, and nothing of a single one.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (2017). Files: `stages.py` the
messages, `giving.py` and `adding.py` the two halves, `holding.py`, `layout.py` and `fixed_point.py` replies as words,
`masks.py`, `keys.py` and `shamir.py` what hides them, `scores.py` evaluations.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from dataclasses import replace as with_changes
from typing import Any, ClassVar, Literal, cast

from isthmus.core.codec import encode
from isthmus.core.errors import BadMessage, CourseFailed, TooFewReplies, refuse
from isthmus.core.exposure import Exchange, exposure
from isthmus.core.federation.judging import judged
from isthmus.core.folding.changes import change_of
from isthmus.core.folds import WeightedMean
from isthmus.core.guards.guard import AtClient, AtServer, Book, Guard, Stages
from isthmus.core.protocol import EvaluateModel, Evaluation, Failure, Known, Request, Requests, on, reply_type
from isthmus.core.record import Record, State, field_types, leaves, non_finite_leaf
from isthmus.privacy.secure_sum.adding import Adding
from isthmus.privacy.secure_sum.giving import Giver
from isthmus.privacy.secure_sum.layout import told_leaf
from isthmus.privacy.secure_sum.rules import SumRules
from isthmus.privacy.secure_sum.scores import ScoreSums, evaluation_of, misfit, summands
from isthmus.privacy.secure_sum.shamir import SECRET_BYTES
from isthmus.privacy.secure_sum.stages import (
    ConfirmView,
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
)

# A unit of the words that is larger would be seen in a model.
COARSEST_UNIT = 2.0**-10
# What weight decay is called among the fields of optimisers, and of what tries several.
DECAYS = ("weight_decay", "decays")


@dataclass(frozen=True)
class SecureSum(Guard):
    """Replies that are folded by a mean are added up under masks: no process of the server's ever has a single one.

    First b_k, the power of two above the weight w_k, is added up, to S; then (w_k / S) x_k, in whole multiples of a
    unit, and w_k, to W. The result is the weighted mean within (S / W) K units / 2 for K clients, where S is below 2 W
    if nobody is lost in between. Weights are multiples of 2^-20.

    Fields:
        threshold:   which part of a sum's clients must stay to its end; more than half of them, in any case
        bits:        of the words of tensors: 32, or 64 for twice the bytes
        clip:        the largest number in a tensor; a client with a larger one leaves the sum out and says so. With 32
                     bits the unit is about clip / 2^31
        max_norm:    how far a client's reply may be from what was sent, all numbers in one vector; null for any
                     distance. A client sees to it itself, as nobody else can
        min_cohort:  of how many clients a sum must be at least
        min_holders: numbers that fewer clients changed stay what they were; 1: all are told. Beside more than 1 weight
                     decay is refused: it changes every number at every client, and leaves nothing to hold back
        fold_scores: whether how the clients' models do is added up as well, so that nobody learns it of a single one
    """

    threshold: float = 2 / 3
    bits: int = 32
    clip: float = 100.0
    max_norm: float | None = None
    min_cohort: int = 3
    min_holders: int = 1
    fold_scores: bool = True

    sums: ClassVar[bool] = True
    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {
        "threshold": "more",
        "min_cohort": "more",
        "min_holders": "more",
        "fold_scores": "more",
    }

    def __post_init__(self) -> None:
        refuse(not 0.5 < self.threshold <= 1.0, self, "threshold", "it must be more than 0.5 and at most 1")
        refuse(self.bits not in (32, 64), self, "bits", "choose from 32, 64")
        refuse(not 0.0 < self.clip <= 1e9, self, "clip", "it must be positive and at most 1e9")
        refuse(self.max_norm is not None and not self.max_norm > 0.0, self, "max_norm", "it must be positive, or null")
        refuse(self.min_cohort < 2, self, "min_cohort", "a sum of one is no secret: it must be at least 2")
        refuse(self.min_holders < 1, self, "min_holders", "it must be at least 1")

    @property
    def rules(self) -> SumRules:
        """What both halves go by."""
        return SumRules(self.threshold, self.bits, self.clip, self.min_cohort, self.min_holders)

    @property
    def sums_scores(self) -> bool:
        """Whether evaluations are added up."""
        return self.fold_scores

    @property
    def keeps_models(self) -> bool:
        """The sum is what it would be without, unless something is held back or left out of it."""
        return self.min_holders == 1 and self.max_norm is None

    @property
    def least_clients(self) -> int:
        """A sum is over so many at least."""
        return self.min_cohort

    def mean_error(self, num_clients: int) -> float:
        """Return the bound of what rounding adds to the numbers of tensors, where nobody is lost on the way."""
        return 2.0 * self.rules.narrow(num_clients).error

    # ---- before the course

    def problem(self, course: Any) -> str:
        """Return why a course cannot be carried out under secure sums."""
        fold = getattr(course.algorithm, "fold", None)
        if fold is not None and type(fold) is not WeightedMean:
            return (
                f"algorithm.fold is {fold!r}, which compares single replies, and under a secure sum nobody has one: "
                "set algorithm.fold=weighted_mean, or leave the guard out"
            )
        algorithm = type(course.algorithm)
        open_ones = {kind.__name__ for kind in algorithm.handlers() if kind.describes or kind is EvaluateModel}
        for exchange in exposure(algorithm):
            if exchange.server_sees == "each client's" and exchange.request not in open_ones:
                return (
                    f"{algorithm.__name__} looks at each client's {exchange.reply} (its request "
                    f"{exchange.request}), and under a secure sum nobody has a single reply: leave the guard out, or "
                    "choose an algorithm that sees only folds (isthmus show algorithm NAME)"
                )
        return self._size_problem(course.sampling.size(course.num_clients)) or self._holders_problem(course)

    def _size_problem(self, cohort: int) -> str:
        if cohort < self.min_cohort:
            return f"{cohort} clients take part in a round, and min_cohort is {self.min_cohort}"
        if self.min_holders > cohort:
            return f"{cohort} clients take part in a round, and min_holders is {self.min_holders}"
        unit = self.rules.narrow(cohort).unit
        if unit > COARSEST_UNIT:
            return (
                f"with clip {self.clip:g} and {cohort} clients, words of {self.bits} bits have a unit of {unit:.2g}: "
                "set a smaller clip, or bits=64"
            )
        return ""

    def _holders_problem(self, course: Any) -> str:
        if not self.rules.counts_holders:
            return ""
        decay = next(_decays(course.algorithm, "algorithm"), "")
        if decay:
            return (
                f"min_holders is {self.min_holders}, and {decay}, which changes every number at every client, so that "
                "each has enough holders and what one client alone has is told: set it to 0, or min_holders to 1"
            )
        noisy = next((guard for guard in course.guards if guard.changes_every_number), None)
        if noisy is not None:
            name = type(noisy).__name__
            return (
                f"min_holders is {self.min_holders}, and {name} adds noise to every number at every client, so that "
                f"each has enough holders: leave {name} out, or set min_holders to 1 and have the noise hide it"
            )
        return ""

    def shown(self, exchange: Exchange) -> Exchange:
        """Return an exchange as it is under secure sums."""
        if exchange.server_sees == "nothing but a receipt" or exchange.describes:
            return exchange
        if exchange.request == EvaluateModel.__name__:
            if not self.fold_scores:
                return exchange
            exchange = with_changes(exchange, server_sees="only the fold")
        least = f"{self.threshold:.0%} of the clients, and {self.min_cohort}, at least"
        return with_changes(exchange, wire_up=f"words under masks, and what they add up to over {least}")

    # ---- client

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Hold a reply back; what leaves has its form, and none of its numbers."""
        if not field_types(type(reply)) or request.describes:
            return reply
        self._check(reply, request, at)
        if isinstance(request, EvaluateModel) and isinstance(reply, Evaluation):
            if not self.fold_scores:
                return reply
            memory, _ = self._giver(at).held(summands(reply, request), request, _place(at), _asked(request, at))
            self._keep(at, memory)
            return Evaluation({}, {})
        memory, outline = self._giver(at).held(reply, request, _place(at), _asked(request, at))
        self._keep(at, memory)
        return outline

    def _check(self, reply: Record, request: Request[Any], at: AtClient) -> None:
        """See to all that a server sees to where it has a reply before it, and to the norm."""
        held = getattr(at.client, "holdings", None)
        known = Known({} if held is None else {at.client.id: held})
        if (
            at.client.guards is not None and at.client.guards.reshapes
        ):  # of what is coded, the numbers alone can be told
            odd = non_finite_leaf(leaves(reply, type(reply).__name__))
            if odd:
                raise BadMessage(odd)
        else:
            found = judged(at.client.id, reply, request, reply_type(type(request)), known)
            if isinstance(found, Failure):
                raise BadMessage(found.reason)
        if self.max_norm is not None and not isinstance(reply, Evaluation):
            norm = float(change_of(reply, request).norm())
            if not norm <= self.max_norm:
                raise BadMessage(f"the reply is {norm:.4g} from what was sent, max_norm is {self.max_norm:g}")

    def _giver(self, at: AtClient) -> Giver:
        client = at.client
        simulated = client.secret is not None and client.secret.simulated
        if client.book is None and not simulated:
            raise BadMessage(
                f"{client.id} has no book of what it settled, without which it takes part in no secure sum"
            )
        return Giver(client.id, self.rules, client.course, _book(at), client.signer)

    def _kept(self, at: AtClient) -> State:
        """Return what the client keeps of the sum that is made now."""
        book = _book(at)
        return at.memory if book is None else book.under_way

    def _keep(self, at: AtClient, found: State) -> None:
        """Keep it in the book, which is in no file, and no server can have it back as it was; else in the memory."""
        book = _book(at)
        if book is None:
            at.remember(found)
        else:
            book.under_way = found

    @on(MakeKeys)
    def make_keys(self, request: MakeKeys, at: AtClient) -> PublicKeys:
        """Stage 0."""
        simulated = at.client.secret is not None and at.client.secret.simulated
        stream = at.protecting("sum", {}) if simulated else None
        root = secrets.token_bytes(SECRET_BYTES) if stream is None else stream.take(SECRET_BYTES)
        memory, reply = self._giver(at).make_keys(self._kept(at), request, root)
        self._keep(at, memory)
        return reply

    @on(ShareSecrets)
    def share_secrets(self, request: ShareSecrets, at: AtClient) -> SealedShares:
        """Stage 1."""
        memory, reply = self._giver(at).share_secrets(self._kept(at), request)
        self._keep(at, memory)
        return reply

    @on(SendMasked)
    def send_masked(self, request: SendMasked, at: AtClient) -> MaskedWords:
        """Stage 2."""
        memory, reply = self._giver(at).send_masked(self._kept(at), request)
        self._keep(at, memory)
        return reply

    @on(ConfirmView)
    def confirm_view(self, request: ConfirmView, at: AtClient) -> ViewTags:
        """Between the two, where somebody was lost."""
        memory, reply = self._giver(at).confirm_view(self._kept(at), request)
        self._keep(at, memory)
        return reply

    @on(RevealShares)
    def reveal_shares(self, request: RevealShares, at: AtClient) -> RevealedShares:
        """Stage 3."""
        memory, reply = self._giver(at).reveal_shares(self._kept(at), request)
        self._keep(at, memory)
        return reply

    # ---- server

    def form_of_held(self, reply: Record) -> Hashable:
        """Return names, kinds and what is in their places, which is nothing."""
        return tuple((path, told_leaf(leaf)) for path, leaf in leaves(reply).items())

    def following(self, at: AtServer) -> MakeKeys:
        """Have clients make keys in the message in which they are asked for what they will hold."""
        return MakeKeys(_sum(at), len(self.rules.sums))

    def summed(self, stages: Stages) -> Record:
        """Return the weighted mean of what clients hold."""
        at, request = stages.at, next(iter(stages.requests.values()))
        if stages.alike:
            _refuse_different(stages.requests)
        first = stages.following if isinstance(stages.following, MakeKeys) else self.following(at)
        adding = Adding(self.rules, first.sum, *_form(request, at, stages.reshaped), at.note)
        mean = adding.added(stages.holding, stages.ask)
        stages.num_replies = len(adding.alive)
        asked = len(stages.requests)
        if stages.num_replies < min(stages.min_replies, asked):
            raise TooFewReplies(
                f"round {at.position.round}, {type(request).__name__}: {stages.num_replies} of {asked} clients are in "
                f"the secure sum, {min(stages.min_replies, asked)} needed"
            )
        if isinstance(request, EvaluateModel):
            return evaluation_of(cast(ScoreSums, mean), stages.num_replies, request)
        return mean


def _decays(part: Any, where: str) -> Iterator[str]:
    """Yield where a part of a course has weight decay, and how much."""
    for each in fields(part):
        value, place = getattr(part, each.name), f"{where}.{each.name}"
        if is_dataclass(value) and not isinstance(value, type):
            yield from _decays(value, place)
        elif each.name in DECAYS and (decay := max(value, default=0.0) if isinstance(value, tuple) else value):
            yield f"{place} is {decay:g}"


def _book(at: AtClient) -> Book | None:
    """Return the client's book; a simulated secret protects from nobody, and draws the same again."""
    simulated = at.client.secret is not None and at.client.secret.simulated
    return None if simulated else at.client.book


def _asked(request: Request[Any], at: AtClient) -> bytes:
    """Return what tells the request from all others; zeros where guards before this one make others of it for some."""
    guards = at.client.guards
    return bytes(SECRET_BYTES) if guards is None or not guards.asks_alike else guards.digest_of(request)


def _place(at: AtClient) -> tuple[int, int]:
    return at.position.round, at.position.exchange


def _refuse_different(requests: Requests) -> None:
    """Raise CourseFailed where clients were asked for different things: they would take part in no sum together."""
    distinct = list({id(request): request for request in requests.values()}.values())
    if any(encode(request) != encode(distinct[0]) for request in distinct[1:]):
        raise CourseFailed(
            f"clients were sent {type(distinct[0]).__name__} with different contents, and a secure sum is over replies "
            "to the same: where others are sent what leaves nothing to learn, the sum would be one client's. Ask all "
            "for the same, or leave the guard out"
        )


def _sum(at: AtServer) -> Sum:
    """Return a sum with a name that no other attempt has; in a simulation it is the same again."""
    name = at.protecting("sum").take(16) if at.secret.simulated else secrets.token_bytes(16)
    return Sum(name.hex(), at.course, at.position.round, at.position.exchange)


def _form(request: Request[Any], at: AtServer, reshaped: bool) -> tuple[type[Record], Any]:
    """Return of what type is what clients hold, and what says whether the form of it is right."""
    if isinstance(request, EvaluateModel):
        return ScoreSums, lambda outline: misfit(outline, request)
    if reshaped:  # what most hold counts; whether that is right shows when the sum is decoded
        return reply_type(type(request)), lambda outline: ""
    return reply_type(type(request)), lambda outline: request.misfit(outline, at.known)
