"""Edges that clients name are told by chance. Warner (1965), "Randomized response"; for graphs Qin et al. (2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse
from isthmus.core.exposure import Exchange
from isthmus.core.guards.guard import AtClient, AtServer, Guard
from isthmus.core.protocol import Request, Requests, reply_type
from isthmus.core.random import ProtectingStream, digest
from isthmus.core.record import Record, State, field_types
from isthmus.privacy.accounting.pure import flip_probability

# Pairs of which a client tells at most whether they are joined.
MOST_PAIRS = 50_000_000


@dataclass(frozen=True)
class EdgeResponse(Guard):
    """Whether two nodes are joined is told wrongly with the probability 1 / (1 + e^epsilon), pair by pair.

    Replies say which of their fields name edges (`joins` of a record: users and items of FedGNN, neighbours of
    GFL-APPNP). Of all pairs of a node that could be at one end and one that could be at the other, each is told as it
    is, or flipped:

        P(told | joined) = e^epsilon P(told | not joined) at most, whatever is told

    so that epsilon is kept for each pair, without any delta, towards everybody. A client's flips are made once for a
    graph, from its own secret: who asks again gets the same answer, and nothing more is spent.

    What is taken for known: which nodes a client names at all. Of FedGNN these are its users and the items that some
    user rated, and of GFL-APPNP its own nodes and their neighbours elsewhere; hidden is which of them are joined. An
    edge between nodes of two clients is named by both, which makes it 2 epsilon, and counts where both name it. At a
    small epsilon most edges are wrong ones: of n pairs n / (1 + e^epsilon) are flipped. A node whose edges are all
    told away is left out of a reply whose rows the edges name.

    Fields:
        epsilon: of one pair; null tells edges as they are
    """

    epsilon: float | None = 4.0

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"epsilon": "less"}
    works_on_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ends = self.epsilon is not None and not 0.0 < self.epsilon < math.inf
        refuse(ends, self, "epsilon", "it must be positive, or null")

    def problem(self, course: Any) -> str:
        """Return that a method names no edges."""
        if self.epsilon is None or any(_joins(reply_type(kind)) for kind in type(course.algorithm).handlers()):
            return ""
        return (
            f"{type(course.algorithm).__name__} names no edges in a message, so there is none to tell wrongly; what "
            "models tell of edges, the guard edge_dp hides"
        )

    def shown(self, exchange: Exchange) -> Exchange:
        """Return what is seen of an exchange whose replies name edges."""
        if self.epsilon is None or not exchange.joins:
            return exchange
        return replace(exchange, wire_up=f"{exchange.wire_up}, pairs of {' and '.join(exchange.joins)} told by chance")

    # ---- client

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return a reply whose edges are told by chance."""
        if self.epsilon is None or not _joins(type(reply)):
            return reply
        secret, client = at.client.secret, at.client
        if secret is None:
            raise RuntimeError(f"{client.id} has no secret to draw flips from; set client.secret")
        first, second = (getattr(reply, name) for name in _joins(type(reply)))
        # Named by what is protected and not by where the course stands: the same edges have the same flips.
        stream = secret.stream(at.entry, client.course, digest({"first": first, "second": second}))
        among: str = getattr(type(reply), "joins_among", "")
        flips = flip_probability(self.epsilon)
        return _told_among(reply, among, flips, stream) if among else _told_between(reply, flips, stream)

    # ---- server

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Take note that edges were asked for."""
        request = next(iter(requests.values()), None)
        if self.epsilon is not None and request is not None and _joins(reply_type(type(request))) and not at.memory:
            at.remember({"asked": True})
            at.note(
                f"each pair of nodes is told wrongly with the probability {flip_probability(self.epsilon):.3g}; which "
                "nodes a client names is taken for known"
            )
        return requests

    def spent(self, memory: State) -> dict[str, float]:
        """Return epsilon of a pair, as soon as edges were asked for."""
        return {"epsilon of pairs": self.epsilon} if self.epsilon is not None and memory else {}


def _joins(kind: type[Record]) -> tuple[str, ...]:
    found: tuple[str, ...] = getattr(kind, "joins", ())
    return found


def flipped(bits: Tensor, probability: float, stream: ProtectingStream) -> Tensor:
    """Return truth values of which each is told wrongly with a probability, independently of all others."""
    return bits ^ (stream.uniform(tuple(bits.shape)) < probability)


def _told_between(reply: Record, probability: float, stream: ProtectingStream) -> Record:
    """Return a reply whose first ends are rows, and whose second ends are names; rows without an edge are left out."""
    one, other = _joins(type(reply))
    first, second = getattr(reply, one), getattr(reply, other)
    rows = tuple(getattr(type(reply), "row_fields", {}))
    number = max((len(getattr(reply, name)) for name in rows), default=0)
    names, place = torch.unique(second, return_inverse=True)
    _require_few(number * len(names))
    bits = torch.zeros(number, len(names), dtype=torch.bool)
    bits[first, place] = True
    there, column = flipped(bits, probability, stream).nonzero(as_tuple=True)
    left, again = torch.unique(there, return_inverse=True)
    changed: dict[str, Any] = {name: getattr(reply, name)[left] for name in rows}
    return replace(reply, **changed, **{one: again, other: names[column]})


def _told_among(reply: Record, among: str, probability: float, stream: ProtectingStream) -> Record:
    """Return a reply about edges among the client's own nodes, in both directions, and to nodes of others."""
    one, other = _joins(type(reply))
    own, first, second = getattr(reply, among), getattr(reply, one), getattr(reply, other)
    if "weight" in field_types(type(reply)) and len(reply.weight):  # type: ignore[attr-defined]
        raise BadInput("the edges have weights, which tell the true ones from the others; leave the column out")
    others = torch.unique(second[~torch.isin(second, own)])
    _require_few(len(own) * (len(own) + len(others)))
    order = own.argsort()
    ends = torch.cat([own[order], others])  # own nodes in order, then those of others in theirs
    source = torch.searchsorted(own[order], first.contiguous())
    inner = torch.isin(second, own)
    target = torch.empty_like(second)
    target[inner] = torch.searchsorted(own[order], second[inner])
    target[~inner] = len(own) + torch.searchsorted(others, second[~inner])
    bits = torch.zeros(len(own), len(ends), dtype=torch.bool)
    bits[source, target] = True
    bits[:, : len(own)] |= bits[:, : len(own)].T.clone()
    told = flipped(bits, probability, stream)
    within = torch.triu(told[:, : len(own)], diagonal=1)  # one draw for both directions, and no loops
    found = torch.cat([within | within.T, told[:, len(own) :]], dim=1).nonzero()
    return replace(reply, **{one: ends[found[:, 0]], other: ends[found[:, 1]]})


def _require_few(pairs: int) -> None:
    if pairs > MOST_PAIRS:
        raise BadInput(
            f"there are {pairs:,} pairs of nodes that could be joined, and each must be told by chance; at most "
            f"{MOST_PAIRS:,} are: divide the data among more clients"
        )
