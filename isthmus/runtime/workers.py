"""A runtime whose clients are simulated in worker processes, on this machine or on others.

The clients are divided into blocks, which stay what they are for the whole course; a worker holds some of them
(`runtime/block.py` has what is said between server and block). Which worker holds which block, and how many there are,
has no part in any number: results depend on the blocks alone.

    exchange   every block gets the requests of its clients, all at once; their answers are taken in the order of the
               blocks, whichever comes first
    sums       replies that can be added up come as their sum. Who looks at a single one makes the block send all; the
               next request of that kind asks for all at once
    mark       memories that changed come to the server, so that it has what a checkpoint needs and a lost worker had
    lost       a worker that is gone costs the work of its blocks since the last mark: they are opened at another one
               (or at the one that was started in its place) from the marked memories, and get the orders since then
               again. All that is random derives from the place in the course, so they end where they were
    late       a worker that joins gets its share of the blocks when the next round begins
"""

from __future__ import annotations

import heapq
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import decode_own, encode, opened, pack, unpack
from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.federation import Outcome, Outcomes, StackOutcome
from isthmus.core.protocol import Failure, Holdings, Position, Requests, reply_type
from isthmus.core.record import Record, leaves, with_leaves
from isthmus.core.replies import Each, Stack, Stacked, StackedTensor
from isthmus.runtime.block import Answer, Ask, Many, One, Opener, Order
from isthmus.runtime.cluster import Crew, Seat, WorkerLost
from isthmus.runtime.marked import require_clients

# So often may the worker of a block be lost within one order before the block is taken to be the reason.
MAX_LOSSES = 3
# Seconds between two looks for workers that have joined.
JOIN_SECONDS = 1.0


def divided(sizes: Mapping[str, int], number: int) -> list[tuple[str, ...]]:
    """Return the clients in so many blocks of about the same size, each in the order given; none is empty."""
    number = max(1, min(number, len(sizes)))
    heap = [(0, 0, place) for place in range(number)]  # size, number of clients, which block
    place_of: dict[str, int] = {}
    for client in sorted(sizes, key=lambda client: -sizes[client]):
        size, members, place = heapq.heappop(heap)
        place_of[client] = place
        # Members count too: clients that hold nothing are spread as others are.
        heapq.heappush(heap, (size + sizes[client] + 1, members + 1, place))
    return [tuple(client for client in sizes if place_of[client] == place) for place in range(number)]


@dataclass
class _Held:
    """A block as the server knows it, with what is to be said with the next order."""

    clients: tuple[str, ...]
    seat: Seat | None = None  # None before it is opened, or when its worker was lost
    log: list[Order] = field(default_factory=list)  # since the last mark: leads from there to where the block is
    undo: list[str] = field(default_factory=list)
    memories: dict[str, bytes] = field(default_factory=dict)  # what to remember instead
    drop: list[str] = field(default_factory=list)  # sums that nobody needs any more
    number: int = 0  # of the next order
    same: bool = True  # whether its memories are the marked ones still, by what it said last

    def order(self, **parts: Any) -> Order:
        """Return the next order, with all that is to be said before."""
        memories = {client: pack(memory) for client, memory in self.memories.items()}
        order = Order(self.number, tuple(self.undo), memories, tuple(self.drop), **parts)
        self.undo, self.memories, self.drop = [], {}, []
        self.number += 1
        return order

    @property
    def is_marked(self) -> bool:
        """Whether nothing has happened to the block's memories since the last mark."""
        return not (self.undo or self.memories) and (self.same or not self.log)


class WorkersRuntime:
    """Carries exchanges to blocks of clients at the workers of a crew; `notes` are those of `StackedRuntime`.

    `traffic` counts bytes of orders and answers, `lost` the blocks that were opened again since their worker was gone,
    `moved` those that went to a worker that had joined.
    """

    def __init__(
        self,
        crew: Crew,
        blocks: Sequence[tuple[str, ...]],
        opener: Opener,
        opening: Callable[[tuple[str, ...], Mapping[str, bytes]], bytes],
        clients: Sequence[str],
        holdings: Mapping[str, Holdings],
    ) -> None:
        self.crew, self.blocks = crew, list(blocks)
        self.holdings = dict(holdings)
        self.notes: dict[str, str] = {}
        self.traffic = {"down": 0, "up": 0}
        self.lost = self.moved = 0
        self._opener, self._opening, self.clients = opener, opening, tuple(clients)
        self._held = [_Held(block) for block in self.blocks]
        self._place = {client: place for place, block in enumerate(self.blocks) for client in block}
        self._known = {client: encode({}) for client in self.clients}  # what the blocks were sent, or sent, last
        self._marked: tuple[int, dict[str, bytes]] = (0, dict(self._known))
        self._asked: frozenset[str] = frozenset()
        self._looked_at: set[str] = set()  # kinds of requests whose single replies the server looks at
        self._looked_for_workers = time.monotonic()
        there = crew.some_workers()
        self._open({place: there[place % len(there)] for place in range(len(self.blocks))})

    # ---- exchanges

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Send every block the requests of its clients; yield what comes back in the order of the blocks."""
        if position.exchange == 0:
            self._share_with_who_joined()
        self._asked = frozenset(requests)
        started = time.perf_counter()
        payloads = {id(request): pack(encode(request)) for request in requests.values()}
        spent = time.perf_counter() - started
        asks: dict[int, dict[str, Any]] = {}
        for place, block in enumerate(self.blocks):
            mine = {client: requests[client] for client in block if client in requests}
            if mine:
                asks[place] = {"ask": self._ask(position, mine, payloads, timeout_seconds)}
        for place, answer in self._answers(asks):
            for told in answer.outcomes:
                started = time.perf_counter()
                found = self._outcomes(place, told, requests)
                spent += time.perf_counter() - started
                for outcome in found:
                    yield replace(outcome, codec_seconds=outcome.codec_seconds + spent)
                    spent = 0.0

    def _ask(self, position: Position, requests: Requests, payloads: Mapping[int, Tensor], limit: float | None) -> Ask:
        distinct = {key: place for place, key in enumerate(dict.fromkeys(map(id, requests.values())))}
        kind = type(next(iter(requests.values()))).__name__
        return Ask(
            position=position,
            kind=kind,
            payloads=tuple(payloads[key] for key in distinct),
            whose={client: distinct[id(request)] for client, request in requests.items()},
            timeout_seconds=limit,
            whole=kind in self._looked_at,
        )

    def _outcomes(self, place: int, told: One | Many, requests: Requests) -> list[Outcome] | list[StackOutcome]:
        """Return what a block says of one client or of many; what is no reply is a failure of theirs."""
        clients = told.clients if isinstance(told, Many) else (told.client,)
        kind = type(requests[clients[0]])
        try:
            if isinstance(told, Many):
                look = _Look(self, place, told.name, kind.__name__)
                return [StackOutcome(_stack(told, reply_type(kind), look), *told.facts)]
            reply: Record | Failure = told.failure or decode_own(opened(told.payload), reply_type(kind))
            return [Outcome(told.client, reply, *told.facts)]
        except BadMessage as error:
            (down, up, seconds, _), share, why = told.facts, len(clients), str(error)
            facts = (down // share, up // share, seconds / share)
            return [Outcome(client, Failure(client, "malformed", why), *facts) for client in clients]

    def look(self, place: int, name: str, kind: str) -> dict[int, Tensor]:
        """Return the tensors behind a sum, (clients, ...); requests of this kind are answered in full from now on."""
        self._looked_at.add(kind)
        ((_, answer),) = self._answers({place: {"look": name}})
        return answer.tensors

    def forget(self, place: int, name: str) -> None:
        """Tell a block, when it next hears anything, that nobody will look behind a sum any more."""
        self._held[place].drop.append(name)

    def _answers(self, parts: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, Answer]]:
        """Give some blocks an order each, all at once; yield the answers in the order of the blocks."""
        orders = {place: self._held[place].order(**mine) for place, mine in parts.items()}
        calls = {place: self._sent(place, order) for place, order in orders.items()}
        for place, order in orders.items():
            answer = self._answer(place, order, calls[place])
            for client, memory in order.memories.items():
                self._known[client] = unpack(memory)
            self._held[place].log.append(order)
            self._held[place].same = answer.same
            self.notes.update(answer.notes)
            yield place, answer

    def _sent(self, place: int, order: Order) -> Any:
        """Send an order; None where the worker is gone already."""
        seat = self._held[place].seat
        message = encode(order)
        self.traffic["down"] += len(message)
        try:
            return None if seat is None else seat.call("answer", message)
        except WorkerLost:
            return None

    def _answer(self, place: int, order: Order, call: Any) -> Answer:
        """Wait for an answer; where the worker is lost on the way, bring the block to where it was and ask again."""
        reason = "gone before"
        for _ in range(MAX_LOSSES + 1):
            try:
                return self._received(place, call)
            except WorkerLost as error:
                reason = str(error)
            try:
                self._reopen(place)
                call = self._sent(place, order)
            except WorkerLost as error:
                reason, call = str(error), None
        raise CourseFailed(
            f"the worker of {len(self.blocks[place])} clients ({self.blocks[place][0]}...) was lost "
            f"{MAX_LOSSES + 1} times in one exchange, last: {reason}; is there enough memory for them?"
        )

    def _received(self, place: int, call: Any) -> Answer:
        seat = self._held[place].seat
        if call is None or seat is None:
            raise WorkerLost("the worker is gone")
        data: bytes = self.crew.result(call, seat.address)
        self.traffic["up"] += len(data)
        answer: Answer = decode_own(data, Answer, share=True)
        if answer.error:
            raise CourseFailed(f"the worker {seat.address} could not carry out what it was asked: {answer.error}")
        return answer

    # ---- where blocks are

    def _open(self, places: Mapping[int, str]) -> list[int]:
        """Open blocks at workers, with the marked memories; return those whose worker was gone before they were."""
        calls: dict[int, tuple[Seat, Any]] = {}
        lost = []
        for place, address in places.items():
            clients = self.blocks[place]
            message = self._opening(clients, {client: self._marked[1][client] for client in clients})
            try:
                seat = self.crew.seat(address)
                calls[place] = seat, seat.call("open", self._opener, message)
            except WorkerLost:
                lost.append(place)
        for place, (seat, call) in calls.items():
            try:
                problem: str = self.crew.result(call, seat.address)
            except WorkerLost:
                lost.append(place)
                continue
            if problem:
                raise CourseFailed(f"the worker {seat.address} cannot take its clients: {problem}")
            before, self._held[place].seat = self._held[place].seat, seat
            if before is not None:
                before.leave()
        return lost

    def _reopen(self, place: int) -> None:
        """Open a block whose worker is lost where there is most room, and bring it to where it was."""
        self.lost += 1
        held = self._held[place]
        if held.seat is not None:
            self.crew.gone(held.seat.address)
            held.seat = None
        there = self.crew.some_workers()
        loads = self._loads(there)
        if self._open({place: min(there, key=lambda address: len(loads[address]))}):
            raise WorkerLost("the worker that took the place of a lost one was lost too")
        for order in held.log:
            self._received(place, self._sent(place, _repeated(order)))

    def _loads(self, there: Sequence[str]) -> dict[str, list[int]]:
        """Return which blocks each worker holds."""
        loads: dict[str, list[int]] = {address: [] for address in there}
        for place, held in enumerate(self._held):
            if held.seat is not None and held.seat.address in loads:
                loads[held.seat.address].append(place)
        return loads

    def _share_with_who_joined(self) -> None:
        """Move blocks to workers that hold fewer; only between two rounds, when the server has all memories."""
        if not self.crew.grows or time.monotonic() - self._looked_for_workers < JOIN_SECONDS:
            return
        if not all(held.is_marked for held in self._held):
            return
        self._looked_for_workers = time.monotonic()
        loads = self._loads(self.crew.workers())
        while loads:
            full = max(loads, key=lambda address: len(loads[address]))
            free = min(loads, key=lambda address: len(loads[address]))
            if len(loads[full]) - len(loads[free]) < 2:
                return
            place = loads[full].pop()
            if self._open({place: free}):  # it left again; the block is where it was
                return
            loads[free].append(place)
            self.moved += 1

    # ---- memories

    def undo(self, client: str) -> None:
        """Give a client the memory back that it had before its answer in the last exchange, if it gave one."""
        if client in self._asked:
            self._held[self._place[client]].undo.append(client)

    def mark(self, round: int) -> None:
        """Fetch the memories that changed; they count as marked when all are here."""
        changed = {place: {"mark": True} for place, held in enumerate(self._held) if not held.is_marked}
        for _, answer in self._answers(changed):
            for client, memory in answer.memories.items():
                self._known[client] = unpack(memory)
        self._asked = frozenset()
        self._marked = (round, dict(self._known))
        for held in self._held:
            held.log = []

    def abandon_round(self) -> int:
        """Put the memories back to the mark, with the next order."""
        round, memories = self._marked
        self._remember(memories)
        return round

    def save_clients(self) -> dict[str, bytes]:
        """Return the marked memories."""
        return dict(self._marked[1])

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Replace every client's memory, with the next order."""
        require_clients(memories, self.clients)
        self._remember(memories)

    def _remember(self, memories: Mapping[str, bytes]) -> None:
        for held in self._held:
            # All that happened since the mark is overwritten, so there is nothing to lead back to.
            held.log, held.undo = [], []
            held.memories = {client: memories[client] for client in held.clients}

    def close(self) -> None:
        """Let all blocks go."""
        for held in self._held:
            if held.seat is not None:
                held.seat.leave()
                held.seat = None


def _repeated(order: Order) -> Order:
    """Return an order as it is given again: who was in time the first time is so the second time."""
    order = replace(order, look="")
    if order.ask is None or order.ask.timeout_seconds is None:
        return order
    # Still a limit, for with one every client answers by itself; who was late then is undone by a later order.
    return replace(order, ask=replace(order.ask, timeout_seconds=float("inf")))


# ---- replies of which the server has the sum


class _Look:
    """Gets the tensors behind a sum when somebody looks; the block keeps them as long as this is there."""

    def __init__(self, runtime: WorkersRuntime, place: int, name: str, kind: str) -> None:
        self._fetch: Callable[[], dict[int, Tensor]] = partial(runtime.look, place, name, kind)
        weakref.finalize(self, runtime.forget, place, name)

    @cached_property
    def tensors(self) -> dict[int, Tensor]:
        """Those of all clients, (clients, ...), by their place in the reply."""
        return self._fetch()


class _Summed(Stacked):
    """Tensors of which the server has the weighted sum and a bound; the block has the tensors themselves."""

    def __init__(self, many: Many, leaf: int, dtype: torch.dtype, look: _Look) -> None:
        super().__init__(many.shapes[leaf], dtype, len(many.clients))
        self._many, self._leaf, self._look = many, leaf, look

    def member(self, position: int) -> Tensor:
        """Return one client's tensor, from the block."""
        return self.whole()[position]

    def whole(self) -> Tensor:
        """Return all of them, from the block."""
        return self._look.tensors[self._leaf]

    def bound(self) -> Tensor:
        """Return the largest magnitude of all, for each."""
        return torch.full((len(self),), self._many.bounds.get(self._leaf, 0.0), dtype=torch.float64)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum as it came; with other weights it is made of the tensors."""
        if torch.equal(weights, self._many.weights):
            return self._many.sums[self._leaf].clone()  # who asked may add to it
        return StackedTensor(self.whole()).weighted_sum(weights)


def _stack(many: Many, expected: type[Record], look: _Look) -> Stack:
    """Return the replies of a block as one."""
    outline: Record = decode_own(opened(many.outline), expected)
    found: dict[str, Any] = {}
    for place, (path, leaf) in enumerate(leaves(outline).items()):
        if place in many.wholes:
            found[path] = StackedTensor(many.wholes[place])
        elif place in many.shapes:
            found[path] = _Summed(many, place, leaf.dtype, look)
        else:
            found[path] = Each(many.each[place]) if place in many.each else leaf
    return Stack(many.clients, with_leaves(outline, found))
