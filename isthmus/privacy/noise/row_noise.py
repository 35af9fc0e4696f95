"""Noise on what clients say of single nodes: predictions, embeddings, hidden representations. Local, row by row.

Kasiviswanathan et al. (2011), "What can we learn privately?"; Dwork et al. (2006) for Laplace's noise, Balle and Wang
(2018) for Gauss's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse
from isthmus.core.exposure import Exchange, fields_with_rows
from isthmus.core.guards.guard import AtClient, AtServer, Guard
from isthmus.core.protocol import Request, Requests, reply_type
from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params, Record, State, field_types, leaves
from isthmus.privacy.accounting.pure import composed, laplace_epsilon
from isthmus.privacy.accounting.releases import Releases, spent

GAUSSIAN, LAPLACE = KINDS = ("gaussian", "laplace")
# Rows are made shorter by so much more, so that rounding leaves none longer than it may be.
MARGIN = 1e-6


@dataclass(frozen=True)
class RowNoise(Guard):
    """What a client says of one of its nodes hardly depends on anything: each row is clipped and gets noise there.

    Replies say which of their fields have a row for each node (`row_fields` of a record: FedGL's predictions and
    embeddings, the embeddings of FedGNN's users, the hidden representations of GFL-APPNP and their gradients). With
    C = `clip` and z = `noise`, a row r leaves as

        clip(r, C) + noise of z C on each number        clip(r, C) = r min(1, C / |r|)

    Any two rows are 2 C apart at most after clipping, so a row is z / 2 of that: "gaussian" noise N(0, z^2 C^2) with
    rows clipped by their L2 length is a Gaussian release with mu = 2 / z; "laplace" noise of the scale z C with rows
    clipped by their L1 length has epsilon 2 / z without any delta. Rows of several tensors (gradients) are one row.
    Noisy probabilities are cut to [0, 1] and made to add up to one, which costs nothing more. Epsilon is of one row
    over all answers in which it is sent and all such fields, towards everybody, the server first.

    What a row is about decides what is hidden. A row that is made of one node's own features (FedGNN's users,
    GFL-APPNP's h and its gradients) hides that node. One that is made of a neighbourhood (FedGL's) hides what this row
    says: a node or an edge is in the rows of all nodes within as many hops as the model has layers, and so many rows
    add up. Which nodes there are is not hidden (the number of rows, ids), nor anything in other fields of the same
    replies: FedGL's parameters cross as they are, and a note says so.

    Fields:
        clip:    C, the length of a row; null clips nothing, and then there can be no noise
        noise:   z, as a multiple of C
        kind:    "gaussian" or "laplace"
        delta:   the chance that epsilon does not hold
        epsilon: budget: before the round that would exceed it the course ends; null for none
    """

    clip: float | None = 1.0
    noise: float = 4.0
    kind: str = GAUSSIAN
    delta: float = 1e-5
    epsilon: float | None = None

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"noise": "more", "delta": "less", "epsilon": "less"}
    works_on_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse(self.clip is not None and not 0.0 < self.clip < math.inf, self, "clip", "it must be positive, or null")
        refuse(not 0.0 <= self.noise < math.inf, self, "noise", "it must be at least 0")
        refuse(self.kind not in KINDS, self, "kind", f"choose from {', '.join(KINDS)}")
        refuse(not 0.0 < self.delta < 1.0, self, "delta", "it must be between 0 and 1")
        refuse(self.epsilon is not None and not self.epsilon > 0.0, self, "epsilon", "it must be positive, or null")
        if self.clip is None and (self.noise or self.epsilon is not None):
            raise ValueError("clip is null: what is not clipped, no noise can hide; give clip a length")

    # ---- before the start

    def problem(self, course: Any) -> str:
        """Return that there is nothing to put noise on, or that the budget is less than one round's."""
        if self.clip is None:
            return ""
        kinds = [reply_type(kind) for kind in type(course.algorithm).handlers()]
        if not any(fields_with_rows(kind) for kind in kinds):
            return (
                f"{type(course.algorithm).__name__} sends nothing of single nodes (isthmus show algorithm NAME), so "
                "there is nothing to put noise on; noise on models is client_dp's, on examples example_dp's"
            )
        first = self.epsilon_of(max(len(fields_with_rows(kind)) for kind in kinds))
        if self.epsilon is not None and first > self.epsilon:
            return f"epsilon is {self.epsilon:g}, and the first answer would spend {first:.3g}; set noise to more"
        return ""

    def shown(self, exchange: Exchange) -> Exchange:
        """Return what is seen of an exchange whose replies have noisy rows."""
        if self.clip is None or not exchange.rows:
            return exchange
        return replace(exchange, wire_up=f"{exchange.wire_up}, {' and '.join(exchange.rows)} noisy")

    # ---- client

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return a reply with noise on every row that is about a node."""
        if self.clip is None or not fields_with_rows(type(reply)):
            return reply
        stream = at.protecting("rows", leaves(reply))
        return with_rows(reply, partial(self._noisy, stream))

    def _noisy(self, stream: ProtectingStream, shares: bool, rows: Tensor) -> Tensor:
        """Return rows as they leave, (nodes, columns)."""
        assert self.clip is not None
        found = clipped_rows(rows.double(), self.clip, 2.0 if self.kind == GAUSSIAN else 1.0)
        scale, shape = self.noise * self.clip, tuple(rows.shape)
        if scale:
            drawn = stream.normal(shape) * scale if self.kind == GAUSSIAN else stream.laplace(shape, scale)
            found = found + drawn.double()
        return (as_shares(found) if shares else found).to(rows.dtype)

    # ---- server

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Charge those who are asked for rows, and say once what is not hidden."""
        request = next(iter(requests.values()), None)
        if self.clip is None or request is None:
            return requests
        rows = fields_with_rows(reply_type(type(request)))
        if not rows:
            return requests
        memory = at.memory
        if not memory:
            self._tell(reply_type(type(request)), rows, at)
        before = memory.get("in_round", 0) if memory.get("round") == at.position.round else 0
        asked: Counter[str] = Counter(memory.get("asked", {}))
        for client in at.clients:
            asked[client] += len(rows)
        at.remember({"asked": dict(asked), "round": at.position.round, "in_round": before + len(rows)})
        return requests

    def _tell(self, kind: type[Record], rows: tuple[str, ...], at: AtServer) -> None:
        at.note(
            f"{self.kind} noise of {self.noise:g} times a row's length of {self.clip:g} at most on each number of "
            f"{', '.join(rows)}: epsilon is of one row, and a node or an edge may be in several"
        )
        if any(name == "params" for name in field_types(kind)):
            at.note(f"the params in the same {kind.__name__} have no noise, and tell of what the rows are made of")

    # ---- the account

    def epsilon_of(self, rows: int) -> float:
        """Return epsilon of so many rows that are about the same."""
        if self.clip is None:
            return math.inf if rows else 0.0
        if self.kind == LAPLACE:
            return composed(laplace_epsilon(2.0, self.noise), rows, self.delta) if rows else 0.0
        return spent([Releases(self.noise / 2.0, rows)], self.delta)

    def spent(self, memory: State) -> dict[str, float]:
        """Return epsilon so far, of a row of the client that was asked most often."""
        if self.clip is None:
            return {}
        return {"epsilon of rows": self.epsilon_of(max(memory.get("asked", {}).values(), default=0))}

    def exhausted(self, memory: State) -> str:
        """Return that another round like the last would exceed the budget."""
        if self.epsilon is None or not memory:
            return ""
        most = max(memory["asked"].values())
        after = self.epsilon_of(most + max(1, memory["in_round"]))
        if after <= self.epsilon:
            return ""
        return (
            f"epsilon of rows is {self.epsilon_of(most):.3g} of {self.epsilon:g}, and another round would make it "
            f"{after:.3g} (delta {self.delta:g})"
        )


def clipped_rows(rows: Tensor, clip: float, order: float) -> Tensor:
    """Return rows no longer than `clip` by a norm; one with a number that is none is taken for zeros."""
    rows = torch.where(rows.isfinite().all(dim=1, keepdim=True), rows, 0.0)
    length = torch.linalg.vector_norm(rows, ord=order, dim=1, keepdim=True)
    return torch.where(length > clip, rows * (clip * (1.0 - MARGIN) / length.clamp(min=1e-300)), rows)


def as_shares(rows: Tensor) -> Tensor:
    """Return rows of numbers from 0 to 1 that add up to one."""
    cut = rows.clamp(0.0, 1.0)
    total = cut.sum(dim=1, keepdim=True)
    return torch.where(total > 0.0, cut / total.clamp(min=1e-300), 1.0 / max(rows.shape[1], 1))


def with_rows(record: Record, change: Callable[[bool, Tensor], Tensor]) -> Record:
    """Return a record with other rows: `change` gets whether each is of probabilities, and them as a matrix."""
    own: Mapping[str, bool] = getattr(type(record), "row_fields", {})
    found: dict[str, Any] = {}
    for name in field_types(type(record)):
        value = getattr(record, name)
        if isinstance(value, Record):
            found[name] = with_rows(value, change)
        elif name in own:
            found[name] = _changed(value, partial(change, own[name]), name)
    return replace(record, **found) if found else record


def _changed(value: Tensor | Params, change: Callable[[Tensor], Tensor], name: str) -> Tensor | Params:
    """Return a tensor with a row for each node, or several as one, with other rows."""
    parts: Params = {"": value} if isinstance(value, Tensor) else dict(value)
    if not parts:
        return value
    if any(not part.is_floating_point() or part.dim() < 2 for part in parts.values()):
        raise BadInput(f"{name} has no rows of numbers to put noise on")
    if len({len(part) for part in parts.values()}) > 1:
        raise BadInput(f"{name} has tensors of several numbers of rows")
    flat = [part.flatten(start_dim=1) for part in parts.values()]
    changed = change(torch.cat(flat, dim=1)) if len(next(iter(parts.values()))) else torch.cat(flat, dim=1)
    pieces = torch.split(changed, [part.shape[1] for part in flat], dim=1)
    found = {
        key: piece.reshape(part.shape).to(part.dtype) for (key, part), piece in zip(parts.items(), pieces, strict=True)
    }
    return found[""] if isinstance(value, Tensor) else found
