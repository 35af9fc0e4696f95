"""A course's guards in their order, as one: what both sides call.

request:  server  send(g1) ... send(gn)  ->  client  receive(gn) ... receive(g1)  handler
server  heard(gn) ... heard(g1): what clients make of it, which may be less than was meant (`restores`)
reply:    client  release(g1) ... release(gn)  ->  server  accept(gn) ... accept(g1)  review, fold, folded
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.guards.guard import Asking, AtClient, AtServer, Guard, OwnClient, Stages, Suspicious
from isthmus.core.guards.hiding import NoisySums, PrivateSteps
from isthmus.core.outside import foreign
from isthmus.core.protocol import Client, Failure, Known, Position, Request, Requests, handlers_of
from isthmus.core.random import Sampling, Secret, UniformSampling, digest
from isthmus.core.record import CPU, Record, State, moved

if TYPE_CHECKING:
    from isthmus.core.folds import Fold

ReplyT = TypeVar("ReplyT", bound=Record)

# Entries of a client's memory that are a guard's begin so; no algorithm has such a name.
MEMORY = "guard."


def _overrides(guard: Guard, name: str) -> bool:
    return getattr(type(guard), name) is not getattr(Guard, name)


class GuardLine:
    """A course's guards in their order, as one; both halves call it, each with its own memories."""

    def __init__(self, guards: Iterable[Guard] = ()) -> None:
        self.guards = tuple(guards)
        self.entries = tuple(f"{MEMORY}{place}.{type(guard).__name__}" for place, guard in enumerate(self.guards))
        self.at_arrival = any(_overrides(guard, "accept") for guard in self.guards)
        self.reviews = any(_overrides(guard, "review") for guard in self.guards)
        self._own = {
            kind: (guard, entry, name)
            for guard, entry in self._each()
            for kind, name in handlers_of(type(guard)).items()
        }
        self._received: tuple[Any, Any] = (None, None)
        self._digested: tuple[Any, bytes] = (None, b"")

    def __bool__(self) -> bool:
        return bool(self.guards)

    def __repr__(self) -> str:
        return f"GuardLine({list(self.guards)})"

    def _each(self) -> Iterator[tuple[Guard, str]]:
        return zip(self.guards, self.entries, strict=True)

    def _back(self) -> Iterator[tuple[Guard, str]]:
        return zip(reversed(self.guards), reversed(self.entries), strict=True)

    # ---- client

    @property
    def private_steps(self) -> PrivateSteps | None:
        """How clients take the steps of their training, if a guard says it."""
        return next((guard.private_steps for guard in self.guards if guard.private_steps is not None), None)

    @property
    def noisy_sums(self) -> NoisySums | None:
        """How clients add up over edges, if a guard says it."""
        return next((guard.noisy_sums for guard in self.guards if guard.noisy_sums is not None), None)

    @property
    def kinds(self) -> tuple[type[Request[Any]], ...]:
        """The guards' own requests."""
        return tuple(self._own)

    def answered(self, request: Request[Any], client: Client) -> Record | None:
        """Return the reply to a guard's own request; None for a request of the algorithm's."""
        if type(request) not in self._own:
            return None
        guard, entry, name = self._own[type(request)]
        reply: Record = getattr(guard, name)(request, AtClient(client, entry))
        return reply

    def received(self, request: Request[Any], client: Client) -> Request[Any]:
        """Return a request as the client's handler gets it."""
        if self._received[0] is request:
            return self._received[1]  # type: ignore[no-any-return]
        found = request if client.device == CPU else moved(request, CPU)
        for guard, entry in self._back():
            found = guard.receive(found, AtClient(client, entry))
        if client.device != CPU:
            found = moved(found, client.device)
        if all(guard.receives_alike for guard in self.guards):
            self._received = (request, found)  # held, so that no other object takes its place
        return found

    @property
    def asks_alike(self) -> bool:
        """Whether clients that are sent the same understand the same, to the bit."""
        return all(guard.asks_alike for guard in self.guards)

    def digest_of(self, request: Request[Any]) -> bytes:
        """Return 32 bytes that tell what is asked for from all else, found once for clients that are asked together."""
        if self._digested[0] is not request:
            self._digested = (request, digest({"kind": type(request).__name__, "request": moved(request, CPU)}))
        return self._digested[1]

    def released(self, reply: Record, request: Request[Any], client: Client) -> Record:
        """Return what leaves the client of a reply."""
        if client.device != CPU:
            reply = moved(reply, CPU)
        for guard, entry in self._each():
            reply = guard.release(reply, request, AtClient(client, entry))
        return reply

    # ---- server

    def at_server(
        self, server: ServerSide, position: Position, clients: Iterable[str], fold: Fold | None
    ) -> GuardedExchange:
        """Return one exchange as the server half handles it."""
        return GuardedExchange(self, server, position, tuple(clients), fold)

    @property
    def answers_for_nobody(self) -> bool:
        """Whether a round of which nobody is a part is carried out."""
        return any(guard.answers_for_nobody for guard in self.guards)

    @property
    def sums_scores(self) -> bool:
        """Whether how the clients' models do is added up by a guard."""
        return any(guard.sums_scores for guard in self.guards)

    @property
    def reshapes(self) -> bool:
        """Whether what leaves has another form than what came."""
        return not all(guard.keeps_form for guard in self.guards)

    @property
    def summing(self) -> bool:
        """Whether replies that are folded are added up by a guard."""
        return any(guard.sums for guard in self.guards)

    def barred(self, memories: Mapping[str, State], round: int) -> frozenset[str]:
        """Return the clients that are not asked in a round."""
        every = (guard.barred(memories.get(entry, {}), round) for guard, entry in self._each())
        return frozenset().union(*every)

    def round_done(self, memories: Mapping[str, State], round: int) -> dict[str, State]:
        """Return the memories at the server after a round."""
        found = {entry: guard.round_done(round, memories.get(entry, {})) for guard, entry in self._each()}
        return {entry: memory for entry, memory in found.items() if memory}

    def spent(self, memories: Mapping[str, State]) -> dict[str, float]:
        """Return what is used up so far."""
        found: dict[str, float] = {}
        for guard, entry in self._each():
            found.update(guard.spent(memories.get(entry, {})))
        return found

    def exhausted(self, memories: Mapping[str, State]) -> str:
        """Return why the course has to end."""
        reasons = (guard.exhausted(memories.get(entry, {})) for guard, entry in self._each())
        return next(filter(None, reasons), "")


@dataclass(frozen=True)
class ServerSide:
    """What all exchanges of a round have in common at the server; `memories` is filled by the guards."""

    memories: dict[str, State]
    secret: Secret
    known: Known
    note: Callable[[str], None]
    everybody: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=UniformSampling)
    course: str = ""
    own: OwnClient | None = None


class GuardedExchange:
    """The server half of all guards in one exchange."""

    def __init__(
        self, line: GuardLine, server: ServerSide, position: Position, clients: tuple[str, ...], fold: Fold | None
    ) -> None:
        self.line = line
        self._at = {
            entry: AtServer(
                position,
                entry,
                clients,
                fold is not None,
                server.known,
                server.secret,
                server.note,
                server.memories,
                fold,
                server.everybody,
                server.sampling,
                server.course,
                server.own,
            )
            for entry in line.entries
        }
        self._heard: Requests = {}
        self._meant: Requests = {}
        self._following: Request[Any] | None = None

    def _pairs(self, backwards: bool = False) -> Iterator[tuple[Guard, AtServer]]:
        pairs = self.line._back() if backwards else self.line._each()
        return ((guard, self._at[entry]) for guard, entry in pairs)

    def sent(self, requests: Requests) -> tuple[Requests, Requests]:
        """Return the requests that leave, and those that replies are compared with once all guards have taken them."""
        leaving = self._meant = requests
        for guard, at in self._pairs():
            leaving = guard.send(leaving, at)
        heard = leaving
        for guard, at in self._pairs(backwards=True):
            heard = guard.heard(heard, at)
        self._heard = heard
        return leaving, requests if any(guard.restores for guard in self.line.guards) else heard

    def accepted(self, client: str, reply: Record | Failure, request: Request[Any]) -> Record | Failure:
        """Return a reply as it was before it left its client, or a named failure."""
        if isinstance(reply, Failure):
            return reply
        request = self._heard.get(client, request)
        try:
            for guard, at in self._pairs(backwards=True):
                reply = guard.accept(reply, request, client, at)
                request = self._meant[client] if guard.restores else request
        except Suspicious as error:
            return Failure(client, "suspicious", foreign(str(error)))
        except Exception as error:  # bytes of another party: whatever a decoder stumbles over is theirs
            text = str(error) if isinstance(error, BadMessage) else f"{type(error).__name__}: {error}"
            return Failure(client, "malformed", foreign(text))
        return reply

    def failed(self, failure: Failure) -> None:
        """Tell every guard that a client gave no usable reply, and why."""
        for guard, at in self._pairs():
            guard.failed(failure.client, at)
            guard.told_of(failure, at)

    def reviewed(self, replies: Mapping[str, Record], requests: Requests) -> dict[str, Failure]:
        """Return a failure for each client whose reply is not to count."""
        failures: dict[str, Failure] = {}
        for guard, at in self._pairs(backwards=True):
            left = {client: reply for client, reply in replies.items() if client not in failures}
            for client, reason in guard.review(left, requests, at).items():
                failures[client] = Failure(client, "suspicious", foreign(reason))
        return failures

    def fold(self, fold: Fold) -> Fold:
        """Return what folds the replies."""
        for guard, at in self._pairs(backwards=True):
            fold = guard.fold(fold, at)
        return fold

    def folded(self, reply: ReplyT, requests: Requests, num_replies: int) -> ReplyT:
        """Return what the algorithm is given."""
        for guard, at in self._pairs(backwards=True):
            reply = guard.folded(reply, requests, num_replies, at)
        return reply

    def of_nobody(self, request: Request[Any]) -> Record:
        """Return what the fold of no replies is, as the first guard has it that says so."""
        guard, at = next((guard, at) for guard, at in self._pairs() if guard.answers_for_nobody)
        return guard.of_nobody(request, at)

    def form_of_held(self, reply: Record) -> Hashable:
        """Return what replies in whose place others are held have in common."""
        return self.line.guards[-1].form_of_held(reply)

    def following(self) -> Request[Any] | None:
        """Return what the guard that adds up asks of clients once they hold a reply, before all else."""
        guard, at = next(self._pairs(backwards=True))
        self._following = guard.following(at)
        return self._following

    def summed(
        self,
        requests: Requests,
        holding: tuple[str, ...],
        ask: Asking,
        min_replies: int,
    ) -> tuple[Record, int]:
        """Return the weighted mean of what clients hold, as it was before it left them, and of how many it is."""
        (guard, at), *others = self._pairs(backwards=True)
        stages = Stages(requests, holding, ask, min_replies, at)
        stages.reshaped, stages.alike = self.line.reshapes, self.line.asks_alike
        stages.following = self._following
        mean = guard.summed(stages)
        first, kind = holding[0], type(requests[holding[0]]).__name__
        request = self._heard.get(first, requests[first])
        try:
            for other, there in others:
                mean = other.accept(mean, request, "", there)
                request = requests[first] if other.restores else request
        except BadMessage as error:
            raise CourseFailed(f"what the replies to {kind} add up to cannot be read: {error}") from None
        problem = request.misfit(mean, at.known) if stages.reshaped else ""
        if problem:
            raise CourseFailed(f"the sum of the replies to {kind} has another form: {problem}")
        return mean, stages.num_replies


def line_problem(guards: tuple[Guard, ...]) -> str:
    """Return why guards cannot stand in this order; empty if they can."""
    found = (_sum_before_the_end(guards), _bytes_before_numbers(guards), _two_ways(guards), _against_sum(guards))
    return next(filter(None, found), "")


def _sum_before_the_end(guards: tuple[Guard, ...]) -> str:
    for place, guard in enumerate(guards[:-1]):
        if guard.sums:
            after = type(guards[place + 1]).__name__
            return (
                f"{type(guard).__name__} adds up what clients hold, so it must be the last guard; {after} is after it"
            )
    return ""


def _bytes_before_numbers(guards: tuple[Guard, ...]) -> str:
    for place, guard in enumerate(guards):
        coder = next((before for before in guards[:place] if not before.linear and _overrides(before, "release")), None)
        if guard.works_on_numbers and coder is not None:
            mine, first = type(guard).__name__, type(coder).__name__
            return (
                f"{first} stands before {mine} and leaves no numbers that it could protect: put {mine} before {first}"
            )
    return ""


def _two_ways(guards: tuple[Guard, ...]) -> str:
    """Return which two guards say how clients take their steps, or how they add up over edges."""
    for name in ("private_steps", "noisy_sums"):
        saying = [type(guard).__name__ for guard in guards if getattr(guard, name) is not None]
        if len(saying) > 1:
            return f"{' and '.join(saying)} both say how clients learn; leave one out"
    return ""


def _against_sum(guards: tuple[Guard, ...]) -> str:
    if not guards or not guards[-1].sums:
        return ""
    for guard in guards[:-1]:
        single = [name for name in ("review", "fold") if _overrides(guard, name)]
        if single or not guard.linear:
            why = "looks at single replies" if single else "turns each reply into bytes that cannot be added up"
            return f"{type(guard).__name__} {why}, and {type(guards[-1]).__name__} lets nobody see one: leave one out"
    return ""
