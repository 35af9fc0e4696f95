"""The federation as the server half of an algorithm sees it: requests out, replies and named failures back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, TooFewReplies
from isthmus.core.folds import Fold, form_of, weight_of
from isthmus.core.outside import foreign
from isthmus.core.protocol import Failure, Holdings, Known, Position, ReplyT, Request, Requests, reply_type, told
from isthmus.core.random import numpy_generator, torch_generator
from isthmus.core.record import Params, Record, check_record
from isthmus.core.replies import Stack, judged, judged_stack

R = TypeVar("R", bound=Record)
MemoryT = TypeVar("MemoryT")
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


class MarkedMemories(Generic[MemoryT]):
    """What a runtime does with the clients' memories that it holds, or knows by a name: each is one plain value."""

    def __init__(self, clients: Iterable[str], blank: MemoryT) -> None:
        self._memories = dict.fromkeys(clients, blank)
        self._marked: tuple[int, dict[str, MemoryT]] = (0, dict(self._memories))
        self._before: dict[str, MemoryT] = {}  # what clients answered from in the last exchange

    def undo(self, client: str) -> None:
        """Give a client the memory back that it had before its answer in the last exchange, if it gave one."""
        self._memories[client] = self._before.get(client, self._memories[client])

    def mark(self, round: int) -> None:
        """Mark the memories."""
        self._marked = (round, dict(self._memories))

    def abandon_round(self) -> int:
        """Put the memories back to the mark."""
        round, memories = self._marked
        self._memories = dict(memories)
        return round


def require_clients(memories: Mapping[str, bytes], clients: Iterable[str]) -> None:
    """Raise BadInput unless memories are those of the clients of a course."""
    wanted = sorted(clients)
    if sorted(memories) != wanted:
        raise BadInput(f"the checkpoint has the clients {sorted(memories)[:5]}, this course has {wanted[:5]}")


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


class Federation:
    """One round's view of the clients. `clients` is the cohort of the round; `all_clients` everybody."""

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
    ) -> None:
        self._runtime = runtime
        self._note = note
        self._rules = rules
        self._report = report
        self._exchange = 0
        self._seed = seed
        self._known = Known(getattr(runtime, "holdings", {}), model.params, model.buffers)
        self.round = round
        self.clients = tuple(cohort)
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
        addressed = self._address(requests, clients)
        found: dict[str, Record | Failure] = {}
        shared: dict[str, Hashable] = {}

        def take(client: str, reply: Record | Failure) -> None:
            found[client] = reply
            if not isinstance(reply, Failure):
                shared[client] = addressed[client].common(cast(ReplyT, reply))

        def take_stack(stack: Stack, sound: Tensor) -> None:
            for position in sound.nonzero().flatten().tolist():
                take(stack.clients[position], stack.member(position))

        self._carry(addressed, min_replies, timeout_seconds, take, take_stack, shared)
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
        addressed = self._address(requests, clients)
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
                    fold.add_answer(total_of(form), reply, addressed[first])
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

        self._carry(addressed, min_replies, timeout_seconds, take, take_stack, forms)
        chosen = next((forms[c] for c in addressed if c in forms), next(iter(totals), None))
        return cast(ReplyT, fold.finish(totals.get(chosen, fold.start())))

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
        left: frozenset[str] = getattr(self._runtime, "left", frozenset())
        present = [client for client in named if client not in left]
        strangers = sorted(set(present) - set(self.all_clients))
        if strangers:
            raise KeyError(f"there is no client {strangers[0]!r}; clients: {', '.join(self.all_clients)}")
        return present

    def _carry(
        self,
        requests: Requests,
        min_replies: int | None,
        timeout_seconds: float | None,
        take: Callable[[str, Record | Failure], None],
        take_stack: Callable[[Stack, Tensor], None],
        votes: dict[str, Hashable],
    ) -> None:
        """Do an exchange; `votes` has what replies must have in common once they are taken, of those that stand."""
        position = Position(self._seed, self.round, self._exchange)
        self._exchange += 1
        limit = self._rules.timeout_seconds if timeout_seconds is None else timeout_seconds
        expected = {client: reply_type(type(request)) for client, request in requests.items()}
        failures: list[Failure] = []
        down = up = 0
        client_seconds = codec_seconds = check_seconds = fold_seconds = 0.0
        clock = time.perf_counter

        def fail(failure: Failure) -> None:
            failures.append(failure)
            # What a client trained into a NaN must not stay in its memory: it could never answer again.
            self._runtime.undo(failure.client)
            take(failure.client, failure)

        started = clock()
        limits = self._limits(requests)
        for outcome in self._answered(position, requests, limit):
            down, up = down + outcome.bytes_down, up + outcome.bytes_up
            client_seconds += outcome.seconds
            codec_seconds += outcome.codec_seconds
            came = clock()
            if isinstance(outcome, StackOutcome):
                sound, unsound = judged_stack(outcome.stack, requests, expected, self._known, limits)
                checked = clock()
                take_stack(outcome.stack, sound)
                for failure in unsound:
                    fail(failure)
            else:
                request, wanted = requests[outcome.client], expected[outcome.client]
                reply = judged(outcome.client, outcome.reply, request, wanted, self._known, limits[id(request)])
                checked = clock()
                if isinstance(reply, Failure):
                    fail(reply)
                else:
                    take(outcome.client, reply)
            check_seconds += checked - came
            fold_seconds += clock() - checked
        for failure in _outvoted(requests, votes):
            del votes[failure.client]
            fail(failure)
        kind = type(next(iter(requests.values()))).__name__ if requests else "nothing"
        report = ExchangeReport(
            position=position,
            request=kind,
            num_clients=len(requests),
            bytes_down=down,
            bytes_up=up,
            seconds=clock() - started,
            client_seconds=client_seconds,
            codec_seconds=codec_seconds,
            check_seconds=check_seconds,
            fold_seconds=fold_seconds,
            failures=tuple(failures),
        )
        self._report(report)
        self._require_enough(report, self._rules.min_replies if min_replies is None else min_replies)

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
