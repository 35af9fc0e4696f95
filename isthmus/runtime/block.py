"""A block of clients in a worker process: orders in, answers out, both as bytes.

What is said between the server's `WorkersRuntime` and a block:

    open:   server -> block   opening       configuration and the data of the block's clients, once
    ask:    server -> block   Order(ask)    a position, each distinct request once, and whose it is
            block -> server   Answer        of replies that can be added up: their weighted sum, their scalars, how
                                            large their numbers are (`Many`); other replies one by one (`One`)
    look:   server -> block   Order(look)   only where somebody at the server looks at single replies of a sum
            block -> server   Answer        their tensors
    mark:   server -> block   Order(mark)   at the end of a round
            block -> server   Answer        the memories that changed since the last mark

Any order may put memories back first: that of single clients (`undo`), or all of the block's (`memories`). Orders are
all that decides what a block does, so the same orders, from the same memories, lead to the same bits: that is how a
lost one is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import decode_own, encode, opened, pack, unpack
from isthmus.core.errors import IsthmusError
from isthmus.core.federation import Outcome, Runtime, StackOutcome
from isthmus.core.folds import form_of
from isthmus.core.guards.line import GuardLine
from isthmus.core.protocol import Algorithm, Failure, Position, Request, reply_type
from isthmus.core.record import Record, largest, leaves, with_leaves
from isthmus.core.replies import Each, Stack, Stacked


@dataclass(frozen=True)
class Ask(Record):
    """An exchange with some of a block's clients."""

    position: Position
    kind: str
    """The name of the request type."""
    payloads: tuple[Tensor, ...]
    """The distinct requests, encoded."""
    whose: dict[str, int]
    """By client, which of them it is sent."""
    timeout_seconds: float | None
    """A reply that takes longer counts as failed."""
    whole: bool
    """Whether every reply is wanted, since the server looks at single ones."""


@dataclass(frozen=True)
class Order(Record):
    """A message to a block; its parts are carried out in the order of the fields."""

    number: int
    """Counts the orders to this block."""
    undo: tuple[str, ...] = ()
    """Clients whose last answer could not be used."""
    memories: dict[str, Tensor] = field(default_factory=dict)
    """Memories that take the place of all clients'; empty: they keep what they have."""
    drop: tuple[str, ...] = ()
    """Sums whose single replies nobody will look at any more."""
    ask: Ask | None = None
    """Something to answer."""
    look: str = ""
    """A sum whose single replies are wanted."""
    mark: bool = False
    """Whether the memories that changed are wanted."""


@dataclass(frozen=True)
class One(Record):
    """What became of a request to one client."""

    client: str
    payload: Tensor
    """The encoded reply; empty when there is a failure."""
    failure: Failure | None
    facts: tuple[int, int, float, float]
    """Sizes down and up, seconds until the answer, seconds of them for the codec."""


@dataclass(frozen=True)
class Many(Record):
    """What became of requests to several clients whose replies are alike; leaves go by their place in the reply."""

    clients: tuple[str, ...]
    outline: Tensor
    """A reply, encoded, in which tensors are empty and scalars are those of one client."""
    weights: Tensor
    """The weight that each reply asks for."""
    shapes: dict[int, tuple[int, ...]]
    """Shapes of the tensors that each client has its own of."""
    sums: dict[int, Tensor]
    """Weighted sums of these tensors, in double precision."""
    bounds: dict[int, float]
    """A number that none of theirs exceeds in magnitude."""
    each: dict[int, tuple[Any, ...]]
    """Scalars and texts, of which each client has its own."""
    wholes: dict[int, Tensor]
    """The tensors themselves, (clients, ...), where every reply is wanted."""
    name: str
    """What the block knows them by."""
    facts: tuple[int, int, float, float]
    """As of one client."""


@dataclass(frozen=True)
class Answer(Record):
    """What a block says to an order."""

    outcomes: tuple[One | Many, ...] = ()
    """What became of the requests."""
    tensors: dict[int, Tensor] = field(default_factory=dict)
    """Those of a sum that was looked at, (clients, ...), by their place in the reply."""
    memories: dict[str, Tensor] = field(default_factory=dict)
    """Memories that changed since the last mark."""
    notes: dict[str, str] = field(default_factory=dict)
    """Why work was done client by client."""
    same: bool = False
    """Whether the server has all memories as they are now, so that it need not ask for a mark."""
    error: str = ""
    """Why the order could not be carried out."""


@dataclass(frozen=True)
class Opened:
    """The clients of a block, in process: whose handlers run, what carries exchanges to them, on how many threads."""

    algorithm: Algorithm[Any]
    runtime: Runtime
    threads: int = 1
    guards: GuardLine | None = None


# Makes the clients of a block from configuration and data; a function of the installed package, named to the worker.
Opener = Callable[[bytes], Opened]


class Block:
    """Some clients of a course in a worker process; a Dask actor, so that orders come one after the other."""

    def __init__(self) -> None:
        self._opened: Opened | None = None
        self._stacks: dict[str, Stack] = {}
        self._known: dict[str, bytes] = {}  # digests of the memories that the server has

    def open(self, opener: Opener, message: bytes) -> str:
        """Make the clients; return why that cannot be, nothing if it can."""
        try:
            self._opened = opener(message)
        except IsthmusError as error:
            return str(error)
        self._know(self._opened.runtime.save_clients())
        return ""

    def answer(self, message: bytes) -> bytes:
        """Carry an order out."""
        if self._opened is None:
            return encode(Answer(error="the block was never opened"))
        torch.set_num_threads(self._opened.threads)
        try:
            return encode(self._carried_out(self._opened, decode_own(message, Order, share=True)))
        except Exception as error:  # the server ends the course with it, and names the worker
            return encode(Answer(error=f"{type(error).__name__}: {error}"))

    def _carried_out(self, mine: Opened, order: Order) -> Answer:
        runtime = mine.runtime
        for client in order.undo:
            runtime.undo(client)
        if order.memories:
            memories = {client: unpack(memory) for client, memory in order.memories.items()}
            runtime.load_clients(memories)
            self._know(memories)
        for name in order.drop:
            self._stacks.pop(name, None)
        outcomes = () if order.ask is None else self._asked(mine, order.number, order.ask)
        if order.look and order.look not in self._stacks:
            raise KeyError(f"the single replies behind the sum {order.look} went with the worker that had them")
        tensors = _tensors(self._stacks[order.look]) if order.look else {}
        changed = self._changed(runtime) if order.mark else {}
        # A runtime that cannot tell is asked for its mark.
        same = order.mark or bool(getattr(runtime, "is_marked", False))
        return Answer(outcomes, tensors, changed, dict(getattr(runtime, "notes", {})), same)

    def _asked(self, mine: Opened, number: int, ask: Ask) -> tuple[One | Many, ...]:
        own = mine.guards.kinds if mine.guards else ()
        kinds = {kind.__name__: kind for kind in (*type(mine.algorithm).handlers(), *own)}
        if ask.kind not in kinds:
            why = f"{type(mine.algorithm).__name__} has no handler for {ask.kind}"
            return tuple(One(c, pack(b""), Failure(c, "error", why), (0, 0, 0.0, 0.0)) for c in ask.whose)
        payloads = [opened(payload) for payload in ask.payloads]
        distinct: list[Request[Any]] = [decode_own(data, kinds[ask.kind]) for data in payloads]
        requests = {client: distinct[which] for client, which in ask.whose.items()}
        found = list(mine.runtime.exchange(ask.position, requests, ask.timeout_seconds))
        outcomes = found if ask.whole else gathered(found, reply_type(kinds[ask.kind]))
        return tuple(self._told(outcome, f"{number}.{place}", ask.whole) for place, outcome in enumerate(outcomes))

    def _told(self, outcome: Outcome | StackOutcome, name: str, whole: bool) -> One | Many:
        if isinstance(outcome, Outcome):
            failure = outcome.reply if isinstance(outcome.reply, Failure) else None
            payload = b"" if failure else encode(outcome.reply)
            return One(outcome.client, pack(payload), failure, _facts(outcome))
        if not whole:
            self._stacks[name] = outcome.stack
        return many_of(outcome, name, whole)

    def _know(self, memories: Mapping[str, bytes]) -> None:
        self._known = {client: blake2b(memory, digest_size=16).digest() for client, memory in memories.items()}

    def _changed(self, runtime: Runtime) -> dict[str, Tensor]:
        """Return the memories that the server does not have yet."""
        runtime.mark(0)  # which round it is, the server knows
        memories = runtime.save_clients()
        before = self._known
        self._know(memories)
        return {client: pack(memory) for client, memory in memories.items() if before[client] != self._known[client]}


def _facts(outcome: Outcome | StackOutcome) -> tuple[int, int, float, float]:
    return outcome.bytes_down, outcome.bytes_up, outcome.seconds, outcome.codec_seconds


# ---- replies that go as their sum


class Several(Stacked):
    """Tensors of clients that answered one by one, as they are."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors[0].shape, tensors[0].dtype, len(tensors))
        self.tensors = tensors

    def member(self, position: int) -> Tensor:
        """Return one client's tensor."""
        return self.tensors[position]

    def bound(self) -> Tensor:
        """Return each client's largest magnitude."""
        return torch.tensor([largest(tensor) for tensor in self.tensors], dtype=torch.float64)


def gathered(outcomes: Sequence[Outcome | StackOutcome], kind: type[Record]) -> list[Outcome | StackOutcome]:
    """Return the same outcomes, those of single clients as one where they are alike, of a kind, and have tensors."""
    groups: dict[Any, list[Outcome]] = {}
    others: list[Outcome | StackOutcome] = []
    for outcome in outcomes:
        if isinstance(outcome, StackOutcome) or type(outcome.reply) is not kind or not _has_tensors(outcome.reply):
            others.append(outcome)
        else:
            groups.setdefault(form_of(outcome.reply), []).append(outcome)
    return [*others, *(_as_one(group) if len(group) > 1 else group[0] for group in groups.values())]


def _has_tensors(reply: Record) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves(reply).values())


def _as_one(outcomes: Sequence[Outcome]) -> StackOutcome:
    replies: list[Record] = [outcome.reply for outcome in outcomes]
    every = [leaves(reply) for reply in replies]
    joined: dict[str, Several | Each] = {}
    for path, leaf in every[0].items():
        values = [own[path] for own in every]
        joined[path] = Several(values) if isinstance(leaf, Tensor) else Each(tuple(values))
    stack = Stack(tuple(outcome.client for outcome in outcomes), with_leaves(replies[0], joined))
    down, up, seconds, codec = (sum(facts) for facts in zip(*map(_facts, outcomes), strict=True))
    return StackOutcome(stack, int(down), int(up), seconds, codec)


def many_of(outcome: StackOutcome, name: str, whole: bool) -> Many:
    """Return a stack of replies as it goes to the server."""
    stack = outcome.stack
    weights = _weights(stack)
    found = leaves(stack.record)
    stacked, each = _of_kind(stack, Stacked), _of_kind(stack, Each)
    return Many(
        clients=stack.clients,
        outline=pack(encode(with_leaves(stack.record, {path: _drawn(leaf) for path, leaf in found.items()}))),
        weights=weights,
        shapes={place: tuple(leaf.shape) for place, leaf in stacked.items()},
        sums={} if whole else {place: leaf.weighted_sum(weights) for place, leaf in stacked.items()},
        bounds={place: float(leaf.bound().max()) for place, leaf in stacked.items() if leaf.dtype.is_floating_point},
        each={place: leaf.values for place, leaf in each.items()},
        wholes=_tensors(stack) if whole else {},
        name=name,
        facts=_facts(outcome),
    )


def _weights(stack: Stack) -> Tensor:
    try:
        return stack.weights()
    except (TypeError, ValueError, RuntimeError):  # no numbers: the server finds that out, and says whose they are
        return torch.zeros(len(stack), dtype=torch.float64)


def _drawn(leaf: Any) -> Any:
    if isinstance(leaf, Stacked):
        return torch.empty(0, dtype=leaf.dtype)
    return leaf.values[0] if isinstance(leaf, Each) else leaf


def _of_kind(stack: Stack, kind: Any) -> dict[int, Any]:
    return {place: leaf for place, leaf in enumerate(leaves(stack.record).values()) if isinstance(leaf, kind)}


def _tensors(stack: Stack) -> dict[int, Tensor]:
    return {place: leaf.whole().detach() for place, leaf in _of_kind(stack, Stacked).items()}
