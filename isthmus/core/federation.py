"""The federation as the server half of an algorithm sees it: requests out, replies and named failures back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import CourseFailed, TooFewReplies
from isthmus.core.folds import Fold, WeightedMean, form_of, weight_of
from isthmus.core.guards.line import GuardedExchange, GuardLine, ServerSide
from isthmus.core.outside import foreign
from isthmus.core.protocol import Failure, Holdings, Known, Position, ReplyT, Request, Requests, reply_type, told
from isthmus.core.random import Secret, numpy_generator, torch_generator
from isthmus.core.record import Params, Record, State, check_record
from isthmus.core.replies import Stack, judged, judged_stack
from isthmus.core.sampling import Sampling, UniformSampling

R = TypeVar("R", bound=Record)
# One request for all, or each client's own.
Asked: TypeAlias = Request[ReplyT] | Mapping[str, Request[ReplyT]]
MAX_NOTE = 1000


@dataclass(frozen=True)
class Outcome:
    """What became of one request to one client, with the sizes of the encoded messages."""

    client: str
    reply: Record | Failure
    bytes_down: int
    bytes_up: int
    seconds: float  # until the client's answer was there
    codec_seconds: float = 0.0  # of encoding, decoding and measuring, at the server


@dataclass(frozen=True)
class StackOutcome:
    """What became of one request to several clients that answered together."""

    stack: Stack
    bytes_down: int
    bytes_up: int
    seconds: float
    codec_seconds: float = 0.0


Outcomes: TypeAlias = Iterator[Outcome | StackOutcome]


class Runtime(Protocol):
    """Carries exchanges. What the loop, the vectorised runtime and the deployment between sites all implement."""

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all clients, in a fixed order."""

    @property
    def holdings(self) -> Mapping[str, Holdings]:
        """How much data clients have; those of whom nobody knows are missing."""

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Deliver each client its request and yield exactly one outcome per client, in any order."""

    def undo(self, client: str) -> None:
        """Put a client's memory back to what it was before its answer in the last exchange, if it gave one."""

    def mark(self, round: int) -> None:
        """Mark the clients' memories as those after `round`, in one step that an interruption cannot halve."""

    def abandon_round(self) -> int:
        """Put the clients' memories back to the last mark and return its round."""

    def save_clients(self) -> dict[str, bytes]:
        """Return every client's encoded memory as of the last mark, for a checkpoint."""

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Replace every client's memory."""


@dataclass(frozen=True)
class ExchangeReport:
    """One exchange in numbers, for the journal."""

    position: Position
    request: str
    num_clients: int
    bytes_down: int
    bytes_up: int
    seconds: float  # wall time of the whole exchange
    client_seconds: float  # sum over clients of the time to answer
    failures: tuple[Failure, ...]
    codec_seconds: float = 0.0  # encoding, decoding and measuring messages, at the server
    check_seconds: float = 0.0  # looking whether replies can be used
    fold_seconds: float = 0.0  # taking replies in: aggregation


class Replies(Mapping[str, R]):
    """The usable replies of an exchange by client id, in the order of the cohort; `failures` names the others."""

    def __init__(self, replies: Mapping[str, R], failures: Mapping[str, Failure]) -> None:
        self._replies = dict(replies)
        self.failures = dict(failures)

    def __getitem__(self, client: str) -> R:
        return self._replies[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __repr__(self) -> str:
        return f"Replies({list(self._replies)}, failures={sorted(self.failures)})"


@dataclass(frozen=True)
class ExchangeRules:
    """What every exchange of a course must keep to."""

    min_replies: int = 1
    timeout_seconds: float | None = None


@dataclass(frozen=True)
class InitialModel:
    """The shared parameters that a course starts from."""

    params: Params
    buffers: frozenset[str] = frozenset()  # names of those that no gradient moves
    personal: frozenset[str] = frozenset()  # names of the model's other parameters, which never leave a client


@dataclass(frozen=True)
class _Exchange:
    """Where an exchange stands, what leaves for each client, and what the clients make of it; behind guards or not."""

    position: Position
    leaving: Requests
    requests: Requests
    guarded: GuardedExchange | None = None


class Federation:
    """One round's view of the clients. `clients` is the cohort of the round; `all_clients` everybody.

    `guards` are done to all that leaves and arrives; what they remember at the server is in `memories`, and `secret` is
    what the server's protecting streams are drawn from.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        seed: int,
        round: int,
        cohort: Sequence[str],
        model: InitialModel,
        rules: ExchangeRules,
        report: Callable[[ExchangeReport], None],
        note: Callable[[str], None] = lambda text: None,
        guards: GuardLine | None = None,
        memories: dict[str, State] | None = None,
        secret: Secret | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self._runtime = runtime
        self._note = note
        self._rules = rules
        self._report = report
        self._exchange = 0
        self._seed = seed
        self._known = Known(getattr(runtime, "holdings", {}), model.params, model.buffers)
        self._guards = guards or GuardLine()
        secret = secret or Secret.of_simulation(seed, "server")
        self._server = ServerSide(
            {} if memories is None else memories,
            secret,
            self._known,
            self.note,
            runtime.clients,
            sampling or UniformSampling(),
        )
        self._barred = self._guards.barred(self._server.memories, round)
        self.round = round
        self.clients = tuple(client for client in cohort if client not in self._barred)
        self.initial_params = model.params
        self.buffers = model.buffers

    @property
    def all_clients(self) -> tuple[str, ...]:
        """Every client of the course, also those outside this round's cohort."""
        return self._runtime.clients

    @property
    def min_replies(self) -> int:
        """With fewer usable replies, an exchange ends the course."""
        return self._rules.min_replies

    def note(self, text: str) -> None:
        """Say something that the people who read the results should know; it goes into the journal."""
        self._note(foreign(text, MAX_NOTE))  # names in it may come from clients

    def generator(self, purpose: str) -> torch.Generator:
        """Return the server's random stream for a purpose in this round."""
        return torch_generator(self._seed, self.round, "server", purpose)

    def numpy_generator(self, purpose: str) -> np.random.Generator:
        """Return the server's random stream for a purpose in this round, as numpy wants it."""
        return numpy_generator(self._seed, self.round, "server", purpose)

    def ask(
        self,
        requests: Asked[ReplyT],
        *,
        clients: Sequence[str] | None = None,
        min_replies: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Replies[ReplyT]:
        """Ask the cohort (or `clients`) and look at every reply; a mapping gives each client its own request."""
        exchange = self._begun(self._address(requests, clients))
        return self._looked_at(exchange, min_replies, timeout_seconds)

    def _looked_at(
        self, exchange: _Exchange, min_replies: int | None, timeout_seconds: float | None
    ) -> Replies[ReplyT]:
        """Carry an exchange and return every reply."""
        addressed = exchange.requests
        found: dict[str, Record | Failure] = {}
        shared: dict[str, Hashable] = {}

        def take(client: str, reply: Record | Failure) -> None:
            found[client] = reply
            if not isinstance(reply, Failure):
                shared[client] = addressed[client].common(reply)

        def take_stack(stack: Stack, sound: Tensor) -> None:
            for position in sound.nonzero().flatten().tolist():
                take(stack.clients[position], stack.member(position))

        self._carry(exchange, min_replies, timeout_seconds, take, take_stack, shared)
        failures = {client: reply for client in addressed if isinstance(reply := found[client], Failure)}
        replies = {client: cast(ReplyT, found[client]) for client in addressed if client not in failures}
        return Replies(replies, failures)

    def ask_folded(
        self,
        requests: Asked[ReplyT],
        fold: Fold,
        *,
        clients: Sequence[str] | None = None,
        min_replies: int | None = None,
        timeout_seconds: float | None = None,
    ) -> ReplyT:
        """Ask the cohort (or `clients`) and see only the fold of the replies, in its order; stacks come first."""
        exchange = self._begun(self._address(requests, clients), fold)
        addressed, guarded = exchange.requests, exchange.guarded
        if guarded is not None:
            fold = guarded.fold(fold)
            if not addressed and isinstance(requests, Request):
                nobody = guarded.of_nobody(requests)
                if nobody is not None:
                    return cast(ReplyT, guarded.folded(nobody, addressed, 0))
            if self._guards.summing:
                return cast(ReplyT, self._summed(exchange, guarded, fold, min_replies, timeout_seconds))
        # Only replies of one form can be folded, and which one it is shows at the end: each form has its own total.
        totals: dict[Hashable, Any] = {}
        forms: dict[str, Hashable] = {}
        order = list(addressed)
        waiting: dict[str, Record | Failure | None] = {}

        def total_of(form: Hashable) -> Any:
            if form not in totals:
                totals[form] = fold.start()
            return totals[form]

        def take(client: str, reply: Record | Failure | None) -> None:
            # Floating-point sums depend on their order, so a reply that comes early waits for those before it.
            waiting[client] = reply
            while order and order[0] in waiting:
                first = order.pop(0)
                reply = waiting.pop(first)
                if reply is not None and not isinstance(reply, Failure):
                    form = form_of(reply)
                    fold.add_answer(total_of(form), reply, addressed[first], first)
                    if weight_of(reply) > 0.0:  # who weighs nothing has no say in what the others' form is
                        forms[first] = form

        def take_stack(stack: Stack, sound: Tensor) -> None:
            chosen = sound.nonzero().flatten().tolist()
            if fold.streams and chosen:
                form = form_of(stack.outline(chosen[0]))
                fold.add_stack(total_of(form), stack, sound)
                forms.update({stack.clients[position]: form for position in chosen})
            for position in chosen:
                take(stack.clients[position], None if fold.streams else stack.member(position))

        usable = self._carry(exchange, min_replies, timeout_seconds, take, take_stack, forms)
        chosen = next((forms[c] for c in addressed if c in forms), next(iter(totals), None))
        found = fold.finish(totals.get(chosen, fold.start()))
        return cast(ReplyT, found if guarded is None else guarded.folded(found, addressed, usable))

    def fold(self, replies: Mapping[str, R], fold: Fold, requests: Requests) -> R:
        """Return the fold of replies that were looked at; the course's guards may put another fold in its place."""
        at = Position(self._seed, self.round, max(0, self._exchange - 1))
        if self._guards and replies:
            fold = self._guards.at_server(self._server, at, requests, fold).fold(fold)
        total = fold.start()
        for client, reply in replies.items():
            fold.add_answer(total, reply, requests[client], client)
        return cast(R, fold.finish(total))

    def _summed(
        self,
        exchange: _Exchange,
        guarded: GuardedExchange,
        fold: Fold,
        min_replies: int | None,
        timeout_seconds: float | None,
    ) -> Record:
        """Let clients hold their replies back, and a guard find the weighted mean of them."""
        if type(fold) is not WeightedMean:
            kind = type(next(iter(exchange.requests.values()))).__name__
            raise CourseFailed(
                f"the replies to {kind} are to be folded by {fold!r}, but a guard of the course adds them up, and lets "
                "nobody see what else a fold would need: use fold weighted_mean, or leave the guard out"
            )
        holding: list[str] = []

        def take(client: str, reply: Record | Failure) -> None:
            if not isinstance(reply, Failure):
                holding.append(client)

        def stage(requests: Requests) -> Replies[Any]:
            # Who must not be missing, the guard knows: it says so itself.
            return self._looked_at(_Exchange(self._next(), requests, requests), 0, timeout_seconds)

        needed = self._rules.min_replies if min_replies is None else min_replies
        self._carry(exchange, needed, timeout_seconds, take, None, {})
        if not holding:
            raise CourseFailed("there is no reply to add up")
        found = guarded.summed(exchange.requests, tuple(holding), stage, needed)
        return guarded.folded(found, exchange.requests, len(holding))

    def _next(self) -> Position:
        position = Position(self._seed, self.round, self._exchange)
        self._exchange += 1
        return position

    def _begun(self, requests: Requests, fold: Fold | None = None) -> _Exchange:
        """Return an exchange with what the course's guards make of the requests."""
        position = self._next()
        if not self._guards:
            return _Exchange(position, requests, requests)
        guarded = self._guards.at_server(self._server, position, requests, fold)
        for request in {id(request): request for request in requests.values()}.values():
            check_record(request)  # before a guard trusts it
        return _Exchange(position, *guarded.sent(requests), guarded)

    def _address(self, requests: Asked[ReplyT], clients: Sequence[str] | None) -> dict[str, Request[ReplyT]]:
        if isinstance(requests, Request):
            return dict.fromkeys(self._still_here(self.clients if clients is None else clients), requests)
        if clients is not None:
            raise TypeError("requests by client say whom they are for; leave out `clients`")
        self._still_here(requests)
        if len({type(request) for request in requests.values()}) > 1:
            raise TypeError("one exchange carries requests of one type")
        return {client: requests[client] for client in self.all_clients if client in requests}

    def _still_here(self, named: Iterable[str]) -> list[str]:
        """Return who has not left, of clients that must be of this course."""
        # Who left in mid-round is still in its cohort, and for good in what an algorithm knows of its clients.
        left: frozenset[str] = getattr(self._runtime, "left", frozenset()) | self._barred
        present = [client for client in named if client not in left]
        strangers = sorted(set(present) - set(self.all_clients))
        if strangers:
            raise KeyError(f"there is no client {strangers[0]!r}; clients: {', '.join(self.all_clients)}")
        return present

    def _carry(
        self,
        exchange: _Exchange,
        min_replies: int | None,
        timeout_seconds: float | None,
        take: Callable[[str, Record | Failure], None],
        take_stack: Callable[[Stack, Tensor], None] | None,
        votes: dict[str, Hashable],
    ) -> int:
        """Do an exchange and return how many replies were usable.

        `votes` has what replies must have in common once they are taken, of those that stand. Without `take_stack`
        clients hold their replies back, and only who has one is taken down.
        """
        requests, guarded = exchange.requests, exchange.guarded
        limit = self._rules.timeout_seconds if timeout_seconds is None else timeout_seconds
        failures: list[Failure] = []
        down = up = 0
        seconds = dict.fromkeys(("client_seconds", "codec_seconds", "check_seconds", "fold_seconds"), 0.0)
        clock = time.perf_counter

        def fail(failure: Failure) -> None:
            failures.append(failure)
            # What a client trained into a NaN must not stay in its memory: it could never answer again.
            self._runtime.undo(failure.client)
            if guarded is not None:
                guarded.failed(failure.client)
            take(failure.client, failure)

        started = clock()
        judge = _Judge(requests, self._known, self._limits(requests), guarded, held=take_stack is None)
        for outcome in self._answered(exchange.position, exchange.leaving, limit):
            down, up = down + outcome.bytes_down, up + outcome.bytes_up
            seconds["client_seconds"] += outcome.seconds
            seconds["codec_seconds"] += outcome.codec_seconds
            came = clock()
            found = judge.found(outcome)
            checked = clock()
            if isinstance(found, _Sound):
                assert take_stack is not None
                take_stack(found.stack, found.sound)
                for failure in found.failures:
                    fail(failure)
            else:
                for client, reply in found:
                    fail(reply) if isinstance(reply, Failure) else take(client, reply)
            seconds["check_seconds"] += checked - came
            seconds["fold_seconds"] += clock() - checked
        for client, reply in judge.reviewed():
            fail(reply) if isinstance(reply, Failure) else take(client, reply)
        for failure in _outvoted(requests, votes):
            del votes[failure.client]
            fail(failure)
        kind = type(next(iter(requests.values()))).__name__ if requests else "nothing"
        report = ExchangeReport(
            position=exchange.position,
            request=kind,
            num_clients=len(requests),
            bytes_down=down,
            bytes_up=up,
            seconds=clock() - started,
            failures=tuple(failures),
            **seconds,
        )
        self._report(report)
        self._require_enough(report, self._rules.min_replies if min_replies is None else min_replies)
        return len(requests) - len(failures)

    def _limits(self, requests: Requests) -> dict[int, Mapping[str, float]]:
        """Return by the identity of each request, once it is checked, how large the numbers of a reply may be."""
        distinct = {id(request): request for request in requests.values()}
        for request in distinct.values():
            check_record(request)
        return {key: request.limits(self._known) for key, request in distinct.items()}

    def _answered(self, position: Position, requests: Requests, limit: float | None) -> Outcomes:
        """Yield one outcome per client, also for those of whom the runtime says nothing."""
        silent = dict.fromkeys(requests)
        for outcome in self._runtime.exchange(position, requests, limit):
            for client in outcome.stack.clients if isinstance(outcome, StackOutcome) else (outcome.client,):
                del silent[client]
            yield outcome
        for client in silent:
            yield Outcome(client, Failure(client, "lost", "the runtime brought no outcome"), 0, 0, 0.0)

    def _require_enough(self, report: ExchangeReport, needed: int) -> None:
        asked, usable = report.num_clients, report.num_clients - len(report.failures)
        # A small cohort, or an ask of chosen clients, cannot bring more replies than were asked for.
        if usable < min(needed, asked):
            first = "; ".join(told(report.failures)[:3])
            raise TooFewReplies(
                f"round {report.position.round}, {report.request}: {usable} of {asked} clients replied, "
                f"{needed} needed ({first})"
            )


@dataclass(frozen=True)
class _Sound:
    """A stack of replies, which of them are sound, and failures for the others."""

    stack: Stack
    sound: Tensor
    failures: list[Failure]


class _Judge:
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

    def found(self, outcome: Outcome | StackOutcome) -> _Sound | list[tuple[str, Record | Failure]]:
        """Return what can be used of an outcome; nothing yet of replies that are to be reviewed together."""
        if isinstance(outcome, StackOutcome):
            if not self.takes_apart:
                stack = outcome.stack
                return _Sound(stack, *judged_stack(stack, self.requests, self.expected, self.known, self.limits))
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


def _outvoted(clients: Iterable[str], said: Mapping[str, Hashable]) -> list[Failure]:
    """Return a failure for each client whose reply differs from most in what all must share; None is no vote."""
    said = {client: said[client] for client in clients if client in said}
    votes = Counter(vote for vote in said.values() if vote is not None)
    if len(votes) < 2:
        return []
    (common, number), *_ = votes.most_common(1)  # of two that are named equally often, the one that was named first
    failures = []
    for client, vote in said.items():
        if vote is not None and vote != common:
            others = f"those of {number} of {votes.total()} clients have {_told(common, vote)}"
            failures.append(Failure(client, "malformed", foreign(f"its reply has {_told(vote, common)}, {others}")))
    return failures


def _told(vote: Hashable, other: Hashable) -> str:
    """Return what is of interest in a vote: of long ones, the first entry that the other does not have."""
    if isinstance(vote, tuple) and isinstance(other, tuple):
        left = set(other)
        odd = [entry for entry in vote if entry not in left]
        if odd:
            return ", ".join(map(str, odd[0])) if isinstance(odd[0], tuple) else repr(odd[0])
        return f"{len(vote)} entries" if len(vote) != len(other) else "another order"
    return repr(vote)
