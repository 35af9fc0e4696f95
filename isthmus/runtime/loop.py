"""The default runtimes: every client in this process, one after the other, or together where the algorithm can.

Records are passed by reference. Whether clients answer alone or together, the results agree within rounding. A
handler that trains pauses (`Pausing`), so that what the handlers of many clients wait for is done for all at once.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from greenlet import getcurrent, greenlet

from isthmus.core.client import Client, Cohort, NotTogether, Work
from isthmus.core.codec import decode, encode, encoded_size
from isthmus.core.errors import BadMessage, IsthmusError, RefusedRequest
from isthmus.core.federation import Outcome, Outcomes, StackOutcome
from isthmus.core.protocol import Algorithm, Failure, Holdings, Position, Request, Requests
from isthmus.core.record import CPU, Record, State, check_value, moved
from isthmus.core.replies import MemberParams, Stack, StackedParams, gathered
from isthmus.runtime.marked import require_clients

# ---- handlers that pause


class Pausing:
    """Runs handlers of a block of clients, and counts how many pieces of each kind of work were done in which way."""

    def __init__(self) -> None:
        self.together: Counter[str] = Counter()
        self.alone: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}  # why pieces that fit together were done alone all the same, by kind
        self.broken: set[str] = set()  # kinds among them whose reason is an error; others were refused (`NotTogether`)

    def run(self, block: Cohort, handlers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Return what the handler of each client returns; a handler raises nothing."""
        clients = {client.id: client for client in block}
        results: dict[str, Any] = {}
        paused: dict[str, tuple[greenlet, Work]] = {}
        threads = {client: greenlet(handler) for client, handler in handlers.items()}

        def go_on(client: str, thread: greenlet, *value: Any) -> None:
            found = thread.switch(*value)
            if thread.dead:
                results[client] = found
            else:
                paused[client] = (thread, found)

        hub = getcurrent()
        for member in clients.values():
            member.desk = partial(_paused, hub)
        try:
            for client, thread in threads.items():
                go_on(client, thread)
            while paused:
                waiting, paused = paused, {}
                done = self._done(block, {client: work for client, (_, work) in waiting.items()})
                for client, (thread, _) in waiting.items():
                    go_on(client, thread, done[client])
        finally:
            for member in clients.values():
                member.desk = None
            for thread in threads.values():  # those that an interruption keeps from going on end here
                thread.throw()
        return {client: results[client] for client in handlers}

    def _done(self, block: Cohort, works: Mapping[str, Work]) -> dict[str, Any]:
        """Return each client's result, or what went wrong with it."""
        groups: dict[Any, list[Client]] = {}
        for client in block:
            if client.id in works:
                groups.setdefault(works[client.id].kind(), []).append(client)
        done: dict[str, Any] = {}
        for group in groups.values():
            mine = [works[client.id] for client in group]
            for client, result in zip(group, self._of_group(block, group, mine), strict=True):
                done[client.id] = result
        return done

    def _of_group(self, block: Cohort, group: Sequence[Client], works: Sequence[Work]) -> Sequence[Any]:
        name = type(works[0]).__name__
        if len(group) > 1:
            try:
                found = type(works[0]).together(block.of(group), works)
                self.together[name] += len(group)
                return found
            except NotTogether as reason:
                self.reasons[name] = str(reason)
            except Exception as error:  # whoever it is that cannot be served is named when each is served alone
                self.reasons[name] = f"{type(error).__name__}: {error}"
                self.broken.add(name)
        self.alone[name] += len(group)
        return [_alone(client, work) for client, work in zip(group, works, strict=True)]


class _Raised:
    """What work for a client raised; its handler is told."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _alone(client: Client, work: Work) -> Any:
    try:
        return work.alone(client)
    except Exception as error:
        return _Raised(error)


def _paused(hub: greenlet, work: Work) -> Any:
    """Leave work at the hub, and return its result when it is done there, maybe with that of others."""
    # The switch belongs to all handlers of this thread: one that computes without gradients must not stop others.
    enabled = torch.is_grad_enabled()
    if not enabled:
        torch.set_grad_enabled(True)
    found = hub.switch(work)
    if torch.is_grad_enabled() != enabled:
        torch.set_grad_enabled(enabled)
    if isinstance(found, _Raised):
        raise found.error
    return found


# ---- runtimes


class Site:
    """A client together with the algorithm whose handlers it runs; its own settings of it come first."""

    def __init__(self, algorithm: Algorithm[Any], client: Client) -> None:
        self.algorithm = getattr(client, "algorithm", None) or algorithm
        self.client = client
        self._handlers = type(algorithm).handlers()

    def answer(self, position: Position, request: Request[Any]) -> Record | Failure:
        """Run the handler; when it fails, the client's memory is what it was before."""
        reply = self.handled(position, request)
        crossing: Record | Failure = reply if self.client.device == CPU else moved(reply, CPU)
        return crossing

    def handled(self, position: Position, request: Request[Any]) -> Record | Failure:
        """Do the same, and leave the reply on the client's device."""
        if self.client.device != CPU:
            request, self.client.state = moved((request, self.client.state), self.client.device)
        before = dict(self.client.state)
        self.client.begin(position, request)
        try:
            reply = self._reply(request)
            check_value(self.client.state, State, f"state of client {self.client.id}")
        except IsthmusError as error:
            self.client.state = before
            kind = "refused" if isinstance(error, RefusedRequest) else "error"
            return Failure(self.client.id, kind, str(error))
        except Exception as error:  # whatever a handler raises must not end the others' course; it is reported by name
            self.client.state = before
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"in {at.name}, line {at.lineno} of {at.filename.rsplit('/', 1)[-1]}"
            return Failure(self.client.id, "error", f"{type(error).__name__}: {error} ({place})")
        return reply

    def _reply(self, request: Request[Any]) -> Record:
        """Return what the client's handler makes of a request, behind the client's guards."""
        guards = self.client.guards
        if guards:
            own = guards.answered(request, self.client)
            if own is not None:
                return own
            request = guards.received(request, self.client)
        name = self._handlers.get(type(request))
        if name is None:
            raise BadMessage(f"{type(self.algorithm).__name__} has no handler for {type(request).__name__}")
        reply: Record = getattr(self.algorithm, name)(request, self.client)
        return guards.released(reply, request, self.client) if guards else reply


def timed(site: Site, position: Position, request: Request[Any], timeout_seconds: float | None) -> Outcome:
    """Answer and measure; an answer in process cannot be cut short, so a late one becomes a failure after the fact."""
    started = time.perf_counter()
    before = dict(site.client.state)
    reply = site.answer(position, request)
    seconds = time.perf_counter() - started
    if timeout_seconds is not None and seconds > timeout_seconds:
        site.client.state = before
        reason = f"answered after {seconds:.3f} s, the limit is {timeout_seconds} s"
        reply = Failure(site.client.id, "late", reason)
    return Outcome(site.client.id, reply, 0, 0, seconds)


def holdings_of(clients: Mapping[str, Client]) -> dict[str, Holdings]:
    """Return how much data clients have, of those that can tell."""
    found = {name: getattr(client, "holdings", None) for name, client in clients.items()}
    return {name: held for name, held in found.items() if held is not None}


class LoopRuntime:
    """Answers each request in turn; sizes are those that the encoded messages would have."""

    def __init__(self, algorithm: Algorithm[Any], clients: Sequence[Client]) -> None:
        self.sites = {client.id: Site(algorithm, client) for client in clients}
        self.clients = tuple(self.sites)
        self._marked: tuple[int, dict[str, State]] = (0, {client: {} for client in self.sites})
        self._before: dict[str, State] = {}

    @cached_property
    def holdings(self) -> dict[str, Holdings]:
        """How much data the clients have that can tell."""
        return holdings_of({client: site.client for client, site in self.sites.items()})

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Answer the requests one after the other."""
        self._before = {}
        return self.answer_each(position, requests, timeout_seconds)

    def answer_each(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Iterator[Outcome]:
        """Yield each client's own answer."""
        sizes: dict[int, int] = {}
        for client, request in requests.items():
            started = time.perf_counter()
            if id(request) not in sizes:  # a request to all is one object, measured once
                sizes[id(request)] = encoded_size(request)
            spent = time.perf_counter() - started
            self._before[client] = dict(self.sites[client].client.state)
            outcome = timed(self.sites[client], position, request, timeout_seconds)
            yield measured(client, outcome.reply, sizes[id(request)], outcome.seconds, spent)

    def undo(self, client: str) -> None:
        """Give a client the memory back that it had before its answer in the last exchange, if it gave one."""
        if client in self._before:
            self.sites[client].client.state = dict(self._before[client])

    def mark(self, round: int) -> None:
        """Mark the memories; handlers replace entries and never change them in place, so a shallow copy is enough."""
        self._marked = (round, {client: dict(site.client.state) for client, site in self.sites.items()})

    @property
    def is_marked(self) -> bool:
        """Whether no memory was touched since the mark; one that was may still hold the same."""
        # Entries are replaced and never changed in place, so that looking at which they are is enough.
        return all(
            site.client.state.keys() == marked.keys()
            and all(value is marked[key] for key, value in site.client.state.items())
            for site, marked in zip(self.sites.values(), self._marked[1].values(), strict=True)
        )

    def abandon_round(self) -> int:
        """Put the memories back to the mark."""
        round, states = self._marked
        for client, site in self.sites.items():
            site.client.state = dict(states[client])
        return round

    def save_clients(self) -> dict[str, bytes]:
        """Return the marked memories, encoded."""
        return {client: encode(state) for client, state in self._marked[1].items()}

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Replace every client's memory."""
        require_clients(memories, self.sites)
        states: dict[str, State] = {client: decode(memories[client], State) for client in self.sites}
        for client, site in self.sites.items():
            site.client.state = states[client]


def measured(client: str, reply: Record | Failure, down: int, seconds: float, spent: float = 0.0) -> Outcome:
    """Return an outcome with the size of its reply; one that cannot be encoded is malformed."""
    started, up = time.perf_counter(), 0
    try:
        up = 0 if isinstance(reply, Failure) else encoded_size(reply)
    except BadMessage as error:
        reply = Failure(client, "malformed", str(error))
    return Outcome(client, reply, down, up, seconds, spent + time.perf_counter() - started)


# Puts clients together: the blocks that can answer as one, and the clients that are better off alone.
Gather = Callable[[Sequence[Client]], tuple[Sequence[Cohort], Sequence[Client]]]
Found: TypeAlias = Sequence[Outcome | StackOutcome]


class StackedRuntime(LoopRuntime):
    """Answers a request for whole blocks of clients: their handlers run side by side, and like work is done as one.

    An algorithm may have a handler for many (`@cohort`), which takes their place; one that fails is no client's
    failure: its clients answer one by one instead, and whoever fails then is named. A time limit is a client's own, so
    with one every client answers by itself.

    `together` and `alone` count replies by the kind of request; `notes` say why work was done client by client although
    it fits together.
    """

    def __init__(self, algorithm: Algorithm[Any], clients: Sequence[Client], gather: Gather) -> None:
        super().__init__(algorithm, clients)
        self.algorithm, self.gather = algorithm, gather
        self.together: Counter[str] = Counter()
        self.alone: Counter[str] = Counter()
        self.notes: dict[str, str] = {}
        self.pausing = Pausing()
        self._cohort_handlers = type(algorithm).cohort_handlers()

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Answer the requests block by block, then the clients that are left."""
        self._before = {}
        left = dict(requests)
        if timeout_seconds is None:
            kinds = {type(request) for request in requests.values()}
            name = self._cohort_handlers.get(kinds.pop()) if len(kinds) == 1 else None
            blocks, alone = self.gather([self.sites[client].client for client in requests])
            left = {client.id: requests[client.id] for client in alone}
            for block in blocks:
                mine = {client.id: requests[client.id] for client in block}
                answers = (
                    self._together(name, position, mine, block) if name else self._side_by_side(position, mine, block)
                )
                if answers is None:
                    left |= mine
                else:
                    yield from answers
        self.alone[_kind(requests)] += len(left)
        yield from self.answer_each(position, left, timeout_seconds)

    def mark(self, round: int) -> None:
        """Mark the memories; what is left of a stack that most clients have let go of is taken out of it."""
        super().mark(round)
        held: dict[StackedParams, list[MemberParams]] = {}
        for entry in (entry for state in self._marked[1].values() for entry in state.values()):
            if isinstance(entry, MemberParams) and entry.stack is not None:
                held.setdefault(entry.stack, []).append(entry)
        for stack, members in held.items():
            if not stack.is_mostly_gone:
                stack.condense()
                continue
            for member in members:
                member.settle()

    def _side_by_side(self, position: Position, requests: Requests, block: Cohort) -> Outcomes:
        """Yield the answers of a block whose plain handlers run side by side."""
        self._before.update({client.id: dict(client.state) for client in block})
        started, done = time.perf_counter(), sum(self.pausing.together.values())
        there = _at_hand(requests, block)
        handlers = {client: partial(self.sites[client].handled, position, there[client]) for client in requests}
        replies = self.pausing.run(block, handlers)
        seconds = time.perf_counter() - started
        self.notes.update(self.pausing.reasons)
        shared = sum(self.pausing.together.values()) > done
        (self.together if shared else self.alone)[_kind(requests)] += len(requests)
        found: Stack | Sequence[Record | Failure] = [replies[client] for client in requests]
        if not any(isinstance(reply, Failure) for reply in replies.values()):
            found = gathered(tuple(requests), found) or found  # type: ignore[arg-type]
        yield from _outcomes(requests, _all_handed_over(found, block), seconds)

    def _together(self, name: str, position: Position, requests: Requests, block: Cohort) -> Found | None:
        """Return the answers of a block, or None when its clients have to answer one by one."""
        before: dict[str, State] = {client.id: dict(client.state) for client in block}
        self._before.update(before)
        started = time.perf_counter()
        try:
            there = _at_hand(requests, block)
            for client in block:
                if client.device != CPU:
                    client.state = moved(client.state, client.device)
                client.begin(position, there[client.id])
            found = self._of_cohort(name, there, block)
            for client in block:
                if client.state.keys() != before[client.id].keys() or any(
                    client.state[key] is not before[client.id][key] for key in client.state
                ):
                    check_value(client.state, State, f"state of client {client.id}")
            seconds = time.perf_counter() - started
            answers = _outcomes(requests, _all_handed_over(found, block), seconds)
            self.together[_kind(requests)] += len(requests)
            return answers
        except Exception as error:  # the clients answer one by one, and who fails then is named
            self.notes[name] = f"{type(error).__name__}: {error}"
            for client in block:
                client.state = before[client.id]
            return None

    def _of_cohort(self, name: str, requests: Requests, block: Cohort) -> Stack | Sequence[Record]:
        """Return what a handler for many answers, each client's behind its guards."""
        lines = {client.id: client.guards for client in block if client.guards}
        if lines:
            behind = {client.id: client for client in block}
            requests = {c: lines[c].received(request, behind[c]) for c, request in requests.items()}
        found: Stack | Sequence[Record] = getattr(self.algorithm, name)(tuple(requests.values()), block)
        if not lines:
            return found
        each = zip(requests, found, strict=True)
        return [lines[client].released(reply, requests[client], behind[client]) for client, reply in each]


def _at_hand(requests: Requests, block: Cohort) -> dict[str, Request[Any]]:
    """Return requests on the clients' devices; what is the same for several stays one."""
    devices = {client.id: client.device for client in block}
    known: dict[torch.device, dict[int, Any]] = {device: {} for device in devices.values()}
    return {
        client: request if devices[client] == CPU else moved(request, devices[client], known[devices[client]])
        for client, request in requests.items()
    }


def _all_handed_over(found: Stack | Sequence[Any], block: Cohort) -> Stack | Sequence[Any]:
    """Return the replies of a block as they cross; of a stack, what all have in common: sums come by themselves."""
    if all(client.device == CPU for client in block):
        return found
    return Stack(found.clients, moved(found.record, CPU)) if isinstance(found, Stack) else moved(tuple(found), CPU)


def _kind(requests: Requests) -> str:
    return type(next(iter(requests.values()))).__name__ if requests else ""


def _outcomes(requests: Requests, found: Stack | Sequence[Record | Failure], seconds: float) -> Found:
    started = time.perf_counter()
    distinct = {id(request): request for request in requests.values()}
    sizes = {key: encoded_size(request) for key, request in distinct.items()}
    if isinstance(found, Stack):
        if found.clients != tuple(requests):
            raise ValueError("the handler for many answered for other clients than it was asked for")
        down = sum(sizes[id(request)] for request in requests.values())
        up = sum(found.sizes())
        return [StackOutcome(found, down, up, seconds, time.perf_counter() - started)]
    share = seconds / len(requests)
    pairs = zip(requests.items(), found, strict=True)
    return [measured(client, reply, sizes[id(request)], share) for (client, request), reply in pairs]
