"""Guards that only tests have: each does one thing that can be seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.exposure import Exchange
from isthmus.core.folds import WeightedMean
from isthmus.core.guards.guard import AtClient, AtServer, Guard, Stages, Suspicious, each_once
from isthmus.core.protocol import Request, Requests, on, reply_type
from isthmus.core.record import Params, Record, State, leaves, with_leaves


def mapped(record: Any, change: Any) -> Any:
    """Return a record with its floating-point tensors changed."""
    found = leaves(record)
    changed = {path: change(leaf) if _is_float(leaf) else leaf for path, leaf in found.items()}
    return with_leaves(record, changed)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


@dataclass(frozen=True)
class Affine(Guard):
    """x becomes (x + plus) times on its way, exactly for powers of two, so that the order of two shows."""

    plus: float = 0.0
    times: float = 1.0
    replies: bool = True
    requests: bool = False

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        return self._there(reply) if self.replies else reply

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        return self._back(reply) if self.replies else reply

    def send(self, requests: Requests, at: AtServer) -> Requests:
        return each_once(requests, self._there) if self.requests else requests

    def heard(self, requests: Requests, at: AtServer) -> Requests:
        return each_once(requests, self._back) if self.requests else requests

    def receive(self, request: Request[Any], at: AtClient) -> Request[Any]:
        return self._back(request) if self.requests else request  # type: ignore[no-any-return]

    def _there(self, record: Any) -> Any:
        return mapped(record, lambda x: ((x.double() + self.plus) * self.times).to(x.dtype))

    def _back(self, record: Any) -> Any:
        return mapped(record, lambda x: (x.double() / self.times - self.plus).to(x.dtype))


@dataclass(frozen=True)
class Boxed(Guard):
    """Floating-point tensors travel as bytes, both ways: neutral, but for the wire."""

    linear: ClassVar[bool] = False

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        return boxed(reply)

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        return unboxed(reply)

    def send(self, requests: Requests, at: AtServer) -> Requests:
        return each_once(requests, boxed)

    def heard(self, requests: Requests, at: AtServer) -> Requests:
        return each_once(requests, unboxed)

    def receive(self, request: Request[Any], at: AtClient) -> Request[Any]:
        return unboxed(request)

    def shown(self, exchange: Exchange) -> Exchange:
        return replace(exchange, wire_down="boxes", wire_up="boxes")


_CODES = {torch.float32: 1, torch.float64: 2}


def boxed(record: Any) -> Any:
    """Return a record whose floating-point tensors are bytes: dtype, rank, sizes, content."""

    def box(x: Tensor) -> Tensor:
        head = torch.tensor([_CODES[x.dtype], x.dim(), *x.shape], dtype=torch.int32)
        content = torch.empty(x.numel(), dtype=x.dtype).copy_(x.flatten())  # of its own strides: a view may have none
        return torch.cat([head.view(torch.uint8), content.view(torch.uint8)])

    return mapped(record, box)


def unboxed(record: Any) -> Any:
    """Return a record as it was before `boxed`."""

    def unbox(box: Tensor) -> Tensor:
        if len(box) < 8:
            raise BadMessage(f"a box of {len(box)} bytes holds nothing")
        code, rank = box[:8].view(torch.int32).tolist()
        size = box[8 : 8 + 4 * rank].clone().view(torch.int32).tolist()
        kinds = {number: dtype for dtype, number in _CODES.items()}
        return box[8 + 4 * rank :].clone().view(kinds[code]).reshape(size)

    found = leaves(record)
    kept = {p: unbox(x) if isinstance(x, Tensor) and x.dtype == torch.uint8 else x for p, x in found.items()}
    return with_leaves(record, kept)


@dataclass(frozen=True)
class Counting(Guard):
    """Counts what passes, at the clients and at the server; the course ends when the server has counted enough."""

    most: int = 1_000_000

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        at.remember({"replies": at.memory.get("replies", 0) + 1})
        return reply

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        at.remember({**at.memory, "replies": at.memory.get("replies", 0) + 1})
        return reply

    def round_done(self, round: int, memory: State) -> State:
        return {**memory, "rounds": memory.get("rounds", 0) + (round > 0)}

    def spent(self, memory: State) -> Mapping[str, float]:
        return {"rounds": float(memory.get("rounds", 0))}

    def exhausted(self, memory: State) -> str:
        return f"{self.most} rounds are all there is" if memory.get("rounds", 0) >= self.most else ""


@dataclass(frozen=True)
class Doubting(Guard):
    """Believes nothing of one client: at arrival, or once all replies are there; asks it no more after a while."""

    client: str = "client-0"
    when: str = "review"
    from_round: int = 1
    barred_after: int = 1_000_000

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        if self.when == "accept" and client == self.client and at.position.round >= self.from_round:
            raise Suspicious("it always lies")
        return reply

    def review(self, replies: Mapping[str, Record], requests: Requests, at: AtServer) -> Mapping[str, str]:
        doubted = self.when == "review" and self.client in replies and at.position.round >= self.from_round
        if doubted:
            at.remember({"doubts": at.memory.get("doubts", 0) + 1})
        return {self.client: f"it lies, unlike {len(replies) - 1} others"} if doubted else {}

    def barred(self, memory: State, round: int) -> Collection[str]:
        return (self.client,) if memory.get("doubts", 0) >= self.barred_after else ()


@dataclass(frozen=True)
class Refusing(Guard):
    """Cannot stand beside anything."""

    def problem(self, course: Any) -> str:
        return f"it does not like {course.num_clients} clients; take another guard"


@dataclass(frozen=True)
class Held(Record):
    """What a client held back."""

    params: Params
    """As they are: this guard protects nothing."""
    weight: float
    """As it is."""


@dataclass(frozen=True)
class GiveUp(Request[Held]):
    """Give what you hold."""


@dataclass(frozen=True)
class Adding(Guard):
    """Lets clients hold back what is folded, and fetches it by a request of its own."""

    sums: ClassVar[bool] = True
    needed: int = 1
    held: tuple[str, ...] = ("TrainModel",)

    def release(self, reply: Any, request: Request[Any], at: AtClient) -> Record:
        if type(request).__name__ not in self.held:
            return reply  # type: ignore[no-any-return]
        at.remember({"params": dict(reply.params), "weight": float(reply.weight)})
        return replace(reply, params={}, weight=0.0)  # type: ignore[no-any-return]

    @on(GiveUp)
    def give_up(self, request: GiveUp, at: AtClient) -> Held:
        """Give what the client holds."""
        held = Held(at.memory["params"], at.memory["weight"])
        at.remember({})
        return held

    def summed(self, stages: Stages) -> Record:
        found = stages.ask(dict.fromkeys(stages.holding, GiveUp()))
        if len(found) < self.needed:
            raise CourseFailed(f"{len(found)} gave what they hold, {self.needed} are needed")
        total = WeightedMean().start()
        for held in found.values():
            WeightedMean().add(total, held)
        mean = WeightedMean().finish(total)
        return reply_type(type(next(iter(stages.requests.values()))))(params=mean.params, weight=mean.weight)
