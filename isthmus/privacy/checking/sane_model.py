"""Whether a model that a client is sent can be what a server that averages would send: seen at the client."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isthmus.core.errors import RefusedRequest, refuse
from isthmus.core.guards.guard import AtClient, Guard
from isthmus.core.protocol import Request, reply_type
from isthmus.core.record import Params, Record, field_types
from isthmus.privacy.checking.compared import unknown_kind

PARAMS = "params"
# Units of fewer inputs lie in one direction by chance.
FEWEST_INPUTS = 8
# The cosine from which on two units lie in one direction.
ONE_DIRECTION = 0.999
# Inputs of this length do not wake a unit whose bias is so far below.
REACH = 10.0


@dataclass(frozen=True)
class SaneModel(Guard):
    """A client does not answer a model that was made to read its data rather than to be trained.

    Looked at is what the client itself knows: the parameters it is sent, those it was sent before, and how far its own
    training moved them. A unit is a column of a matrix, with its bias where it has one.

        dead units of a matrix   <= dead  * all        weights all zero, or bias < -10 |weights|: never open
        alike units of a matrix  <= alike * all        within 2.6 degrees of another one, of 8 inputs or more
        |w_t - w_t'|             <= times * (t - t') * longest own change so far

    w_t' is the model of the last request of the same kind that it answered, t' its round. A mean of clients' models
    moves no farther in a round than the client that moves most, so `times` says how many times as far as this client
    another one may go. Who has not trained yet, and the first model, have nothing to be compared with: of these, units
    alone are looked at. A request that is refused is a failure of the client, of the kind `refused`.

    Fields:
        dead:     the largest share of dead units in any matrix; 1 for no bound
        alike:    the largest share of units that are like another; 1 for no bound
        times:    how many times its own longest change; null for no bound
        requests: names of the requests that are looked at; empty for all that bring a model
    """

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"dead": "less", "alike": "less", "times": "less"}
    works_on_numbers: ClassVar[bool] = True
    receives_alike: ClassVar[bool] = False

    dead: float = 0.25
    alike: float = 0.25
    times: float | None = 5.0
    requests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("dead", "alike"):
            refuse(not 0.0 <= getattr(self, name) <= 1.0, self, name, "a share is from 0 to 1")
        bad = self.times is not None and not 0.0 < self.times < math.inf
        refuse(bad, self, "times", "it must be positive, or null for no bound")

    def problem(self, course: Any) -> str:
        """Return why there is nothing to look at, or what is no request of the course's method."""
        if not any(PARAMS in field_types(kind) for kind in type(course.algorithm).handlers() if _own(kind)):
            return f"the server of {type(course.algorithm).__name__} sends clients no model: leave it out"
        return unknown_kind(self.requests, course.algorithm)

    # ---- client

    def receive(self, request: Request[Any], at: AtClient) -> Request[Any]:
        """Return the request; raises RefusedRequest where its model is none to be trained."""
        params = self._looked_at(request)
        if params is None:
            return request
        problem = self._odd_units(params) or self._jump(params, type(request), at)
        if problem:
            raise RefusedRequest(f"the model in {type(request).__name__} is not one to be trained: {problem}")
        return request

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return the reply; how far it went is remembered."""
        params, back = self._looked_at(request), getattr(reply, PARAMS, None)
        if params is None or self.times is None or not isinstance(back, dict):
            return reply
        kind, before = type(request).__name__, at.memory
        longest = max(float(before.get(kind, {}).get("longest", 0.0)), distance(back, params))
        entry = {PARAMS: params, "longest": longest, "round": at.position.round}
        at.remember({**before, kind: entry})
        return reply

    def _looked_at(self, request: Request[Any]) -> Params | None:
        """Return the model of a request that is looked at."""
        chosen = not self.requests or type(request).__name__ in self.requests
        params = getattr(request, PARAMS, None)
        return params if chosen and isinstance(params, dict) and params else None

    def _odd_units(self, params: Params) -> str:
        if self.dead >= 1.0 and self.alike >= 1.0:
            return ""
        for name, matrix in params.items():
            if matrix.ndim != 2 or not matrix.is_floating_point() or min(matrix.shape) < 2:
                continue
            bias = params.get(f"{name.rpartition('.')[0]}.bias")
            asleep = dead_units(matrix, bias)
            share = float(asleep.double().mean())
            if share > self.dead:
                return f"{share:.0%} of the units of {name} are dead; at most {self.dead:.0%} of them may be"
            share = float(alike_units(matrix[:, ~asleep]).double().sum()) / matrix.shape[1]
            if share > self.alike:
                return f"{share:.0%} of the units of {name} are alike; at most {self.alike:.0%} of them may be"
        return ""

    def _jump(self, params: Params, kind: type[Request[Any]], at: AtClient) -> str:
        before = at.memory.get(kind.__name__)
        if self.times is None or before is None or not before["longest"]:
            return ""
        rounds = max(1, at.position.round - int(before["round"]))
        moved, most = distance(params, before[PARAMS]), self.times * rounds * float(before["longest"])
        if moved <= most:
            return ""
        return (
            f"it is {moved:.3g} from the one before, {rounds} rounds ago; its own training moved "
            f"{before['longest']:.3g} at most, and {self.times:g} times that is allowed for each round"
        )


def _own(kind: type[Request[Any]]) -> bool:
    """Whether a request is the method's own: every method's server has models evaluated."""
    return kind.__name__ != "EvaluateModel" and PARAMS in field_types(reply_type(kind))


def distance(one: Params, other: Params) -> float:
    """Return the norm of the difference of what two models have in common."""
    return math.sqrt(sum(_square(one[name], other[name]) for name in _common(one, other)))


def _common(one: Params, other: Params) -> Collection[str]:
    return [
        name
        for name, tensor in one.items()
        if name in other and tensor.is_floating_point() and tensor.shape == other[name].shape
    ]


def _square(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).square().sum())


def dead_units(matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Return which columns of a matrix, (in, out), are never open, (out,)."""
    lengths = matrix.double().norm(dim=0)
    dead: Tensor = lengths == 0.0
    if bias is not None and bias.numel() == matrix.shape[1]:
        dead = dead | (bias.double().reshape(-1) < -REACH * lengths)
    return dead


def alike_units(matrix: Tensor) -> Tensor:
    """Return which columns of a matrix, (in, out), lie in one direction with another one, or against it, (out,)."""
    if matrix.shape[0] < FEWEST_INPUTS or matrix.shape[1] < 2:
        return torch.zeros(matrix.shape[1], dtype=torch.bool)
    units = torch.nn.functional.normalize(matrix.float(), dim=0)
    cosines = (units.t() @ units).abs().fill_diagonal_(0.0)
    return cosines.max(dim=1).values > ONE_DIRECTION
