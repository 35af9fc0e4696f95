"""What a reply must be before anybody counts on it: sound, and in form like the others; else it is a failure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import outlined
from isthmus.core.errors import BadMessage
from isthmus.core.federation.contract import Outcome, StackOutcome
from isthmus.core.guards.line import GuardedExchange
from isthmus.core.outside import foreign
from isthmus.core.protocol import MAX_STATISTIC, Evaluation, Failure, Holdings, Known, Request, Requests, reply_type
from isthmus.core.record import LazyParams, Record, check_record, fields_of, largest, leaves, non_finite_leaf
from isthmus.core.replies import Each, Stack, Stacked

# Numbers beyond these are no counts and no weights, and arithmetic on them would spoil the others' replies.
MAX_INTEGER = 2**63
MAX_WEIGHT = 1e15
# The largest number in a field of which the request says nothing else: its square still is one.
MAX_NUMBER = 1e18
# What is said of a model that came back with numbers that are none.
DIVERGED = ": diverged; a smaller algorithm.optimizer.lr, or dataset.normalize_features=true, may help"
# What a failure can be; the word comes from the client's side too.
KINDS = frozenset({"error", "malformed", "not_finite", "late", "lost", "refused", "oversized", "memory", "suspicious"})
NOTHING_KNOWN = Known()


def judged(
    client: str,
    reply: Record | Failure,
    request: Request[Any],
    expected: type[Record],
    known: Known = NOTHING_KNOWN,
    limits: Mapping[str, float] | None = None,
) -> Record | Failure:
    """Turn a reply of another type, of wrong fields, with NaN or with numbers beyond limits into a named failure."""
    if isinstance(reply, Failure):
        return Failure(client, reply.kind if reply.kind in KINDS else "error", foreign(reply.reason))
    name = type(reply).__name__
    try:
        _check_type(reply, expected)
        check_record(reply)
        _require(f"{name}.", request.misfit(outlined(reply), known))
        _require(f"{name}: ", request.problem(reply))
        _check_claims(client, reply, request, known)
        limit_of = _limit_of(request, reply, known, limits)
        found = leaves(_looked_at(reply, limit_of), name)
        _check_integers(found)
        if _within(found, limit_of):
            return reply
        place = non_finite_leaf(found)
        odd = place or _too_large(found, limit_of)
    except Exception as error:  # a check that stumbles over a reply has found something wrong with it
        text = str(error) if isinstance(error, BadMessage | ArithmeticError | ValueError) else repr(error)
        return Failure(client, "malformed", foreign(text))
    if not odd:
        return reply
    text = foreign(odd, 300) + (DIVERGED if odd.startswith(f"{name}.params[") else "")
    return Failure(client, "not_finite" if place else "malformed", text)


def _looked_at(reply: Record, limit_of: Callable[[str], float]) -> Record:
    """Return a reply without the parameters whose numbers are known to be within limits, which are not made for it."""
    sound: dict[str, Any] = {}
    for field, value in fields_of(reply).items():
        start = f"{type(reply).__name__}.{field}"
        if isinstance(value, LazyParams) and value.within(lambda key, start=start: limit_of(f"{start}[{key!r}]")):  # type: ignore[misc]
            sound[field] = {}
    return replace(reply, **sound) if sound else reply


def judged_stack(
    stack: Stack,
    requests: Requests,
    expected: Mapping[str, type[Record]],
    known: Known = NOTHING_KNOWN,
    limits: Mapping[int, Mapping[str, float]] | None = None,
) -> tuple[Tensor, list[Failure]]:
    """Return which replies of a stack are sound, (clients,), and a named failure for each of the others.

    What is the same for all is looked at once; a reply in which something is odd is taken out and judged by itself.
    `limits` are those of the requests by their identity.
    """
    limits = limits or {}
    try:
        _check_type(stack.record, expected[stack.clients[0]])
        outline = stack.outline()
        check_record(outline)
        sound = torch.ones(len(stack), dtype=torch.bool)
        for request in {id(requests[client]): requests[client] for client in stack.clients}.values():
            _require(f"{type(outline).__name__}.", request.misfit(outline, known))
            if type(request).problem is not Request.problem or type(request).num_nodes is not Request.num_nodes:
                raise BadMessage("each reply is to be looked at by itself")
            sound &= _numbers_fit(stack, _limit_of(request, outline, known, limits.get(id(request))))
        sound &= _scalars_fit(stack) & _weights_fit(stack, requests, known)
    except Exception:  # whatever it was, it is told of each reply that it is true of
        sound = torch.zeros(len(stack), dtype=torch.bool)
    failures = []
    for position in (~sound).nonzero().flatten().tolist():
        client = stack.clients[position]
        request = requests[client]
        member = stack.member(position)
        verdict = judged(client, member, request, expected[client], known, limits.get(id(request)))
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            sound[position] = True
    return sound, failures


def _limit_of(
    request: Request[Any], reply: Record, known: Known, limits: Mapping[str, float] | None
) -> Callable[[str], float]:
    """Return what says of a place in a reply how large its numbers may be."""
    fields = request.limits(known) if limits is None else limits
    name = type(reply).__name__
    statistics = {f"{name}.params[{buffer!r}]" for buffer in known.buffers}

    def limit(place: str) -> float:
        if place in statistics:
            return MAX_STATISTIC
        field = place[len(name) + 1 :].split("[", 1)[0].split(".", 1)[0]
        return math.inf if field == "weight" else fields.get(field, MAX_NUMBER)  # weights have their own

    return limit


def _numbers_fit(stack: Stack, limit_of: Callable[[str], float]) -> Tensor:
    """Return for each client whether its numbers are finite and none is too large, (clients,)."""
    fit, name = torch.ones(len(stack), dtype=torch.bool), type(stack.record).__name__
    seen: list[tuple[Tensor, float]] = []
    for path, leaf in stack.leaves.items():
        limit = limit_of(name + path)
        if isinstance(leaf, Stacked):
            if leaf.dtype.is_floating_point:
                bound = leaf.bound()
                if not any(bound is known and limit == most for known, most in seen):  # one may be that of several
                    fit &= bound <= limit  # never true of NaN; where it is not enough, the reply is taken out
                    seen.append((bound, limit))
        elif isinstance(leaf, Each):
            if float in map(type, leaf.values):
                values = torch.tensor([float(value or 0.0) for value in leaf.values], dtype=torch.float64)
                fit &= values.abs() <= limit  # never true of NaN
        elif _size(leaf) > limit or math.isnan(_size(leaf)):  # the same for all
            return ~fit
    return fit


def _within(found: Mapping[str, Any], limit_of: Callable[[str], float]) -> bool:
    """Whether all numbers are finite and no larger than they may be, in one pass; otherwise it is told where not."""
    sizes = ((place, _size(leaf)) for place, leaf in found.items())
    return all(math.isfinite(size) and size <= limit_of(place) for place, size in sizes)


def _too_large(found: Mapping[str, Any], limit_of: Callable[[str], float]) -> str:
    """Return where a number stands that is larger than it may be; nothing if there is none."""
    for place, leaf in found.items():
        if isinstance(leaf, float | Tensor):
            size, limit = _size(leaf), limit_of(place)
            if size > limit:
                return f"{place} holds {size:.3g}, which is beyond {limit:.3g}"
    return ""


def _size(leaf: Any) -> float:
    if isinstance(leaf, Tensor):
        return largest(leaf) if leaf.is_floating_point() else 0.0
    return abs(leaf) if isinstance(leaf, float) else 0.0


def _scalars_fit(stack: Stack) -> Tensor:
    fit = torch.ones(len(stack), dtype=torch.bool)
    for leaf in stack.leaves.values():
        if isinstance(leaf, int) and abs(leaf) >= MAX_INTEGER:  # the same for all
            return ~fit
        if isinstance(leaf, Each):
            kind = type(leaf.values[0])
            same = [type(v) is kind and (kind is not int or abs(v) < MAX_INTEGER) for v in leaf.values]
            fit &= torch.tensor(same)
    return fit


def _weights_fit(stack: Stack, requests: Requests, known: Known) -> Tensor:
    weights = stack.weights()
    most = [_max_weight(requests[client], known.holdings.get(client)) for client in stack.clients]
    return (weights >= 0.0) & (weights <= torch.tensor(most, dtype=torch.float64))


def _check_type(reply: Record, expected: type[Record]) -> None:
    if type(reply) is not expected:
        raise BadMessage(f"found the record {type(reply).__name__}, expected {expected.__name__}")


def _require(place: str, problem: str) -> None:
    if problem:
        raise BadMessage(f"{place}{problem}")


def _check_integers(found: Mapping[str, Any]) -> None:
    for place, leaf in found.items():
        if isinstance(leaf, int) and abs(leaf) >= MAX_INTEGER:
            raise BadMessage(f"{place} is an integer of {leaf.bit_length()} bits")


def _check_claims(client: str, reply: Record, request: Request[Any], known: Known) -> None:
    """Refuse a weight, or numbers of examples or nodes, that are more than the client holds."""
    held = known.holdings.get(client)
    weight, most = getattr(reply, "weight", 0.0), _max_weight(request, held)
    if isinstance(weight, int | float) and (weight < 0 or weight > most):
        problem = f"{type(reply).__name__}.weight is {float(weight):g}; it must be in [0, {most:g}]"
        raise BadMessage(f"{problem}{_told(held)}" if held else problem)
    if held is None:
        return
    for split, count in reply.counts.items() if isinstance(reply, Evaluation) else ():
        if count > held.examples.get(split, 0):
            raise BadMessage(f"Evaluation.counts[{split!r}] is {float(count):g}{_told(held)}")
    number = request.num_nodes(reply)
    if number > held.nodes:
        raise BadMessage(f"{type(reply).__name__} is about {number} nodes{_told(held)}")


def _told(held: Holdings) -> str:
    examples = ", ".join(f"{count} {split}" for split, count in held.examples.items())
    return f"; the client holds {held.nodes} nodes and as examples {examples or 'none'}"


def _max_weight(request: Request[Any], held: Holdings | None) -> float:
    return MAX_WEIGHT if held is None else min(request.max_weight(held), MAX_WEIGHT)


# ---- the replies of an exchange


@dataclass(frozen=True)
class Sound:
    """A stack of replies, which of them are sound, and failures for the others."""

    stack: Stack
    sound: Tensor
    failures: list[Failure]


class Judge:
    """What becomes of the outcomes of an exchange: replies that can be used, or named failures."""

    def __init__(
        self,
        requests: Requests,
        known: Known,
        limits: dict[int, Mapping[str, float]],
        guarded: GuardedExchange | None,
        held: bool,
    ) -> None:
        self.requests, self.known, self.limits, self.guarded, self.held = requests, known, limits, guarded, held
        self.expected = {client: reply_type(type(request)) for client, request in requests.items()}
        line = None if guarded is None else guarded.line
        self.takes_apart = held or (line is not None and (line.at_arrival or line.reviews))
        self.reviews = line is not None and line.reviews and not held
        self._waiting: dict[str, Record] = {}

    def found(self, outcome: Outcome | StackOutcome) -> Sound | list[tuple[str, Record | Failure]]:
        """Return what can be used of an outcome; nothing yet of replies that are to be reviewed together."""
        if isinstance(outcome, StackOutcome):
            if not self.takes_apart:
                stack = outcome.stack
                return Sound(stack, *judged_stack(stack, self.requests, self.expected, self.known, self.limits))
            members = enumerate(outcome.stack.clients)
            return self._kept([(client, outcome.stack.member(position)) for position, client in members])
        return self._kept([(outcome.client, outcome.reply)])

    def _kept(self, replies: list[tuple[str, Record | Failure]]) -> list[tuple[str, Record | Failure]]:
        judged_ones = [(client, self._judged(client, reply)) for client, reply in replies]
        if not self.reviews:
            return judged_ones
        self._waiting.update({client: reply for client, reply in judged_ones if not isinstance(reply, Failure)})
        return [(client, reply) for client, reply in judged_ones if isinstance(reply, Failure)]

    def _judged(self, client: str, reply: Record | Failure) -> Record | Failure:
        request, wanted = self.requests[client], self.expected[client]
        if self.held:  # all that is known of a reply that stays with its client is of what kind it is
            fits = isinstance(reply, Failure) or type(reply) is wanted
            return reply if fits else judged(client, reply, request, wanted, self.known, self.limits[id(request)])
        if self.guarded is not None:
            reply = self.guarded.accepted(client, reply, request)
        return judged(client, reply, request, wanted, self.known, self.limits[id(request)])

    def reviewed(self) -> list[tuple[str, Record | Failure]]:
        """Return the replies that had to wait for each other, in the order of the cohort."""
        if not self._waiting or self.guarded is None:
            return []
        refused = self.guarded.reviewed(self._waiting, self.requests)
        return [(c, refused.get(c, self._waiting[c])) for c in self.requests if c in self._waiting]


def outvoted(clients: Iterable[str], said: Mapping[str, Hashable]) -> list[Failure]:
    """Return a failure for each client whose reply differs from most in what all must share; None is no vote."""
    said = {client: said[client] for client in clients if client in said}
    votes = Counter(vote for vote in said.values() if vote is not None)
    if len(votes) < 2:
        return []
    (common, number), *_ = votes.most_common(1)  # of two that are named equally often, the one that was named first
    failures = []
    for client, vote in said.items():
        if vote is not None and vote != common:
            others = f"those of {number} of {votes.total()} clients have {_odd(common, vote)}"
            failures.append(Failure(client, "malformed", foreign(f"its reply has {_odd(vote, common)}, {others}")))
    return failures


def _odd(vote: Hashable, other: Hashable) -> str:
    """Return what is of interest in a vote: of long ones, the first entry that the other does not have."""
    if isinstance(vote, tuple) and isinstance(other, tuple):
        left = set(other)
        odd = [entry for entry in vote if entry not in left]
        if odd:
            return ", ".join(map(str, odd[0])) if isinstance(odd[0], tuple) else repr(odd[0])
        return f"{len(vote)} entries" if len(vote) != len(other) else "another order"
    return repr(vote)
