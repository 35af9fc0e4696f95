"""An algorithm whose handlers do right and wrong things, and clients to run it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from isthmus.core.client import Client
from isthmus.core.errors import BadInput
from isthmus.core.federation import Federation, Outcome
from isthmus.core.protocol import Algorithm, ModelState, Position, Request, on
from isthmus.core.record import Params, Record

AT = Position(seed=1, round=2, exchange=0)


@dataclass(frozen=True)
class Update(Record):
    params: Params
    weight: float


@dataclass(frozen=True)
class Train(Request[Update]):
    params: Params
    how: str = "well"


@dataclass(frozen=True)
class Unknown(Request[Update]):
    pass


@dataclass(frozen=True)
class Toy(Algorithm[ModelState]):
    """Adds the client's number of calls to the model, and misbehaves as the request says."""

    def setup(self, fed: Federation) -> ModelState:
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        return state

    @on(Train)
    def train(self, request: Train, client: Any) -> Any:
        calls = client.state.get("calls", 0) + 1
        client.state["calls"] = calls
        reply: Any = Update({name: tensor + calls for name, tensor in request.params.items()}, float(calls))
        client.state["params"] = reply.params
        wrong = getattr(self, request.how, None)
        return (wrong(request, client) if wrong else None) or reply

    def raises(self, request: Train, client: Any) -> None:
        raise ZeroDivisionError("nothing to divide by")

    def refuses(self, request: Train, client: Any) -> None:
        raise BadInput("the graph has no nodes")

    def dawdles(self, request: Train, client: Any) -> None:
        time.sleep(0.05)

    def remembers_a_list(self, request: Train, client: Any) -> None:
        client.state["calls"] = [1]

    def remembers_an_object(self, request: Train, client: Any) -> None:
        client.state["deep"] = {"x": (client,)}

    def remembers_a_record(self, request: Train, client: Any) -> None:
        client.state["update"] = Update({}, 1.0)

    def remembers_a_sparse_tensor(self, request: Train, client: Any) -> None:
        client.state["w"] = torch.eye(2).to_sparse()

    def remembers_a_complex_tensor(self, request: Train, client: Any) -> None:
        client.state["w"] = torch.ones(1, dtype=torch.complex64)

    def remembers_a_number(self, request: Train, client: Any) -> None:
        client.state = 5

    def replies_with_a_list(self, request: Train, client: Any) -> Any:
        return Update({"w": [1.0]}, 1.0)  # type: ignore[dict-item]

    def replies_at_length(self, request: Train, client: Any) -> Any:
        return Update({"w": torch.zeros(1000)}, 1.0)

    def replies_with_another_record(self, request: Train, client: Any) -> Any:
        return Train({})


@dataclass(frozen=True)
class AttributeCheat(Toy):
    """Keeps its count where a restart would lose it."""

    @on(Train)
    def train(self, request: Train, client: Any) -> Update:
        client.calls = getattr(client, "calls", 0) + 1
        return Update({name: tensor + client.calls for name, tensor in request.params.items()}, 1.0)


@dataclass(frozen=True)
class InPlaceCheat(Toy):
    """Changes the server's own tensors."""

    @on(Train)
    def train(self, request: Train, client: Any) -> Update:
        for tensor in request.params.values():
            tensor += 1
        return Update(dict(request.params), 1.0)


class ToyClient(Client):
    def evaluate(self, params: Params, splits: tuple[str, ...]) -> Any:
        return {}, {}


def train(how: str = "well") -> Train:
    return Train({"w": torch.tensor([10.0])}, how)


def one(runtime: Any, request: Request[Any], client: str = "a", timeout_seconds: float | None = None) -> Outcome:
    """Return the one outcome of an exchange with one client."""
    (outcome,) = runtime.exchange(AT, {client: request}, timeout_seconds)
    assert isinstance(outcome, Outcome)
    return outcome
