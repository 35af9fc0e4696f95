"""Batches of many clients side by side: what a task tells of its batches so that a step is taken for all at once.

Every client draws its own batches, from its own random stream, in the order in which it would alone (`draws`); what was
drawn for a step is put side by side (`batch`). Clients take different numbers of steps: those that have no further
batch are not among the `owners` of the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Streams

Evaluated = tuple[dict[str, dict[str, float]], dict[str, int]]


@dataclass(frozen=True, eq=False)
class Placed:
    """How rows of clients lie one below the other, each padded to as many as the largest has.

    Fields:
        sizes: number of rows of each client
        rows:  rows that each takes up
        order: gives which row each row's random bits are drawn for, where a client alone has its rows in another order
    """

    sizes: tuple[int, ...]
    rows: int
    order: Callable[[], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class StackedBatch:
    """One step's batches of some clients side by side.

    Fields:
        graph:   all graphs as one; node j of client k is row k * rows + j
        nodes:   how the nodes lie
        entries: number of stored entries of each client's features; empty when they are dense
        items:   how the examples lie, where they are no nodes: graphs, pairs
        target:  what the task compares scores with, as it knows them
    """

    graph: GraphInput
    nodes: Placed
    entries: tuple[int, ...]
    items: Placed | None
    target: Any

    def streams(self, generators: Sequence[torch.Generator]) -> Streams:
        """Return the clients' random streams for this step."""
        nodes, items = self.nodes, self.items
        found = Streams(lambda: generators, nodes.sizes, nodes.rows, self.entries, nodes.order)
        if items is not None:
            found.items = Streams(lambda: generators, items.sizes, items.rows, (), items.order)
        return found


class BatchStack(ABC):
    """The data of some clients, from which the batches of a step are cut side by side; kept from round to round."""

    @property
    @abstractmethod
    def is_sparse(self) -> bool:
        """Whether features are sparse; in a batch every client then has columns of its own."""

    @abstractmethod
    def per_epoch(self, owner: int) -> int:
        """Return how many batches show a client every training example once."""

    @abstractmethod
    def draws(self, owner: int, generator: torch.Generator) -> Iterator[Any]:
        """Yield what each batch of a client is made of, without end; draws what `Task.batches` would draw."""

    @abstractmethod
    def batch(self, owners: Sequence[int], drawn: Sequence[Any]) -> StackedBatch:
        """Return what some clients have drawn, side by side in this order."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: StackedBatch, streams: Streams) -> Tensor:
        """Return the mean loss of each client's batch, (clients,)."""

    @abstractmethod
    def evaluate(self, model: nn.Module, splits: tuple[str, ...], stacked: bool) -> list[Evaluated]:
        """Return for each client what `Task.evaluate` would; `stacked` says that each has weights of its own.

        Raises NotTogether where they are better evaluated one by one.
        """
