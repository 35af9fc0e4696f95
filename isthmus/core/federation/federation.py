"""The federation as the server half of an algorithm sees it: requests out, replies and named failures back."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import CourseFailed, TooFewReplies
from isthmus.core.federation.contract import (
    ExchangeReport,
    ExchangeRules,
    InitialModel,
    Listener,
    Outcome,
    Outcomes,
    Runtime,
    StackOutcome,
)
from isthmus.core.federation.judging import Judge, Sound, outvoted
from isthmus.core.folds import Fold, WeightedMean, form_of, weight_of
from isthmus.core.guards.guard import OwnClient, Review
from isthmus.core.guards.line import GuardedExchange, GuardLine, ServerSide
from isthmus.core.outside import foreign
from isthmus.core.protocol import Failure, Known, Position, ReplyT, Request, Requests, told
from isthmus.core.random import Sampling, Secret, UniformSampling, numpy_generator, torch_generator
from isthmus.core.record import Record, State, check_record
from isthmus.core.replies import Stack, whole_stacks

R = TypeVar("R", bound=Record)


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


# ---- what is done with the replies of an exchange as they come


class Taking(ABC):
    """Takes the replies that are sound, and failures; `forms` is what replies must have in common, by who gave them."""

    held = False  # whether clients keep their replies, and only who has one is taken down

    def __init__(self) -> None:
        self.forms: dict[str, Hashable] = {}

    @abstractmethod
    def take(self, client: str, reply: Record | Failure) -> None:
        """Take one reply, or the failure of a client, whose reply may have been taken before."""

    def take_stack(self, stack: Stack, sound: Tensor) -> None:
        """Take the sound replies of a stack."""
        for position in sound.nonzero().flatten().tolist():
            self.take(stack.clients[position], stack.member(position))


class Looking(Taking):
    """Every reply is looked at."""

    def __init__(self, requests: Requests) -> None:
        super().__init__()
        self._requests = requests
        self._found: dict[str, Record | Failure] = {}

    def take(self, client: str, reply: Record | Failure) -> None:
        """Keep it."""
        self._found[client] = reply
        if not isinstance(reply, Failure):
            self.forms[client] = self._requests[client].common(reply)

    def usable(self) -> dict[str, Record]:
        """Return what is no failure so far."""
        return {client: reply for client, reply in self._found.items() if not isinstance(reply, Failure)}

    def replies(self) -> Replies[Any]:
        """Return all of them in the order of the cohort."""
        found = {client: self._found[client] for client in self._requests}
        failures = {client: reply for client, reply in found.items() if isinstance(reply, Failure)}
        replies = {client: reply for client, reply in found.items() if client not in failures}
        return Replies(replies, failures)


class Folding(Taking):
    """Replies are folded in the order of the cohort, and none is kept.

    Only replies of one form can be folded, and which one it is shows at the end: each form has its own total.
    """

    def __init__(self, requests: Requests, fold: Fold) -> None:
        super().__init__()
        self._requests, self._fold = requests, fold
        self._totals: dict[Hashable, Any] = {}
        self._order = list(requests)
        self._waiting: dict[str, Record | Failure | None] = {}

    def _total_of(self, form: Hashable) -> Any:
        if form not in self._totals:
            self._totals[form] = self._fold.start()
        return self._totals[form]

    def take(self, client: str, reply: Record | Failure | None) -> None:
        """Fold a reply, once those before it are; None where it is in a total already."""
        # Floating-point sums depend on their order, so a reply that comes early waits for those before it.
        self._waiting[client] = reply
        while self._order and self._order[0] in self._waiting:
            first = self._order.pop(0)
            reply = self._waiting.pop(first)
            if reply is not None and not isinstance(reply, Failure):
                form = form_of(reply)
                self._fold.add_answer(self._total_of(form), reply, self._requests[first], first)
                if weight_of(reply) > 0.0:  # who weighs nothing has no say in what the others' form is
                    self.forms[first] = form

    def take_stack(self, stack: Stack, sound: Tensor) -> None:
        """Fold a stack whole, where the fold can."""
        chosen = sound.nonzero().flatten().tolist()
        if self._fold.streams and chosen:
            form = form_of(stack.outline(chosen[0]))
            self._fold.add_stack(self._total_of(form), stack, sound)
            self.forms.update({stack.clients[position]: form for position in chosen})
        for position in chosen:
            self.take(stack.clients[position], None if self._fold.streams else stack.member(position))

    def found(self) -> Record:
        """Return the fold of the replies that are in one form."""
        form = next((self.forms[c] for c in self._requests if c in self.forms), next(iter(self._totals), None))
        found: Record = self._fold.finish(self._totals.get(form, self._fold.start()))
        return found


class Holding(Taking):
    """Replies stay with the clients: who has one is all that is known, and `form_of` what is told in its place."""

    held = True

    def __init__(self, form_of: Callable[[Record], Hashable]) -> None:
        super().__init__()
        self.clients: list[str] = []
        self._form_of = form_of

    def take(self, client: str, reply: Record | Failure) -> None:
        """Take down who has a reply."""
        if not isinstance(reply, Failure):
            self.clients.append(client)
            self.forms[client] = self._form_of(reply)
        elif client in self.clients:
            self.clients.remove(client)


# ---- one exchange in numbers


class Account:
    """One exchange in numbers, as they add up."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._bytes_down = self._bytes_up = 0
        self._seconds = dict.fromkeys(("client_seconds", "codec_seconds", "check_seconds", "fold_seconds"), 0.0)
        self.failures: list[Failure] = []

    def _since(self) -> float:
        before, self._last = self._last, time.perf_counter()
        return self._last - before

    def came(self, outcome: Outcome | StackOutcome) -> None:
        """Add what an outcome says of itself."""
        self._bytes_down += outcome.bytes_down
        self._bytes_up += outcome.bytes_up
        self._seconds["client_seconds"] += outcome.seconds
        self._seconds["codec_seconds"] += outcome.codec_seconds
        self._since()

    def checked(self) -> None:
        """Add the time since an outcome came."""
        self._seconds["check_seconds"] += self._since()

    def folded(self) -> None:
        """Add the time since it was checked."""
        self._seconds["fold_seconds"] += self._since()

    def report(self, position: Position, requests: Requests) -> ExchangeReport:
        """Return the exchange in numbers."""
        return ExchangeReport(
            position=position,
            request=type(next(iter(requests.values()))).__name__ if requests else "nothing",
            num_clients=len(requests),
            bytes_down=self._bytes_down,
            bytes_up=self._bytes_up,
            seconds=time.perf_counter() - self._started,
            failures=tuple(self.failures),
            **self._seconds,
        )


# One request for all, or each client's own.
Asked: TypeAlias = Request[ReplyT] | Mapping[str, Request[ReplyT]]
MAX_NOTE = 1000
# Exchanges of a guard's own are counted from here within a round, so that those of the algorithm have the same numbers,
# and draw the same, with it and without it.
FIRST_STAGE = 1_000_000


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
    what the server's protecting streams are drawn from. `own` is a client of the server's own, for guards to ask.
    `listener` hears what the server's process has of all messages.
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
        own: OwnClient | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._runtime = runtime
        self._listener = listener
        self._note = note
        self._rules = rules
        self._report = report
        self._exchange, self._stage = 0, FIRST_STAGE
        self._seed = seed
        self._known = Known(getattr(runtime, "holdings", {}), model.params, model.buffers)
        self._guards = guards
        if guards is not None:
            self._server = ServerSide(
                {} if memories is None else memories,
                secret or Secret.of_simulation(seed, "server"),
                self._known,
                self.note,
                runtime.clients,
                sampling or UniformSampling(),
                getattr(runtime, "course", ""),
                own,
            )
        self._barred = frozenset() if guards is None else guards.barred(self._server.memories, round)
        self.round = round
        self.clients = tuple(client for client in cohort if client not in self._barred)
        self.initial_params = model.params
        self.buffers = model.buffers

    @property
    def all_clients(self) -> tuple[str, ...]:
        """Every client of the course, also those outside this round's cohort."""
        return self._runtime.clients

    @property
    def barred(self) -> frozenset[str]:
        """The clients that a guard does not let be asked in this round."""
        return self._barred

    @property
    def min_replies(self) -> int:
        """With fewer usable replies, an exchange ends the course."""
        return self._rules.min_replies

    @property
    def sums_scores(self) -> bool:
        """Whether a guard adds up how the clients' models do."""
        return self._guards is not None and self._guards.sums_scores

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
        self,
        exchange: _Exchange,
        min_replies: int | None,
        timeout_seconds: float | None,
        review: Review | None = None,
    ) -> Replies[ReplyT]:
        """Carry an exchange and return every reply that is found to be usable, once all are there."""
        looking = Looking(exchange.requests)
        verdict = None if review is None else lambda: review(looking.usable())
        self._carry(exchange, looking, min_replies, timeout_seconds, verdict)
        return looking.replies()

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
            if not addressed and isinstance(requests, Request) and guarded.line.answers_for_nobody:
                return cast(ReplyT, guarded.folded(guarded.of_nobody(requests), addressed, 0))
            if guarded.line.summing:
                return cast(ReplyT, self._summed(exchange, guarded, fold, min_replies, timeout_seconds))
        folding = Folding(addressed, fold)
        usable = self._carry(exchange, folding, min_replies, timeout_seconds)
        found = self._heard(exchange, folding.found())
        return cast(ReplyT, found if guarded is None else guarded.folded(found, addressed, usable))

    def fold(self, replies: Mapping[str, R], fold: Fold, requests: Requests) -> R:
        """Return the fold of replies that were looked at; the course's guards may put another fold in its place."""
        at = Position(self._seed, self.round, max(0, self._exchange - 1))
        if self._guards is not None and replies:
            fold = self._guards.at_server(self._server, at, requests, fold).fold(fold)
        total, left = fold.start(), dict(replies)
        for stack in whole_stacks(replies) if fold.streams else ():
            fold.add_stack(total, stack, torch.ones(len(stack), dtype=torch.bool))
            left = {client: reply for client, reply in left.items() if client not in stack.clients}
        for client, reply in left.items():
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
        holding = Holding(guarded.form_of_held)

        def stage(requests: Requests, review: Review | None = None) -> Replies[Any]:
            # Who must not be missing, the guard knows: it says so itself.
            position = Position(self._seed, self.round, self._stage)
            self._stage += 1
            return self._looked_at(_Exchange(position, requests, requests), 0, timeout_seconds, review)

        needed = self._rules.min_replies if min_replies is None else min_replies
        following, enclose = guarded.following(), getattr(self._runtime, "enclose", None)
        if following is not None and enclose is not None:  # one message for two exchanges, where messages are dear
            enclose(Position(self._seed, self.round, self._stage), following)
        self._carry(exchange, holding, needed, timeout_seconds)
        if not holding.clients:
            raise CourseFailed("there is no reply to add up")
        found, number = guarded.summed(exchange.requests, tuple(holding.clients), stage, needed)
        return guarded.folded(self._heard(exchange, found), exchange.requests, number)

    def _heard(self, exchange: _Exchange, found: Record) -> Record:
        """Return what replies were folded to, once a listener has heard it."""
        if self._listener is not None:
            self._listener.added_up(exchange.position, exchange.requests, found)
        return found

    def _next(self) -> Position:
        position = Position(self._seed, self.round, self._exchange)
        self._exchange += 1
        return position

    def _begun(self, requests: Requests, fold: Fold | None = None) -> _Exchange:
        """Return an exchange with what the course's guards make of the requests."""
        position = self._next()
        if self._guards is None:
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
        taking: Taking,
        min_replies: int | None,
        timeout_seconds: float | None,
        verdict: Callable[[], Mapping[str, str]] | None = None,
    ) -> int:
        """Do an exchange, have its replies taken, and return how many were usable.

        `verdict` says, once all were taken, which of them are not, and why.
        """
        requests, guarded = exchange.requests, exchange.guarded
        limit = self._rules.timeout_seconds if timeout_seconds is None else timeout_seconds
        account = Account()
        listener = None if taking.held else self._listener

        def take(client: str, reply: Record | Failure) -> None:
            if isinstance(reply, Failure):
                account.failures.append(reply)
                # What a client trained into a NaN must not stay in its memory: it could never answer again.
                self._runtime.undo(client)
                if guarded is not None:
                    guarded.failed(reply)
            elif listener is not None:
                listener.replied(exchange.position, requests[client], client, reply)
            taking.take(client, reply)

        judge = Judge(requests, self._known, self._limits(requests), guarded, taking.held)
        for outcome in self._answered(exchange.position, exchange.leaving, limit):
            account.came(outcome)
            found = judge.found(outcome)
            account.checked()
            if isinstance(found, Sound):
                if listener is not None:
                    listener.replied_together(exchange.position, requests, found.stack, found.sound)
                taking.take_stack(found.stack, found.sound)
                found = [(failure.client, failure) for failure in found.failures]
            for client, reply in found:
                take(client, reply)
            account.folded()
        for client, reply in judge.reviewed():
            take(client, reply)
        for failure in outvoted(requests, taking.forms):
            del taking.forms[failure.client]
            take(failure.client, failure)
        for client, why in verdict().items() if verdict is not None else ():
            take(client, Failure(client, "malformed", foreign(why)))
        report = account.report(exchange.position, requests)
        self._report(report)
        self._require_enough(report, self._rules.min_replies if min_replies is None else min_replies)
        return len(requests) - len(account.failures)

    def _limits(self, requests: Requests) -> dict[int, Mapping[str, float]]:
        """Return by the identity of each request, once it is checked, how large the numbers of a reply may be."""
        distinct = {id(request): request for request in requests.values()}
        for request in distinct.values():
            check_record(request)
        found: dict[int, Mapping[str, float]] = {}
        alike: dict[tuple[type, int], Mapping[str, float]] = {}  # by what they are told of: one model goes to many
        for key, request in distinct.items():
            if type(request).limits is not Request.limits:
                found[key] = request.limits(self._known)
                continue
            of = (type(request), id(getattr(request, "params", None)))
            if of not in alike:
                alike[of] = request.limits(self._known)
            found[key] = alike[of]
        return found

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
