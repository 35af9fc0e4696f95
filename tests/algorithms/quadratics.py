"""Clients whose losses are parabolas, so that a whole course can be worked out with a few lines of arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.core.codec import decode, encode
from isthmus.core.protocol import Algorithm, ModelState, Position, Request
from isthmus.core.record import Params, Record, State
from isthmus.learn.batching import Batching, FullBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.tasks.task import Predictions, Task
from isthmus.testing import ScriptedClients


@dataclass(frozen=True)
class Well:
    """The loss 1/2 curvature (w - bottom)^2 of one number, as a client's data."""

    curvature: float
    bottom: float
    num_examples: int = 1
    num_batches: int = 1  # in an epoch

    @property
    def num_nodes(self) -> int:
        return self.num_examples


class Point(nn.Module):
    """One trained number `w`, and a buffer that every step brings halfway to the client's bottom."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))


@dataclass(frozen=True)
class Descent(Task):
    """Learning where the well is deepest."""

    metrics: tuple[str, ...] = ("loss",)
    known_metrics: ClassVar[tuple[str, ...]] = ("loss",)

    def input_dim(self, data: Well) -> int:
        return 1

    def output_dim(self, data: Well) -> int:
        return 1

    def count(self, data: Well, split: str) -> int:
        return data.num_examples

    def holds(self, data: Well) -> str:
        return "a well"

    def prepare(self, data: Well) -> Well:
        return data

    def batches(self, prepared: Well, batching: Batching, generator: torch.Generator) -> Iterator[Well]:
        while prepared.num_examples:
            yield prepared

    def batches_per_epoch(self, prepared: Well, batching: Batching) -> int:
        return prepared.num_batches

    def loss(self, model: nn.Module, batch: Well, generator: torch.Generator) -> Tensor:
        assert isinstance(model, Point)
        with torch.no_grad():
            model.seen.lerp_(torch.full_like(model.seen, batch.bottom), 0.5)
        return 0.5 * batch.curvature * (model.w - batch.bottom).square().sum()

    def evaluate(self, model: nn.Module, prepared: Well, splits: tuple[str, ...]) -> Any:
        raise NotImplementedError

    def evaluate_groups(self, model: nn.Module, prepared: Any, split: str, groups: Sequence[Tensor]) -> Any:
        raise NotImplementedError

    def predict(self, model: nn.Module, prepared: Any) -> Predictions:
        raise NotImplementedError


START: Params = {"w": torch.tensor([3.0], dtype=torch.float64), "seen": torch.zeros(1, dtype=torch.float64)}


class Wells:
    """A course of some wells: every handler is the algorithm's own, only the loop around it is this one."""

    def __init__(self, algorithm: Algorithm[Any], wells: dict[str, Well]) -> None:
        self.algorithm = algorithm
        self.clients = {n: GraphClient(n, well, Descent(), Point(), FullBatch()) for n, well in wells.items()}
        self.script = ScriptedClients(self._answer, tuple(wells))
        self.round = 0
        self.state: Any = algorithm.setup(self._federation(None))

    def _federation(self, cohort: Sequence[str] | None) -> Any:
        return self.script.federation(START, buffers=("seen",), cohort=cohort, round=self.round)

    def _answer(self, name: str, request: Request[Any]) -> Record:
        client = self.clients[name]
        client.position = Position(0, self.round, 0)
        handler = getattr(self.algorithm, self.algorithm.handlers()[type(request)])
        reply: Record = handler(request, client)
        return reply

    def advance(self, *cohort: str, rounds: int = 1) -> Any:
        """Do rounds with some of the clients, or all, and return the state."""
        for _ in range(rounds):
            self.round += 1
            self.state = self.algorithm.round(self.state, self._federation(cohort or None))
        return self.state

    def restart(self) -> None:
        """Send state and memories through bytes, as a course that is resumed does."""
        self.state = decode(encode(self.state), type(self.algorithm).state_type())
        for client in self.clients.values():
            client.state = decode(encode(client.state), State)

    @property
    def w(self) -> float:
        """The global model's number."""
        assert isinstance(self.state, ModelState)
        return float(self.state.params["w"])

    def memory(self, name: str, entry: str) -> float | None:
        """Return a client's remembered number, if it has one."""
        found = self.clients[name].state.get(entry)
        return None if found is None else float(found["w"])
