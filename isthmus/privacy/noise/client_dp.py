"""Differential privacy of whole clients. McMahan et al. (2018), "Learning DP recurrent language models".

What a client's reply changes of what was sent is clipped to a length, all clients count the same, and Gaussian noise is
added: by the server to the sum (Abadi et al., 2016), by the clients in shares that a secure sum adds up (Dwork et al.,
2006; Kairouz et al., 2021), or by each client to its own reply, towards a server that nobody trusts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from isthmus.core.errors import BadInput, CourseFailed, refuse
from isthmus.core.exposure import Exchange, exposure
from isthmus.core.folds import WeightedMean
from isthmus.core.guards.guard import AtClient, AtServer, Guard, ReplyT, Suspicious
from isthmus.core.protocol import EvaluateModel, Evaluation, KeepBest, Request, Requests, reply_type
from isthmus.core.random import PoissonSampling, digest
from isthmus.core.record import Record, State, field_types, leaves
from isthmus.privacy.accounting.releases import Releases, require_accounting, spent
from isthmus.privacy.noise.numbers import WEIGHT, Change, clipped, numbers_of, unchanged

CENTRAL, DISTRIBUTED, LOCAL = MODES = ("central", "distributed", "local")
# Not an answer about the data that trains: how the model does, and a receipt.
APART = (EvaluateModel, KeepBest)
# What codes replies after they are clipped may make them longer (few of the numbers, each larger by the inverse of its
# chance); that is clipped again. So much longer none does.
SLACK = 1000.0
REMEDY = (
    ". To let less drown: more clients, fewer shared parameters (shared, model.gnn.hidden); or hide less than a whole "
    "client: edges (guard edge_dp), nodes (node_dp), examples (example_dp)"
)


@dataclass(frozen=True)
class ClientDP(Guard):
    """What a course releases hardly depends on whether one client took part in it: its whole graph is hidden.

    With w the model that was sent, w_k what client k trained, C = `clip`, z = `noise` and M the size of the cohort that
    is drawn, or expected where each is drawn by itself:

        w <- w + (1 / M) (sum_k clip(w_k - w, C) + N(0, z^2 C^2))       clip(v, C) = v min(1, C / |v|)

    Whoever is without one client's change sees a sum that is C away at most, which the noise hides: epsilon is that of
    Gaussian noise of z times the sensitivity, once for each such exchange, with `delta`. It is about a client that
    sends nothing in the place of what it sends.

    central      the server adds the noise. Towards those who see models; the server itself sees every reply, or with a
                 guard that sums, their sum. With sampling.name=poisson a round counts less, towards those who do not
                 know who was drawn: the journal says it, so it is not for them
    distributed  each client adds N(0, z^2 C^2 / `enough`), so that any `enough` of them make up the noise; a guard that
                 sums must follow, and the server sees the noisy sum alone. Clients that work with the server can take
                 their own shares out: `enough` is the number of those that do not. Sums are of rounded numbers, and
                 that rounding is not accounted for (it is 2^-16 of a clip or so)
    local        each client adds N(0, z^2 C^2) to its own reply; towards everybody. What it sends is 2 C away from
                 what another would send at most

    The client is charged for each exchange in which it is asked, drawn or not by chance that others know; epsilon is of
    the client that was asked most often. Real numbers are meant: what is known of attacks on the last bits of floats
    (Mironov, 2012) is not defended against. What clients say of how the model does (EvaluateModel) is not covered,
    unless `hide_scores`, which leaves a course without a best round. What is released before a round is lost and done
    again with other replies counts twice, and is counted once.

    Fields:
        clip:        C, the length of a change; null clips nothing, and then there can be no noise
        noise:       z, the noise on the sum as a multiple of C
        mode:        who adds it, as above
        delta:       the chance that epsilon does not hold; well below one over the number of clients
        epsilon:     budget: before the round that would exceed it the course ends; null for none
        enough:      distributed: how many clients' noise make up z
        hide_scores: whether clients say nothing of how the model does on their data
    """

    clip: float | None = 1.0
    noise: float = 1.0
    mode: str = CENTRAL
    delta: float = 1e-5
    epsilon: float | None = None
    enough: int = 1
    hide_scores: bool = False

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {
        "clip": "less",
        "noise": "more",
        "delta": "less",
        "epsilon": "less",
        "hide_scores": "more",
    }
    works_on_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse(self.clip is not None and not 0.0 < self.clip < math.inf, self, "clip", "it must be positive, or null")
        refuse(not 0.0 <= self.noise < math.inf, self, "noise", "it must be at least 0")
        refuse(self.mode not in MODES, self, "mode", f"choose from {', '.join(MODES)}")
        refuse(not 0.0 < self.delta < 1.0, self, "delta", "it must be between 0 and 1")
        refuse(self.epsilon is not None and not self.epsilon > 0.0, self, "epsilon", "it must be positive, or null")
        refuse(self.enough < 1, self, "enough", "it must be at least 1")
        if self.clip is None and (self.noise or self.epsilon is not None):
            raise ValueError("clip is null: what is not clipped, no noise can hide; give clip a length")

    @property
    def does_nothing(self) -> bool:
        """Whether replies leave as they are."""
        return self.clip is None

    @property
    def changes_every_number(self) -> bool:
        """Whether each client adds noise of its own."""
        return self.mode != CENTRAL and self.noise > 0.0

    @property
    def spread(self) -> float:
        """The standard deviation of what is added in one place: at the server, or at a client."""
        shares = self.enough if self.mode == DISTRIBUTED else 1
        return self.noise * (self.clip or 0.0) / math.sqrt(shares)

    def releases(self, times: int, probability: float = 1.0) -> Releases:
        """Return so many noisy exchanges, for the account."""
        return Releases(self.noise / 2.0 if self.mode == LOCAL else self.noise, times, probability)

    # ---- before the start

    def problem(self, course: Any) -> str:
        """Return what of a course breaks what the noise promises."""
        if self.does_nothing:
            return ""
        looked_at = (self._unsound, self._of_guards, self._of_replies, self._of_mode, self._of_budget)
        found = (look(course) for look in looked_at)
        return next(filter(None, found), "")

    def _unsound(self, course: Any) -> str:
        algorithm = course.algorithm
        if getattr(algorithm, "weighting", "uniform") not in ("uniform", "all"):
            return (
                f"algorithm.weighting is {algorithm.weighting!r}, so a client would count by its data, and the noise "
                "would hide some clients less than others; set algorithm.weighting=uniform"
            )
        fold = getattr(algorithm, "fold", None)
        if fold is not None and type(fold) is not WeightedMean:
            return f"algorithm.fold is {fold!r}, which one client can move further than a mean; leave it weighted_mean"
        if getattr(getattr(course.model, "gnn", None), "batch_norm", False):
            return (
                "model.gnn.batch_norm is true: noise would make variances negative, and they are the data's; set it to "
                "false"
            )
        return ""

    def _of_guards(self, course: Any) -> str:
        other = next((guard for guard in course.guards if guard.compares), None)
        if other is None or self.mode == LOCAL:
            return ""
        return (
            f"{type(other).__name__} looks at all replies to decide what becomes of each, so one client would move the "
            f"sum by more than its own change, which is all that the noise hides: set mode={LOCAL}, or leave "
            f"{type(other).__name__} out"
        )

    def _of_replies(self, course: Any) -> str:
        for exchange in exposure(type(course.algorithm)):
            if exchange.server_sees == "each client's" and exchange.request not in {kind.__name__ for kind in APART}:
                return (
                    f"{type(course.algorithm).__name__} looks at each client's reply to {exchange.request}, which no "
                    "sum hides; choose a method that asks for means only (isthmus show algorithm NAME), or noise for "
                    "what it sends (guard row_noise)"
                )
        return ""

    def _of_mode(self, course: Any) -> str:
        last = course.guards[-1]
        if self.mode == DISTRIBUTED and not last.sums:
            return "mode is 'distributed', and no guard adds the replies up: a share of the noise hides little alone"
        between = course.guards[course.guards.index(self) + 1 : -1]
        if self.mode == DISTRIBUTED and between:
            name = type(between[0]).__name__
            return (
                f"{name} may make a change longer than the clip before it is added up, and nobody sees it then to clip "
                f"it again: put {name} before {type(self).__name__}, or leave it out"
            )
        least = min(course.min_replies, course.sampling.least(course.num_clients))
        if self.mode == DISTRIBUTED and least < self.enough:
            return (
                f"enough is {self.enough}, but a sum may be of {least} clients (min_replies, sampling), whose noise is "
                "less than promised; set min_replies to it, or enough to less"
            )
        if self._draws(course.sampling):
            try:
                require_accounting("the account of clients that are drawn at random")
            except BadInput as error:
                return str(error)
        return ""

    def _of_budget(self, course: Any) -> str:
        if self.epsilon is None:
            return ""
        probability = course.sampling.fraction if self._draws(course.sampling) else 1.0
        first = spent([self.releases(1, probability)], self.delta)
        if first <= self.epsilon:
            return ""
        return f"epsilon is {self.epsilon:g}, and the first round would spend {first:.3g}; set noise to more"

    def shown(self, exchange: Exchange) -> Exchange:
        """Return what is seen of an exchange with noise on it."""
        if exchange.request in {kind.__name__ for kind in APART} or self.does_nothing:
            return (
                replace(exchange, answered={}) if self.hide_scores and exchange.request == "EvaluateModel" else exchange
            )
        if exchange.server_sees != "only the fold":
            return exchange
        sees = "only the noisy fold" if self.mode != CENTRAL else "only the fold, which gets noise before it is used"
        up = exchange.wire_up
        if self.mode == LOCAL:
            up = f"{up}, clipped and noisy"
        elif self.mode == CENTRAL:
            up = f"{up}, clipped"
        return replace(exchange, server_sees=sees, wire_up=up)

    # ---- client

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return a reply with its change clipped, the weight that all have, and noise if clients add it."""
        if isinstance(reply, Evaluation):
            return Evaluation({}, {}) if self.hide_scores else reply
        if self.clip is None:
            return reply
        if not numbers_of(reply):
            return _counting_one(reply)
        found = clipped(reply, request, self.clip)
        if self.mode != CENTRAL and self.spread:
            change = Change.of(found, request)
            found = change.noisy(self.spread, at.protecting("noise", leaves(found))).made()
        return _counting_one(found)

    # ---- server

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Charge those who are asked, and say once what the noise amounts to."""
        request = next(iter(requests.values()), None)
        if self.does_nothing or isinstance(request, APART):
            return requests
        if at.known.buffers:
            raise BadInput(
                f"the model shares statistics that no gradient moves ({', '.join(sorted(at.known.buffers)[:3])}), and "
                "noise would make them useless; use a model without batch norm, or keep them at the clients (shared)"
            )
        if at.fold is None:
            if request is not None and _tells(request):
                raise BadInput(f"the replies to {type(request).__name__} are looked at one by one, which no sum hides")
            return requests
        if type(at.fold) is not WeightedMean:
            raise BadInput(f"replies are folded by {at.fold!r}, which one client can move further than a mean")
        if request is None or _tells(request):
            self._charge(at)
        return requests

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        """Return a reply no longer than the clip; of a sum there is nothing to see."""
        if self.clip is None or self.mode != CENTRAL or not client or isinstance(reply, Evaluation):
            return reply
        weight = getattr(reply, "weight", 1.0)
        if isinstance(weight, float) and weight != 1.0:
            raise Suspicious(f"its weight is {weight:g}; all clients count as 1")
        if not numbers_of(reply):
            return reply
        norm = Change.of(reply, request).norm
        if norm > SLACK * self.clip and math.isfinite(norm):  # of what is no number, more is said by others
            raise Suspicious(f"its change has the length {norm:.3g}; clients clip to {self.clip:g}")
        return clipped(reply, request, self.clip) if math.isfinite(norm) else reply

    @property
    def answers_for_nobody(self) -> bool:
        """Whether a sum of nobody's changes gets its noise too: else it would show that nobody was drawn."""
        return not self.does_nothing

    def of_nobody(self, request: Request[Any], at: AtServer) -> Record:
        """Return the reply that changes nothing, which gets the noise that any sum gets."""
        return unchanged(request, at.known)

    def folded(self, reply: ReplyT, requests: Requests, num_replies: int, at: AtServer) -> ReplyT:
        """Return the mean with noise, over as many clients as are drawn whoever answered."""
        if self.clip is None or isinstance(reply, Evaluation) or not numbers_of(reply):
            return reply
        distinct = {id(request): request for request in requests.values()}
        if len(distinct) > 1:
            raise CourseFailed("clients were sent different requests, and a sum of their changes has no one start")
        if self.mode == DISTRIBUTED and num_replies < self.enough:
            raise CourseFailed(f"{num_replies} clients put noise on the sum, and {self.enough} are needed")
        if self.mode != CENTRAL:
            return reply
        request = next(iter(distinct.values()), None) or reply
        drawn = self._draws(at.sampling)
        size = at.sampling.expected(len(at.everybody)) if drawn else float(len(requests))
        change = Change.of(reply, request).scaled(num_replies / size)
        # A secret's streams are named by what they hide too: a round that is done again must not have the same noise.
        named = "noise" if at.secret.simulated else f"noise {digest({'sum': leaves(reply)}).hex()}"
        found: ReplyT = change.noisy(self.spread / size, at.protecting(named)).made(
            **({"weight": size} if hasattr(reply, "weight") else {})
        )
        return found

    # ---- the account

    def spent(self, memory: State) -> dict[str, float]:
        """Return epsilon so far."""
        return {} if self.does_nothing else {"epsilon": self._epsilon(memory, 0)}

    def exhausted(self, memory: State) -> str:
        """Return that another round like the last would exceed the budget."""
        if self.epsilon is None or not memory:
            return ""
        after = self._epsilon(memory, max(1, memory.get("in_round", 1)))
        if after <= self.epsilon:
            return ""
        return (
            f"epsilon {self._epsilon(memory, 0):.3g} of {self.epsilon:g} is spent, and another round would make it "
            f"{after:.3g} (delta {self.delta:g})"
        )

    def _epsilon(self, memory: State, more: int) -> float:
        asked: dict[str, int] = memory.get("asked", {})
        most = max(asked.values(), default=0)
        if "probability" not in memory:
            return spent([self.releases(most + more)], self.delta)
        return spent([self.releases(most), self.releases(memory["draws"] + more, memory["probability"])], self.delta)

    def _draws(self, sampling: Any) -> bool:
        """Whether not knowing who was drawn hides clients: never from a server that sees who sends."""
        return self.mode == CENTRAL and isinstance(sampling, PoissonSampling) and sampling.fraction < 1.0

    def _charge(self, at: AtServer) -> None:
        memory = at.memory
        if "asked" not in memory:
            self._tell(at)
        before = memory.get("in_round", 0) if memory.get("round") == at.position.round else 0
        found = {**memory, "round": at.position.round, "in_round": before + 1}
        asked: Counter[str] = Counter(memory.get("asked", {}))
        drawn = self._draws(at.sampling)
        if drawn:
            chance = at.position.round > 0  # in the setup everybody takes part
            found |= {"draws": memory.get("draws", 0) + chance, "probability": at.sampling.fraction}
        if not drawn or at.position.round == 0:
            asked.update(at.clients)
        at.remember({**found, "asked": dict(asked)})

    def _tell(self, at: AtServer) -> None:
        """Say how large the noise is beside what clients have to say, and what else could be done."""
        numbers = sum(tensor.numel() for tensor in at.known.params.values())
        size = at.sampling.expected(len(at.everybody))
        shares = math.sqrt(size / self.enough) if self.mode == DISTRIBUTED else 1.0
        length = self.noise * shares * math.sqrt(numbers) / (math.sqrt(size) if self.mode == LOCAL else size)
        told = (
            f"{self.mode} noise: on the mean of {size:g} clients and {numbers:,} parameters it has a norm of about "
            f"{length:.3g} clips, and the mean itself one at most: {_expected(length)}"
        )
        at.note(told + (REMEDY if length > 1.0 else ""))
        if not self.hide_scores:
            at.note("epsilon is of models: what clients say of how a model does on their data is not part of it")


def _expected(length: float) -> str:
    """Return what accuracy to expect of so many clips of noise a round, by what was measured on Cora."""
    if length <= 1.0:
        return "expect an accuracy near that without noise"
    if length <= 4.0:
        return "expect some points less than without noise"
    return "expect much less than without noise" if length <= 10.0 else "expect the accuracy of a guess, or little more"


def _counting_one(reply: Record) -> Record:
    """Return a reply that counts as all others do."""
    return replace(reply, weight=1.0) if hasattr(reply, "weight") else reply  # type: ignore[call-arg]


def _tells(request: Request[Any]) -> bool:
    """Whether a reply to a request holds anything but its weight."""
    return bool(field_types(reply_type(type(request))).keys() - {WEIGHT.removeprefix(".")})
